"""The live page and the exporter beyond loopback: which clients they answer, where, and who may read the token."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import psutil
import pytest
from prometheus_client import CollectorRegistry, Gauge

from tests.fixtures.command_line import ended
from tests.fixtures.served_sockets import running
from tests.fixtures.tiers import each
from walproof.errors import MachineError, UsageError
from walproof.machine.addresses import is_loopback
from walproof.targets.simulated.target import simulated
from walproof.watching.collector import Collector
from walproof.watching.http_server import MetricsServer, base_url, new_token, token_in
from walproof.watching.page import Page


def own_address() -> str:
    """An IPv4 address of this machine that is not loopback."""
    found = [a.address for all_of in psutil.net_if_addrs().values() for a in all_of if a.family == socket.AF_INET]
    beyond = [address for address in found if not is_loopback(address)]
    if not beyond:
        pytest.skip("this machine has no address but loopback")
    return beyond[0]


def has_ipv6() -> bool:
    """Whether ::1 can be listened on."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")


@contextmanager
def page_on(host: str) -> Iterator[tuple[Page, str]]:
    """A running page; itself and its address without the token."""
    with closing(Collector(simulated("sim"), record=None)) as collector:
        page = Page(collector, None, host=host)
        with running(page) as address:
            yield page, address.partition("/#")[0]


def read_events(url: str, **headers: str) -> int:
    """The status of /events at once, without reading on."""
    with httpx2.stream("GET", f"{url}/events", headers=headers, timeout=20) as answer:
        return answer.status_code


@pytest.fixture(scope="module")
def wildcard() -> Iterator[tuple[Page, str]]:
    with page_on("0.0.0.0") as served:
        yield served


@pytest.fixture(scope="module")
def local() -> Iterator[tuple[Page, str]]:
    with page_on("127.0.0.1") as served:
        yield served


def test_the_printed_address_of_a_wildcard_can_be_opened(wildcard: tuple[Page, str]) -> None:
    page, url = wildcard
    assert "0.0.0.0" not in url
    assert httpx2.get(url).status_code == 200
    assert page.token in page.url


def test_a_real_client_comes_by_any_address_with_the_token(wildcard: tuple[Page, str]) -> None:
    page, url = wildcard
    port = url.rsplit(":", 1)[1]
    for host in (own_address(), "127.0.0.1", "localhost"):
        assert read_events(f"http://{host}:{port}", **{"x-walproof-token": page.token}) == 200


def test_a_real_client_comes_by_a_name_or_a_proxy(wildcard: tuple[Page, str]) -> None:
    page, url = wildcard
    headers = {"x-walproof-token": page.token, "host": "db-watch.example", "origin": "https://db-watch.example"}
    assert read_events(url, **headers) == 200


@pytest.mark.parametrize(("place", "headers", "status"), [
    ("wildcard", {}, 403),
    ("wildcard", {"x-walproof-token": "x"}, 403),
    ("wildcard", {"x-walproof-token": "Bearer"}, 403),
    ("wildcard", {"x-walproof-token": "\x7f"}, 403),
    ("local", {"host": "evil.example"}, 403),
    ("local", {"origin": "http://evil.example"}, 403),
    ("local", {}, 200),
],ids=["none", "short", "word", "odd", "a rebound name", "a foreign origin", "loopback needs none"])  # fmt: skip
def test_beyond_loopback_the_token_is_needed_and_on_it_ones_own_name_and_origin(
    request: pytest.FixtureRequest, place: str, headers: dict[str, str], status: int
) -> None:
    assert read_events(request.getfixturevalue(place)[1], **headers) == status


def test_beyond_loopback_nothing_is_done_without_the_token(wildcard: tuple[Page, str]) -> None:
    answer = httpx2.post(f"{wildcard[1]}/act", json={"action": "kill", "member": "n1"})
    assert answer.status_code == 403


def test_the_empty_page_beyond_loopback_holds_no_token(wildcard: tuple[Page, str]) -> None:
    page, url = wildcard
    assert page.token not in httpx2.get(url).text


def test_loopback_is_not_reached_from_outside(local: tuple[Page, str]) -> None:
    with pytest.raises(httpx2.HTTPError):
        httpx2.get(f"http://{own_address()}:{local[1].rsplit(':', 1)[1]}", timeout=5)


