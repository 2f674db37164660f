"""A folder that a stranger made: no link of it is followed, nothing but regular files is read, and never too much."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.command_line import Run, walproof
from tests.fixtures.tiers import each, every
from walproof.cli.doctor import TOOK_TOO_LONG, examined
from walproof.machine import untrusted
from walproof.targets.files import reading
from walproof.targets.files.clusters import declared_by

__all__ = ["walproof"]
LEAK = "fsync = off\nsynchronous_standby_names = 'ANY 1 (leaked)'\n"
SOUND = "full_page_writes = off\n"


def outside(tmp_path: Path) -> Path:
    """A folder of another's secrets beside the one that is examined."""
    folder = tmp_path / "outside"
    (folder / "below").mkdir(parents=True)
    for at in (folder, folder / "below"):
        (at / "more.conf").write_text(LEAK)
        (at / "postgresql.conf").write_text(LEAK)
        (at / "postgresql.auto.conf").write_text(LEAK)
    return folder


def linked_folder(tree: Path, secret: Path) -> None:
    (tree / "conf.d").symlink_to(secret)
    (tree / "postgresql.conf").write_text(SOUND + "include 'conf.d/more.conf'\n")


def linked_include_dir(tree: Path, secret: Path) -> None:
    (tree / "conf.d").symlink_to(secret)
    (tree / "postgresql.conf").write_text(SOUND + "include_dir 'conf.d/below'\n")


def linked_above_an_include_dir(tree: Path, secret: Path) -> None:
    (tree / "a").mkdir()
    (tree / "a" / "b").symlink_to(secret)
    (tree / "postgresql.conf").write_text(SOUND + "include_dir 'a/b/below'\n")


def linked_file(tree: Path, secret: Path) -> None:
    (tree / "more.conf").symlink_to(secret / "more.conf")
    (tree / "postgresql.conf").write_text(SOUND + "include_if_exists 'more.conf'\n")


def linked_auto_conf(tree: Path, secret: Path) -> None:
    (tree / "postgresql.auto.conf").symlink_to(secret / "postgresql.auto.conf")
    (tree / "postgresql.conf").write_text(SOUND)


def linked_tree(tree: Path, secret: Path) -> None:
    (tree / "db").symlink_to(secret)
    (tree / "postgresql.conf").write_text(SOUND)


def linked_ini(tree: Path, secret: Path) -> None:
    (tree / "users").symlink_to(secret)
    (secret / "users.ini").write_text("[databases]\nleaked = host=leaked1,leaked2\n")
    (tree / "pgbouncer.ini").write_text("[pgbouncer]\ntcp_keepalive = 0\n%include users/users.ini\n")
    (tree / "postgresql.conf").write_text(SOUND)


LINKED = [
    linked_folder, linked_include_dir, linked_above_an_include_dir, linked_file, linked_auto_conf, linked_tree,
    linked_ini,
]  # fmt: skip


@each(LINKED)
def test_no_link_leads_out_of_the_tree(make: Callable[[Path, Path], None], walproof: Run, tmp_path: Path) -> None:
    secret, tree = outside(tmp_path), tmp_path / "tree"
    tree.mkdir()
    make(tree, secret)

    def check(named: str) -> None:
        code, out, err = walproof("doctor", "--json", named)
        assert code == 1, out + err
        tree_of = json.loads(out)
        found = [finding["id"] for one in tree_of["clusters"] for finding in one["findings"]]
        assert "leaked" not in out
        assert "fsync-off" not in found and "full-page-writes-off" in found
        names = tree_of["not_read"]
        assert named == "tree/postgresql.conf" or any("link" in why for why in names.values()), names

    every(["tree", "tree/**/*.conf", "tree/*", "tree/postgresql.conf"], check)


def test_a_link_to_what_is_read_anyway_needs_no_word(walproof: Run, tmp_path: Path) -> None:
    (tmp_path / "tree" / "db").mkdir(parents=True)
    (tmp_path / "tree" / "db" / "postgresql.conf").write_text(SOUND)
    (tmp_path / "tree" / "same.conf").symlink_to("db/postgresql.conf")
    (tmp_path / "tree" / "here").symlink_to(".")
    code, out, _ = walproof("doctor", "--json", "tree")
    assert (code, json.loads(out)["not_read"]) == (1, {})


def test_a_link_whose_target_is_hidden_is_named(walproof: Run, tmp_path: Path) -> None:
    """As Kubernetes mounts a ConfigMap: named one by one its files are read."""
    (tmp_path / "tree" / "..data").mkdir(parents=True)
    (tmp_path / "tree" / "..data" / "postgresql.conf").write_text(SOUND)
    (tmp_path / "tree" / "postgresql.conf").symlink_to("..data/postgresql.conf")
    code, _, err = walproof("doctor", "tree")
    assert code == 2 and "tree/postgresql.conf: it is a link" in err
    assert walproof("doctor", "tree/postgresql.conf")[0] == 1


def piped(path: Path) -> None:
    os.mkfifo(path)


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


