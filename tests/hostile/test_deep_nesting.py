"""JSON, TOML and YAML of strangers, nested deep: one sentence and the right exit code, no traceback."""

import json
import os
import shutil
import tomllib
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tests.fixtures.command_line import Run, one_sentence
from tests.fixtures.fake_patroni import fake_patroni
from tests.fixtures.records import price_events, recorded
from tests.fixtures.tiers import each, many
from walproof.errors import TargetError, UsageError
from walproof.machine import untrusted
from walproof.machine.untrusted import DEEPEST, from_json, from_toml
from walproof.patroni.rest import PatroniRest, RestAccess
from walproof.proving import history
from walproof.records.codec import decode, encode
from walproof.records.journal import Journal
from walproof.records.reader import read
from walproof.records.writer import Writer
from walproof.targets.choose import choose
from walproof.targets.cnpg.objects import Cluster
from walproof.targets.cnpg.state_and_doctor_facts import fenced_in
from walproof.watching.collector import Collector
from walproof.watching.page import TOKEN_HEADER, Page

DEPTHS = (DEEPEST + 1, 400, 700, 930, 990, 100_000)
"""Just too deep; what Python reads and then cannot walk; what it cannot read."""
ASKED = many((DEPTHS[0], 930, 100_000), DEPTHS)


def lists(depth: int) -> str:
    return "[" * depth + "]" * depth


def objects(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


@each([(depth, nested) for depth in ASKED for nested in [lists, objects]])
def test_events_that_are_nested_too_deep_are_skipped_with_a_notice(
    depth: int, nested: Callable[[int], str], walproof: Run, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "r", ignore_errors=True)
    recorded(tmp_path / "r", "price", price_events())
    good = read(tmp_path / "r").events
    for line in (
        nested(depth),
        f'{{"kind":"note","at":1,"text":{nested(depth)}}}',
        f'{{"kind":"x","y":{nested(depth)}}}',
    ):
        assert decode(line) == (None, "not JSON")
    with (tmp_path / "r" / "events.jsonl").open("a") as file:
        file.write(f'{{"kind":"note","at":1,"text":{nested(depth)}}}\n{nested(depth)}\n{nested(depth)}')
    assert read(tmp_path / "r").events == good
    code, _, err = walproof("report", "r")
    assert code == 0, err
    assert "not JSON was skipped" in err
    with Writer(tmp_path / "r", "price", resume=True):
        """The last line, which is cut off, is read here."""


@each(ASKED)
def test_a_header_that_is_nested_too_deep_is_damaged(depth: int, tmp_path: Path) -> None:
    recorded(tmp_path / "r", "price")
    (tmp_path / "r" / "record.json").write_text(objects(depth))
    assert any("record.json is damaged" in notice for notice in read(tmp_path / "r").notices)


@each(ASKED)
def test_a_journal_line_that_is_nested_too_deep_is_skipped(depth: int, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.note(1.0, "t", "setting", "a", before=None, after="1")
    with journal.path.open("a") as file:
        file.write(f'{{"other":{lists(depth)}}}\n{objects(depth)}\n')
    assert [change.name for change in journal.pending()] == ["a"]


@each(
    [
        (depth, case)
        for depth in ASKED
        for case in [
            ("a.json", '{{"format":{}}}', "apply a.json --target sim", "this is not advice"),
            ("a.json", "{}", "apply a.json --target sim", "this is not advice"),
            ("t.toml", 'kind = "postgres"\nmembers = {}', "doctor --target t.toml", "is not TOML"),
            ("t.toml", 'kind = "patroni"\nconsul.a = {}', "doctor --target t.toml", "is not TOML"),
            ("s/study.toml", "part = {}", "study run s/study.toml --target sim", "is not TOML"),
            ("f.toml", "failure = {}", "forecast . --failures f.toml", "is not TOML"),
            ("r.toml", "sites = {}", "price --target sim --regions r.toml", "is not TOML"),
        ]
    ]
)
def test_a_file_that_is_nested_too_deep_is_one_sentence(
    depth: int, case: tuple[str, str, str, str], walproof: Run, tmp_path: Path
) -> None:
    file, text, line, words = case
    (tmp_path / "events.jsonl").write_text("\n".join(map(encode, price_events())))
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text.replace("{}", lists(depth)).replace("{{", "{").replace("}}", "}"))
    one_sentence(walproof(*line.split()), words)


@each(ASKED)
def test_a_target_file_of_dotted_keys_is_one_sentence(depth: int, walproof: Run, tmp_path: Path) -> None:
    depth = min(depth, 5000)
    (tmp_path / "t.toml").write_text(f'kind = "patroni"\nconsul{".a" * depth} = 1\n')
    one_sentence(walproof("doctor", "--target", "t.toml"), f"more than {DEEPEST} levels deep")


@each(ASKED)
def test_a_kubeconfig_that_is_nested_too_deep_is_one_sentence(
    depth: int, walproof: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(f"clusters: {lists(min(depth, 5000))}")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    one_sentence(walproof("doctor", "--target", "cnpg:db/pg"), "")


@each([(depth, nested) for depth in ASKED for nested in [lists, objects]])
def test_an_answer_of_patroni_that_is_nested_too_deep_is_one_sentence(
    depth: int, nested: Callable[[int], str], walproof: Run
) -> None:
    with fake_patroni() as fake:
        fake.texts["/cluster"] = f'{{"members":{nested(depth)}}}'
        one_sentence(walproof("doctor", "--target", fake.url), "answers, but is not Patroni", code=3)


@each(ASKED)
def test_a_configuration_and_a_status_that_are_nested_too_deep(depth: int) -> None:
    nested = objects(depth)
    with fake_patroni() as fake:
        fake.texts |= {"/config": nested, "/patroni": nested}
        rest = PatroniRest(RestAccess((fake.url,)))
        assert rest.status(f"{fake.url}/patroni") == {}
        for ask in (rest.config, rest.newest_config):
            with pytest.raises(TargetError):
                ask()
        rest.close()


@each(
    [
        (one,)
        for one in [
            "1",
            "[]",
            '{"name":"n1","host":"h","port":"5432; x"}',
            '{"name":"n1","host":"h","port":[]}',
            '{"tags":["x"]}',
        ]
    ]
)
def test_members_that_are_none_of_patronis_are_one_sentence(member: str, walproof: Run) -> None:
    with fake_patroni() as fake:
        fake.texts["/cluster"] = f'{{"members":[{member}]}}'
        one_sentence(walproof("doctor", "--target", fake.url), "not with Patroni's /cluster", code=3)


@each(ASKED)
def test_the_live_page_takes_no_action_that_is_nested_too_deep(depth: int) -> None:
    target = choose("sim?members=3")
    with closing(Collector(target)) as collector:
        page = Page(collector, target, allowed=frozenset({"kill"}))
        client = TestClient(page.app, base_url="http://127.0.0.1")
        asked = f'{{"action":{lists(depth)}}}'
        answer = client.post("/act", content=asked, headers={TOKEN_HEADER: page.token})
    assert answer.status_code == 400


@each(ASKED)
def test_an_annotation_that_is_nested_too_deep_fences_nobody(depth: int) -> None:
    meta = {"name": "pg", "namespace": "db", "annotations": {"cnpg.io/fencedInstances": lists(depth)}}
    assert fenced_in(Cluster.model_validate({"metadata": meta, "spec": {"instances": 1}, "status": {}})) == ()


@each(ASKED)
def test_a_history_whose_header_is_nested_too_deep_is_damaged(depth: int) -> None:
    parts = (zlib.compress(f'{{"number":{lists(depth)}}}'.encode()), b"", b"")
    body = b"".join(parts)
    sizes = history._SIZES.pack(*map(len, parts), zlib.crc32(body))
    with pytest.raises(UsageError, match="damaged"):
        history.decode(history.MAGIC + sizes + body)


trees: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=200) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
)


