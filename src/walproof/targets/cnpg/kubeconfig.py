"""Which Kubernetes is meant, as kubectl reads it: KUBECONFIG (several files), ~/.kube/config, or a pod's own account.

Proxy variables of the environment are not followed: the API server's answers hold credentials. A kubeconfig's own
proxy-url is. The file is never written.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client import Configuration
from kubernetes.config import ConfigException, load_incluster_config
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

from walproof.errors import MachineError, TargetError, UsageError

DEFAULT = "~/.kube/config"
HINT = "kubectl config get-contexts; export KUBECONFIG=…"


def paths_of(environment: Mapping[str, str]) -> list[Path]:
    """The kubeconfig files that are there, in kubectl's order."""
    named = environment.get("KUBECONFIG") or DEFAULT
    return [path for text in named.split(os.pathsep) if text and (path := Path(text).expanduser()).is_file()]


def connection(context: str, environment: Mapping[str, str]) -> tuple[Configuration, str]:
    """(the client's configuration, context: "" in a cluster); UsageError for no such context, MachineError for none."""
    paths = paths_of(environment)
    configuration = Configuration()
    if paths:
        return configuration, _from_files(paths, context, configuration)
    if context:
        raise UsageError(f"there is no kubeconfig that could hold the context {context}", HINT)
    _in_cluster(configuration, environment)
    return configuration, ""


def server_of(configuration: Configuration) -> tuple[object, ...]:
    """Which server it is for, and how that is known and reached."""
    authority = configuration.ssl_ca_cert and Path(configuration.ssl_ca_cert).read_bytes()
    names = (configuration.host, configuration.verify_ssl, configuration.tls_server_name, configuration.proxy)
    return (*names, authority)


def _in_cluster(configuration: Configuration, environment: Mapping[str, str]) -> None:
    try:
        load_incluster_config(client_configuration=configuration)
    except ConfigException as wrong:
        named = environment.get("KUBECONFIG")
        missing = f"KUBECONFIG names no file that is there ({named})" if named else f"there is no {DEFAULT}"
        raise MachineError(f"no Kubernetes is known: {missing}, and this is no pod ({wrong})", HINT) from None
    _without_proxy(configuration, None)


def _from_files(paths: Sequence[Path], context: str, configuration: Configuration) -> str:
    trees = [_tree(path) for path in paths]
    # kubectl: the first file that sets a value wins; the client's own merger lets the last one win here.
    chosen = context or next((str(t["current-context"]) for t in trees if t.get("current-context")), "")
    known = [str(c.get("name")) for t in trees for c in t.get("contexts") or ()]
    if not chosen:
        raise UsageError("the kubeconfig sets no current-context", "kubectl config use-context …, or ?context=… here")
    if chosen not in known:
        listed = ", ".join(dict.fromkeys(known)) or "none"
        raise UsageError(f"the kubeconfig has no context {chosen}", f"the contexts are {listed}")
    _refuse_unknown(trees, chosen)
    try:
        merged = KubeConfigMerger(os.pathsep.join(map(str, paths))).config
        loader = KubeConfigLoader(config_dict=merged, active_context=chosen, config_base_path=None)
        loader.load_and_set(configuration)
    except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise UsageError(f"the context {chosen} of the kubeconfig cannot be used: {wrong}", HINT) from None
    _needs_credential(trees, chosen, configuration)
    _without_proxy(configuration, loader.__dict__.get("proxy"))
    return chosen


def _tree(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as wrong:
        raise UsageError(f"the kubeconfig {path} cannot be read: {wrong}", HINT) from None
    except (yaml.YAMLError, RecursionError):
        # Its own words quote the line, which may hold a token.
        raise UsageError(f"the kubeconfig {path} is not YAML", "kubectl config view") from None
    if not isinstance(tree, dict):
        raise UsageError(f"the kubeconfig {path} is empty", HINT)
    return tree


def _entry(trees: Sequence[Mapping[str, Any]], section: str, part: str, name: str) -> Mapping[str, Any]:
    entries = (e for t in trees for e in t.get(section) or () if e.get("name") == name)
    content = next(entries, {part: None}).get(part)
    return content if isinstance(content, dict) else {}


_HONOURED = {
    "cluster": "server certificate-authority certificate-authority-data insecure-skip-tls-verify tls-server-name "
    "proxy-url disable-compression extensions",
    "user": "client-certificate client-certificate-data client-key client-key-data token tokenFile username password "
    "exec auth-provider extensions",
}
"""Of these the client leaves out auth-provider, and disable-compression, which limits nothing."""


def _refuse_unknown(trees: Sequence[Mapping[str, Any]], context: str) -> None:
    """UsageError for a key that is not honoured: it may be a limit, as `as` is, without which all rights are used."""
    named = _entry(trees, "contexts", "context", context)
    if not all(isinstance(named.get(part) or "", str) for part in _HONOURED):
        raise UsageError(f"the context {context} of the kubeconfig names what is no text", "put the name into quotes")
    for part, honoured in _HONOURED.items():
        name = str(named.get(part) or "")
        if unknown := sorted(set(map(str, _entry(trees, f"{part}s", part, name))) - set(honoured.split())):
            raise UsageError(
                f"the {part} {name} of the kubeconfig has {', '.join(unknown)}, which walproof does not obey",
                "name a context without it: for `as`, one with a token of that user's own (kubectl create token)",
            )


def _needs_credential(trees: Sequence[Mapping[str, Any]], context: str, configuration: Configuration) -> None:
    """TargetError where a credential plugin gave nothing: the client would go on anonymously."""
    name = str(_entry(trees, "contexts", "context", context).get("user") or "")
    plugin = _entry(trees, "users", "user", name).get("exec")
    if plugin and not configuration.api_key and not configuration.cert_file:
        command = shlex.quote(str(plugin.get("command")))  # its arguments may be secrets
        raise TargetError(
            f"the credential plugin of user {name} gave no credential: it failed, is missing, or asks to log in",
            f"kubectl get --raw /version runs it: {command}; or log in again",
        )


def _without_proxy(configuration: Configuration, own: str | None) -> None:
    """Only a proxy that the kubeconfig itself names; for the WebSockets of exec too, which read the environment."""
    # websocket-client minds no_proxy only where a proxy is named, so one is named that is nowhere and never used.
    configuration.proxy = own or "http://proxy.invalid:1"
    configuration.no_proxy = "" if own else "*"
    configuration.retries = False
