"""pgbench for one sample: its argument list and scripts, and running it in one place or several until it is ended.

The level goes into the session; through a transaction pool, or where a run mixes levels, into each transaction."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from walproof.errors import Error, TargetError, UsageError
from walproof.load.local_runner import StartedProgram, Used, used
from walproof.load.pgbench_errors import Script, failure
from walproof.load.pgbench_log import Mark, Summary, series, summary, warm_from
from walproof.load.pgbench_script import check_script, script_parts, with_level
from walproof.machine.sql_file import statements
from walproof.model.guarantee import Level
from walproof.model.load import Workspace
from walproof.model.ports import Clock
from walproof.model.sample import PGBENCH, Arm, Protocol, Series, Workload, WorkloadKind
from walproof.model.topology import Endpoint

APPLICATION = "walproof-load"
_SCRIPTS = statements("walproof.load", "pgbench_scripts.sql")
_BUILT_IN = (WorkloadKind.TPCB_LIKE, WorkloadKind.SIMPLE_UPDATE, WorkloadKind.SELECT_ONLY)
_WEIGHTS = 10_000
"""pgbench's weights are integers: shares are given in hundredths of a percent."""
_OURS = frozenset(str(kind) for kind in WorkloadKind if kind is not WorkloadKind.SCRIPT)
_ACCOUNTS = "100000 * :scale"
_EVENLY = f"random(1, {_ACCOUNTS})"


@dataclass(frozen=True, slots=True)
class Invocation:
    """pgbench as it is to be started: arguments, scripts by file name (to be written beforehand), and its class names.

    `levels` names the level of each script number in the log; empty when there is no mix.
    """

    argv: tuple[str, ...]
    scripts: dict[str, Script]
    levels: tuple[Level, ...] = ()


