"""What to run for one sample: pgbench's argument list and the scripts it needs. Reads scripts, runs nothing.

The level goes into the session (libpq's `options`). Through a transaction pool, where clients share sessions, and in a
run that mixes levels it goes into each transaction instead (SET LOCAL), for every arm that is compared alike.
"""

import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from walproof.errors import UsageError
from walproof.load.level_in_script import check_script, with_level
from walproof.model.guarantee import Level
from walproof.model.plan import PGBENCH, Arm, Protocol, Workload, WorkloadKind
from walproof.model.topology import Endpoint

APPLICATION = "walproof-load"
_SCRIPTS = files("walproof.load.scripts")
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
    scripts: dict[str, str]
    levels: tuple[Level, ...] = ()


def threads(clients: int) -> int:
    """How many threads: one per four processors, since the server needs the others."""
    return max(1, min(clients, (os.cpu_count() or 1) // 4))


def script_of(workload: Workload) -> str:
    """The transaction's text; UsageError when the user's script cannot be read or is not fit to be measured."""
    return _text_of(workload.script if workload.kind is WorkloadKind.SCRIPT else str(workload.kind), workload)


def scripts_of(workload: Workload) -> tuple[tuple[str, int], ...]:
    """Texts and weights of the workload's scripts; UsageError as `script_of`."""
    if not workload.scripts:
        return ((script_of(workload), 1),)
    return tuple((_text_of(name, workload), weight) for name, weight in workload.scripts)


def check_workload(workload: Workload) -> None:
    """Refuse, by UsageError with the reason, scripts that cannot be measured as this workload says."""
    for text, _ in scripts_of(workload) if workload.driver == PGBENCH else ():
        if workload.per_transaction:
            with_level(text, Level.ON, combined=True)


def _text_of(name: str | None, workload: Workload) -> str:
    """The script of that path, or the one of that workload's name."""
    if name is None:
        raise UsageError("the workload is a script, but none is named", "write --workload FILE.sql")
    if name in _OURS:
        return _skewed((_SCRIPTS / f"{name}.sql").read_text(encoding="utf-8"), workload.skew)
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


def session_options(arm: Arm, *, pooled: bool) -> str:
    """What the session starts with; empty where the level goes into the transaction."""
    return "" if _per_transaction(arm, pooled=pooled) else f"-c synchronous_commit={arm.level}"


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
    options = session_options(arm, pooled=pooled)
    more = {"application_name": APPLICATION, "gssencmode": "disable", **({"options": options} if options else {})}
    argv = [str(pgbench), "-n", "-M", str(protocol_of(arm, pooled=pooled)), "-c", str(arm.clients)]
    argv += ["-j", str(threads(arm.clients)), "-T", str(timeout_s), "--random-seed", str(seed % (1 << 31))]
    argv += ["-l", f"--log-prefix={directory / 'log'}"]
    argv += ["-R", f"{arm.rate:g}"] if arm.rate is not None else []
    argv += [f"--max-tries={workload.max_tries}"] if workload.max_tries > 1 else []
    given, scripts, levels = _work(arm, directory, pooled=pooled)
    return Invocation((*argv, *given, endpoint.conninfo(**more)), scripts, levels)


def _work(arm: Arm, directory: Path, *, pooled: bool) -> tuple[list[str], dict[str, str], tuple[Level, ...]]:
    """Arguments for what to run, scripts, and levels by script number."""
    workload, inside = arm.workload, _per_transaction(arm, pooled=pooled)
    if workload.kind in _BUILT_IN and not inside and not workload.skew:
        return ["-b", str(workload.kind)], {}, ()
    given = ["-s", str(workload.scale), "-D", f"rows={workload.rows}"]
    combined = protocol_of(arm, pooled=pooled) is Protocol.SIMPLE
    texts = scripts_of(workload)
    total = sum(share for _, share in arm.mix) * sum(weight for _, weight in texts)
    scripts: dict[str, str] = {}
    levels: list[Level] = []
    for level, share in arm.mix or ((arm.level, 1.0),):
        for number, (text, weight) in enumerate(texts, 1):
            name = (
                "-".join([*([str(level)] if arm.mix else []), *([str(number)] if len(texts) > 1 else [])]) or "script"
            )
            scripts[f"{name}.sql"] = with_level(text, level, combined=combined) if inside else text
            path = str(directory / f"{name}.sql")
            part = max(1, round(_WEIGHTS * weight * share / total)) if arm.mix else weight
            given += ["-f", f"{path}@{part}" if arm.mix or len(texts) > 1 else path]
            levels += [level] if arm.mix else []
    return given, scripts, tuple(levels)
