"""Files that a stranger wrote: each ends with one clear sentence and exit code 2, or beside others with exit code 4."""

import json
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

from tests.fixtures.command_line import Run, walproof
from tests.fixtures.tiers import each

__all__ = ["walproof"]

Made = str | bytes | Callable[[Path], object]
SHAPES = ("sarif", "junit", "github", "json")
CNPG = "apiVersion: postgresql.cnpg.io/v1\nkind: Cluster\n"
ZALANDO = "apiVersion: acid.zalan.do/v1\nkind: postgresql\n"
CRUNCHY = "apiVersion: postgres-operator.crunchydata.com/v1beta1\nkind: PostgresCluster\n"
BOOTSTRAP = "bootstrap:\n  dcs:\n    ttl: 30\n"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)


def put(folder: Path, name: str, made: Made) -> None:
    """A file of that text, or what a function makes of the folder."""
    if callable(made):
        made(folder)
    else:
        (folder / name).write_bytes(made if isinstance(made, bytes) else made.encode())


def circle(folder: Path) -> None:
    put(folder, "postgresql.conf", "fsync = off\ninclude = 'more.conf'\n")
    put(folder, "more.conf", "include 'postgresql.conf'\n")


def linked(folder: Path) -> None:
    put(folder, "secret", "password = x\n")
    (folder / "more.conf").symlink_to(folder / "secret")
    put(folder, "postgresql.conf", "include = 'more.conf'\nfsync = off\n")


def chained(folder: Path) -> None:
    for number in range(950):
        put(folder, f"{number}.conf", f"include '{number + 1}.conf'\nfsync = off\n")
    (folder / "0.conf").rename(folder / "postgresql.conf")


