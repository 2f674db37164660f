"""An error of the user's own script is exit 2 with its file and line; whatever an outage prints stays exit 3.

The messages are those of pgbench 18 on a real server, two clients each."""

from pathlib import Path

import pytest

from tests.fixtures.tiers import each
from walproof.errors import ExitCode, TargetError
from walproof.load.pgbench import check_workload, invocation
from walproof.load.pgbench_errors import Script, failure
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Protocol, Workload, WorkloadKind
from walproof.model.topology import Endpoint

ABORTED = "client 0 script 0 aborted in command {} query 0: ERROR:  {}"
META = "client 0 aborted in command {} ({}) of script 0; {} of meta-command failed"
UNPREPARED = ABORTED.format(1, 'prepared statement "P_1" does not exist')
SCRIPT = "-- counts\n\\set a random(1, 9)\nSELECT 1;\n\nINSERT INTO k\n  VALUES (:a);\n"
UNIQUE = 'duplicate key value violates unique constraint "k_pkey"'


def told(text: str, *messages: str, sent: str | None = None, name: str = "/home/u/w.sql") -> tuple[int, str]:
    """Exit code and sentence for what pgbench says of each of two clients."""
    printed = "".join(f"pgbench: error: {message}\n" for message in messages for _ in "01")
    error = failure(f"pgbench (18.0)\n{printed}", (("script.sql", Script(name, text, sent or text)),))
    return error.exit_code, error.message


@each([
        (SCRIPT, [ABORTED.format(2, UNIQUE)], 5, UNIQUE),
        (SCRIPT, [ABORTED.format(1, "division by zero")], 3, "division by zero"),
        (SCRIPT, [ABORTED.format(1, "permission denied for table secret")], 3, "permission denied"),
        (SCRIPT, [ABORTED.format(2, 'syntax error at or near ":"') + "\nLINE 1: VALUES (:a)"], 5, 'near ":"'),
        (SCRIPT, ['ERROR:  relation "nix" does not exist\nLINE 1: SELECT', UNPREPARED], 3, '"nix" does not exist'),
        (SCRIPT, ['undefined variable "nope"', META.format(0, "set", "evaluation")], 2, 'undefined variable "nope"'),
        ("\\sleep :u\nSELECT 1;", ['sleep: undefined variable "u"', META.format(0, "sleep", "execution")], 1, '"u"'),
        ("SELECT 1;\nSELECT 2 WHERE false \\gset\nSELECT 3;\n",
         ["client 0 script 0 command 1 query 0: expected one row, got 0"], 2, "expected one row, got 0"),
        ("SELECT 2 AS b \\gset\nSELECT 1\\; SELECT 3;\nSELECT 4;\n", [ABORTED.format(2, "bad")], 3, "bad"),
        ("SELECT 1;\ncopy k from stdin;\n", ["COPY is not supported in pgbench, aborting"], 2, "COPY is not"),
        ("BEGIN;\nSELECT 1;\n",
         ["client 0 aborted: end of script reached without completing the last transaction"], 2, "last transaction"),
        ("SELECT 1;\n\\sett a 1\n",
         ['script.sql:2: invalid command in command "sett"\n\\sett a 1'], 2, "invalid command"),
        ("SELECT 1;\n\\if 1\n", ['condition error in script "/dev/shm/x/script.sql" command 3: \\if without'], 2, "if"),
    ])  # fmt: skip
def test_an_error_of_the_script_is_usage_with_its_line(text: str, messages: list[str], line: int, says: str) -> None:
    code, message = told(text, *messages)
    assert (code, message.startswith(f"the script /home/u/w.sql, line {line}: ")) == (ExitCode.USAGE, True), message
    assert says in message
    assert "client" not in message


@each([
    ["connection to server on socket failed: No such file or directory", "could not create connection for setup"],
    [ABORTED.format(1, "x").replace("ERROR:  x", "FATAL:  terminating connection due to administrator command")],
    [ABORTED.format(1, "x").replace("ERROR:  x", "server closed the connection unexpectedly")],
    [ABORTED.format(1, "x").replace("ERROR:  x", "FATAL:  query_wait_timeout")],
    [ABORTED.format(1, "cannot execute INSERT in a read-only transaction")],
    [ABORTED.format(1, "canceling statement due to statement timeout")],
    [ABORTED.format(1, 'could not extend file "base/5/1": No space left on device')],
    [ABORTED.format(1, 'prepared statement "P_1" does not exist')],
    ["client 0 aborted while rolling back the transaction after an error; perhaps the backend died"],
    [ABORTED.format(2, UNIQUE), "connection to server at 10.0.0.1 failed: FATAL:  the database system is starting"],
    [],
])  # fmt: skip
def test_an_outage_is_never_the_scripts_fault(messages: list[str]) -> None:
    code, message = told(SCRIPT, *messages)
    assert code == ExitCode.ENVIRONMENT, message
    assert message.startswith("pgbench: ")


@each([
    ABORTED.replace("script 0", "script " + "9" * 5000).format(1, "x"),
    ABORTED.format("9" * 5000, "x"),
    META.replace("script 0", "script " + "9" * 5000).format(0, "set", "evaluation"),
    f"script.sql:{'9' * 5000}: x",
])  # fmt: skip
def test_a_server_that_writes_endless_numbers_breaks_nothing(message: str) -> None:
    assert told(SCRIPT, message)[0] == ExitCode.ENVIRONMENT


def test_an_error_of_our_own_script_is_the_targets() -> None:
    assert told(SCRIPT, ABORTED.format(2, UNIQUE), name="")[0] == ExitCode.ENVIRONMENT
    assert isinstance(failure("", ()), TargetError)


@each(Protocol)
def test_the_line_is_the_users_where_the_level_was_put_into_the_script(protocol: Protocol, tmp_path: Path) -> None:
    path = tmp_path / "pay.sql"
    path.write_text("-- pays\nBEGIN;\nSELECT 1;\nSELECT 1/0;\nEND;\n")
    workload = Workload(WorkloadKind.SCRIPT, script=str(path), per_transaction=True, protocol=protocol)
    made = invocation(
        Arm(Level.ON, 1, workload), Endpoint((("n1", 1),)), tmp_path, 1, pgbench=Path("/pgbench"), timeout_s=9
    )
    # Simple sends BEGIN and SET LOCAL as one command.
    number = 2 if protocol is Protocol.SIMPLE else 3
    printed = f"pgbench: error: {ABORTED.format(number, 'division by zero')}\n"
    assert f"{path}, line 4: ERROR:  division" in failure(printed, tuple(made.scripts.items())).message


def test_the_second_script_of_two_is_named(tmp_path: Path) -> None:
    scripts = (("1.sql", Script("a.sql", "SELECT 1;", "SELECT 1;")), ("2.sql", Script("b.sql", SCRIPT, SCRIPT)))
    printed = f"pgbench: error: {ABORTED.format(2, UNIQUE).replace('script 0', 'script 1')}\n"
    assert "the script b.sql, line 5" in failure(printed, scripts).message


def test_a_refused_script_is_called_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "joins.sql"
    path.write_text("SELECT 1\\; SELECT 2;\n")
    with pytest.raises(Exception, match=rf"the script {path} joins statements"):
        check_workload(Workload(WorkloadKind.SCRIPT, script=str(path)))
