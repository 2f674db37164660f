"""Files that a stranger wrote: each ends with one clear sentence and exit code 2, or beside others with exit code 4."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.command_line import Run, walproof

__all__ = ["walproof"]

CNPG = "apiVersion: postgresql.cnpg.io/v1\nkind: Cluster\n"
BOOTSTRAP = "bootstrap:\n  dcs:\n    ttl: 30\n"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)


def texts(name: str, text: str | bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return write


def circle(folder: Path) -> None:
    (folder / "postgresql.conf").write_text("fsync = on\ninclude = 'more.conf'\n")
    (folder / "more.conf").write_text("include 'postgresql.conf'\n")


def itself(folder: Path) -> None:
    (folder / "postgresql.conf").write_text("include = 'postgresql.conf'\n")


def linked(folder: Path) -> None:
    (folder / "secret").write_text("password = x\n")
    (folder / "more.conf").symlink_to(folder / "secret")
    (folder / "postgresql.conf").write_text("include = 'more.conf'\n")


def piped(folder: Path) -> None:
    os.mkfifo(folder / "patroni.yml")


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
    "circle": ("postgresql.conf", circle, "circle"),
    "circle-of-one": ("postgresql.conf", itself, "circle"),
    "include-up": ("postgresql.conf", texts("postgresql.conf", "include '../../etc/passwd'\n"), "outside"),
    "include-absolute": ("postgresql.conf", texts("postgresql.conf", "include_dir '/etc'\n"), "outside"),
    "include-a-link": ("postgresql.conf", linked, "includes more.conf"),
    "include-missing": ("postgresql.conf", texts("postgresql.conf", "include 'x.conf'\n"), "No such file"),
    "no-line": ("postgresql.conf", texts("postgresql.conf", "fsync = on\n= 3\n"), "line 2"),
    "pipe": ("patroni.yml", piped, "not a regular file"),
    "device": ("patroni.yml", to_a_device, "not a regular file"),
    "missing": ("nowhere.yml", lambda folder: None, "no such file"),
    "standby-cluster": (
        "patroni.yml",
        texts("patroni.yml", BOOTSTRAP + "    standby_cluster: {host: db-z}\n"),
        "standby cluster",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_one_sentence(case: str, walproof: Run, tmp_path: Path) -> None:
    name, make, words = HOSTILE[case]
    make(tmp_path)
    code, out, err = walproof("doctor", name)
    lines = err.strip().splitlines()
    assert (code, out) == (2, ""), err
    assert len(lines) == 2, err
    assert words in lines[0], err
    assert "\x1b" not in err


@pytest.mark.parametrize("case", HOSTILE)
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


def test_links_and_hidden_files_of_a_folder_are_left_alone(walproof: Run, tmp_path: Path) -> None:
    (tmp_path / "d" / ".git").mkdir(parents=True)
    (tmp_path / "d" / ".git" / "patroni.yml").write_text(BOOTSTRAP)
    (tmp_path / "outside.yml").write_text(BOOTSTRAP)
    (tmp_path / "d" / "linked.yml").symlink_to(tmp_path / "outside.yml")
    (tmp_path / "d" / "loop").symlink_to(tmp_path / "d")
    code, _, err = walproof("doctor", "d")
    assert (code, err.splitlines()[0]) == (2, "walproof: no configuration that the doctor reads in d")


@pytest.mark.parametrize(
    "typed", ["patroni.yml --target sim", "patroni.yml --lab lab", "patroni.yml --json --format sarif"]
)
def test_what_cannot_be_asked_together_is_refused(typed: str, walproof: Run, tmp_path: Path) -> None:
    (tmp_path / "patroni.yml").write_text(BOOTSTRAP)
    assert walproof("doctor", "patroni.yml", *typed.split())[0] == 2