@each([piped, bound])
def test_what_is_no_regular_file_is_named_and_not_opened(
    make: Callable[[Path], None], walproof: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "postgresql.conf").write_text(SOUND + "include 'x.conf'\n")
    with monkeypatch.context() as at:
        at.chdir(tmp_path / "tree")
        make(tmp_path / "tree" / "x.conf")
    code, out, _ = walproof("doctor", "--json", "tree")
    not_read = json.loads(out)["not_read"]
    assert code == 1
    assert not_read["tree/x.conf"] == "it is not a regular file"
    assert not_read["tree/postgresql.conf:2:1"] == "x.conf, which it includes: it is not a regular file"


@each([
    ("MOST_FILES", 3, "over 3 files"),
    ("MOST_ENTRIES", 9, "over 9 names"),
    ("DEEPEST", 2, "folders are over 2 deep"),
    ("MOST_ALL", 100, "over 100 bytes"),
])  # fmt: skip
def test_more_than_a_limit_is_not_read_and_named_once(
    limit: str, most: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, limit, most)
    at = tmp_path
    for number in range(8):
        at = at / f"{number}"
        at.mkdir()
        (at / "postgresql.conf").write_text(SOUND * 2)
    declared, skipped = declared_by([str(tmp_path)])
    assert 0 < len(declared) < 8
    assert [says in why for why in skipped.values()] == [True], skipped


def test_a_folder_that_changes_meanwhile_is_read_as_far_as_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a folder and the look into it: it goes, or becomes a link to another's."""
    secret, listed = outside(tmp_path), untrusted.entries
    tree = tmp_path / "tree"
    for name in ("a", "b", "c"):
        (tree / name).mkdir(parents=True)
        (tree / name / "postgresql.conf").write_text(SOUND)

    def changing(top: Path, folder: Path) -> list[tuple[str, str]]:
        found = listed(top, folder)
        if folder == top:
            (tree / "a" / "postgresql.conf").unlink()
            (tree / "a").rmdir()
            (tree / "b" / "postgresql.conf").unlink()
            (tree / "b").rmdir()
            (tree / "b").symlink_to(secret)
        if folder == tree / "c":
            (tree / "c" / "postgresql.conf").unlink()
            (tree / "c" / "postgresql.conf").symlink_to(secret / "postgresql.conf")
        return found

    monkeypatch.setattr(untrusted, "entries", changing)
    declared, skipped = declared_by([str(tree)])
    assert declared == []
    assert {Path(at.file).name for at in skipped} == {"a", "b", "postgresql.conf"}


def test_one_deadline_holds_for_all_of_a_reading(tmp_path: Path) -> None:
    """The clock is an argument: after the second file the time is over."""
    for name in "abcd":
        (tmp_path / name).mkdir()
        (tmp_path / name / "postgresql.conf").write_text(SOUND)
    ticks = iter([0.0, *[1.0] * 9, *[1e9] * 1000])
    declared, skipped = declared_by([str(tmp_path)], lambda: next(ticks))
    assert len(declared) < 4
    assert set(skipped.values()) == {reading.TOOK_TOO_LONG}


def test_the_checks_end_with_their_time_and_name_what_they_left(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).mkdir()
        (tmp_path / name / "postgresql.conf").write_text(SOUND)
    declared, skipped = declared_by([str(tmp_path)])
    ticks = iter([0.0, 1.0, 1.0, 1e9, 1e9])
    assert len(examined(declared, skipped, lambda: next(ticks))) == 2
    assert [skipped[one.start] for one in declared[2:]] == [TOOK_TOO_LONG] * 2


def test_many_templates_of_servers_are_not_more_servers_than_all_may_be(tmp_path: Path) -> None:
    """Each below a cap of its own: what they make together is counted, over sections and files."""
    for name in ("a", "b"):
        lines = [f"listen pg{n}\n  server-template s{n}- 3000 db:5432 check\n" for n in range(2)]
        (tmp_path / f"{name}.cfg").write_text("".join(lines))
    declared, skipped = declared_by([str(tmp_path)])
    assert sum(len(proxy.servers) for one in declared for proxy in one.facts.access.proxies) == 9000
    assert ["over 10,000 servers" in why for why in skipped.values()] == [True]


def test_what_each_document_may_hold_is_no_licence_for_many(tmp_path: Path) -> None:
    """A bomb of aliases below the limit of one document, a thousand times: ended by the deadline, not by the limit."""
    bomb = "scope: x\na: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "b: &b [{}]\nc: [{}]\n".format(
        ", ".join(["*a"] * 20), ", ".join(["*b"] * 200)
    )
    (tmp_path / "patroni.yml").write_text("---\n".join([bomb] * 1000))
    looked = 0

    def now() -> float:
        nonlocal looked
        looked += 1
        return float(looked)

    assert reading.TOOK_TOO_LONG in declared_by([str(tmp_path)], now)[1].values()
    assert looked < 1000


def test_one_cluster_that_no_check_can_read_does_not_hide_the_others(walproof: Run, tmp_path: Path) -> None:
    """As it was: a number of standbys that PostgreSQL refuses ended the doctor for every other file."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "evil.yaml").write_text(
        "apiVersion: postgresql.cnpg.io/v1\nkind: Cluster\nmetadata: {name: a}\n"
        f"spec: {{instances: 3, postgresql: {{synchronous: {{number: {'9' * 30}, method: any}}}}}}\n"
    )
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "postgresql.conf").write_text(SOUND)
    code, out, _ = walproof("doctor", "a", "b")
    assert code == 1 and "full-page-writes-off" in out and "not read: a/evil.yaml" in out
