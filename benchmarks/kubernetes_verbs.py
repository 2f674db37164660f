"""`make test-kubernetes`: every verb and fault on a CloudNativePG cluster under the printed Role alone, as a table.

`python -m benchmarks.kubernetes_verbs [--cluster NAMESPACE/NAME --allow WORD,…] [--image REFERENCE] [--only PART,…]`.
With --cluster: that one of kubectl's current context. --allow consents to what changes it, word by word as walproof's
own, and `account` to the ServiceAccount with its Role, which is removed at the end; without it the context's own user
is tried. Without --cluster: a real kube-apiserver on loopback (tools/kubernetes-programs) with the stand-in's operator
and PostgreSQL's processes behind it. Exit 1 where a verb was refused or failed, lost a commit or left something; 4
where something is undecided.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any

from benchmarks.command import chosen, command
from benchmarks.kubernetes.control_plane import control_plane
from benchmarks.kubernetes.real_api import real_api
from benchmarks.kubernetes.under_the_role import ROOT, Row, Session, under_the_role
from tests.fixtures.kubernetes.jobs import LoadPodRunner
from tests.fixtures.kubernetes.processes import running_members
from walproof.errors import ExitCode
from walproof.proving.faults import CATALOGUE
from walproof.targets.external.consent import MEANS

PITFALLS = ("K1", "K2", "K3", "K4", "K5", "K6", "K7")

FILE = """kind = "cnpg"
cluster = "default/pg"
reach = "port-forward"
[waits]
first-commit-after = "10s"  # a frozen primary keeps its lease for as long as it is frozen
"""
"""The stand-in's: every connection from outside through the API server and the kubelet."""


def drilled(tree: Any) -> str:
    """One drill's verdict, why, its RTO and what was lost."""
    (drill,) = tree["drills"]
    rto = "" if drill["rto_s"] is None else f"RTO {drill['rto_s']:.1f} s, "
    lost = f"{drill['lost']} of {drill['acknowledged']:,} lost"
    why = "" if drill["verdict"] == "held" else f": {drill['why']}"
    return f"{drill['verdict']}{why}, {rto}{lost}" if drill["verdict"] != "skipped" else str(drill["why"])


def rights(session: Session) -> None:
    """Nothing is missing, and the account may nothing else: a cluster without RBAC would let everything pass."""
    words = ("target", "cnpg", "--dry-run", "--target", session.address)
    session.verb("`target cnpg --dry-run`", words, lambda _: "nothing is missing")
    if session.account:
        asked = ["kubectl", "--kubeconfig", str(session.account), "--namespace", session.namespace, "get", "secrets"]
        done = subprocess.run(asked, check=False, capture_output=True, text=True, timeout=60)
        session.row("`kubectl get secrets` of that account", lambda: _result("orbidden" in done.stderr, "forbidden"))


def _found(tree: Any) -> str:
    return ", ".join(one["id"] for one in tree["findings"]) or "no findings"


def priced(tree: Any) -> str:
    return ", ".join(f"{arm['level']} measured, {arm['scenario']}" for arm in tree["arms"])


def measured(session: Session) -> None:
    """Prices: from outside, in pods, under another size."""
    short = ("--target", session.address, "--levels", "local,on", "--clients", "2", "--scale", "1", "--budget", "20s")
    if session.may("`price`", "load"):
        session.verb("`price` from outside", ("price", *short, "--allow", "load", "--record", "priced"), priced)
        if session.image:
            session.verb("`price` in pods", ("price", *short, *session.pods(), "--allow", "load"), priced)
    if session.may("`price --cpu`", "load", "scale"):
        session.verb("`price --cpu 0.5`", ("price", *short, "--cpu", "0.5", "--allow", "load,scale"), priced)
        session.settled()


def broken(session: Session) -> None:
    """Every fault of the catalogue, or those named, as far as allowed: one drill each at `on`."""
    for fault in session.faults:
        tried, needed = f"`prove --fault {fault}`", ("load", fault) if CATALOGUE[fault].steps else ("load",)
        if not session.may(tried, *needed):
            continue
        words = ("prove", "--target", session.address, "--fault", fault, "--levels", "on", "--writers", "4")
        kept = ("--record", "proved") if fault == "kill" else ()
        session.verb(tried, (*words, *kept, "--allow", ",".join(needed)), drilled, (0, 4))
        session.settled()
        if fault == "kill" and session.image:
            session.verb(f"{tried} in pods", (*words, *session.pods(), "--allow", ",".join(needed)), drilled, (0, 4))
            session.settled()


def configured(session: Session) -> None:
    """What is advised is applied and undone; a killed run is reverted."""
    records = all((session.folder / name).exists() for name in ("priced", "proved"))
    if not records:
        session.kept(Row("`apply`", "not tried: needs the prices and the drill of `kill`"))
    elif session.may("`apply`", "config"):
        advice = session.folder / "advice.json"
        code, out, error = session.ran("advise", "priced", "proved", "--rpo", "0", "--json")
        advice.write_text(out)
        where, before = ("--target", session.address, "--allow", "config"), session.spec()
        if code:
            session.row("`advise`", lambda: (error, ExitCode.BROKEN))
        session.verb("`apply`", ("apply", str(advice), *where), _applied)
        session.verb("`apply --undo`", ("apply", "--undo", *where), lambda _: "as before")
        if session.spec() != before:
            session.row("`apply --undo`", lambda: ("the Cluster's spec is not as it was", ExitCode.BROKEN))
    if session.may("`revert`", "load"):
        session.row("`revert` after `kill -9` of `price`", lambda: reverted(session))


