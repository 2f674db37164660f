"""A kubeconfig that changes in the middle of a run, and one that limits itself."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.test_cnpg_client import answering, status
from walproof.errors import TargetError, UsageError
from walproof.targets.cnpg import target
from walproof.targets.cnpg.kubeconfig import connection
from walproof.targets.cnpg.kubernetes_api import PODS, ApiError


@dataclass
class Servers:
    """Two API servers that accept no token any more, what each was asked, and the kubeconfig that names them."""

    file: Path
    urls: dict[str, str] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=lambda: {"staging": [], "prod": []})

    def write(self, current: str, **renamed: str) -> None:
        named = {name: renamed.get(name, name) for name in self.urls}
        tree = {
            "clusters": [{"name": n, "cluster": {"server": self.urls[named[n]]}} for n in named],
            "contexts": [{"name": n, "context": {"cluster": n, "user": n}} for n in named],
            "users": [{"name": n, "user": {"token": f"of-{named[n]}"}} for n in named],
            "current-context": current,
        }
        self.file.write_text(yaml.safe_dump(tree))


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    made = Servers(tmp_path / "config")
    monkeypatch.setenv("KUBECONFIG", str(made.file))
    with ExitStack() as stack:
        for name, seen in made.seen.items():
            made.urls[name] = stack.enter_context(answering(401, status("Unauthorized"), seen))
        made.write("staging")
        yield made


@pytest.mark.parametrize(("current", "renamed"), [("prod", {}), ("staging", {"staging": "prod"})])
def test_a_run_stays_on_the_server_that_was_opened_and_sends_it_no_others_token(
    current: str, renamed: dict[str, str], servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kubectl config use-context` elsewhere, or a context of that name that leads elsewhere; then a token expires."""
    monkeypatch.setattr(target, "CnpgCluster", lambda _path, _file, api: api)
    api: Any = target.open_cnpg("cnpg:default/pg")
    servers.write(current, **renamed)
    acts: tuple[Callable[[], object], ...] = (
        lambda: api.list(PODS),
        lambda: api.exec("pg-1", ["true"]),
        lambda: api.delete(PODS, "pg-1", uid="u"),
    )
    for act in acts:
        with pytest.raises(ApiError) as wrong:
            act()
        assert wrong.value.code == 401
    assert servers.seen["prod"] == [] and servers.seen["staging"] != []
    assert not [line for line in servers.seen["staging"] if "of-prod" in line]


@pytest.mark.parametrize(("part", "key"), [("user", "as"), ("user", "as-groups"), ("cluster", "read-only")])
def test_a_key_that_is_not_obeyed_is_refused(part: str, key: str, servers: Servers) -> None:
    """`as` limits what kubectl does: without it, all rights behind it would be used."""
    servers.write("staging")
    tree = yaml.safe_load(servers.file.read_text())
    tree[f"{part}s"][0][part][key] = "system:serviceaccount:default:dev"
    servers.file.write_text(yaml.safe_dump(tree))
    with pytest.raises(UsageError, match=f"has {key}, which walproof does not obey"):
        connection("", {"KUBECONFIG": str(servers.file)})


def test_a_user_whose_name_is_a_number_is_looked_at_too(servers: Servers) -> None:
    tree = yaml.safe_load(servers.file.read_text())
    for context in tree["contexts"]:
        context["context"]["user"] = 7
    tree["users"][0] |= {"name": 7}
    tree["users"][0]["user"]["as"] = "system:serviceaccount:default:dev"
    servers.file.write_text(yaml.safe_dump(tree))
    with pytest.raises(UsageError, match="names what is no text"):
        connection("", {"KUBECONFIG": str(servers.file)})


def test_a_plugins_arguments_are_not_shown(servers: Servers) -> None:
    tree = yaml.safe_load(servers.file.read_text())
    words = {"command": "/bin/false", "args": ["--password", "hunter2hunter", "--oidc-client-secret", "s3cr3t"]}
    tree["users"][0]["user"] = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", **words}}
    servers.file.write_text(yaml.safe_dump(tree))
    with pytest.raises(TargetError, match="gave no credential") as wrong:
        connection("", {"KUBECONFIG": str(servers.file)})
    assert "/bin/false" in wrong.value.hint and "hunter2" not in wrong.value.hint and "s3cr3t" not in wrong.value.hint