OF = "metadata: {name: x}\nspec: "
# the file, its text or what makes it, what the sentence says
HOSTILE: dict[str, tuple[str, Made, str]] = {
    "alias-bomb": ("patroni.yml", BOMB + BOOTSTRAP, "more than 50,000 values"),
    "alias-of-itself": ("patroni.yml", BOOTSTRAP + "x: &x [*x]\n", "holds itself"),
    "alias-of-a-mapping": ("patroni.yml", BOOTSTRAP + "x: &x {y: *x}\n", "holds itself"),
    "merge-of-itself": ("patroni.yml", BOOTSTRAP + "x: &x\n  <<: *x\n", "holds itself"),
    "alias-of-nothing": ("patroni.yml", BOOTSTRAP + "x: *y\n", "undefined alias"),
    "deep": ("patroni.yml", BOOTSTRAP + "x: " + "[" * 100_000, "nest"),
    "deep-mappings": ("patroni.yml", BOOTSTRAP + "x: " + "{a: " * 300 + "}" * 300, "levels"),
    "ten-megabytes": ("patroni.yml", BOOTSTRAP + "# x\n" * 2_600_000, "larger than 4 MiB"),
    "binary": ("patroni.yml", b"\x7fELF\0\0" + BOOTSTRAP.encode(), "binary"),
    "other-encoding": ("patroni.yml", BOOTSTRAP.encode() + b"# \xe9\xff\n", "no UTF-8"),
    "control-characters": ("patroni.yml", BOOTSTRAP + "x: \x1b[2J\n", "is no YAML"),
    "not-closed": ("patroni.yml", BOOTSTRAP + "x: [1,\n", "is no YAML: line"),
    "tabs": ("patroni.yml", BOOTSTRAP + "x:\n\ty: 1\n", "is no YAML: line 5"),
    "jinja": ("patroni.yml", BOOTSTRAP + "x: {{ y }}\n", "template"),
    "helm": ("c.yaml", "apiVersion: postgresql.cnpg.io/v1\n{{- if .x }}\n", "template"),
    "ansible": ("p.j2", BOOTSTRAP + "{% if x %}\n{% endif %}\n", "template"),
    "erb": ("p.erb", BOOTSTRAP + "x: <%= y %>\n", "template"),
    "filled-in": ("patroni.yml", BOOTSTRAP + "    loop_wait: ${LOOP}\n", "fills in loop_wait"),
    "no-mapping": ("c.yaml", CNPG + "spec: 3\n", "kinds of"),
    "odd-number": ("c.yaml", CNPG + OF + "{instances: a}\n", "spec.instances"),
    "pipe": ("patroni.yml", lambda folder: os.mkfifo(folder / "patroni.yml"), "not a regular file"),
    "device": ("patroni.yml", lambda folder: (folder / "patroni.yml").symlink_to("/dev/zero"), "not a regular file"),
    "link-to-itself": ("p.yml", lambda folder: (folder / "p.yml").symlink_to("p.yml"), "symbolic links"),
    "instances-of-cnpg": ("c.yaml", CNPG + OF + "{instances: 10000000000}\n", "over 100 instances"),
    "instances-of-zalando": ("c.yaml", ZALANDO + OF + "{numberOfInstances: 10000000000}\n", "over 100 instances"),
    "instances-of-crunchy": (
        "c.yaml", CRUNCHY + OF + "{instances: [{replicas: 99}, {replicas: 2}]}\n", "over 100 instances"),
    "instances-of-no-number": ("c.yaml", ZALANDO + OF + "{numberOfInstances: .inf}\n", "kinds of"),
    "missing": ("nowhere.yml", lambda folder: None, "no such file"),
    "standby-cluster": ("patroni.yml", BOOTSTRAP + "    standby_cluster: {host: db-z}\n", "standby cluster"),
}  # fmt: skip
SOUND = CNPG + "metadata: {name: shop}\nspec: {instances: 3, postgresql: {synchronous: {method: any, number: 1}}}\n"
CFG = "global\n  maxconn 9\ndefaults\n  mode tcp\nlisten primary\n  option httpchk GET /primary\n"
SERVERS = (
    "  default-server check port 8008 on-marked-down shutdown-sessions\n  server a 10.0.0.1:5432\n"
    "  server b 10.0.0.2:5432\n  timeout server 1s\n"
)
TWO = BOOTSTRAP.replace("30", "300") + "---\n"
CONF, OFF, INI, HAPROXY = "postgresql.conf", "fsync = off\n", "pgbouncer-waits-for-dead", "haproxy-cuts-statements"
LONG = "patroni-ttl-long"
# the file, its text or what makes it, what is said of the rest, what is found in what could be read
PARTLY: dict[str, tuple[str, Made, str, str]] = {
    "circle": (CONF, circle, "more.conf:1:1: postgresql.conf, which it includes: it goes round", "fsync-off"),
    "circle-of-one": (CONF, f"{OFF}include = '{CONF}'\n", "postgresql.conf:2:1: postgresql.conf, which", "fsync-off"),
    "include-up": (CONF, f"include '../../etc/passwd'\n{OFF}", "outside", "fsync-off"),
    "include-absolute": (CONF, f"{OFF}include_dir '/etc'\n", f"{CONF}:2:1: /etc, which it includes", "fsync-off"),
    "include-if-elsewhere": (CONF, f"include_if_exists '/no/such/x.conf'\n{OFF}",
     f"{CONF}:1:1: /no/such/x.conf, which it includes: it is outside", "fsync-off"),
    "include-a-link": (CONF, linked, "more.conf, which it includes", "fsync-off"),
    "include-chain": (CONF, chained, "10.conf:1:1: 11.conf, which it includes", "fsync-off"),
    "include-long-name": (CONF, f"include_dir '{'x' * 5000}'\n{OFF}", "File name too long", "fsync-off"),
    "include-missing": (CONF, f"include 'x.conf'\n{OFF}", "No such file", "fsync-off"),
    "no-line": (CONF, f"{OFF}= 3\n", f"{CONF}:2:1: this line", "fsync-off"),
    "a-mark-alone": (CONF, f"{OFF}!\n", f"{CONF}:2:1", "fsync-off"),
    "pgbouncer-no-line": ("p.ini", "[pgbouncer]\npool_mode\ntcp_keepalive = 0\n", "p.ini:2:1: this line", INI),
    "pgbouncer-include-up": ("p.ini", "[pgbouncer]\n%include /etc/pgbouncer/x.ini\ntcp_keepalive = 0\n",
     "p.ini:2:1: /etc/pgbouncer/x.ini, which it includes", INI),
    "server-alone": ("h.cfg", CFG + "  server\n" + SERVERS, "h.cfg:7:3: server: it has no address", HAPROXY),
    "server-of-a-name": (
        "h.cfg", CFG + "  server db-c\n" + SERVERS, "h.cfg:7:3: server db-c: it has no address", HAPROXY),
    "template-of-none": ("h.cfg", CFG + "  server-template pg 3\n" + SERVERS, "h.cfg:7:3: server-template", HAPROXY),
    "template-of-words": (
        "h.cfg", CFG + "  server-template pg all db:5432\n" + SERVERS, "h.cfg:7:3: server-template", HAPROXY),
    "document-of-a-template": ("p.yml", TWO + "loop_wait: {{ x }}\nttl: 30\n", "p.yml:4:1: it is a template", LONG),
    "document-conditional": (
        "p.yml", TWO + "{{- if .x }}\nscope: y\n{{- end }}\n", "p.yml:4:1: it is a template", LONG),
    "document-filled-in": (
        "p.yml", TWO + BOOTSTRAP.replace("30", "'{{ ttl }}'"), "another program fills in ttl", LONG),
    "document-not-closed": ("p.yml", TWO + "scope: [\n", "p.yml:4:1: it is no YAML: line", LONG),
}  # fmt: skip


