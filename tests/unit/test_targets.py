"""What a `--target` means, how it is reached, what needs consent, how changes are taken back: without a server."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walproof.errors import TargetError, UsageError
from walproof.model.event import Described
from walproof.model.topology import Description, Endpoint
from walproof.pricing.quality import mixed_versions
from walproof.targets.external import commands, consent
from walproof.targets.external.target_file import described, own_cluster, read_target_file, target_of
from walproof.targets.patroni.config import flat, merged, undoing
from walproof.targets.sql.alter_system import reordered
from walproof.targets.sql.connection import check_version, resolved
from walproof.targets.sql.values import same_value


def test_a_url_is_patroni_or_postgres_and_its_password_is_in_no_name() -> None:
    name, file = described("http://me:secret@db1:8008/")
    assert (name, file.kind, file.rest, file.restapi.user) == ("http://db1:8008", "patroni", ("http://db1:8008",), "me")
    assert file.restapi.password.get_secret_value() == "secret"
    name, file = described("postgresql://me:secret@db1,db2/app?sslmode=require")
    assert name == "postgresql://me@db1,db2/app?sslmode=require"
    assert file.kind == "postgres"
    name, _ = described("host=db1 user=me password=secret")
    assert name == "host=db1 user=me"
    assert "secret" not in repr(described("http://me:secret@db1:8008/")[1].restapi)


def test_a_target_file_is_read_and_everything_unknown_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        'kind = "postgres"\nservice = "app"\n[faults]\nkill = "ssh {host} sudo systemctl kill -s KILL postgresql"\n'
        "[caps]\nmax_clients = 8\nrate = 100\n"
    )
    file = read_target_file(path)
    assert file.caps.max_clients == 8
    assert file.faults["kill"].startswith("ssh {host}")
    assert described(str(path))[0] == str(path)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"kind": "oracle"}, "kind"),
        ({"kind": "postgres"}, "dsn or service"),
        ({"kind": "patroni"}, "rest"),
        ({"kind": "postgres", "dsn": "host=a", "colour": 1}, "colour"),
        ({"kind": "postgres", "dsn": "host=a", "faults": {"explode": "x"}}, "explode"),
        ({"kind": "postgres", "dsn": "host=a", "caps": {"max_clients": 0}}, "max_clients"),
        ({"kind": "postgres", "dsn": "host=a", "routes": {"nginx": "x"}}, "nginx"),
    ],
)
def test_a_target_that_cannot_be_meant_names_the_key(tree: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as wrong:
        target_of(tree, "c.toml")
    assert words in wrong.value.message


def test_a_file_that_is_missing_or_not_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        described(str(tmp_path / "none.toml"))
    bad = tmp_path / "bad.toml"
    bad.write_text("kind = = 3")
    with pytest.raises(UsageError, match="not TOML"):
        described(str(bad))
    with pytest.raises(UsageError, match="no target"):
        own_cluster("banana")


def test_a_password_goes_into_a_private_file_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "a:b\\c")
    ways = resolved("host=/nowhere,127.0.0.1 port=1,2 user=me dbname=app sslmode=require")
    assert ways.hosts == (("/nowhere", 1), ("127.0.0.1", 2))
    assert (ways.database, ways.user) == ("app", "me")
    assert ("sslmode", "require") in ways.options
    assert ways.passfile is not None
    assert stat.S_IMODE(os.stat(ways.passfile).st_mode) == 0o600
    assert Path(ways.passfile).read_text() == "*:*:*:*:a\\:b\\\\c\n"
    assert "a:b" not in ways.endpoint((("h", 1),)).conninfo()


def test_a_service_is_resolved_as_libpq_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "services"
    path.write_text("[mine]\nhost=db7\nport=5444\nuser=me\ndbname=app\n")
    monkeypatch.setenv("PGSERVICEFILE", str(path))
    ways = resolved("", "mine")
    assert (ways.hosts, ways.user, ways.database) == ((("db7", 5444),), "me", "app")


@pytest.mark.parametrize("version", [130011, 190000])
def test_a_version_never_tried_is_said(version: int) -> None:
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


def test_a_users_command_is_filled_in_quoted_and_its_failure_told() -> None:
    endpoint = Endpoint((("10.0.0.1", 5432),))
    places = commands.places_of("n1; rm", endpoint)
    assert commands.filled("ssh {host} kill {member}", places) == "ssh 10.0.0.1 kill 'n1; rm'"
    assert commands.run("echo {port}", places) == "5432\n"
    with pytest.raises(TargetError, match="no such thing"):
        commands.run("echo no such thing >&2; exit 3", places)
    with pytest.raises(UsageError, match="cannot be filled in"):
        commands.run("ssh {server}", places)


@given(st.permutations(["a", "b", "c", "d"]), st.permutations(["a", "b", "c", "d"]))
def test_setting_again_in_turn_gives_the_wanted_order(now: list[str], wanted: list[str]) -> None:
    order = list(now)
    for name in reordered(dict.fromkeys(now, "1"), wanted):
        order.remove(name)
        order.append(name)
    assert order == wanted


LEAVES = st.one_of(st.integers(0, 3), st.booleans(), st.sampled_from(["a", "b"]))
TREES = st.dictionaries(
    st.sampled_from("xyz"), st.one_of(LEAVES, st.dictionaries(st.sampled_from("pq"), LEAVES, min_size=1)), max_size=3
)


@settings(max_examples=200)
@given(TREES, TREES)
def test_undoing_our_own_patch_gives_the_configuration_before(
    before: dict[str, object], change: dict[str, object]
) -> None:
    after = merged(before, change)
    patch, foreign = undoing(before, after, after)
    assert foreign == []
    # An empty object that a removed key leaves behind says nothing.
    assert flat_leaves(merged(after, patch)) == flat_leaves(before)


def flat_leaves(tree: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in flat(tree).items() if value != {}}


def test_what_somebody_else_changed_is_not_undone() -> None:
    before, after = (
        {"ttl": 30, "postgresql": {"parameters": {"a": 1}}},
        {"ttl": 20, "postgresql": {"parameters": {"a": 2}}},
    )
    now = {"ttl": 20, "postgresql": {"parameters": {"a": 7}}, "pause": True}
    patch, foreign = undoing(before, after, now)
    assert patch == {"ttl": 30}
    assert foreign == ["postgresql.parameters.a"]


@pytest.mark.parametrize(
    ("written", "setting", "unit", "same"),
    [
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
    ],
)
def test_values_are_compared_by_what_they_mean(written: str, setting: str, unit: str, same: bool) -> None:
    assert same_value(written, setting, unit) is same


def test_members_of_different_versions_put_a_doubt_on_every_price() -> None:
    def told(*versions: str) -> Described:
        facts = {f"postgres version of n{i}": v for i, v in enumerate(versions)}
        return Described(0.0, Description("yours", ("n0", "n1"), facts))

    assert mixed_versions([told("18.1", "18.0")])
    assert not mixed_versions([told("18.1", "18.1")])
    assert not mixed_versions([told("18.1", "unreachable")])
