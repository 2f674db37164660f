"""`make test-kubernetes`: every verb and fault on a CloudNativePG cluster under the printed Role alone, as a table.

`python -m benchmarks.kubernetes_verbs [--cluster NAMESPACE/NAME --allow WORD,…] [--image REFERENCE] [--only PART,…]`.
With --cluster: that one of kubectl's current context. --allow consents to what changes it, word by word as walproof's
own, and `account` to the ServiceAccount with its Role, which is removed at the end; without it the context's own user
is tried. Without --cluster: a real kube-apiserver on loopback (tools/kubernetes-programs) with the stand-in's operator
and PostgreSQL's processes behind it. Exit 1 where a verb was refused or failed, lost a commit or left something; 4
where something is undecided.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any

import yaml

from benchmarks.command import command
from tests.fixtures.kubernetes.control_plane import control_plane
from tests.fixtures.kubernetes.jobs import LoadPodRunner
from tests.fixtures.kubernetes.processes import running_members
from tests.fixtures.kubernetes.real_api import real_api
from walproof.errors import ExitCode
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for
from walproof.proving.faults import CATALOGUE
from walproof.targets.external.consent import MEANS

ROOT = Path(__file__).parents[1]
OURS = "app.kubernetes.io/managed-by=walproof"
CHAOS = ("networkchaos", "iochaos", "stresschaos")
REFUSED = re.compile(r".*(?:may not (?:get|list|create|patch|delete) |[Ff]orbidden|\(403\)).*")
PITFALLS = ("K1", "K2", "K3", "K4", "K5", "K6", "K7")

FILE = """kind = "cnpg"
cluster = "default/pg"
reach = "port-forward"
[waits]
first-commit-after = "10s"  # a frozen primary keeps its lease for as long as it is frozen
"""
"""The stand-in's: every connection from outside through the API server and the kubelet."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `verdict` is good, undecided, not tried or bad."""

    tried: str
    outcome: str
    verdict: ExitCode | None = None
    seconds: float | None = None

    @property
    def text(self) -> str:
        took = "" if self.seconds is None else f"{self.seconds:.0f}"
        return f"| {self.tried} | {self.outcome} | {took} |"


