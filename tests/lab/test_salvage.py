"""`walproof salvage` after a real failover: exactly what the old primary committed alone; its disk stays as it is.

The disk is a stranger's too: each thing in it that would run a program, if it were obeyed, leaves a mark."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.fixtures.command_line import Run, one_sentence, walproof
from tests.fixtures.lost_rows import BEFORE, EXPECTED, LOST, NOT_LOST, OPEN_AT_FORK, TRAPS
from tests.fixtures.own_folder import own_folder
from tests.fixtures.plain_pair import DEBIAN_BIN, PlainPair, await_replay, plain_pair, promote, start, stop, wheel_bin
from tests.fixtures.salvaged import SALVAGER, checksum, dsn, on, psql, salvaged, typed
from tests.fixtures.tiers import every
from walproof.lab.privileges import number_of_no_lab
from walproof.salvaging.changes import REWRITTEN
from walproof.salvaging.data_directory import copy
from walproof.salvaging.key_changes import LEFT
from walproof.salvaging.plan import plan
from walproof.salvaging.recovered import NOT_MADE, SINCE_READ
from walproof.salvaging.rows import NO_TABLE, TAKEN
from walproof.salvaging.salvage import read_wal
from walproof.salvaging.server import Copy
from walproof.salvaging.timelines import segment_start
from walproof.salvaging.transactions import LEFT as DELETES_LEFT

__all__ = ["own_folder", "walproof"]
pytestmark = pytest.mark.lab


@pytest.fixture(scope="module", params=[pytest.param("15", marks=pytest.mark.nightly), "18"])
def failed_over(request: pytest.FixtureRequest) -> Iterator[PlainPair]:
    """n2 leads; n1, cut off, committed LOST and is stopped without a checkpoint."""
    if request.param == "15" and not (DEBIAN_BIN / "postgres").exists():
        pytest.skip("PostgreSQL 15 from Debian is not installed")
    with plain_pair(DEBIAN_BIN if request.param == "15" else wheel_bin()) as pair:
        on(pair, "n1", BEFORE)
        await_replay(pair)
        with psycopg.connect(dsn(pair, "n1", "postgres")) as open_at_fork:
            for text in OPEN_AT_FORK:
                open_at_fork.execute(text)
            pair.sql("n1", "CHECKPOINT")
            promote(pair)
        on(pair, "n1", ["DELETE FROM big WHERE id = 5"])
        ((toast,),) = pair.sql("n1", "SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 'big'")
        on(pair, "n1", [f"VACUUM {toast}", *LOST])  # the row's version at the fork is there, its TOAST is not
        on(pair, "n2", [SALVAGER, *NOT_LOST])
        _plant(pair)
        stop(pair, "n1")
        yield pair


NAMED = (("ordered", "client", 1), ("item_all", "ordered", 2), ("shipped", "item_all", 1), ("paid", "ordered", 2))
NAMING = (
    "in conflict too, and in no SQL, as they name by a foreign key a row of public.{} which on the new primary is not"
    " the lost one, or was not read or compared: {}"
)


def _mark(pair: PlainPair) -> Path:
    return pair.home / "executed"


def _plant(pair: PlainPair) -> None:
    """What would run a program, were it obeyed; n1 itself is never started again."""
    mark = _mark(pair)
    command = f"touch {mark}"
    texts = (
        "CREATE FUNCTION evil() RETURNS event_trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN COPY (SELECT 1) TO PROGRAM '{command}'; END $$",
        "CREATE EVENT TRIGGER evil ON ddl_command_end EXECUTE FUNCTION evil()",
        "ALTER EVENT TRIGGER evil ENABLE ALWAYS",
        f"ALTER DATABASE postgres SET session_preload_libraries = '{mark}.so';"
        " ALTER DATABASE postgres SET session_authorization = pg_monitor",
    )
    on(pair, "n1", texts)
    data = pair.data("n1")
    with (data / "postgresql.conf").open("a") as file:
        file.write(f"\narchive_mode = on\narchive_command = '{command}'\nrestore_command = '{command}'\n")
        file.write(f"shared_preload_libraries = '{mark}.so'\nrecovery_end_command = '{command}'\n")
        file.write(f"include_if_exists = '/etc/passwd'\nssl = on\nssl_passphrase_command = '{command}'\n")
    (data / "recovery.signal").touch()


def test_exactly_what_the_old_primary_committed_alone_is_found(
    failed_over: PlainPair, walproof: Run, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_folder)
    before = checksum(failed_over.data("n1"))
    code, out, err = walproof(*typed(failed_over, "--dry-run", "--json"))
    assert code == 0 and json.loads(out)["fork"]["timeline"] == 1, err
    code, told, err = salvaged(walproof, failed_over, Path("lost"))
    assert code == 4, err
    (database,) = told["databases"]
    found = {
        one["table"]: (one["inserted"], one["updated"], one["deleted"], one["conflict"]) for one in database["tables"]
    }
    if failed_over.bin != DEBIAN_BIN:  # the wheel's PostgreSQL is built without ICU
        assert found["public.cased"] == (1, 0, 1, 0)
        found["public.cased"] = EXPECTED["public.cased"]
    inserted, *others = EXPECTED["public.parent"]
    assert found == {**EXPECTED, "public.parent": (inserted + 1, *others)}, "with the one that was open at the fork"
    notes = {one["table"]: one["notes"] for one in database["tables"] if one["notes"]}
    assert told["last_commit_at"][:4] == told["first_commit_at"][:4]
    never = "not read: it would run the directory's own code (function public.trap)"
    there = "not compared: it would run the new primary's own code (function public.trap)"
    assert notes == {
        **{f"public.{name}": [never] for name in TRAPS},
        "public.nokey": [there],
        "public.part1": ["not compared: row security hides rows of it: the role needs BYPASSRLS"],
        "public.packed": [REWRITTEN],
        **{f"public.{name}": [REWRITTEN] for name in ("emptied", "rebuilt")},
        "public.rebuilt_keyed": [REWRITTEN, f"{LEFT}: 1"],
        "public.retyped": ["not compared: the new primary's table has other columns", REWRITTEN, f"{LEFT}: 20"],
        "public.readded": ["not compared: the new primary's table has other columns", f"{LEFT}: 1"],
        **{f"public.{name}": [NO_TABLE] for name in ("made", "swapped", "swapped_old")},
        "public.client": [f"{TAKEN}: 1"],
        **{f"public.{name}": [NAMING.format(of, count)] for name, of, count in NAMED},
        **{f"public.{name}": [f"{LEFT}: {count}"] for name, count in (("moving_b", 1), ("doc", 3), ("acct_open", 1))},
        "public.acct_closed": [f"{LEFT}: 1", NAMING.format("client", 1)],
        "public.done": [NAMING.format("client", 1)],
        "public.todo": [f"{DELETES_LEFT}: 1"],
        "public.clustered": [REWRITTEN, f"{DELETES_LEFT}: 1"],
    }
    assert set(told["undecided"]) == {f"public.{name} of postgres: {never}" for name in TRAPS}
    told_of = {one["table"]: one for one in database["tables"]}
    assert told_of["public.reused"]["versions_no_longer_there"] == 1, "another row was in its place, and went too"
    assert database["transactions_in_part"] == 9
    assert database["sequences_ran_on"] == ["public.child_id_seq", "public.once"]
    assert (told["lost_subtransactions"], told["ddl_of_cluster"]) == (3, 2), "with the one of _plant"
    assert json.loads((own_folder / "lost/report.json").read_text())["lost_transactions"] == told["lost_transactions"]
    assert sorted(os.listdir(own_folder / "lost")) == ["000001_postgres", "report.json"]
    assert database["files"] == str(own_folder / "lost/000001_postgres")
    assert checksum(failed_over.data("n1")) == before
    assert not _mark(failed_over).exists()
    assert "trap ran as salvager" not in (failed_over.home / "n2.log").read_text()
    _tried(failed_over, walproof)
    _apply(failed_over, own_folder / "lost/000001_postgres")


def _tried(pair: PlainPair, walproof: Run) -> None:
    """--check leaves no row, moves no sequence, and names each file that would not go through."""
    state = "SELECT (SELECT count(*) FROM parent), (SELECT count(*) FROM child), (SELECT last_value FROM child_id_seq)"
    before = pair.sql("n2", state)
    code, told, err = salvaged(walproof, pair, Path("tried"), "--check", "--allow", "load,existing-tables")
    assert code == 4, err
    says = told["databases"][0]["check"]
    assert any("public.made" in one for one in says)
    assert not any(
        f"public.{name}" in one for one in says for name in ("parent", "child", "big", "hot", "paid", "booked")
    )
    assert pair.sql("n2", state) == before


def _apply(pair: PlainPair, folder: Path) -> None:
    """What the files say brings the new primary to what was lost, beside what changed there too."""
    names = sorted(path.name for path in folder.glob("*.sql"))
    both = [name.split(".")[1] for name in names if "parent" in name or "child" in name]
    assert both == ["child", "parent", "child"], "deletes of a table come before the table that it names"
    pair.sql("n2", "INSERT INTO booked VALUES (1, 'since')")
    refused = {
        "swapped": "is not what was read", "booked": SINCE_READ, "readded": "has other columns", "account": NOT_MADE
    }  # fmt: skip
    untried = {"made", "retyped", "nokey", "emptied", "swapped_old", "booking", "invoice", *TRAPS}
    for name in names:
        if not untried & set(name.split(".")):
            done = psql(dsn(pair, user="applier"), [folder / name], "-1", "-v", "ON_ERROR_STOP=1")
            if why := refused.get(name.split(".")[1]):  # another table has the name there, another row the key
                assert done.returncode != 0 and why in done.stderr, done.stderr
            else:
                assert (done.returncode, done.stderr) == (0, ""), name
    there: dict[str, tuple[object, ...]] = {
        "SELECT count(*), min(id), max(id) FROM parent WHERE v = 'lost'": (99, 201, 300),
        "SELECT string_agg(v, ' ' ORDER BY id) FROM parent WHERE id IN (1, 5, 205, 902, 1001)":
            ("changed there other open at the fork",),
        "SELECT count(*), count(*) FILTER (WHERE id BETWEEN 50 AND 59), max(p) FROM child": (191, 0, 250),
        "SELECT string_agg(k, '') FROM part WHERE id IN (7, 8)": ("lostk",),
        "SELECT count(*), max(t) = repeat('y', 30000) FROM big": (18, True),
        "SELECT n FROM hot WHERE id = 1": (60,),
        "SELECT last_value >= 201 FROM child_id_seq": (True,),
        "SELECT nextval('once')": (2,),
        "SELECT count(*), sum(n) FROM packed": (20, 3),
        "SELECT array_agg(id || v ORDER BY id) FROM clustered": (["1v", "2lost", "3v", "4v", "5v", "100lost"],),
        "SELECT array_agg(id || v ORDER BY id) FROM again": (["1v", "2v", "3lost"],),
        "SELECT array_agg(v ORDER BY v) FROM rebuilt": (["v1", "v2", "v3", "v4", "v5"],),
        "SELECT count(*), count(*) FILTER (WHERE v = 'v') FROM swapped WHERE id < 100": (5, 5),
        "SELECT array_agg(id || slug ORDER BY id) FROM shop": (["1a lost", "2b", "3c lost", "4d"],),
        "SELECT array_agg(id || coalesce(slug, '') ORDER BY id) FROM offer": (["1", "2b", "3d", "4a lost"],),
        "SELECT array_agg(id || ' ' || n ORDER BY id) FROM wallet": (["1 900", "2 300"],),
        "SELECT (SELECT array_agg(id) FROM todo), array_agg(id) FROM done": ([7], [8]),
        "SELECT id, v, x FROM readded": (1, "v", 5),
        "SELECT array_agg(id || mail ORDER BY id) FROM client": (["1a", "8x"],),
        "SELECT array_agg(id || ' ' || client ORDER BY id) FROM ordered": (["100 1", "133 8", "134 1"],),
        "SELECT array_agg(ordered || ' ' || line ORDER BY ordered) FROM item": (["133 1", "134 2"],),
        "SELECT array_agg(code || ' ' || body ORDER BY code) FROM doc":
            (["A-1 final", "B-1 draft", "B-2 of another", "C-3 draft", "D-3 lost"],),
        "SELECT array_agg(id || state || balance ORDER BY id) FROM acct":
            (["17open900", "18open1000", "19closed1000"],),
        "SELECT array_agg(id ORDER BY id) FROM shipped": ([2, 3],),
        "SELECT array_agg(id || ' ' || coalesce(ordered, 0) ORDER BY id) FROM paid": (["1 100", "2 134", "4 0"],),
    }  # fmt: skip
    assert {query: pair.sql("n2", query) for query in there} == {query: [row] for query, row in there.items()}


def test_what_this_machine_lacks_is_told_before_the_directory_is_changed(
    failed_over: PlainPair, walproof: Run, own_folder: Path
) -> None:
    """Without contrib a run in place had replayed the WAL first, and no run after it could read that directory."""
    given, other = own_folder / "data", own_folder / "programs"
    shutil.copytree(failed_over.data("n1"), given)
    subprocess.run(["chown", "-R", f"--reference={failed_over.data('n1')}", given], check=True)
    before = checksum(given)
    argv = (*typed(failed_over, "--in-place", "--out", str(own_folder / "lost"), old=given),)
    if failed_over.bin == wheel_bin():  # else its programs are of the whole machine
        shutil.copytree(failed_over.bin.parent, other, ignore=lambda *_: ["pg_surgery.so"], copy_function=os.link)
        for more in (("--dry-run",), ()):
            said = walproof(*argv, "--bin", str(other / "bin"), *more)
            one_sentence(said, 'could not access file "$libdir/pg_surgery"', 3)
        assert checksum(given) == before and not (own_folder / "lost").exists()
    code, _, err = walproof(*argv)
    assert code == 4, err  # its traps are not read, as in any other run


def test_wal_that_reading_does_not_reach_makes_it_undecided(failed_over: PlainPair, tmp_path: Path) -> None:
    def is_told(number: int, damage: Callable[[list[Path]], object], *says: str) -> None:
        root = tmp_path / str(number)
        copied = root / "n1"
        shutil.copytree(failed_over.data("n1"), copied, ignore=lambda _, names: {"base", "pg_tblspc"} & {*names})
        for folder in (copied / "base", root / "work"):
            folder.mkdir(mode=0o711)
        damage(sorted(path for path in (copied / "pg_wal").glob("0000*") if _is_written(path)))
        made = plan(copied, dsn(failed_over), None, failed_over.bin)
        list(copy(made.old, made.wal, made.copied_bytes, root / "work"))
        with tempfile.TemporaryDirectory(prefix="walproof-test-") as sockets, number_of_no_lab() as user:
            lost = read_wal(Copy(made.old, root / "work", Path(sockets), user), made)
        assert len(lost.undecided) == len(says)
        assert [word for word, reason in zip(says, lost.undecided, strict=True) if word not in reason] == []

    missing = "damaged, or a segment is missing"
    rows: list[tuple[int, Callable[[list[Path]], object], *tuple[str, ...]]] = [
        (0, list),
        (1, lambda wal: wal[-1].unlink(), missing),  # the one before it is full
        (2, lambda wal: wal[-2].unlink(), missing),
        (3, lambda wal: _flip(wal[-2], 0x30), missing),
        (4, lambda wal: _flip(wal[0], 0x2000), "was read up to"),
    ]
    every(rows, is_told)


def _is_written(path: Path) -> bool:
    """Whether the segment's first page holds its own position: it is not one that was made to be used later."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(16)[8:], "little") == segment_start(path.name, 1 << 24)


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 255]))


