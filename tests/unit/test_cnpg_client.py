"""The Kubernetes client against plain HTTP answers: every failure is one sentence with a hint, and no proxy is used."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import pytest
import yaml
from kubernetes.client import Configuration
from kubernetes.config import ConfigException

from tests.fixtures.tiers import each
from walproof.errors import Error, MachineError, TargetError, UsageError
from walproof.targets.cnpg.client import Client
from walproof.targets.cnpg.kubeconfig import connection
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, PODS, ApiError

FORBIDDEN = (
    'clusters.postgresql.cnpg.io "pg" is forbidden: User "system:serviceaccount:default:probe" cannot patch resource '
    '"clusters" in API group "postgresql.cnpg.io" in the namespace "default"'
)
INVALID = (
    'Cluster.postgresql.cnpg.io "pg" is invalid: spec.postgresql.parameters.ssl: Invalid value: "off": '
    "Can't set fixed configuration parameter"
)


@contextmanager
def answering(code: int, body: object, seen: list[str] | None = None) -> Iterator[str]:
    """A server that gives every request the same answer."""
    text = body if isinstance(body, str) else json.dumps(body)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            if seen is not None:
                seen.append(f"{self.command} {self.path} {self.headers.get('Authorization', '')}".strip())
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(code)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_PATCH = do_DELETE = answer

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def client(url: str, token: str = "") -> Client:
    configuration = Configuration(host=url)
    configuration.retries = False
    if token:
        configuration.api_key["BearerToken"] = f"Bearer {token}"
    return Client(configuration, "default", "here")


def status(message: str) -> dict[str, object]:
    return {"kind": "Status", "status": "Failure", "message": message}


@each([
    (401, status("Unauthorized"), "does not accept this user (401)", "log in again"),
    (403, status(FORBIDDEN), "system:serviceaccount:default:probe may not patch clusters.postg", "--print-rbac"),
    (404, status('clusters "pg" not found'), "there is no clusters.postgresql.cnpg.io pg in namespace default", ""),
    (404, "404 page not found\n", "CloudNativePG is not installed", "context"),
    (409, status("the object has been modified"), "changed by another user meanwhile (409)", "once more"),
    (410, status("too old resource version"), "no longer keeps that version", "once more"),
    (422, status(INVALID), "Can't set fixed configuration parameter", "kubectl explain"),
    (429, status("too many requests"), "overloaded", "try again"),
    (500, status("failed calling webhook vcluster"), "a webhook that the API server asks", "operator"),
    (503, "<html>upstream is down</html>", "failed to patch clusters.postgresql.cnpg.io pg (503)", "readyz"),
    (302, "", "redirects (302)", "API server"),
    (200, "<html>a login page</html>", "is no Kubernetes API", "kubeconfig"),
])  # fmt: skip
def test_an_answer_is_one_sentence_with_a_hint(code: int, body: object, words: str, hint: str) -> None:
    with answering(code, body) as url, pytest.raises(Error) as wrong:
        client(url, "secret-token").patch(CLUSTERS, "pg", {"spec": {}})
    assert words in wrong.value.message
    assert hint in wrong.value.hint and wrong.value.hint
    assert "\n" not in wrong.value.message and "secret-token" not in repr(wrong.value) + wrong.value.message
    assert isinstance(wrong.value, UsageError if code == 422 else TargetError)


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ApiError, match="connection refused"):
        client(f"http://127.0.0.1:{port}").get(CLUSTERS, "pg")
    with pytest.raises(ApiError, match="connection refused"):
        client(f"http://127.0.0.1:{port}").exec("pg-1", ["true"])


def test_no_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walproof.targets.cnpg.client._READ_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ApiError, match="did not answer in time"):
        client(f"http://127.0.0.1:{silent.getsockname()[1]}").get(CLUSTERS, "pg")


def test_exec_refused_names_the_verb() -> None:
    refusal = 'pods "pg-1" is forbidden: User "u" cannot get resource "pods/exec" in API group "" in the namespace "d"'
    stated = pytest.raises(ApiError, match=r"^u may not get pods/exec in namespace default \(403\)$")
    with answering(403, status(refusal)) as url, stated as wrong:
        client(url).exec("pg-1", ["true"])
    assert wrong.value.code == 403


def test_a_log_is_text_and_its_right_is_named() -> None:
    seen: list[str] = []
    with answering(200, '{"msg":"ready"}\nplain\n', seen) as url:
        assert client(url).log("pg-1", lines=5) == '{"msg":"ready"}\nplain\n'
    assert seen == ["GET /api/v1/namespaces/default/pods/pg-1/log?container=postgres&tailLines=5"]
    with answering(403, "{}") as url, pytest.raises(ApiError, match="may not get pods/log in namespace default"):
        client(url).log("pg-1")


def test_deleted_already_is_fine_and_a_list_is_read_whole() -> None:
    with answering(404, status('pods "x" not found')) as url:
        client(url).delete(PODS, "x", uid="u1")
    with answering(200, {"items": [{"a": 1}], "metadata": {}}) as url:
        assert client(url).list(PODS, "a=b") == [{"a": 1}]


def test_a_deletion_of_what_was_seen_is_not_sent_once_more_after_another_login() -> None:
    """A credential plugin may take any time: by then the primary may live again."""
    seen, asked = list[str](), list[str]()
    with answering(401, status("Unauthorized"), seen) as url:
        of = [Configuration(host=url), Configuration(host=url)]
        for token, one in zip(("Bearer old", "Bearer new"), of, strict=True):
            one.retries, one.api_key["BearerToken"] = False, token
        known = Client(of[0], "default", "here", lambda: asked.append("plugin") or of[1])  # type: ignore[func-returns-value]
        with pytest.raises(ApiError, match="401"):
            known.delete(PODS, "x", 1, uid="u1")
    assert len(seen) == 1 and asked == []


def test_a_deletion_of_the_very_one_that_was_seen_is_not_carried_out_late() -> None:
    seen: list[str] = []
    with answering(200, {}, seen) as url:
        known = client(url)
        with mock.patch.object(known._api, "call_api", wraps=known._api.call_api) as called:
            assert known.delete(PODS, "x", 1, uid="u1")
    assert seen == ["DELETE /api/v1/namespaces/default/pods/x?timeout=2s"]
    assert called.call_args.kwargs["_request_timeout"][0] == 1.0, "nor through a slow login"


@each(["", "u1"])
def test_a_deletion_is_never_one_of_any_pod_of_that_name(uid: str) -> None:
    """An API that gives a pod none: "" is no pod's."""
    asking, sent = client("http://127.0.0.1:9"), list[object]()

    def called(_method: str, _url: str, _headers: object, body: dict[str, object], **_given: object) -> object:
        sent.append(body.get("preconditions"))
        raise OSError("refused")

    asking._api.call_api = called
    with pytest.raises(ApiError):
        asking.delete(PODS, "x", 1, uid=uid)
    assert sent == [{"uid": uid}]