@dataclass
class Session:
    """One cluster: as its administrator sees it (kubectl), and as walproof does with the account's kubeconfig."""

    namespace: str
    name: str
    folder: Path
    admin: Path | None
    allowed: frozenset[str]
    image: str = ""
    target: str = ""
    account: Path | None = None
    rows: list[Row] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.target or f"cnpg:{self.namespace}/{self.name}"

    def kubectl(self, *words: str, given: str = "") -> str:
        """What it prints, as the administrator; RuntimeError with its words where it fails."""
        own = {"KUBECONFIG": str(self.admin)} if self.admin else {}
        asked = ["kubectl", "--namespace", self.namespace, *words]
        done = subprocess.run(
            asked,
            check=False,
            input=given,
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            timeout=120,
        )
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(words[:3])}: {done.stderr.strip()}")
        return done.stdout

    def pods(self) -> tuple[str, ...]:
        """The options for load from within, which go before others: a target file has keys for it instead."""
        return ("--target", f"cnpg:{self.namespace}/{self.name}", "--load-image", self.image)

    def environment(self) -> dict[str, str]:
        kubeconfig = self.account or self.admin
        own = {"KUBECONFIG": str(kubeconfig)} if kubeconfig else {}
        return {**os.environ, **own, "WALPROOF_STATE": str(self.folder / "state")}

    def started(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "walproof", *words]
        return subprocess.Popen(
            argv, cwd=self.folder, env=self.environment(), stdout=PIPE, stderr=PIPE, text=True, start_new_session=True
        )

    def ran(self, *words: str) -> tuple[int, str, str]:
        """Its exit code, what it printed and what it said on standard error."""
        process = self.started(*words)
        try:
            out, error = process.communicate(timeout=1800)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(120)
        return process.returncode, out, error

    def left(self) -> list[str]:
        """What is there of walproof's: objects by their label, managed roles."""
        kinds = ",".join(("secret", "job", "pod", *(f"{kind}.chaos-mesh.org" for kind in self.chaos())))
        names = self.kubectl("get", kinds, "-l", OURS, "-o", "name").split()
        managed = (self.spec().get("managed") or {}).get("roles") or []
        return names + [str(one["name"]) for one in managed if str(one["name"]).startswith("walproof_")]

    def chaos(self) -> tuple[str, ...]:
        served = self.kubectl("api-resources", "--api-group", "chaos-mesh.org", "-o", "name")
        return tuple(kind for kind in CHAOS if kind in served)

    def cluster(self) -> Any:
        return json.loads(self.kubectl("get", "clusters.postgresql.cnpg.io", self.name, "-o", "json"))

    def spec(self) -> Any:
        return self.cluster()["spec"]

    def settled(self) -> None:
        """Wait until the operator says healthy, and everything is ready."""

        def healthy() -> bool:
            one = self.cluster()
            ready = one["status"].get("readyInstances") == one["spec"]["instances"]
            return bool(ready and one["status"].get("phase") == "Cluster in healthy state")

        wait_for(Wait.CLUSTER_HEALTHY, healthy, RealClock(), times=4)

    def versions(self) -> str:
        """Of Kubernetes, CloudNativePG and PostgreSQL, and how many nodes."""
        server = json.loads(self.kubectl("get", "--raw", "/version"))["gitVersion"]
        (pod, *_) = json.loads(self.kubectl("get", "pod", "-l", f"cnpg.io/cluster={self.name}", "-o", "json"))["items"]
        operator = pod["metadata"]["annotations"].get("cnpg.io/operatorVersion", "?")
        return f"Kubernetes {server}, CloudNativePG {operator}, {self.cluster()['spec']['instances']} instances"

    def row(self, tried: str, act: Callable[[], tuple[str, ExitCode | None]]) -> None:
        """Do it, keep and print how it ended."""
        begun = time.monotonic()
        try:
            outcome, verdict = act()
        except (RuntimeError, TimeoutError, subprocess.TimeoutExpired) as wrong:
            outcome, verdict = str(wrong), ExitCode.BROKEN
        if over := [name for name in self.left() if tried]:
            outcome, verdict = f"{outcome}; left: {', '.join(over)}", ExitCode.BROKEN
        mark = "**FAILED** " if verdict not in (None, ExitCode.HELD, ExitCode.UNDECIDED) else ""
        made = Row(tried, mark + " ".join(outcome.split())[:300], verdict, time.monotonic() - begun)
        self.rows.append(made)
        print(made.text, flush=True)

    def verb(self, tried: str, words: Sequence[str], said: Callable[[Any], str], good: Iterable[int] = (0,)) -> None:
        """One command with --json: fails on another exit code, or where anything was refused."""

        def act() -> tuple[str, ExitCode | None]:
            code, out, error = self.ran(*words, "--json")
            if (refused := REFUSED.search(error) or REFUSED.search(out)) or code not in good:
                return f"exit {code}: {refused[0] if refused else error or out}", ExitCode.BROKEN
            return said(json.loads(out)), ExitCode.UNDECIDED if code == ExitCode.UNDECIDED else ExitCode.HELD

        self.row(tried, act)

    def may(self, tried: str, *words: str) -> bool:
        """Whether all of them were allowed; a row that says which is missing else."""
        missing = [word for word in words if word not in self.allowed]
        if missing:
            self.rows.append(Row(tried, f"not tried: needs ALLOW={','.join(missing)}"))
            print(self.rows[-1].text, flush=True)
        return not missing