def threads(clients: int) -> int:
    """How many threads: one per four processors, since the server needs the others."""
    return max(1, min(clients, (os.cpu_count() or 1) // 4))


def scripts_of(workload: Workload) -> tuple[tuple[str, str, int], ...]:
    """Names, texts and weights of its scripts; UsageError for one that cannot be read or is not to be measured."""
    one = (workload.script or "") if workload.kind is WorkloadKind.SCRIPT else str(workload.kind)
    return tuple((name, _text_of(name, workload), weight) for name, weight in workload.scripts or ((one, 1),))


def check_workload(workload: Workload) -> None:
    """Refuse, by UsageError with the reason, scripts that cannot be measured as this workload says."""
    for name, text, _ in scripts_of(workload) if workload.driver == PGBENCH else ():
        parts = script_parts(text)
        protocol = workload.protocol or Protocol.PREPARED
        if protocol is not Protocol.SIMPLE and any(one.joined for one in parts.statements):
            raise UsageError(
                f"the script {name} joins statements by \\;: the {protocol} protocol cannot send two at once",
                "--protocol simple, or end each with a plain semicolon",
            )
        if protocol is Protocol.SIMPLE and "startpipeline" in parts.commands:
            raise UsageError(
                f"the script {name} has a pipeline, which the simple protocol lacks", "--protocol extended"
            )
        if workload.per_transaction:
            with_level(text, Level.ON, combined=protocol is Protocol.SIMPLE)


def _text_of(name: str, workload: Workload) -> str:
    """The script of that path, or the one of that workload's name."""
    if not name:
        raise UsageError("the workload is a script, but none is named", "write --workload FILE.sql")
    if name in _OURS:
        return _skewed(_SCRIPTS[name], workload.skew)
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the script {name} cannot be read: {error}", "name a pgbench script") from None
    check_script(text, name)
    return text


def _skewed(text: str, skew: str) -> str:
    """Accounts drawn by that distribution, the frequent ones spread over the table by `permute`, alike in every sample.

    >>> print(_skewed(f"{chr(92)}set aid {_EVENLY}", "zipfian:1.1"))
    \\set aid 1 + permute(random_zipfian(1, 100000 * :scale, 1.1) - 1, 100000 * :scale, 0)
    """
    if not skew:
        return text
    kind, _, parameter = skew.partition(":")
    drawn = f"random_{kind}(1, {_ACCOUNTS}, {parameter})"
    return text.replace(_EVENLY, f"1 + permute({drawn} - 1, {_ACCOUNTS}, 0)")


def protocol_of(arm: Arm, *, pooled: bool) -> Protocol:
    """The protocol asked for; else prepared statements, which a transaction pool does not keep."""
    return arm.workload.protocol or (Protocol.SIMPLE if pooled else Protocol.PREPARED)


def _per_transaction(arm: Arm, *, pooled: bool) -> bool:
    return pooled or bool(arm.mix) or arm.workload.per_transaction


def invocation(
    arm: Arm, endpoint: Endpoint, directory: Path, seed: int, *, pgbench: Path, timeout_s: int
) -> Invocation:
    """How to start pgbench for that arm; per-transaction logs go to `directory`/log.PID…

    The caller ends it by SIGALRM after the wanted time, which pgbench takes for the end of -T: so a sample may last a
    fraction of a second longer than connecting takes. `timeout_s` is the -T that ends it in any case.
    """
    pooled, workload = endpoint.pooled, arm.workload
    more = {"application_name": APPLICATION, "gssencmode": "disable"}
    if not _per_transaction(arm, pooled=pooled):
        more["options"] = f"-c synchronous_commit={arm.level}"
    argv = [str(pgbench), "-n", "-M", str(protocol_of(arm, pooled=pooled)), "-c", str(arm.clients)]
    argv += ["-j", str(threads(arm.clients)), "-T", str(timeout_s), "--random-seed", str(seed % (1 << 31))]
    argv += ["-l", f"--log-prefix={directory / 'log'}"]
    argv += ["-R", f"{arm.rate:g}"] if arm.rate is not None else []
    argv += [f"--max-tries={workload.max_tries}"] if workload.max_tries > 1 else []
    given, scripts, levels = _work(arm, directory, pooled=pooled)
    return Invocation(endpoint.program(*argv, *given, **more), scripts, levels)


def _work(arm: Arm, directory: Path, *, pooled: bool) -> tuple[list[str], dict[str, Script], tuple[Level, ...]]:
    """Arguments for what to run, scripts, and levels by script number."""
    workload, inside = arm.workload, _per_transaction(arm, pooled=pooled)
    if workload.kind in _BUILT_IN and not inside and not workload.skew:
        return ["-b", str(workload.kind)], {}, ()
    variables = (("rows", str(workload.rows)), *workload.variables)
    given = ["-s", str(workload.scale), *(word for pair in variables for word in ("-D", "=".join(pair)))]
    combined = protocol_of(arm, pooled=pooled) is Protocol.SIMPLE
    texts = scripts_of(workload)
    total = sum(share for _, share in arm.mix) * sum(weight for *_, weight in texts)
    scripts: dict[str, Script] = {}
    levels: list[Level] = []
    for level, share in arm.mix or ((arm.level, 1.0),):
        for number, (of, text, weight) in enumerate(texts, 1):
            name = (
                "-".join([*([str(level)] if arm.mix else []), *([str(number)] if len(texts) > 1 else [])]) or "script"
            )
            sent = with_level(text, level, combined=combined) if inside else text
            scripts[f"{name}.sql"] = Script("" if of in _OURS else of, text, sent)
            path = str(directory / f"{name}.sql")
            part = max(1, round(_WEIGHTS * weight * share / total)) if arm.mix else weight
            given += ["-f", f"{path}@{part}" if arm.mix or len(texts) > 1 else path]
            levels += [level] if arm.mix else []
    return given, scripts, tuple(levels)


def logs_in(places: Sequence[Workspace]) -> dict[Path, float]:
    """Every log there, and how far the clock that wrote it is ahead of ours, seconds."""
    return {path: place.clock().ahead_s for place in places for path in place.fetch("log.*")}


_INTERVAL_S = 0.005


class RunningLoad(StartedProgram):
    """pgbench running in workspaces, each with its own part of the clients; as a context manager it is ended."""

    self_timed_s = None
    """It is ended from here."""

    def __init__(self, parts: Sequence[tuple[Invocation, Workspace]], clock: Clock) -> None:
        self._invocation = parts[0][0]
        self._clock = clock
        for invocation, workspace in parts:
            for name, script in invocation.scripts.items():
                workspace.put(name, script.sent)
        super().__init__([(invocation.argv, workspace) for invocation, workspace in parts])

    def used(self) -> Used:
        """Processor time it used so far."""
        return used(self.pids, disk=False) if self.pids else self._cpu()

    def connected(self) -> int:
        """How many sockets its clients have open."""
        return sum(process.sockets() for process in self._processes)

    def await_connected(self, clients: int, timeout_s: float) -> None:
        """Wait until every client has its socket; TargetError with pgbench's message when it fails."""
        deadline = self._clock.now() + timeout_s
        while self.connected() < clients:
            if self.ended:
                raise self.error()
            if self._clock.now() > deadline:
                raise TargetError(
                    f"{clients} clients are not connected within {timeout_s:.0f} s", "see max_connections"
                )
            self._clock.pause(_INTERVAL_S)

    def end(self, grace_s: float, unblock: Callable[[], None]) -> None:
        """SIGALRM, which pgbench takes for the end of -T; `unblock` is called when it does not end within grace_s."""
        for process in self._processes:
            process.finish()
        if not self._waited(grace_s):
            unblock()
            if not self._waited(grace_s):
                for process in self._processes:
                    process.kill()

    def _waited(self, most_s: float) -> bool:
        deadline = self._clock.now() + most_s
        return all([process.wait(max(0.0, deadline - self._clock.now())) for process in self._processes])

    def summary(self, since: float, until: float) -> tuple[Summary, float]:
        """The logs added up, and from when they count: once every client is warm, between two times (epoch s).

        TargetError when one of its places was lost: what the others did is no measure of what was asked.
        """
        ahead = logs_in(self._workspaces)
        if self._lost():
            raise self.error()
        warm = warm_from(list(ahead), since, until, ahead=ahead)
        scripts, paced = max(1, len(self._invocation.levels)), "-R" in self._invocation.argv
        return summary(list(ahead), warm, until, scripts=scripts, paced=paced, ahead=ahead), warm

    def series(self, overall: Summary, within: tuple[float, float], marks: Sequence[Mark]) -> Series:
        """The logs second by second between two times (epoch s); `overall` is their summary."""
        ahead = logs_in(self._workspaces)
        return series(list(ahead), within, overall.stalls(*within), marks, ahead=ahead)

    def error(self) -> Error:
        """The TargetError for a place that was lost; else what pgbench printed, as `failure` reads it."""
        if self._lost():
            return TargetError(f"{self._lost()}: the sample is lost with it", "start again: --resume RECORD")
        return failure(self._text(), tuple(self._invocation.scripts.items()))

    @property
    def aborted(self) -> int:
        """Clients that pgbench aborted after an error."""
        text = self._text()
        return sum("aborted" in line for line in text.splitlines() if line.startswith("pgbench: error: client"))

    @property
    def retries(self) -> int:
        """Times that pgbench tried a transaction again, as it says when it ends; 0 where it makes one try."""
        counts = re.findall(r"^total number of retries: (\d+)", self._text(), re.MULTILINE)
        return sum(map(int, counts))
