"""Files that a stranger wrote: each ends with one clear sentence and exit code 2, or beside others with exit code 4."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.fixtures.command_line import Run, walproof
from tests.fixtures.tiers import each

__all__ = ["walproof"]

CNPG = "apiVersion: postgresql.cnpg.io/v1\nkind: Cluster\n"
ZALANDO = "apiVersion: acid.zalan.do/v1\nkind: postgresql\n"
CRUNCHY = "apiVersion: postgres-operator.crunchydata.com/v1beta1\nkind: PostgresCluster\n"
BOOTSTRAP = "bootstrap:\n  dcs:\n    ttl: 30\n"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)


def texts(name: str, text: str | bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return write


def circle(folder: Path) -> None:
    (folder / "postgresql.conf").write_text("fsync = off\ninclude = 'more.conf'\n")
    (folder / "more.conf").write_text("include 'postgresql.conf'\n")


def itself(folder: Path) -> None:
    (folder / "postgresql.conf").write_text("fsync = off\ninclude = 'postgresql.conf'\n")


def linked(folder: Path) -> None:
    (folder / "secret").write_text("password = x\n")
    (folder / "more.conf").symlink_to(folder / "secret")
    (folder / "postgresql.conf").write_text("include = 'more.conf'\nfsync = off\n")


def piped(folder: Path) -> None:
    os.mkfifo(folder / "patroni.yml")


def to_itself(folder: Path) -> None:
    (folder / "patroni.yml").symlink_to("patroni.yml")


def chained(folder: Path) -> None:
    for number in range(950):
        (folder / f"{number}.conf").write_text(f"include '{number + 1}.conf'\nfsync = off\n")
    (folder / "0.conf").rename(folder / "postgresql.conf")


def to_a_device(folder: Path) -> None:
    (folder / "patroni.yml").symlink_to("/dev/zero")


HOSTILE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "alias-bomb": ("patroni.yml", texts("patroni.yml", BOMB + BOOTSTRAP), "more than 50,000 values"),
    "alias-of-itself": ("patroni.yml", texts("patroni.yml", BOOTSTRAP + "x: &x [*x]\n"), "holds itself"),
    "alias-of-a-mapping": ("patroni.yml", texts("patroni.yml", BOOTSTRAP + "x: &x {y: *x}\n"), "holds itself"),
    "merge-of-itself": ("patroni.yml", texts("patroni.yml", BOOTSTRAP + "x: &x\n  <<: *x\n"), "holds itself"),
    "alias-of-nothing": ("patroni.yml", texts("patroni.yml", BOOTSTRAP + "x: *y\n"), "undefined alias"),
    "deep": ("patroni.yml", texts("patroni.yml", BOOTSTRAP + "x: " + "[" * 100_000), "nest"),
    "deep-mappings": (
        "patroni.yml",
        texts("patroni.yml", BOOTSTRAP + "x: " + "{a: " * 300 + "}" * 300),
        "levels",
    ),
    "ten-megabytes": ("patroni.yml", texts("patroni.yml", BOOTSTRAP + "# x\n" * 2_600_000), "larger than 4 MiB"),
    "binary": ("patroni.yml", texts("patroni.yml", b"\x7fELF\0\0" + BOOTSTRAP.encode()), "binary"),
    "other-encoding": ("patroni.yml", texts("patroni.yml", BOOTSTRAP.encode() + b"# \xe9\xff\n"), "no UTF-8"),
    "control-characters": ("patroni.yml", texts("patroni.yml", BOOTSTRAP + "x: \x1b[2J\n"), "is no YAML"),
    "not-closed": ("patroni.yml", texts("patroni.yml", BOOTSTRAP + "x: [1,\n"), "is no YAML: line"),
    "tabs": ("patroni.yml", texts("patroni.yml", BOOTSTRAP + "x:\n\ty: 1\n"), "is no YAML: line 5"),
    "jinja": ("patroni.yml", texts("patroni.yml", BOOTSTRAP + "x: {{ y }}\n"), "template"),
    "helm": ("c.yaml", texts("c.yaml", "apiVersion: postgresql.cnpg.io/v1\n{{- if .x }}\n"), "template"),
    "ansible": ("p.j2", texts("p.j2", BOOTSTRAP + "{% if x %}\n{% endif %}\n"), "template"),
    "erb": ("p.erb", texts("p.erb", BOOTSTRAP + "x: <%= y %>\n"), "template"),
    "filled-in": ("patroni.yml", texts("patroni.yml", BOOTSTRAP + "    loop_wait: ${LOOP}\n"), "fills in loop_wait"),
    "no-mapping": (
        "c.yaml",
        texts("c.yaml", CNPG + "spec: 3\n"),
        "kinds of",
    ),
    "odd-number": (
        "c.yaml",
        texts("c.yaml", CNPG + "metadata: {name: x}\nspec: {instances: a}\n"),
        "spec.instances",
    ),
    "pipe": ("patroni.yml", piped, "not a regular file"),
    "device": ("patroni.yml", to_a_device, "not a regular file"),
    "link-to-itself": ("patroni.yml", to_itself, "symbolic links"),
    **{
        f"instances-of-{name}": ("c.yaml", texts("c.yaml", text + f"metadata: {{name: x}}\nspec: {spec}\n"), says)
        for name, text, spec, says in (
            ("cnpg", CNPG, "{instances: 10000000000}", "over 100 instances"),
            ("zalando", ZALANDO, "{numberOfInstances: 10000000000}", "over 100 instances"),
            ("crunchy", CRUNCHY, "{instances: [{replicas: 99}, {replicas: 2}]}", "over 100 instances"),
            ("no-number", ZALANDO, "{numberOfInstances: .inf}", "kinds of"),
        )
    },
    "missing": ("nowhere.yml", lambda folder: None, "no such file"),
    "standby-cluster": (
        "patroni.yml",
        texts("patroni.yml", BOOTSTRAP + "    standby_cluster: {host: db-z}\n"),
        "standby cluster",
    ),
}


CFG = "global\n  maxconn 9\ndefaults\n  mode tcp\nlisten primary\n  option httpchk GET /primary\n"
SERVERS = (
    "  default-server check port 8008 on-marked-down shutdown-sessions\n  server a 10.0.0.1:5432\n"
    "  server b 10.0.0.2:5432\n  timeout server 1s\n"
)
TWO = BOOTSTRAP.replace("30", "300") + "---\n"
PARTLY: dict[str, tuple[str, Callable[[Path], None], str, str]] = {
    "circle": (
        "postgresql.conf",
        circle,
        "more.conf:1:1: postgresql.conf, which it includes: it goes round",
        "fsync-off",
    ),
    "circle-of-one": ("postgresql.conf", itself, "postgresql.conf:2:1: postgresql.conf, which", "fsync-off"),
    "include-up": (
        "postgresql.conf",
        texts("postgresql.conf", "include '../../etc/passwd'\nfsync = off\n"),
        "outside",
        "fsync-off",
    ),
    "include-absolute": (
        "postgresql.conf",
        texts("postgresql.conf", "fsync = off\ninclude_dir '/etc'\n"),
        "postgresql.conf:2:1: /etc, which it includes",
        "fsync-off",
    ),
    "include-if-elsewhere": (
        "postgresql.conf",
        texts("postgresql.conf", "include_if_exists '/no/such/x.conf'\nfsync = off\n"),
        "postgresql.conf:1:1: /no/such/x.conf, which it includes: it is outside",
        "fsync-off",
    ),
    "include-a-link": ("postgresql.conf", linked, "more.conf, which it includes", "fsync-off"),
    "include-chain": ("postgresql.conf", chained, "10.conf:1:1: 11.conf, which it includes", "fsync-off"),
    "include-long-name": (
        "postgresql.conf",
        texts("postgresql.conf", f"include_dir '{'x' * 5000}'\nfsync = off\n"),
        "File name too long",
        "fsync-off",
    ),
    "include-missing": (
        "postgresql.conf",
        texts("postgresql.conf", "include 'x.conf'\nfsync = off\n"),
        "No such file",
        "fsync-off",
    ),
    "no-line": (
        "postgresql.conf",
        texts("postgresql.conf", "fsync = off\n= 3\n"),
        "postgresql.conf:2:1: this line",
        "fsync-off",
    ),
    "auto-conf-no-line": (
        "postgresql.conf",
        texts("postgresql.conf", "fsync = off\n!\n"),
        "postgresql.conf:2:1",
        "fsync-off",
    ),
    "pgbouncer-no-line": (
        "p.ini",
        texts("p.ini", "[pgbouncer]\npool_mode\ntcp_keepalive = 0\n"),
        "p.ini:2:1: this line",
        "pgbouncer-waits-for-dead",
    ),
    "pgbouncer-include-up": (
        "p.ini",
        texts("p.ini", "[pgbouncer]\n%include /etc/pgbouncer/x.ini\ntcp_keepalive = 0\n"),
        "p.ini:2:1: /etc/pgbouncer/x.ini, which it includes",
        "pgbouncer-waits-for-dead",
    ),
    "server-alone": (
        "h.cfg",
        texts("h.cfg", CFG + "  server\n" + SERVERS),
        "h.cfg:7:3: server: it has no address",
        "haproxy-cuts-statements",
    ),
    "server-of-a-name": (
        "h.cfg",
        texts("h.cfg", CFG + "  server db-c\n" + SERVERS),
        "h.cfg:7:3: server db-c: it has no address",
        "haproxy-cuts-statements",
    ),
    "server-template-of-none": (
        "h.cfg",
        texts("h.cfg", CFG + "  server-template pg 3\n" + SERVERS),
        "h.cfg:7:3: server-template",
        "haproxy-cuts-statements",
    ),
    "server-template-of-words": (
        "h.cfg",
        texts("h.cfg", CFG + "  server-template pg all db:5432\n" + SERVERS),
        "h.cfg:7:3: server-template",
        "haproxy-cuts-statements",
    ),
    "one-document-is-a-template": (
        "p.yml",
        texts("p.yml", TWO + "loop_wait: {{ x }}\nttl: 30\n"),
        "p.yml:4:1: it is a template",
        "patroni-ttl-long",
    ),
    "one-document-is-conditional": (
        "p.yml",
        texts("p.yml", TWO + "{{- if .x }}\nscope: y\n{{- end }}\n"),
        "p.yml:4:1: it is a template",
        "patroni-ttl-long",
    ),
    "one-document-is-filled-in": (
        "p.yml",
        texts("p.yml", TWO + BOOTSTRAP.replace("30", "'{{ ttl }}'")),
        "another program fills in ttl",
        "patroni-ttl-long",
    ),
    "one-document-is-not-closed": (
        "p.yml",
        texts("p.yml", TWO + "scope: [\n"),
        "p.yml:4:1: it is no YAML: line",
        "patroni-ttl-long",
    ),
}


@each(PARTLY)
def test_what_can_be_read_is_read_and_the_rest_is_named_with_its_line(case: str, walproof: Run, tmp_path: Path) -> None:
    name, make, words, finds = PARTLY[case]
    make(tmp_path)
    code, out, err = walproof("doctor", name)
    assert code == 1, out + err
    assert words in out
    assert f"[{finds}]" in out
    assert len([line for line in out.splitlines() if line.startswith("not read: ")]) == 1, out


@pytest.mark.parametrize("case", ["include-up", "server-alone", "one-document-is-a-template", "pgbouncer-no-line"])
@pytest.mark.parametrize("shape", ["sarif", "junit", "github", "json"])
def test_what_was_not_read_is_in_every_format(case: str, shape: str, walproof: Run, tmp_path: Path) -> None:
    name, make, words, _ = PARTLY[case]
    make(tmp_path)
    out = walproof("doctor", "--format", shape, name)[1]
    if shape == "sarif":
        notes = json.loads(out)["runs"][0]["invocations"][0]["toolExecutionNotifications"]
        (note,) = [one for one in notes if one["level"] == "warning"]
        assert words in note["message"]["text"].replace("not read: ", "")
        where = note["locations"][0]["physicalLocation"]
        assert where["artifactLocation"]["uri"] == name
        assert where["region"]["startLine"] >= 1
    elif shape == "junit":
        (suite,) = ElementTree.fromstring(out.split("\n", 1)[1]).findall("testsuite[@name='Files']")
        (skipped,) = suite.findall("testcase/skipped")
        assert words.split(": ")[-1] in skipped.get("message", "")
        assert (suite.get("skipped"), suite.get("tests")) == ("1", "1")
    elif shape == "github":
        (line,) = [one for one in out.splitlines() if "title=not read" in one]
        assert line.startswith(f"::warning file={name},line=")
    else:
        assert any(words in f"{at}: {why}" for at, why in json.loads(out)["not_read"].items())


@pytest.mark.parametrize("shape", ["junit", "text", "github"])
@pytest.mark.parametrize(("name", "text"), [
    ("p.ini", "[databases]\na\x1b[2Jb = host=x,y\n[pgbouncer]\n"),
    ("h.cfg", CFG.replace("primary", "pg\x1b[2J") + SERVERS),
    ("postgresql.conf", "synchronous_standby_names = 'ANY 1 (\"a\x1b[2J\")'\n\x1b[2J = 1 = 2\n"),
    ("a.env", "A=postgresql://db\x1b[2J,db-b/x\n"),
])  # fmt: skip
def test_no_control_character_reaches_a_terminal_or_breaks_a_report(
    name: str, text: str, shape: str, walproof: Run, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    out = walproof("doctor", "--format", shape, name)[1]
    assert "\x1b" not in out
    if shape == "junit":
        assert ElementTree.fromstring(out.split("\n", 1)[1]).findall("testsuite")


HUGE = "9" * 400


@each(
    [
        ("postgresql.conf", f"fsync = off\nmax_connections = {HUGE}\n"),
        ("postgresql.conf", f"fsync = off\nstatement_timeout = {HUGE}.{HUGE}min\n"),
        ("h.cfg", CFG + SERVERS.replace("check port", f"check inter {HUGE} fall {HUGE} port")),
        ("h.cfg", CFG + SERVERS.replace("1s", "1s\n  timeout server " + HUGE)),
    ]
)
def test_a_number_of_hundreds_of_digits_is_no_error(name: str, text: str, walproof: Run, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    code, _, err = walproof("doctor", name)
    assert code in (0, 1), err


def test_texts_within_texts_end_at_the_first(walproof: Run, tmp_path: Path) -> None:
    text = BOOTSTRAP
    for _ in range(350):
        text = "kind: ConfigMap\ndata:\n a.yml: |\n" + "".join(f"  {line}\n" for line in text.splitlines())
    (tmp_path / "c.yaml").write_text(text)
    assert walproof("doctor", "c.yaml")[0] == 2


def test_a_file_that_was_named_too_is_included_from_anywhere(walproof: Run, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "db").mkdir()
    (tmp_path / "shared" / "all.conf").write_text("fsync = off\n")
    (tmp_path / "db" / "postgresql.conf").write_text("include '../shared/all.conf'\n")
    code, out, _ = walproof("doctor", "db/postgresql.conf", "shared/all.conf")
    assert code == 1
    assert "shared/all.conf:1:1" in out
    assert "not read" not in out
    assert out.count("[fsync-off]") == 1


def test_two_files_may_include_the_same_one(walproof: Run, tmp_path: Path) -> None:
    (tmp_path / "common.conf").write_text("wal_sender_timeout = 0\n")
    for name in ("postgresql-a.conf", "postgresql-b.conf"):
        (tmp_path / name).write_text("include 'common.conf'\ninclude 'common.conf'\n")
    out = walproof("doctor", "--json", ".")[1]
    assert json.loads(out)["not_read"] == {}
    assert out.count('"sender-timeout-off"') == 2


@pytest.mark.parametrize("text", ["\n" * 300_000, "---\n" * 80_000, "host=a " * 50_000, "host=a dbname=b " * 9000])
@pytest.mark.parametrize("ending", ["yml", "env"])
def test_a_text_made_to_be_slow_is_read_in_time_of_its_length(
    text: str, ending: str, walproof: Run, tmp_path: Path
) -> None:
    """What takes the square of the length would end with the limit of a test, after minutes."""
    (tmp_path / f"x.{ending}").write_text(text + "\n---\nscope: x\n")
    assert "Traceback" not in walproof("doctor", f"x.{ending}")[2]


@each(HOSTILE)
def test_a_hostile_file_is_one_sentence(case: str, walproof: Run, tmp_path: Path) -> None:
    name, make, words = HOSTILE[case]
    make(tmp_path)
    code, out, err = walproof("doctor", name)
    lines = err.strip().splitlines()
    assert (code, out) == (2, ""), err
    assert len(lines) == 2, err
    assert words in lines[0], err
    assert "\x1b" not in err


@each(HOSTILE)
def test_beside_a_sound_file_it_is_named_and_leaves_the_verdict_open(case: str, walproof: Run, tmp_path: Path) -> None:
    name, make, words = HOSTILE[case]
    make(tmp_path)
    (tmp_path / "cluster.yaml").write_text(
        "apiVersion: postgresql.cnpg.io/v1\nkind: Cluster\nmetadata: {name: shop}\nspec:\n  instances: 3\n"
        "  postgresql: {synchronous: {method: any, number: 1}}\n"
    )
    code, out, err = walproof("doctor", name, "cluster.yaml")
    assert code == 4, out + err
    assert words in out
    assert "nothing found" in out


def test_links_are_named_and_hidden_files_of_a_folder_are_left_alone(walproof: Run, tmp_path: Path) -> None:
    (tmp_path / "d" / ".git").mkdir(parents=True)
    (tmp_path / "d" / ".git" / "patroni.yml").write_text(BOOTSTRAP)
    (tmp_path / "d" / ".patroni.yml").write_text(BOOTSTRAP)
    (tmp_path / "outside.yml").write_text(BOOTSTRAP)
    (tmp_path / "d" / "linked.yml").symlink_to(tmp_path / "outside.yml")
    (tmp_path / "d" / "loop").symlink_to(tmp_path / "d")
    code, _, err = walproof("doctor", "d")
    assert (code, err.splitlines()[0].partition(",")[0]) == (2, "walproof: d/linked.yml: it is a link")


@each(["patroni.yml --target sim", "patroni.yml --lab lab", "patroni.yml --json --format sarif"])
def test_what_cannot_be_asked_together_is_refused(typed: str, walproof: Run, tmp_path: Path) -> None:
    (tmp_path / "patroni.yml").write_text(BOOTSTRAP)
    assert walproof("doctor", "patroni.yml", *typed.split())[0] == 2
