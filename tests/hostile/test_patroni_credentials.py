"""Where the password of Patroni's REST must not go: hosts nobody named, plain HTTP, where a redirect points."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.fake_patroni import FakePatroni, fake_patroni
from tests.fixtures.tiers import each
from walproof.errors import TargetError, UsageError
from walproof.patroni.rest import PatroniRest, RestAccess
from walproof.targets.patroni.target_file import read_address


@pytest.fixture
def named() -> Iterator[FakePatroni]:
    with fake_patroni() as fake:
        yield fake


@pytest.fixture
def stranger() -> Iterator[FakePatroni]:
    with fake_patroni("127.0.0.2") as fake:
        yield fake


def rest_of(*urls: str, plain_http: bool = False) -> PatroniRest:
    return PatroniRest(RestAccess(urls, "walproof", "secret", plain_http=plain_http))


def listing(fake: FakePatroni, *others: FakePatroni) -> None:
    """Let /cluster name these members."""
    fake.members = [{"name": f"n{i}", "api_url": f"{f.url}/patroni"} for i, f in enumerate((fake, *others), 1)]


def test_the_host_that_the_user_named_gets_the_password(named: FakePatroni) -> None:
    rest_of(named.url).patch({"ttl": 20})
    assert named.config == {"ttl": 20}
    assert named.asked[-1].authorization is not None


def test_a_member_that_only_cluster_names_is_read_without_the_password(
    named: FakePatroni, stranger: FakePatroni
) -> None:
    listing(named, stranger)
    rest = rest_of(named.url)
    rest.versions()
    assert [a.method for a in stranger.asked] == ["GET"]
    assert stranger.asked[0].authorization is None


@pytest.mark.parametrize("path", ["restart", "reinitialize", "switchover"])
def test_a_member_that_only_cluster_names_is_never_sent_a_change(
    path: str, named: FakePatroni, stranger: FakePatroni
) -> None:
    listing(named, stranger)
    rest = rest_of(named.url)
    with pytest.raises(UsageError, match=r"not sent to 127\.0\.0\.2:\d+, which you did not name") as refused:
        rest.send("POST", f"/{path}", {}, at=rest.member_url("n2"))
    assert refused.value.exit_code == 2
    assert stranger.url in refused.value.hint
    assert stranger.asked == []


def test_another_port_of_a_named_host_is_not_sent_the_password(named: FakePatroni) -> None:
    """There another user of that machine may listen."""
    with fake_patroni() as other:
        listing(named, other)
        rest = rest_of(named.url)
        rest.versions()
        assert [a.authorization for a in other.asked] == [None]
        with pytest.raises(UsageError, match="which you did not name"):
            rest.send("POST", "/restart", {}, at=rest.member_url("n2"))


def test_a_patch_goes_to_the_named_host_even_while_only_the_stranger_answers_reads(
    named: FakePatroni, stranger: FakePatroni
) -> None:
    listing(named, stranger)
    rest = rest_of("http://127.0.0.1:1", named.url)
    rest.cluster()
    rest.patch({"ttl": 20})
    assert stranger.asked == []
    assert [a.body for a in named.written] == [{"ttl": 20}]


def test_with_every_named_host_down_nothing_is_sent_to_the_stranger(named: FakePatroni, stranger: FakePatroni) -> None:
    listing(named, stranger)
    rest = rest_of(named.url)
    rest.cluster()
    named.redirect = "http://127.0.0.1:1"
    with pytest.raises(TargetError):
        rest.patch({"ttl": 20})
    assert stranger.asked == []


@pytest.mark.parametrize("asking", ["patch", "newest_config", "config", "cluster"])
def test_a_redirect_carries_the_password_nowhere(asking: str, named: FakePatroni, stranger: FakePatroni) -> None:
    rest = rest_of(named.url)
    named.redirect = stranger.url
    with pytest.raises(TargetError):
        rest.patch({"ttl": 20}) if asking == "patch" else getattr(rest, asking)()
    assert stranger.asked == []


@each(["http://10.255.255.1:8008", "http://db1.example:8008", "HTTP://127.0.0.1.evil:8008"])
def test_plain_http_to_another_machine_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(UsageError, match="over plain HTTP") as refused:
        rest_of(url).patch({"ttl": 20})
    assert "plain_http = true" in refused.value.hint


def test_plain_http_is_possible_for_who_says_so() -> None:
    assert rest_of("http://10.0.0.1:8008", plain_http=True).access.withheld("http://10.0.0.1:8008/config") is None
    assert rest_of("https://db1:8008").access.withheld("https://db1:8008/config") is None


@each([
    "https://db1@evil:8008/restart", "https://db1.evil:8008/restart", "https://evil:8008/db1", "https://evil#db1",
    "https:///restart", "db1",
])  # fmt: skip
def test_a_url_that_only_looks_like_a_named_host_gets_nothing(url: str) -> None:
    withheld = rest_of("https://db1:8008").access.withheld(url)
    assert withheld is not None
    assert "which you did not name" in withheld.message


def test_a_server_that_asks_for_the_password_on_reading_gets_none(named: FakePatroni) -> None:
    named.protected = True
    # The address is the same machine's, under a name that is not loopback's.
    access = RestAccess((named.url.replace("127.0.0.1", "127.0.0.1.nip.invalid"),), "walproof", "secret")
    assert access.withheld(named.url) is not None
    rest = PatroniRest(access)
    with pytest.raises(UsageError, match="is not sent to"):
        rest._first("/cluster", named.url)
    assert [a.authorization for a in named.asked] == [None]


def test_a_password_in_a_url_of_rest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('kind = "patroni"\nrest = ["http://me:secret@127.0.0.1:8008"]\n')
    with pytest.raises(UsageError, match="an address holds a password") as refused:
        read_address(str(path))
    assert "secret" not in str(refused.value) + refused.value.hint