@given(trees, st.booleans())
def test_everything_else_is_read_as_before(tree: Any, as_bytes: bool) -> None:
    text = json.dumps(tree)
    assert from_json(text.encode() if as_bytes else text) == tree


@each([lists, objects])
def test_the_deepest_is_read(nested: Callable[[int], str]) -> None:
    assert json.dumps(from_json(nested(DEEPEST)), separators=(",", ":")) == nested(DEEPEST)
    with pytest.raises(ValueError, match="levels deep"):
        from_json(nested(DEEPEST + 1))
    wide = f"[{','.join([nested(DEEPEST - 1)] * 300)}]"
    assert len(from_json(wide)) == 300
    assert from_toml(f"a = {lists(DEEPEST - 1)}")
    with pytest.raises(tomllib.TOMLDecodeError):
        from_toml(f"a = {lists(DEEPEST)}")


@each(["", "{", "nul", b"\xff", "\ud800[", "1" * 5000, b"[" * 10_000])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(text)


def test_a_tree_of_any_depth_is_removed_and_no_link_in_it_followed(tmp_path: Path) -> None:
    """The programs of a lab, and of an old primary, make folders in folders; rmtree calls itself once a level."""
    precious, tree = tmp_path / "precious", tmp_path / "tree"
    precious.mkdir()
    (precious / "file").touch()
    tree.mkdir()
    opened = os.open(tree, os.O_RDONLY)
    for level in range(1500):
        os.mkdir("d", dir_fd=opened)
        for name in ("one", "two"):
            os.symlink(precious, name, dir_fd=opened)
        if level % 500 == 0:
            os.mkdir("beside", dir_fd=opened)
        below = os.open("d", os.O_RDONLY, dir_fd=opened)
        os.close(opened)
        opened = below
    os.close(opened)
    untrusted.remove_tree(tree)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "precious"]


def test_a_tree_that_somebody_goes_on_writing_into_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It held `prove --salvage` for ever: the lab's user makes files as fast as root removes them."""
    (tmp_path / "tree").mkdir()
    monkeypatch.setattr(untrusted, "_MOST_LEFT", 100)
    unlink = os.unlink

    def and_another(name: str, *, dir_fd: int | None = None) -> None:
        unlink(name, dir_fd=dir_fd)
        os.close(os.open(f"{name}x"[-9:], os.O_CREAT, dir_fd=dir_fd))

    monkeypatch.setattr(os, "unlink", and_another)
    (tmp_path / "tree/a").touch()
    with pytest.raises(OSError, match="busy"):
        untrusted.remove_tree(tmp_path / "tree")