def account_made(session: Session) -> str:
    """The printed Role with its account, applied by kubectl, and a kubeconfig of its token alone; the Role's text."""
    uses = ["doctor", "price", "prove", "apply", "scale"]
    uses += ["load-pods"] if session.image else []
    uses += ["chaos-mesh"] if session.chaos() else []
    words = ("target", "cnpg", "--print-rbac", "--target", session.address)
    code, role, error = session.ran(*words, *(word for use in uses for word in ("--for", use)))
    if code:
        raise RuntimeError(error)
    session.kubectl("apply", "-f", "-", given=role)
    (who,) = [one["metadata"]["name"] for one in yaml.safe_load_all(role) if one and one["kind"] == "ServiceAccount"]
    token = session.kubectl("create", "token", who, "--duration", "6h").strip()
    shown = json.loads(session.kubectl("config", "view", "--minify", "--raw", "--flatten", "-o", "json"))
    shown |= {"users": [{"name": "account", "user": {"token": token}}]}
    shown["contexts"][0]["context"]["user"] = "account"
    session.account = session.folder / "account"
    session.account.touch(mode=0o600)
    session.account.write_text(json.dumps(shown))
    return role


@contextlib.contextmanager
def under_the_role(session: Session) -> Iterator[None]:
    """The account for as long as the block lasts, where it is allowed."""
    if "account" not in session.allowed:
        print("Without ALLOW=account: as the context's own user.\n")
        yield
        return
    role = account_made(session)
    try:
        yield
    finally:
        session.kubectl("delete", "--ignore-not-found", "-f", "-", given=role)


def drilled(tree: Any) -> str:
    """One drill's verdict, why, its RTO and what was lost."""
    (drill,) = tree["drills"]
    rto = "" if drill["rto_s"] is None else f"RTO {drill['rto_s']:.1f} s, "
    lost = f"{drill['lost']} of {drill['acknowledged']:,} lost"
    why = "" if drill["verdict"] == "held" else f": {drill['why']}"
    return f"{drill['verdict']}{why}, {rto}{lost}" if drill["verdict"] != "skipped" else f"skipped{why}"


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


def broken(session: Session, faults: Sequence[str]) -> None:
    """These faults as far as they are allowed, one drill each at `on`."""
    for fault in faults:
        tried = f"`prove --fault {fault}`"
        if not session.may(tried, "load", fault):
            continue
        words = ("prove", "--target", session.address, "--fault", fault, "--levels", "on", "--writers", "4")
        kept = ("--record", "proved") if fault == "kill" else ()
        session.verb(tried, (*words, *kept, "--allow", f"load,{fault}"), drilled, (0, 4))
        session.settled()
        if fault == "kill" and session.image:
            session.verb(f"{tried} in pods", (*words, *session.pods(), "--allow", f"load,{fault}"), drilled, (0, 4))
            session.settled()


def configured(session: Session) -> None:
    """What is advised is applied and undone; a killed run is reverted."""
    if session.may("`apply`", "config", "load", "kill"):
        advice = session.folder / "advice.json"
        code, out, error = session.ran("advise", "priced", "proved", "--rpo", "0", "--json")
        advice.write_text(out)
        where, before = ("--target", session.address, "--allow", "config"), session.spec()
        if code:
            session.row("`advise`", lambda: (error, ExitCode.BROKEN))
        session.verb("`apply`", ("apply", str(advice), *where), lambda tree: f"applied {len(tree['changes'])} settings")
        session.verb("`apply --undo`", ("apply", "--undo", *where), lambda _: "as before")
        if session.spec() != before:
            session.row("`apply --undo`", lambda: ("the Cluster's spec is not as it was", ExitCode.BROKEN))
    if session.may("`revert`", "load"):
        session.row("`revert` after `kill -9` of `price`", lambda: reverted(session))


def reverted(session: Session) -> tuple[str, ExitCode | None]:
    words = (
        "price",
        "--target",
        session.address,
        "--levels",
        "on",
        "--scale",
        "1",
        "--budget",
        "5m",
        "--allow",
        "load",
    )
    process = session.started(*words)
    try:
        wait_for(Wait.LOAD_PODS, lambda: bool(session.left()) or process.poll() is not None, RealClock())
        time.sleep(3)
    finally:
        process.kill()
        process.communicate()
    made = session.left()
    code, out, error = session.ran("revert")
    if code or not made:
        return f"exit {code}: {error or out}; the killed run had made {made}", ExitCode.BROKEN
    return f"removed {', '.join(made)}", ExitCode.HELD


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


