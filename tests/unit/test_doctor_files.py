"""The doctor on configuration files: each finding at its line, nothing else, and nothing on sound files.

A line of tests/fixtures/files ends with `# ! CHECK…` where an expert finds something; every file is written after real
ones (docs/field-cases.md), with neutral names."""

import json
import re
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fixtures.command_line import Run, walproof
from tests.fixtures.tiers import each
from walproof.advising.doctor.catalogue import CATALOGUE

__all__ = ["walproof"]

FILES = Path(__file__).parents[1] / "fixtures" / "files"
KINDS = ("patroni", "cnpg", "operators", "postgres", "access")
ALONE = [path for kind in KINDS for path in sorted((FILES / kind).iterdir())]
TOGETHER = sorted((FILES / "together").iterdir())
SOUND = sorted((FILES / "sound").iterdir())
_MARK = re.compile(r"[#;] ! (.*)$")
# pgbouncer.ini and pg_service.conf have no comments after a value.
MARKS_OF = {
    "pgbouncer-queue.ini": {(4, "pgbouncer-waits-for-dead")},
    "connections.ini": {(1, "pgbouncer-keeps-server")},
    "pg_service.conf": {(3, "client-any-host"), (3, "client-waits-for-dead")},
    "pgbouncer-keeps.ini": {
        (5, "pgbouncer-keeps-server"), (6, "pgbouncer-keeps-server"),
        (7, "pgbouncer-waits-for-dead"), (8, "pgbouncer-waits-for-dead"),
    },
}  # fmt: skip