def _applied(tree: Any) -> str:
    return f"{tree['choice']}: {len(tree['differences'])} differences"


def reverted(session: Session) -> tuple[str, ExitCode | None]:
    """`kill -9` of a price that has begun, then `revert` alone."""
    short = ("--levels", "on", "--clients", "2", "--scale", "1", "--budget", "60s")
    process = session.started("price", "--target", session.address, *short, "--allow", "load")
    made: list[str] = []
    try:
        while process.poll() is None and not (made := session.left()):
            time.sleep(0.2)
    finally:
        process.kill()
        said = "".join(process.communicate())
    if not made:
        return f"the price that was to be killed ended by itself: {said}", ExitCode.BROKEN
    code, out, error = session.ran("revert")
    return f"exit {code}, {out or error}; made were {', '.join(made)}", ExitCode.BROKEN if code else ExitCode.HELD


def trapped(session: Session) -> None:
    """Each pitfall of CloudNativePG, under an `--allow` of all that was allowed."""
    consents = ",".join(sorted(session.allowed & MEANS.keys()))
    for pitfall in PITFALLS:
        tried = f"`prove --pitfall {pitfall}`"
        if session.may(tried, "load", "config", "kill-member", "freeze", "isolate"):
            words = ("prove", "--pitfall", pitfall, "--target", session.address, "--allow", consents)
            session.verb(tried, words, lambda tree: _pitfall(tree["pitfalls"][0]), (0, 1, 4))
            session.settled()


def _pitfall(one: Any) -> str:
    return f"{one['verdict']}: {one['evidence']}"


def contracted(session: Session) -> None:
    """The suite that every target passes, by pytest."""
    cluster, allowed = f"{session.namespace}/{session.name}", ",".join(sorted(session.allowed))
    own = {"WALPROOF_KUBERNETES": cluster, "WALPROOF_ALLOW": allowed}
    words = [sys.executable, "-m", "pytest", "-q", "-rfs", "tests/contract", "-k", "kubernetes"]

    def act() -> tuple[str, ExitCode | None]:
        done = subprocess.run(
            words, check=False, cwd=ROOT, env={**session.environment(), **own}, capture_output=True, text=True
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        ended = " ".join([*lines, done.stdout.strip().rpartition("\n")[2]])
        return ended, ExitCode.HELD if done.returncode == 0 else ExitCode.BROKEN

    session.row("the contract of all targets", act)


def diagnosed(session: Session) -> None:
    session.verb("`doctor`", ("doctor", "--target", session.address), _found, (0, 1))


PARTS: dict[str, Callable[[Session], None]] = {
    "rights": rights, "doctor": diagnosed, "price": measured, "prove": broken, "apply": configured,
    "pitfalls": trapped, "contract": contracted,
}  # fmt: skip


def tried(session: Session, parts: Sequence[str]) -> int:
    """These parts; the table as it goes; the exit code."""
    print(f"{session.versions()}, {time.strftime('%d %B %Y')}\n\n| tried | outcome | s |\n|---|---|---|", flush=True)
    before = session.spec()
    with under_the_role(session):
        for name in parts:
            PARTS[name](session)
    same = session.spec() == before
    session.row("afterwards", lambda: _result(same, "the Cluster's spec is as it was, nothing is left"))
    verdicts = {row.verdict for row in session.rows} - {None, ExitCode.HELD}
    return 0 if not verdicts else 4 if verdicts == {ExitCode.UNDECIDED} else 1


def _result(good: bool, text: str) -> tuple[str, ExitCode | None]:
    return (text, ExitCode.HELD) if good else (f"not so: {text}", ExitCode.BROKEN)


def main(*, cluster: str = "", allow: str = "", image: str = "", speed: float = 5.0, only: str = "") -> int:
    """Exit code."""
    words = chosen([word for word in only.split(",") if word], [*PARTS, *CATALOGUE]) if only else []
    parts = [name for name in PARTS if name in words] or list(PARTS)
    faults = [name for name in CATALOGUE if name in words] or list(CATALOGUE)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="walproof-kubernetes-")))
        if cluster:
            namespace, _, name = cluster.partition("/")
            allowed = frozenset(word for word in allow.split(",") if word)
            return tried(Session(namespace, name, folder, None, allowed, faults, image), parts)
        found = subprocess.run([ROOT / "tools/kubernetes-programs"], check=False, stdout=PIPE, text=True)
        if found.returncode:
            return found.returncode
        plane = stack.enter_context(control_plane(folder / "plane", Path(found.stdout.strip())))
        members = stack.enter_context(running_members())
        running = stack.enter_context(real_api(plane, members, speed=speed, runner=LoadPodRunner()))
        print(
            "A real kube-apiserver and the operator's webhooks; its controllers, kubelet, Chaos Mesh: the stand-in's."
        )
        everything = frozenset((*MEANS, "account"))
        session = Session(
            "default", "pg", folder, running.serving.kubeconfig(), everything, faults, "stand-in", "./pg.toml"
        )
        (folder / "pg.toml").write_text(FILE)
        return tried(session, parts)


if __name__ == "__main__":
    command(main)