def test_refusals_on_servers(failed_over: PlainPair, walproof: Run, tmp_path: Path) -> None:
    pair, superuser = failed_over, failed_over.member_endpoint("n2").client_conninfo()

    def refused(says: str, code: int, *more: str, old: Path | None = None, new: str = "") -> None:
        one_sentence(walproof(*typed(pair, *more, old=old, new=new)), says, code)

    refused("--new connects as a superuser", 2, new=superuser)
    pair.sql("n2", "ALTER DATABASE postgres SET session_authorization = salvager")
    refused("--new connects as a superuser", 2, new=superuser)
    with psycopg.connect(superuser, autocommit=True, options="-c session_authorization=postgres") as session:
        session.execute("ALTER DATABASE postgres RESET session_authorization")
    refused("lies in what is given, which is only read", 2, "--out", str(pair.data("n1") / "salvage"))
    refused("which the copy's server sees whole", 2, "--out", "/usr/local/salvage")
    refused("is in use: PostgreSQL runs in it", 3, old=pair.data("n2"))
    torn = tmp_path / "torn"
    for name in ("global/pg_control", "PG_VERSION"):
        (torn / name).parent.mkdir(parents=True, exist_ok=True)
        (torn / name).write_bytes((pair.data("n1") / name).read_bytes())
    (torn / "pg_wal").mkdir()
    refused("the WAL no longer reaches the fork", 3, old=torn)
    _flip(torn / "global/pg_control", 40)
    refused("is corrupt or encrypted", 3, old=torn)
    stop(pair, "n2", "fast")
    refused("does not answer", 3)
    start(pair, "n2")