@each([404, 409])
def test_what_is_gone_already_is_told_from_what_was_deleted(code: int) -> None:
    with answering(code, status("no")) as url:
        assert not client(url).delete(PODS, "x", 1, uid="u1")


@each([0.0, 0.4, 0.6, 3.0])
def test_a_deletion_of_what_was_seen_is_not_sent_once_a_credential_took_long(
    took_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, clock_s = list[str](), [0.0]
    monkeypatch.setattr("walproof.targets.cnpg.client.monotonic", lambda: clock_s[0])
    with answering(200, {}, seen) as url:
        asking = client(url, "old")

        def plugin(_configuration: object) -> None:
            clock_s[0] += took_s

        asking._configuration.refresh_api_key_hook = plugin
        if took_s > 0.5:
            with pytest.raises(ApiError, match="came too late"):
                asking.delete(PODS, "x", 1, uid="u1")
        else:
            assert asking.delete(PODS, "x", 1, uid="u1")
    assert len(seen) == (0 if took_s > 0.5 else 1)


CREDENTIAL = (ConfigException("exec: 1"), FileNotFoundError("token"), ValueError("JSON"), KeyError("status"))


@each(CREDENTIAL)
def test_a_credential_that_cannot_be_renewed_is_one_sentence(wrong: Exception) -> None:
    def plugin(_configuration: object) -> None:
        raise wrong

    asking = client("http://127.0.0.1:9", "old")
    asking._configuration.refresh_api_key_hook = plugin
    for act in (lambda: asking.get(PODS, "x"), lambda: asking.delete(PODS, "x", uid="u"), lambda: asking.exec("x", [])):
        with pytest.raises(ApiError, match="no new credential for http") as said:
            act()
        assert "kubectl" in said.value.hint


def kubeconfig(path: Path, name: str, server: str, user: dict[str, object], *, current: bool = True) -> Path:
    tree = {
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "users": [{"name": name, "user": user}],
        **({"current-context": name} if current else {}),
    }
    path.write_text(yaml.safe_dump(tree))
    return path


def test_the_first_of_several_kubeconfigs_wins_as_in_kubectl(tmp_path: Path) -> None:
    one = kubeconfig(tmp_path / "one", "a", "https://one:6443", {"token": "t1"})
    two = kubeconfig(tmp_path / "two", "b", "https://two:6443", {"token": "t2"})
    environment = {"KUBECONFIG": f"{tmp_path / 'none'}:{one}:{two}"}
    found, context = connection("", environment)
    assert (found.host, context) == ("https://one:6443", "a")
    found, context = connection("b", environment)
    assert (found.host, context, found.api_key["BearerToken"]) == ("https://two:6443", "b", "Bearer t2")
    with pytest.raises(UsageError, match="no context c") as wrong:
        connection("c", environment)
    assert wrong.value.hint == "the contexts are a, b"


def test_what_a_kubeconfig_lacks_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(MachineError, match="no Kubernetes is known"):
        connection("", {})
    unset = kubeconfig(tmp_path / "unset", "a", "https://one:6443", {}, current=False)
    with pytest.raises(UsageError, match="sets no current-context"):
        connection("", {"KUBECONFIG": str(unset)})
    (tmp_path / "bad").write_text("users: [token: s3cret: :")
    with pytest.raises(UsageError, match="is not YAML") as wrong:
        connection("", {"KUBECONFIG": str(tmp_path / "bad")})
    assert "s3cret" not in wrong.value.message


def plugin(path: Path, body: str) -> dict[str, object]:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path), "interactiveMode": "Never"}}


