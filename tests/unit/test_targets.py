"""What a `--target` means, how it is reached, what needs consent, how changes are reverted: without a server."""

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.fixtures.tiers import each
from walproof.errors import TargetError, UsageError
from walproof.machine.clock import RealClock
from walproof.model.drill import Capability
from walproof.model.event import Described
from walproof.model.ports import SILENT, Reverting
from walproof.model.topology import Description, Endpoint
from walproof.model.waiting import Wait, longest_s
from walproof.pricing.estimates import mixed_versions
from walproof.records.journal import Journal
from walproof.targets.choose import choose
from walproof.targets.external import commands, consent
from walproof.targets.external.faults_by_command import BY_COMMAND, UserCommands
from walproof.targets.external.target_file import TargetFile, read_tree, validated
from walproof.targets.patroni.target_file import read_address as patroni_address
from walproof.targets.postgres.target import read_address
from walproof.targets.sql import known_servers, settings
from walproof.targets.sql.connection import check_version, resolved
from walproof.targets.sql.settings import same_value


def test_a_url_is_patroni_or_postgres_and_its_password_is_in_no_name() -> None:
    name, patroni = patroni_address("http://me:secret@db1:8008/")
    assert (name, patroni.kind, patroni.rest) == ("http://db1:8008", "patroni", ("http://db1:8008",))
    assert patroni.restapi.user == "me"
    assert patroni.restapi.password.get_secret_value() == "secret"
    assert "secret" not in repr(patroni.restapi)
    name, file = read_address("postgresql://me:secret@db1,db2/app?sslmode=require")
    assert name == "postgresql://me@db1,db2/app?sslmode=require"
    assert file.kind == "postgres"
    name, _ = read_address("host=db1 user=me password=secret")
    assert name == "host=db1 user=me"


def test_a_target_file_is_read_and_everything_unknown_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        'kind = "postgres"\nservice = "app"\n[faults]\nkill = "ssh {host} sudo systemctl kill -s KILL postgresql"\n'
        "[caps]\nmax_clients = 8\nrate = 100\n"
    )
    file = validated(TargetFile, read_tree(path), str(path))
    assert file.caps.max_clients == 8
    assert file.faults["kill"].startswith("ssh {host}")
    assert read_address(str(path))[0] == str(path)