@each(PARTLY.values())
def test_what_can_be_read_is_read_and_the_rest_is_named_with_its_line(
    name: str, made: Made, words: str, finds: str, walproof: Run, tmp_path: Path
) -> None:
    put(tmp_path, name, made)
    code, out, err = walproof("doctor", name)
    assert code == 1, out + err
    assert words in out
    assert f"[{finds}]" in out
    assert len([line for line in out.splitlines() if line.startswith("not read: ")]) == 1, out


@each(zip(["include-up", "server-alone", "document-of-a-template", "pgbouncer-no-line"], SHAPES, strict=True))
def test_what_was_not_read_is_in_every_format(case: str, shape: str, walproof: Run, tmp_path: Path) -> None:
    name, made, words, _ = PARTLY[case]
    put(tmp_path, name, made)
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


@each([
    ("p.ini", "[databases]\na\x1b[2Jb = host=x,y\n[pgbouncer]\n"),
    ("h.cfg", CFG.replace("primary", "pg\x1b[2J") + SERVERS),
    (CONF, "synchronous_standby_names = 'ANY 1 (\"a\x1b[2J\")'\n\x1b[2J = 1 = 2\n"),
    ("a.env", "A=postgresql://db\x1b[2J,db-b/x\n"),
])  # fmt: skip
def test_no_control_character_reaches_a_terminal_or_breaks_a_report(
    name: str, text: str, walproof: Run, tmp_path: Path
) -> None:
    put(tmp_path, name, text)
    shown = {shape: walproof("doctor", "--format", shape, name)[1] for shape in ("junit", "text", "github")}
    assert [shape for shape, out in shown.items() if "\x1b" in out] == []
    assert ElementTree.fromstring(shown["junit"].split("\n", 1)[1]).findall("testsuite")


HUGE = "9" * 400


@each([
    (CONF, f"fsync = off\nmax_connections = {HUGE}\n"),
    (CONF, f"fsync = off\nstatement_timeout = {HUGE}.{HUGE}min\n"),
    ("h.cfg", CFG + SERVERS.replace("check port", f"check inter {HUGE} fall {HUGE} port")),
    ("h.cfg", CFG + SERVERS.replace("1s", "1s\n  timeout server " + HUGE)),
])  # fmt: skip
def test_a_number_of_hundreds_of_digits_is_no_error(name: str, text: str, walproof: Run, tmp_path: Path) -> None:
    put(tmp_path, name, text)
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


@each(product(["\n" * 300_000, "---\n" * 80_000, "host=a " * 50_000, "host=a dbname=b " * 9000], ["yml", "env"]))
def test_a_text_made_to_be_slow_is_read_in_time_of_its_length(
    text: str, ending: str, walproof: Run, tmp_path: Path
) -> None:
    """What takes the square of the length would end with the limit of a test, after minutes."""
    put(tmp_path, f"x.{ending}", text + "\n---\nscope: x\n")
    assert "Traceback" not in walproof("doctor", f"x.{ending}")[2]


@each(HOSTILE.values())
def test_a_hostile_file_is_one_sentence_and_beside_a_sound_one_leaves_the_verdict_open(
    name: str, made: Made, words: str, walproof: Run, tmp_path: Path
) -> None:
    put(tmp_path, name, made)
    code, out, err = walproof("doctor", name)
    lines = err.strip().splitlines()
    assert (code, out) == (2, ""), err
    assert len(lines) == 2, err
    assert words in lines[0], err
    assert "\x1b" not in err
    put(tmp_path, "cluster.yaml", SOUND)
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
