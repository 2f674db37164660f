"""What to run for one sample: pgbench's argument list and the scripts it needs. Pure.

The level goes into the session (libpq's `options`). Through a transaction pool, and where levels are mixed, it goes
into each transaction instead (SET LOCAL), because sessions are shared by clients there.
"""

import os
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from walproof.errors import UsageError
from walproof.model.guarantee import Level
from walproof.model.plan import Arm, Workload, WorkloadKind
from walproof.model.topology import Endpoint

APPLICATION = "walproof-load"
_SCRIPTS = files("walproof.load.scripts")
_BUILT_IN = (WorkloadKind.TPCB_LIKE, WorkloadKind.SIMPLE_UPDATE, WorkloadKind.SELECT_ONLY)
_WEIGHTS = 10_000
"""pgbench's weights are integers: shares are given in hundredths of a percent."""
_BEGIN = re.compile(r"^\s*(BEGIN|START\s+TRANSACTION)\b[^;]*;[ \t]*$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Invocation:
    """pgbench as it is to be started: arguments, scripts by file name (to be written beforehand), and its class names.

    `levels` names the level of each script number in the log; empty when there is no mix.
    """

    argv: tuple[str, ...]
    scripts: dict[str, str]
    levels: tuple[Level, ...] = ()


def threads(clients: int) -> int:
    """How many threads: one per four processors, since the server needs the others."""
    return max(1, min(clients, (os.cpu_count() or 1) // 4))


def script_of(workload: Workload) -> str:
    """The transaction's text; UsageError when the user's script cannot be read or is empty."""
    if workload.kind is not WorkloadKind.SCRIPT:
        return (_SCRIPTS / f"{workload.kind}.sql").read_text(encoding="utf-8")
    if workload.script is None:
        raise UsageError("the workload is a script, but none is named", "write --script FILE.sql")
    try:
        text = Path(workload.script).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the script {workload.script} cannot be read: {error}", "name a pgbench script") from None
    if not any(line.strip() and not line.lstrip().startswith(("--", "\\")) for line in text.splitlines()):
        raise UsageError(f"the script {workload.script} holds no SQL", "see pgbench's manual, Custom Scripts")
    return text


def with_level(script: str, level: Level, *, combined: bool) -> str:
    r"""The script with its transactions at that level by SET LOCAL.

    A script without BEGIN becomes one transaction. `combined` sends BEGIN and SET LOCAL together, which only the
    simple protocol can: one round trip less.

    >>> print(with_level("INSERT INTO t VALUES (1);", Level.ON, combined=True))
    BEGIN\;SET LOCAL synchronous_commit TO on;
    INSERT INTO t VALUES (1);
    END;
    """
    opening = f"BEGIN{chr(92)};" if combined else "BEGIN;\n"
    opening += f"SET LOCAL synchronous_commit TO {level};"
    if _BEGIN.search(script):
        return _BEGIN.sub(lambda _: opening, script)
    lines = script.rstrip().splitlines()
    first = next(i for i, line in enumerate(lines) if line.strip() and not line.lstrip().startswith(("--", "\\")))
    return "\n".join([*lines[:first], opening, *lines[first:], "END;"])


def session_options(arm: Arm, *, pooled: bool) -> str:
    """What the session starts with; empty where the level goes into the transaction."""
    return "" if pooled or arm.mix else f"-c synchronous_commit={arm.level}"


def invocation(
    arm: Arm, endpoint: Endpoint, directory: Path, seed: int, *, pgbench: Path, timeout_s: int
) -> Invocation:
    """How to start pgbench for that arm; per-transaction logs go to `directory`/log.PID…

    The caller ends it by SIGALRM after the wanted time, which pgbench takes for the end of -T: so a sample may last a
    fraction of a second longer than connecting takes. `timeout_s` is the -T that ends it in any case.
    """
    pooled = endpoint.pooled
    options = session_options(arm, pooled=pooled)
    more = {"application_name": APPLICATION, "gssencmode": "disable", **({"options": options} if options else {})}
    argv = [str(pgbench), "-n", "-M", "simple" if pooled else "prepared", "-c", str(arm.clients)]
    argv += ["-j", str(threads(arm.clients)), "-T", str(timeout_s), "--random-seed", str(seed % (1 << 31))]
    argv += ["-l", f"--log-prefix={directory / 'log'}"]
    argv += ["-R", f"{arm.rate:g}"] if arm.rate is not None else []
    given, scripts, levels = _work(arm, directory, pooled=pooled)
    return Invocation((*argv, *given, endpoint.conninfo(**more)), scripts, levels)


def _work(arm: Arm, directory: Path, *, pooled: bool) -> tuple[list[str], dict[str, str], tuple[Level, ...]]:
    """Arguments for what to run, scripts, and levels by script number."""
    workload = arm.workload
    if workload.kind in _BUILT_IN and not pooled and not arm.mix:
        return ["-b", str(workload.kind)], {}, ()
    given = ["-s", str(workload.scale), "-D", f"rows={workload.rows}"]
    text = script_of(workload)
    if arm.mix:
        total = sum(weight for _, weight in arm.mix)
        scripts = {f"{level}.sql": with_level(text, level, combined=pooled) for level, _ in arm.mix}
        for level, weight in arm.mix:
            given += ["-f", f"{directory / f'{level}.sql'}@{max(1, round(_WEIGHTS * weight / total))}"]
        return given, scripts, tuple(level for level, _ in arm.mix)
    if pooled:
        text = with_level(text, arm.level, combined=True)
    return [*given, "-f", str(directory / "script.sql")], {"script.sql": text}, ()