def below(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def marked(path: Path) -> list[tuple[str, int, str]]:
    """File, line and check of each mark."""
    made = []
    for file in below(path):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if mark := _MARK.search(line):
                made += [(str(file), number, check) for check in mark[1].split()]
        made += [(str(file), number, check) for number, check in MARKS_OF.get(file.name, ())]
    return sorted(made)


def found(walproof: Run, *words: str) -> tuple[int, list[tuple[str, int, str]], list[dict[str, str]], set[str]]:
    """The exit code, each finding's file, line and check, what was not checked in each cluster, and severities."""
    code, out, err = walproof("doctor", "--json", *words)
    assert "Traceback" not in err
    assert out, err
    clusters = json.loads(out)["clusters"]
    findings = [f for cluster in clusters for f in cluster["findings"]]
    places = [(f["place"]["file"], f["place"]["line"], f["id"]) for f in findings]
    return code, sorted(places), [cluster["not_checked"] for cluster in clusters], {f["severity"] for f in findings}


def names(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


@each([*ALONE, *TOGETHER])
def test_what_an_expert_finds_is_found_at_its_line_and_nothing_else(path: Path, walproof: Run) -> None:
    code, places, _, severities = found(walproof, str(path))
    assert places == marked(path)
    assert code == int(bool(severities - {"note"}))


@each(SOUND)
def test_nothing_is_found_in_sound_files(path: Path, walproof: Run) -> None:
    code, places, unchecked, _ = found(walproof, str(path))
    assert (code, places) == (0, [])
    assert all(reason for one in unchecked for reason in one.values())


def test_there_are_sixty_files_with_something_to_find() -> None:
    assert len([file for path in (*ALONE, *TOGETHER) for file in below(path) if marked(file)]) >= 60


UNSAFE = FILES / "postgres" / "unsafe.conf"
WARNS = FILES / "patroni" / "ttl-two-minutes.yml"


@each([("sarif", '"startLine": 10'), ("github", "line=10,"), ("junit", ":10:5")])
def test_the_format_has_the_place_of_each_finding(shape: str, word: str, walproof: Run) -> None:
    """doctor --format."""
    code, out, _ = walproof("doctor", "--format", shape, str(WARNS))
    assert code == 1
    assert word in out
    assert "patroni-ttl-long" in out


def test_what_makes_the_exit_code_1_can_be_chosen(walproof: Run) -> None:
    """doctor --fail-on."""
    assert walproof("doctor", "--fail-on", "error", str(WARNS))[0] == 0
    assert walproof("doctor", "--fail-on", "warning", str(WARNS))[0] == 1
    assert walproof("doctor", "--fail-on", "error", str(UNSAFE))[0] == 1


def test_a_check_is_explained(walproof: Run) -> None:
    """doctor --explain."""
    code, out, _ = walproof("doctor", "--explain", "patroni-not-strict")
    assert code == 0
    for word in ("https://github.com/patroni/patroni/issues/2525", "--pitfall P5", "edit-config"):
        assert word in out
    assert walproof("doctor", "--explain", "no-such-check")[0] == 2


@each([
    ('check = "patroni-ttl-long"\nreason = "slow DCS"\nuntil = 2999-01-01', 0, "slow DCS (until 2999-01-01)"),
    ('check = "patroni-ttl-long"\nreason = "slow DCS"\nuntil = 2020-01-01', 1, "accepted until 2020-01-01"),
    ('check = "patroni-ttl-long"\nfile = "*two-min*"\nreason = "x"\nuntil = 2999-01-01', 0, "(until"),
    ('check = "patroni-ttl-long"\nfile = "other.yml"\nreason = "x"\nuntil = 2999-01-01', 1, "patroni-ttl-long"),
    ('check = "level-off"\nreason = "x"\nuntil = 2999-01-01', 1, "patroni-ttl-long"),
    ('check = "no-such"\nreason = "x"\nuntil = 2999-01-01', 2, "names no check"),
    ('check = "level-off"\nreason = " "\nuntil = 2999-01-01', 2, "accept.1.reason"),
    ('check = "level-off"\nreason = "x"\nuntil = "2999-01-01"', 2, "accept.1.until"),
    ('check = "level-off"\nreason = "x"', 2, "accept.1.until"),
    ('colour = "red"', 2, "accept.1."),
    ("check = [", 2, "cannot be read"),
])  # fmt: skip
def test_a_finding_is_accepted_with_a_reason_until_a_day(
    entry: str, code: int, says: str, walproof: Run, tmp_path: Path
) -> None:
    (tmp_path / ".walproof.toml").write_text(f"[[accept]]\n{entry}\n")
    ended, out, err = walproof("doctor", str(WARNS))
    assert ended == code, err
    assert says in out + err


def test_sarif_has_what_the_standard_requires(walproof: Run, tmp_path: Path) -> None:
    """Objects and properties of SARIF 2.1.0 (OASIS, sections 3.13 to 3.58); relative addresses, positions from 1."""
    (tmp_path / ".walproof.toml").write_text('[[accept]]\ncheck = "fsync-off"\nreason = "a test"\nuntil = 2999-01-01\n')
    text = walproof("doctor", "--format", "sarif", str(UNSAFE), str(WARNS))[1]
    log = json.loads(text)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    rules = driver["rules"]
    assert all(rule["id"] and rule["shortDescription"]["text"] for rule in rules)
    assert run["results"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        for location in result["locations"]:
            where = location["physicalLocation"]
            assert where["artifactLocation"]["uri"]
            assert where["region"]["startLine"] >= 1
            assert where["region"]["startColumn"] >= 1
        for one in result["suppressions"]:
            assert one["kind"] in ("inSource", "external")
    assert [r["ruleId"] for r in run["results"] if r["suppressions"]] == ["fsync-off"]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is True
    ids = {rule["id"] for rule in rules}
    notes = invocation["toolExecutionNotifications"]
    assert all(note["message"]["text"] and note["associatedRule"]["id"] in ids for note in notes)


def test_standard_input_globs_and_folders_are_read(
    walproof: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.yml").write_text(WARNS.read_text())
    for typed in ("a", "a/*.yml", "**/*.yml", "a/one.yml"):
        assert found(walproof, typed)[1] == [("a/one.yml", 10, "patroni-ttl-long")]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=BytesIO(WARNS.read_bytes())))
    assert found(walproof, "-")[1] == [("standard input", 10, "patroni-ttl-long")]


def test_every_check_runs_on_some_file_or_says_why_it_cannot(walproof: Run) -> None:
    ran = {f for path in (*ALONE, *TOGETHER) for _, _, f in marked(path)}
    never = {check.id for check in CATALOGUE if check.files.startswith("live: ")}
    sound = {
        check
        for path in SOUND
        for one in found(walproof, str(path))[2]
        for check in {c.id for c in CATALOGUE} - set(one)
    }
    assert {check.id for check in CATALOGUE} - ran - never - sound == set()
    assert not ran & never


HAPROXY = "global\n  maxconn 9\ndefaults\n  mode tcp\n"
PROXY = "listen primary\n  server a 10.0.0.1:5432 check\n  server b 10.0.0.2:5432 check\n"
OTHERS = {
    "mysql.cfg": HAPROXY + "listen primary\n  server a 10.0.0.1:3306 check\n  server b 10.0.0.2:3306 check\n",
    "redis.cfg": HAPROXY + "backend master\n  option tcp-check\n  tcp-check expect string role:master\n"
    "  server a 10.0.0.1:6379 check\n  server b 10.0.0.2:6379 check\n",
    "web.cfg": HAPROXY + "backend replica_web\n  mode http\n  option httpchk GET /health\n"
    "  server a 10.0.0.1:80 check\n  server b 10.0.0.2:80 check\n",
    "my.conf": "[mysqld]\nmax_connections = 100\n",
    "nginx.conf": "events {\n  worker_connections 1024;\n}\n",
    "app.conf": "fsync_interval = 3\nname = x\n",
    "deploy.yaml": "apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: 1}\n",
    "values.yaml": "image: {{ .x }}\n",
}


@each(OTHERS)
def test_files_of_other_programs_are_left_alone(name: str, walproof: Run, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / name).write_text(OTHERS[name])
    (tmp_path / "d" / "patroni.yml").write_text(WARNS.read_text())
    code, places, _, _ = found(walproof, "d")
    assert (code, places) == (1, [("d/patroni.yml", 10, "patroni-ttl-long")])
    assert json.loads(walproof("doctor", "--json", "d")[1])["not_read"] == {}


HEAD = "scope: shop\nname: db-a\nrestapi: {listen: 0.0.0.0:8008}\n"
TWICE = {
    "p.yml": (HEAD + "bootstrap:\n  dcs:\n    synchronous_mode: false\n  dcs:\n    loop_wait: 10\n", 7,
     "patroni-asynchronous"),
    "r.yml": (HEAD + "bootstrap:\n  dcs:\n    failsafe_mode: off\n  dcs:\n    loop_wait: 10\n", 7,
     "patroni-failsafe-off"),
    "s.yml": (HEAD + "bootstrap:\n  dcs:\n    postgresql:\n      use_pg_rewind: true\n    postgresql:\n", 5,
     "patroni-no-rewind"),
    "q.yml": (HEAD + "x: &x {ttl: 300}\nbootstrap:\n  dcs:\n    <<: [*x, {loop_wait: 10}]\n", 4, "patroni-ttl-long"),
    "p.ini": ("tcp_keepalive = 0\n[pgbouncer]\ntcp_keepalive = 0\n", 3, "pgbouncer-waits-for-dead"),
    "p.conf": ("fsync = on\nfsync = off\n", 2, "fsync-off"),
}  # fmt: skip


@each(TWICE)
def test_the_place_is_of_what_is_in_effect(name: str, walproof: Run, tmp_path: Path) -> None:
    text, line, check = TWICE[name]
    (tmp_path / name).write_text(text)
    assert (name, line, check) in found(walproof, name)[1]


def test_standby_names_set_by_hand_are_said_to_be_set_in_their_file(walproof: Run) -> None:
    path = FILES / "patroni" / "names-star-by-hand.yml"
    (cluster,) = json.loads(walproof("doctor", "--json", str(path))[1])["clusters"]
    assert [f["where"] for f in cluster["findings"] if f["id"] == "names-star"] == [f"{path}:15"]


WAITS = {
    "never": "postgresql://db-a/x?connect_timeout=0&tcp_user_timeout=5000",
    "negative": "postgresql://db-a/x?connect_timeout=-1&tcp_user_timeout=5000",
    "empty": "postgresql://db-a/x?connect_timeout=&tcp_user_timeout=5000",
    "in zeros": "host=db-a connect_timeout=3 tcp_user_timeout=00 dbname=x",
    "of JDBC": "jdbc:postgresql://db-a/x?socketTimeout=-1",
}


@each(WAITS)
def test_a_timeout_that_is_no_limit_is_none(name: str, walproof: Run, tmp_path: Path) -> None:
    """libpq waits for ever at zero, a negative number or nothing (fe-connect.c), JDBC at no number above zero."""
    (tmp_path / "a.env").write_text(f"A_URL={WAITS[name]}\n")
    assert found(walproof, "a.env")[1] == [("a.env", 1, "client-waits-for-dead")]


IN_A_CONFIG_MAP = [
    "{}: postgresql://db-a,db-b/x",
    "{}: host=db-a,db-b dbname=x",
    "{}: |\n    x=jdbc:postgresql://db-a,db-b/x",
]


@pytest.mark.parametrize("value", IN_A_CONFIG_MAP)
@pytest.mark.parametrize("key", ["DATABASE_URL", "app.properties", "job.env"])
def test_a_connection_string_of_a_config_map_is_found_once(key: str, value: str, walproof: Run, tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: app}\ndata:\n  PGDATABASE: PGHOST\n  " + value.format(key)
    (tmp_path / "c.yaml").write_text(text + "\n")
    checks = [check for _, _, check in found(walproof, "c.yaml")[1]]
    assert checks == ["client-any-host", "client-waits-for-dead"]


SAME_LINE = {
    "a.env": ("A_URL=postgresql://db-a,db-b/x\n", "A_URL=postgresql://db-c,db-d/x\n", "client-any-host"),
    "a.properties": ("x.url=jdbc:postgresql://db-a,db-b/x\n", "x.url=jdbc:postgresql://db-c/x\n",
     "client-waits-for-dead"),
    "b.env": ("PGHOST=db-a,db-b\n", "PGHOST=db-a,db-b\n", "client-any-host"),
    "a.ini": ("[pgbouncer]\ntcp_keepalive = 0\n", "[pgbouncer]\n\ntcp_keepalive = 0\n", "pgbouncer-waits-for-dead"),
    "a.cfg": (HAPROXY + PROXY, HAPROXY + "\n" + PROXY, "haproxy-asks-no-role"),
}  # fmt: skip


@each(SAME_LINE)
def test_each_of_two_files_has_its_own_findings(name: str, walproof: Run, tmp_path: Path) -> None:
    *texts, check = SAME_LINE[name]
    (tmp_path / "d").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "d" / f"{number}-{name}").write_text(text)
    files = [file for file, _, found_there in found(walproof, "d")[1] if found_there == check]
    assert files == [f"d/0-{name}", f"d/1-{name}"]


IN_NAMESPACE = {
    "Pooler": "apiVersion: postgresql.cnpg.io/v1\nkind: Pooler\nspec: {cluster: {name: shop}, instances: 1}\n",
    "Service": "apiVersion: v1\nkind: Service\nspec: {selector: {cnpg.io/cluster: shop, cnpg.io/podRole: instance}}\n",
}


@each([("Pooler", "a", 1), ("Pooler", "c", 1), ("Pooler", "", 2), ("Service", "b", 1), ("Service", "c", 0)])
def test_clusters_of_one_name_have_each_what_is_in_their_namespace(
    kind: str, namespace: str, times: int, walproof: Run, tmp_path: Path
) -> None:
    """What names no namespace is applied to any; a pooler of no cluster here stands for itself."""
    where = f"metadata: {{name: shop-x{f', namespace: {namespace}' if namespace else ''}}}\n"
    text = (FILES / "cnpg" / "service-of-all.yaml").read_text().partition("---")[0]
    clusters = [text.replace("name: shop", f"name: shop\n  namespace: {one}") for one in ("a", "b")]
    (tmp_path / "c.yaml").write_text("---\n".join((*clusters, IN_NAMESPACE[kind] + where)))
    check = {"Pooler": "pooler-alone", "Service": "cnpg-service-of-all"}[kind]
    assert [one for _, _, one in found(walproof, "c.yaml")[1]] == [check] * times