def contract(session: Session) -> tuple[str, ExitCode | None]:
    """The suite that every target passes, by pytest."""
    own = {"WALPROOF_KUBERNETES": f"{session.namespace}/{session.name}", "WALPROOF_ALLOW": ",".join(session.allowed)}
    words = [sys.executable, "-m", "pytest", "-q", "-rfs", "tests/contract", "-k", "kubernetes"]
    done = subprocess.run(
        words,
        check=False,
        cwd=ROOT,
        env={**session.environment(), **own},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    ended = " ".join([*lines, done.stdout.strip().rpartition("\n")[2]])
    return ended, ExitCode.HELD if done.returncode == 0 else ExitCode.BROKEN


def tried(session: Session, only: Sequence[str]) -> int:
    """Everything, or the parts named, and with `prove` the faults named; the table as it goes; the exit code."""
    print(f"{session.versions()}, {time.strftime('%d %B %Y')}\n\n| tried | outcome | s |\n|---|---|---|", flush=True)
    before, faults = session.spec(), [name for name in CATALOGUE if name in only] or list(CATALOGUE)
    where = ("--target", session.address)
    with under_the_role(session):
        parts: dict[str, Callable[[], None]] = {
            "rights": lambda: session.verb(
                "`target cnpg --dry-run`", ("target", "cnpg", "--dry-run", *where), lambda _: "nothing is missing"
            ),
            "doctor": lambda: session.verb(
                "`doctor`", ("doctor", *where), _found, (0, 1)
            ),
            "price": lambda: measured(session), "prove": lambda: broken(session, faults),
            "apply": lambda: configured(session), "pitfalls": lambda: trapped(session),
            "contract": lambda: session.row("the contract of all targets", lambda: contract(session)),
        }  # fmt: skip
        for name, part in parts.items():
            if name in (only or parts):
                part()
    same = session.spec() == before
    session.row("afterwards", lambda: _result(same, "the Cluster's spec is as it was, nothing is left"))
    verdicts = {row.verdict for row in session.rows} - {None, ExitCode.HELD, ExitCode.UNDECIDED}
    return 1 if verdicts else 4 if ExitCode.UNDECIDED in {row.verdict for row in session.rows} else 0


def _result(good: bool, text: str) -> tuple[str, ExitCode | None]:
    return (text, ExitCode.HELD) if good else (f"not so: {text}", ExitCode.BROKEN)


def main(*, cluster: str = "", allow: str = "", image: str = "", speed: float = 5.0, only: str = "") -> int:
    """Exit code."""
    parts = [word for word in only.split(",") if word]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="walproof-kubernetes-")))
        if cluster:
            namespace, _, name = cluster.partition("/")
            words = frozenset(word for word in allow.split(",") if word)
            return tried(Session(namespace, name, folder, None, words, image), parts)
        found = subprocess.run([ROOT / "tools/kubernetes-programs"], check=False, stdout=PIPE, text=True)
        if found.returncode:
            return found.returncode
        plane = stack.enter_context(control_plane(folder / "plane", Path(found.stdout.strip())))
        members = stack.enter_context(running_members())
        running = stack.enter_context(real_api(plane, members, speed=speed, runner=LoadPodRunner()))
        print("A real kube-apiserver; operator, webhooks, nodes and Chaos Mesh are the stand-in's.", flush=True)
        everything = frozenset((*MEANS, "account"))
        session = Session("default", "pg", folder, running.serving.kubeconfig(), everything, "stand-in", "./pg.toml")
        (folder / "pg.toml").write_text(FILE)
        return tried(session, parts)


if __name__ == "__main__":
    command(main)
