"""Pitfall K7: kubectl's port-forward ends with the first client of TLS that leaves. Reads only."""

import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from walproof.errors import TargetError
from walproof.model.pitfall import Finding
from walproof.model.ports import Clock
from walproof.model.topology import Endpoint
from walproof.targets.cnpg.addresses import Place
from walproof.targets.cnpg.api import KubernetesApi

_FORWARDING = re.compile(r"^Forwarding from 127\.0\.0\.1:(\d+) -> ")
_GONE_S = 3.0
"""How long a forward is watched after its client has left."""


def breaks_under_tls(api: KubernetesApi, pod: str, endpoint: Callable[[Place], Endpoint], clock: Clock) -> Finding:
    """K7: a client without TLS leaves and the forward goes on; one with TLS leaves, and it is gone."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return Finding(None, "skipped, because kubectl is not installed: walproof's own forwards are one a connection")
    alive = {}
    for mode in ("disable", "require"):
        with _forward(kubectl, api, pod) as (running, place):
            _came_and_left(endpoint(place), mode)
            until = clock.now() + _GONE_S
            while (on := running.poll() is None and _accepts(place)) and clock.now() < until:
                clock.pause(0.1)
            alive[mode] = on
    if not alive["disable"]:
        raise TargetError("the forward ended although its client spoke no TLS", "kubectl port-forward, by hand")
    if alive["require"]:
        return Finding(False, f"kubectl's forward to {pod} went on after a client of TLS had left, as without TLS")
    return Finding(True, f"kubectl's forward to {pod} ended when its first client of TLS left; without TLS it went on")


@contextmanager
def _forward(kubectl: str, api: KubernetesApi, pod: str) -> Iterator[tuple["subprocess.Popen[str]", Place]]:
    """kubectl's forward to PostgreSQL, and its port here; ended afterwards."""
    context = ["--context", api.context] if api.context else []
    words = [kubectl, *context, "--namespace", api.namespace, "port-forward", f"pod/{pod}", ":5432"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        try:
            found = _FORWARDING.match(running.stdout.readline())
            if found is None:
                running.terminate()
                last = running.stderr.read().strip().splitlines()[-1:]
                raise TargetError(f"kubectl port-forward does not start: {''.join(last)}", " ".join(words))
            yield running, ("127.0.0.1", int(found[1]))
        finally:
            running.terminate()


def _came_and_left(endpoint: Endpoint, mode: str) -> None:
    try:
        psycopg.connect(endpoint.conninfo(sslmode=mode, connect_timeout="5")).close()
    except psycopg.Error as wrong:
        raise TargetError(
            f"no session with sslmode={mode}: {' '.join(str(wrong).split())}", "ssl and pg_hba.conf decide"
        ) from None


def _accepts(place: Place) -> bool:
    try:
        socket.create_connection(place, timeout=1).close()
    except OSError:
        return False
    return True