@needs_ipv6
def test_an_ipv6_address_is_valid_in_the_url() -> None:
    with page_on("::1") as (_, url):
        assert url.startswith("http://[::1]:")
        assert read_events(url) == 200


@each([("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.1", False), ("localhost.example", False), ("", False)])  # fmt: skip
def test_what_counts_as_loopback(host: str, local_only: bool) -> None:
    assert is_loopback(host) is local_only


def test_urls_of_wildcards_name_no_wildcard() -> None:
    assert not {"0.0.0.0", "::", ""} & {base_url(host, 80).split("//")[1].rsplit(":", 1)[0] for host in ("0.0.0.0", "")}
    assert "[::]" not in base_url("::", 80)


@contextmanager
def metrics_on(host: str, token: str) -> Iterator[str]:
    registry = CollectorRegistry()
    Gauge("walproof_test", "A gauge", registry=registry).set(7)
    server = MetricsServer(registry, (host, 0), token)
    try:
        yield f"{base_url(host, server.port)}/metrics"
    finally:
        server.close()


def test_metrics_beyond_loopback_need_the_bearer_token() -> None:
    token = new_token()
    with metrics_on("0.0.0.0", token) as url:
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": token}, {"Authorization": "Basic eDp5"}):
            answer = httpx2.get(url, headers=headers)
            assert (answer.status_code, "walproof_test" in answer.text) == (401, False)
        assert "walproof_test 7.0" in httpx2.get(url, headers={"Authorization": f"Bearer {token}"}).text


def test_metrics_on_loopback_need_none() -> None:
    with metrics_on("127.0.0.1", "") as url:
        assert "walproof_test 7.0" in httpx2.get(url).text


@needs_ipv6
def test_metrics_on_ipv6() -> None:
    with metrics_on("::1", "") as url:
        assert "walproof_test 7.0" in httpx2.get(url).text


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with metrics_on("127.0.0.1", "") as url, pytest.raises(MachineError, match="cannot listen"):
        MetricsServer(CollectorRegistry(), ("127.0.0.1", int(url.split(":")[2].split("/")[0])))


def test_a_token_file_is_made_for_its_owner_alone_and_kept(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        token = token_in(tmp_path / "t")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == 0o600
    assert token_in(tmp_path / "t") == token


# rows: empty, short, spaces, no-text, others-may-read
@each([(b"", 0o600), (b"short\n", 0o600), (b"a token with spaces in it\n", 0o600), (b"\xff" * 20, 0o600),
     (b"long-enough-token-1234\n", 0o644)])  # fmt: skip
def test_a_token_file_that_is_no_good_is_refused(content: bytes, mode: int, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(content)
    (tmp_path / "t").chmod(mode)
    with pytest.raises(UsageError):
        token_in(tmp_path / "t")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user, which needs root")
def test_a_token_file_of_another_user_is_refused(tmp_path: Path) -> None:
    """He knows the token."""
    (tmp_path / "t").write_text("long-enough-token-1234\n")
    (tmp_path / "t").chmod(0o600)
    os.chown(tmp_path / "t", 12345, 12345)
    with pytest.raises(UsageError, match="another user owns"):
        token_in(tmp_path / "t")


def test_the_exporter_has_a_token_beyond_loopback_and_a_port_of_its_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []

    def exporter(_target: object, **options: Any) -> SimpleNamespace:
        given.append(options)
        port = SimpleNamespace(port=options["address"][1])
        return SimpleNamespace(server=port, update=lambda: None, close=lambda: None)

    monkeypatch.setattr("walproof.cli.watch.Exporter", exporter)
    words = ["watch", "--target", "sim", "--exporter", "--duration", "0.1s"]
    for more in ([], ["--host", "0.0.0.0"], ["--host", "::", "--token-file", str(tmp_path / "t")]):
        code, _, err = ended(capsys, [*words, *more])
        assert code == 0
        assert ":19187/metrics" in err
        token = given[-1]["token"]
        assert (bool(token) and token in err) is (more == ["--host", "0.0.0.0"])
    assert [bool(options["token"]) for options in given] == [False, True, True]
    assert given[2]["token"] == (tmp_path / "t").read_text().strip()