@each([
    ({"dsn": "host=a"}, "kind"),
    ({"kind": "postgres", "dsn": "host=a", "colour": 1}, "colour"),
    ({"kind": "postgres", "dsn": "host=a", "faults": {"explode": "x"}}, "explode"),
    ({"kind": "postgres", "dsn": "host=a", "caps": {"max_clients": 0}}, "max_clients"),
    ({"kind": "postgres", "dsn": "host=a", "routes": {"nginx": "x"}}, "nginx"),
    ({"kind": "postgres", "dsn": "host=a", "faults": {"cut-power": "x"}}, "cut-power"),
])  # fmt: skip
def test_a_target_that_is_not_valid_names_the_key(tree: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as wrong:
        validated(TargetFile, tree, "c.toml")
    assert words in wrong.value.message


@each([
    ('kind = "oracle"', "'oracle' is not known"),
    ('kind = "postgres"', "dsn or service"),
    ('kind = "patroni"', "rest"),
    ('dsn = "host=a"', "kind"),
])  # fmt: skip
def test_a_file_that_no_target_accepts_says_what_is_missing(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        choose(str(path))


def test_a_wait_may_take_longer_on_a_target() -> None:
    tree: dict[str, object] = {"kind": "postgres", "waits": {"cluster-healthy": "20min"}}
    clock = RealClock(validated(TargetFile, tree, "c.toml").waits_s)
    assert longest_s(Wait.CLUSTER_HEALTHY, clock) == 1200 * clock.patience
    assert longest_s(Wait.SWITCHOVER, clock) == Wait.SWITCHOVER.seconds * clock.patience
    assert RealClock().waits == {}
    with pytest.raises(UsageError, match="is no wait"):
        _ = TargetFile(kind="postgres", waits={"patience": "2s"}).waits_s


def test_routes_are_named_by_the_file_and_say_whether_they_pool() -> None:
    tree: dict[str, object] = {"kind": "postgres", "routes": {"pgbouncer": "a:6432", "rw": {"address": "b:5432"}}}
    file = validated(TargetFile, tree, "c.toml")
    assert (file.routes["pgbouncer"].pools, file.routes["rw"].pools) == (True, False)
    assert file.routes["rw"].host == ("b", 5432)


@each([
    ("isolate", None, set()),
    ("isolate", "recover", {Capability.ISOLATE}),
    ("partition", "thaw", set()),
    ("power-cut", None, set()),
    ("freeze", None, set()),
    ("freeze", "recover", set()),
    ("freeze", "thaw", {Capability.FREEZE}),
    ("kill", None, {Capability.KILL}),
    ("hang-postmaster", "thaw", set()),
    ("hang-manager", "resume", {Capability.HANG_MANAGER}),
    ("hang-rest", None, set()),
])  # fmt: skip
def test_a_command_makes_only_its_own_fault_possible(fault: str, undo: str | None, there: set[Capability]) -> None:
    given = {fault: "true", **({undo: "true"} if undo else {})}
    commands = UserCommands(given, lambda member: Endpoint((("h", 1),)))
    assert set(commands.faults()) == there
    if not there:
        assert "no command that undoes it" in commands.reasons()[Capability(fault)]


def test_a_fault_is_undone_though_its_manager_no_longer_lists_the_member(tmp_path: Path) -> None:
    """Patroni forgets a frozen member when its key has ended: nobody but the command thaws it."""
    listed = {"n1": Endpoint((("h", 1),))}

    def where(member: str) -> Endpoint:
        if member not in listed:
            raise TargetError(f"there is no member {member}", "patronictl list")
        return listed[member]

    thawed = tmp_path / "thawed"
    fault = UserCommands({"freeze": "true", "thaw": f"echo {{host}} > {thawed}"}, where).faults()[Capability.FREEZE]
    fault.inject("n1")
    listed.clear()
    fault.undo("n1")
    assert thawed.read_text() == "h\n"
    with pytest.raises(TargetError, match="no member n2"):
        fault.inject("n2")


@each([("freeze", "thaw"), ("hang-manager", "resume"), ("power-cut", "recover"), ("isolate", "recover")])
def test_a_fault_of_a_run_that_was_killed_is_undone_by_its_command(fault: str, undo: str, tmp_path: Path) -> None:
    """Its manager does not list the member any more; a command that fails leaves the fault in the journal."""

    def gone(member: str) -> Endpoint:
        raise TargetError(f"there is no member {member}", "patronictl list")

    journal, undone, told = Journal(tmp_path / "journal.jsonl"), tmp_path / "undone", []
    given = {fault: "true", undo: f"echo {{host}}:{{port}} {{member}} > {undone}"}
    killed = UserCommands(given, lambda member: Endpoint((("h", 7),)), journal=lambda: journal, target="t")
    killed.inject(Capability(fault), "n1")
    later = UserCommands({fault: "true", undo: "false"}, gone, target="t")
    reverting = Reverting(lambda kind, name: told.append((kind, name)))
    assert later.revert(journal, reverting)[0].startswith(f"{fault} of n1 is not undone: your command failed")
    later.commands = given
    assert later.revert(journal, reverting) == []
    assert undone.read_text() == "h:7 n1\n"
    assert told == [("fault", f"{fault} n1")]
    assert journal.pending() == ()


@pytest.mark.parametrize("thaw", ["printf 'entf\\374hrt\\n'", "false"])
@pytest.mark.parametrize("reverted", [False, True])
def test_one_fault_that_stays_or_prints_oddly_keeps_no_other_from_being_undone(
    tmp_path: Path, thaw: str, reverted: bool
) -> None:
    """Latin-1 is what some commands print: that it is no UTF-8 is no reason that a fault stays."""
    journal, undone = Journal(tmp_path / "journal.jsonl"), tmp_path / "undone"
    given = {"freeze": "true", "thaw": thaw, "stop": "true", "recover": f"touch {undone}"}
    commands = UserCommands(given, lambda member: Endpoint((("h", 7),)), journal=lambda: journal, target="t")
    commands.inject(Capability.STOP, "n1")
    commands.inject(Capability.FREEZE, "n2")
    commands.inject(Capability.FREEZE, "n3")
    said = []
    try:
        if reverted:
            said = commands.revert(journal, SILENT)
        else:
            commands.undo_all()
    except TargetError as wrong:
        said = [wrong.message]
    stay = ["freeze n3", "freeze n2"] if thaw == "false" else []
    assert undone.exists() and sorted(change.name for change in journal.pending("t")) == sorted(stay)
    assert bool(said) is bool(stay) and all("your command failed (1): false" in why for why in said)


def test_what_no_command_was_noted_for_keeps_no_other_from_being_undone(tmp_path: Path) -> None:
    """Another version's fault, or a place that is none."""
    journal, undone = Journal(tmp_path / "journal.jsonl"), tmp_path / "undone"
    commands = UserCommands({"recover": f"touch {undone}"}, lambda _: Endpoint((("h", 7),)), target="t")
    for name, where in (("stop n1", "h:7"), ("melt n2", "h:7"), ("stop n3", "h")):
        journal.note(0.0, "t", BY_COMMAND, name, before=where, after=None)
    assert len(commands.revert(journal, SILENT)) == 2
    assert undone.exists() and [change.name for change in journal.pending("t")] == ["stop n3", "melt n2"]


def test_a_log_that_is_no_utf8_is_read_all_the_same() -> None:
    """psql -U $'bj\\xfcrn': a stranger's name stands in the server's log as its bytes were."""
    commands = UserCommands({"logs": "printf 'role \"bj\\374rn\"\\n'"}, lambda member: Endpoint((("h", 7),)))
    assert commands.run("logs", "n1") == 'role "bj\N{REPLACEMENT CHARACTER}rn"\n'


def test_a_fault_that_was_undone_leaves_nothing_in_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    given = {"freeze": "true", "thaw": "true", "kill": "true"}
    commands = UserCommands(given, lambda member: Endpoint((("h", 7),)), journal=lambda: journal, target="t")
    commands.inject(Capability.KILL, "n1")  # nothing undoes it but the cluster itself
    assert journal.pending() == ()
    commands.inject(Capability.FREEZE, "n1")
    assert [change.name for change in journal.pending("t")] == ["freeze n1"]
    commands.undo_all()
    assert journal.pending() == ()


def test_a_file_that_is_missing_or_not_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        choose(str(tmp_path / "none.toml"))
    bad = tmp_path / "bad.toml"
    bad.write_text("kind = = 3")
    with pytest.raises(UsageError, match="not TOML"):
        choose(str(bad))
    with pytest.raises(UsageError, match="no target"):
        choose("banana")


def test_a_password_goes_into_memory_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files below /tmp stayed behind where walproof was killed with -9."""
    monkeypatch.setenv("PGPASSWORD", "a:b\\c")
    parameters = resolved("host=/nowhere,127.0.0.1 port=1,2 user=me dbname=app sslmode=require")
    assert parameters.hosts == (("/nowhere", 1), ("127.0.0.1", 2))
    assert (parameters.database, parameters.user) == ("app", "me")
    assert ("sslmode", "require") in parameters.options
    assert parameters.passfile is not None
    assert stat.S_IMODE(os.stat(parameters.passfile).st_mode) == 0o600
    assert "memfd" in os.readlink(parameters.passfile)
    shown = subprocess.run(["cat", parameters.passfile], capture_output=True, text=True, check=True).stdout
    assert shown == "*:*:*:*:a\\:b\\\\c\n"
    assert "a:b" not in parameters.at(("h", 1)).conninfo()


@each(["dsn", "service", "environment", "both"])
def test_a_host_beside_another_hostaddr_is_refused(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libpq went to the copy at hostaddr, walproof set all on production, where the name led."""
    path = tmp_path / "services"
    path.write_text("[copy]\nhost=/nowhere\nhostaddr=127.0.0.2\n")
    monkeypatch.setenv("PGSERVICEFILE", str(path))
    if given == "environment":
        monkeypatch.setenv("PGHOST", "/nowhere")
        monkeypatch.setenv("PGHOSTADDR", "127.0.0.2")
    dsn = {"dsn": "host=/nowhere hostaddr=127.0.0.2", "both": "host=/nowhere"}.get(given, "user=me")
    with pytest.raises(UsageError, match=r"host=/nowhere and hostaddr=127\.0\.0\.2 are both given"):
        resolved(dsn, "copy" if given in ("service", "both") else "")
    monkeypatch.delenv("PGHOST", raising=False)
    assert resolved("host=127.0.0.2 hostaddr=127.0.0.2").hosts == resolved("hostaddr=127.0.0.2").hosts


def test_a_service_is_resolved_as_libpq_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "services"
    path.write_text("[mine]\nhost=db7\nport=5444\nuser=me\ndbname=app\n")
    monkeypatch.setenv("PGSERVICEFILE", str(path))
    parameters = resolved("", "mine")
    assert (parameters.hosts, parameters.user, parameters.database) == ((("db7", 5444),), "me", "app")


def test_a_word_that_only_libpq_fills_in_goes_to_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older pgbench ended with `invalid connection option "sslcertmode"`, which libpq 16 fills in itself."""
    path = tmp_path / "services"
    path.write_text("[plain]\nhost=/nowhere\n[mine]\nhost=/nowhere\nsslcertmode=disable\n")
    monkeypatch.setenv("PGSERVICEFILE", str(path))
    for variable in ("PGSSLCERTMODE", "PGSERVICE"):
        monkeypatch.delenv(variable, raising=False)
    assert resolved("host=/nowhere").options == resolved("", "plain").options == ()
    assert resolved("host=/nowhere sslcertmode=require").options == (("sslcertmode", "require"),)
    assert resolved("", "mine").options == (("sslcertmode", "disable"),)
    monkeypatch.setenv("PGSERVICE", "mine")
    assert resolved("user=me").options == (("sslcertmode", "disable"),)
    monkeypatch.delenv("PGSERVICE")
    monkeypatch.setenv("PGSSLCERTMODE", "disable")
    assert resolved("host=/nowhere").options == (("sslcertmode", "disable"),)


@each([130011, 190000])
def test_a_version_never_tried_is_refused(version: int) -> None:
    with pytest.raises(TargetError, match="14 to 18"):
        check_version(version, "n1")
    check_version(140000, "n1")
    check_version(180006, "n1")


def test_missing_consent_names_the_exact_flag() -> None:
    with pytest.raises(UsageError) as wrong:
        consent.require("pricing", ["load", "config"], consent.read("load"), "db1")
    assert wrong.value.exit_code == 2
    assert "--allow load,config" in wrong.value.hint
    consent.require("pricing", ["load"], consent.read("config, load"), "db1")
    with pytest.raises(UsageError, match="no consent"):
        consent.require("pricing", ["load"], consent.read("everything"), "db1")


def test_a_users_command_is_filled_in_and_its_failure_shown() -> None:
    endpoint = Endpoint((("10.0.0.1", 5432),))
    places = commands.places_of("n1", endpoint)
    assert commands.filled("ssh {host} kill {member} {member2}", places) == "ssh 10.0.0.1 kill n1 ''"
    assert commands.run(commands.filled("echo {port}", places)) == "5432\n"
    with pytest.raises(TargetError, match="no such thing"):
        commands.run("echo no such thing >&2; exit 3")


@each([
    ("15s", "15000", "ms", True),
    ("1min", "60000", "ms", True),
    ("256MB", "32768", "8kB", True),
    ("5000", "5000", "ms", True),
    ("true", "on", "", True),
    ("0", "off", "", True),
    ("on", "on", "", True),
    ("5s", "15000", "ms", False),
    ("1GB", "1", "GB", True),
    ("replica", "logical", "", False),
    ("on", "remote_apply", "", False),
])  # fmt: skip
def test_values_are_compared_by_what_they_mean(written: str, setting: str, unit: str, same: bool) -> None:
    assert same_value(written, setting, unit) is same


def test_members_of_different_versions_put_a_caveat_on_every_price() -> None:
    def described(*versions: str) -> Described:
        facts = {f"postgres version of n{i}": v for i, v in enumerate(versions)}
        return Described(0.0, Description("external", ("n0", "n1"), facts))

    assert mixed_versions([described("18.1", "18.0")])
    assert not mixed_versions([described("18.1", "18.1")])
    assert not mixed_versions([described("18.1", "unreachable")])


def test_a_member_that_is_gone_keeps_no_other_from_being_undone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    altered: list[tuple[str, str, str | None]] = []

    @contextmanager
    def connected(endpoint: Endpoint) -> Iterator[str]:
        if endpoint.hosts[0][0] == "gone":
            raise TargetError("n1 does not answer")
        yield endpoint.hosts[0][0]

    monkeypatch.setattr(known_servers, "connected", connected)
    monkeypatch.setattr(settings, "answering", lambda _: ({}, None))
    monkeypatch.setattr(settings, "server_of", lambda _: known_servers.Server("", datetime.now(UTC), {}, "1"))
    monkeypatch.setattr(settings, "auto_conf", lambda _: {"commit_delay": "9"})
    monkeypatch.setattr(settings, "alter", lambda *words: altered.append(words))
    monkeypatch.setattr(settings.AutoConf, "_reload", lambda *_: None)
    journal = Journal(tmp_path / "j.jsonl")
    for member in ("n1", "n2"):
        journal.note(1.0, "t", f"{known_servers.AUTO} {member}", "commit_delay", before=None, after="9")
    members = {"n1": Endpoint((("gone", 1),)), "n2": Endpoint((("here", 1),))}
    with pytest.raises(TargetError, match="n1 does not answer"):
        settings.AutoConf("t", RealClock(), members).undo(journal.pending(), journal.undone, SILENT)
    assert altered == [("here", "commit_delay", None)]
    assert [change.what for change in journal.pending()] == [f"{known_servers.AUTO} n1"]