def test_a_credential_plugin_that_fails_is_no_anonymous_user(tmp_path: Path) -> None:
    user = plugin(tmp_path / "login", "echo please log in >&2; exit 1")
    path = kubeconfig(tmp_path / "config", "a", "https://one:6443", user)
    with pytest.raises(TargetError, match="credential plugin of user a gave no credential") as wrong:
        connection("", {"KUBECONFIG": str(path)})
    assert str(tmp_path / "login") in wrong.value.hint


def test_an_expired_plugin_credential_is_asked_for_again(tmp_path: Path) -> None:
    count = tmp_path / "count"
    answer = (
        '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":'
        '{"token":"t%s","expirationTimestamp":"2026-01-01T00:00:00Z"}}'
    )
    user = plugin(tmp_path / "login", f"echo x >> {count}; printf '{answer}' $(wc -l < {count})")
    seen: list[str] = []
    with answering(200, {"items": []}, seen) as url:
        path = kubeconfig(tmp_path / "config", "a", url, user)
        configuration, context = connection("", {"KUBECONFIG": str(path)})
        asking = Client(configuration, "default", context)
        asking.list(PODS)
        asking.list(PODS)
    tokens = [line.rpartition(" ")[2] for line in seen]
    assert tokens[0] != tokens[1] and len(count.read_text().split()) >= 3


def test_a_proxy_of_the_environment_sees_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    with answering(200, {"items": []}, seen) as proxy, answering(403, status("no")) as url:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        server = url.replace("127.0.0.1", "localhost")
        path = kubeconfig(tmp_path / "config", "a", server, {"token": "t"})
        configuration, context = connection("", {"KUBECONFIG": str(path)})
        asking = Client(configuration, "default", context)
        for act in (lambda: asking.list(PODS), lambda: asking.exec("pg-1", ["true"])):
            with pytest.raises(ApiError) as wrong:
                act()
            assert wrong.value.code == 403
    assert seen == []
