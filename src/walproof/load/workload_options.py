"""The options of `price` and `prove` about what a transaction does and how it is sent, parsed once or refused.

All that is compared in a run is sent alike: through a pool, and where levels are mixed, every arm, the baseline too,
runs the same script with the level set inside each transaction.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from walproof.errors import MachineError, UsageError
from walproof.load.driver import refuse_shared_sessions
from walproof.load.pgbench import check_workload, scripts_of
from walproof.load.pgbench_script import script_parts
from walproof.machine.programs import install_command, lookup, this_family
from walproof.machine.redaction import hidden_in, in_text
from walproof.model.sample import PGBENCH, SYSBENCH, Protocol, Workload, WorkloadKind
from walproof.model.topology import Description
from walproof.model.units import parse_positive_int

POOL_ROUTE = "pgbouncer"
_NAMES = frozenset(str(kind) for kind in WorkloadKind) - {WorkloadKind.SCRIPT, WorkloadKind.BATCH}
_KEYED = frozenset((WorkloadKind.TPCB_LIKE, WorkloadKind.SIMPLE_UPDATE, WorkloadKind.SELECT_ONLY))
_SKEWS = {"zipfian": (1.001, 1000.0), "gaussian": (2.0, 1000.0), "exponential": (0.001, 1000.0)}
"""Distributions of pgbench's random functions, and the smallest and largest parameter each takes (manual, pgbench)."""
_RELATIVE = re.compile(r"(\d+(?:\.\d+)?)x(memory|shared_buffers)")
_VARIABLE = re.compile(r"[A-Za-z_\x80-\U0010ffff][\w\x80-\U0010ffff]*", re.ASCII)
"""A variable's name (valid_variable_name in PostgreSQL's src/bin/pgbench/pgbench.c)."""
_USED = re.compile(r"--[^\n]*|/\*.*?\*/|::+|:(?P<name>[\w\x80-\U0010ffff]+)", re.A | re.S)
"""What pgbench takes for a variable in a statement, in a string too (parseQuery there); no comment, no cast."""
_TAKEN = {"scale": "--scale", "rows": "--workload batch:N", "random_seed": "--seed"} | dict.fromkeys(
    ("client_id", "default_seed"), "pgbench itself"
)
"""Variables that walproof or pgbench sets, and by what."""
SCALE_BYTES = 15_700_000
"""Bytes of tables and indexes a unit of pgbench's scale: 100,000 rows, 61 a page, and 276 pages of index."""


def parse_workload(raw: Mapping[str, Any]) -> Workload:
    """The workload with its protocol, tries, keys and tables; UsageError for what is not valid.

    >>> parse_workload({"mix": "on=10,local=90"}).per_transaction
    True
    """
    scale = 1 if is_relative(raw) else parse_positive_int(raw.get("scale") or 20, "scale")
    pooled = raw.get("route") == POOL_ROUTE
    if raw.get("driver") not in (None, PGBENCH):
        return _driven(raw, str(raw["driver"]), scale, pooled=pooled)
    named = _named(str(raw.get("workload") or "tpcb-like"), scale)
    protocol = _protocol(raw.get("protocol"), pooled=pooled)
    tuned_pools = bool(raw.get("tune")) and protocol is Protocol.SIMPLE
    made = replace(
        named,
        protocol=protocol,
        per_transaction=bool(raw.get("mix")) or pooled or tuned_pools,
        max_tries=parse_positive_int(raw.get("max_tries") or 1, "number of tries"),
        skew=_skew(raw.get("skew"), named),
        init=_init_file(raw.get("init")),
        existing=_existing(raw),
        variables=_variables(raw.get("define") or ()),
    )
    check_workload(made)
    _check_variables(made)
    return made


def code_in(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """The options that name what this user would run: a command, a script of pgbench or psql; opens no file.

    >>> code_in({"workload": "batch:10@2,insert", "driver": "pgbench"}), code_in({"workload": "insert,a.sql@3"})
    ((), ('workload',))
    """
    driver, text = raw.get("driver"), str(raw.get("workload") or "insert")
    names = [part.strip().rpartition("@")[0] or part.strip() for part in text.split(",")]
    named = all(n in _NAMES or n.startswith("batch:") or (driver == SYSBENCH and "/" not in n) for n in names)
    # A file may be called "insert,insert".
    known = named and (text in _NAMES or not os.path.exists(text))
    by_option = {
        "driver": driver not in (None, PGBENCH, SYSBENCH),
        "workload": not known,
        "init": raw.get("init") is not None,
        "define": bool(raw.get("define")),
    }
    return tuple(name for name, runs in by_option.items() if runs)


def _driven(raw: Mapping[str, Any], driver: str, scale: int, *, pooled: bool) -> Workload:
    """A workload of another driver than pgbench; UsageError for what only pgbench has."""
    for other in ("protocol", "max_tries", "skew", "define"):
        if raw.get(other) is not None:
            raise UsageError(f"--{other.replace('_', '-')} needs --driver {PGBENCH}", "leave it out")
    if raw.get("soak"):
        raise UsageError(f"--soak needs --driver {PGBENCH}, which logs every transaction", "leave --driver out")
    test = _sysbench_test(raw) if driver == SYSBENCH else None
    words = [SYSBENCH] if driver == SYSBENCH else _command(raw, driver)
    init, existing = _init_file(raw.get("init")), _existing(raw)
    made = Workload(WorkloadKind.SCRIPT, scale, script=test, init=init, existing=existing, driver=driver)
    refuse_shared_sessions(made, pooled=pooled, mixed=bool(raw.get("mix")))
    if lookup(words[0]) is None:
        raise MachineError(
            f"the program {words[0]} is missing",
            install_command([SYSBENCH], this_family()) if driver == SYSBENCH else "give its whole path",
        )
    return made


def _sysbench_test(raw: Mapping[str, Any]) -> str:
    if raw.get("init") or raw.get("tables"):
        raise UsageError("--driver sysbench cannot be used with --init or --tables", "it makes tables of its own")
    test = str(raw.get("workload") or "oltp_read_write")
    if not re.fullmatch(r"(oltp|select)_[a-z_]+", test):
        raise UsageError(f"{test!r} is not a sysbench test", "--workload oltp_read_write or oltp_write_only")
    return test


def _command(raw: Mapping[str, Any], driver: str) -> list[str]:
    """The words of a command, its program first."""
    if raw.get("workload") is not None:
        raise UsageError("--workload cannot be used with a command as --driver", "write it into the command")
    if raw.get("tune"):
        raise UsageError("--tune needs latencies, which a command as --driver does not report", "leave --tune out")
    try:
        words = shlex.split(driver)
    except ValueError as error:
        raise UsageError(f"the driver {driver!r} cannot be read: {error}", "quote it as for a shell") from None
    if not words or "=" in words[0]:
        raise UsageError(f"the driver {driver!r} names no program", "--driver pgbench, sysbench or 'PROGRAM ARGUMENTS'")
    return words


def is_relative(raw: Mapping[str, Any]) -> bool:
    """Whether --scale is relative to memory or shared_buffers, so that its number is known on a target alone."""
    return bool(_RELATIVE.fullmatch(str(raw.get("scale"))))


def scale_on(target: Description, relative: str) -> int:
    """The scale "2xmemory" or "2xshared_buffers" on this target; UsageError where that cannot be read.

    Memory is what there is for each member: a lab's members share the machine's.
    """
    times, of = relative.split("x", 1)
    if of == "shared_buffers":
        available = _buffers(target.settings.get("shared_buffers", ""))
    else:
        available = target.memory_bytes // max(1, len(target.members))
    if not available:
        raise UsageError(
            f"the {of} of {target.target} cannot be read from here",
            "write --scale as a number (15 MB each), or --scale 2xshared_buffers",
        )
    return max(1, round(float(times) * available / SCALE_BYTES))


def _buffers(setting: str) -> int:
    """Bytes of shared_buffers as pg_settings shows it, in units of 8 kB.

    >>> _buffers("327688kB") >> 20
    256
    """
    return int(setting.removesuffix("8kB")) * 8192 if re.fullmatch(r"\d+8kB", setting) else 0


def _named(text: str, scale: int) -> Workload:
    """A workload by name, `batch:N`, the path of a pgbench script, or several of them by weight (a.sql@3,b.sql@1)."""
    if os.path.exists(text) or not ("," in text or "@" in text):
        return _one(text, scale)
    parts = [part.strip().rpartition("@") if "@" in part else (part.strip(), "", "1") for part in text.split(",")]
    if not all(name for name, _, _ in parts):
        raise UsageError(f"the list of workloads {text!r} is empty or has an empty entry", "--workload a.sql@3,b.sql@1")
    ones = [_one(name, scale) for name, _, _ in parts]
    rows = {one.rows for one in ones if one.kind is WorkloadKind.BATCH}
    if len(rows) > 1:
        raise UsageError("a run cannot have batches of two sizes", "leave one of them out")
    scripts = tuple(
        (one.script or str(one.kind), parse_positive_int(weight, f"weight of {name}"))
        for one, (name, _, weight) in zip(ones, parts, strict=True)
    )
    return Workload(WorkloadKind.SCRIPT, scale, next(iter(rows), 1), scripts=scripts)


def _one(text: str, scale: int) -> Workload:
    if text in (WorkloadKind.BATCH, "batch:"):
        raise UsageError("a batch needs its number of rows", "--workload batch:100")
    if text.startswith("batch:"):
        return Workload(WorkloadKind.BATCH, scale, parse_positive_int(text.removeprefix("batch:"), "number of rows"))
    if text in _NAMES:
        return Workload(WorkloadKind(text), scale)
    if not text.endswith(".sql") and not os.path.exists(text):
        names = "tpcb-like, select-only, simple-update, insert, batch:N"
        raise UsageError(
            f"{text!r} is neither a workload nor a file", f"choose {names}, or give the path of a pgbench script"
        )
    return Workload(WorkloadKind.SCRIPT, scale, script=_readable(text, "script", "a pgbench script"))


def _readable(path: str, what: str, wanted: str) -> str:
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        raise UsageError(f"the {what} {path!r} cannot be read", f"give the path of {wanted} this user may read")
    return os.path.abspath(path)


def _protocol(text: object, *, pooled: bool) -> Protocol | None:
    if text is None:
        return Protocol.SIMPLE if pooled else None
    if text not in set(Protocol):
        raise UsageError(f"{text!r} is not a protocol", f"choose {', '.join(Protocol)}")
    if pooled and text == Protocol.PREPARED:
        raise UsageError(
            "a prepared statement belongs to one session, which a transaction pool gives to other clients",
            "--protocol simple or extended, or --route direct",
        )
    return Protocol(str(text))


def _skew(text: object, workload: Workload) -> str:
    """How keys are drawn, as pgbench's function and its parameter.

    >>> _skew("zipfian:1.1", Workload())
    'zipfian:1.1'
    """
    if text is None:
        return ""
    kind, _, number = str(text).partition(":")
    least, most = _SKEWS.get(kind, (1.0, 0.0))
    if not re.fullmatch(r"\d+(\.\d+)?", number) or not least <= float(number) <= most:
        kinds = ", ".join(f"{name}:{low:g} to {name}:{high:g}" for name, (low, high) in _SKEWS.items())
        raise UsageError(f"{text!r} is not a distribution of keys", f"choose one of {kinds}")
    used = {name for name, _ in workload.scripts} or {str(workload.kind)}
    if not used & _KEYED:
        raise UsageError(
            f"{workload.text} draws no keys that --skew could change", "write the distribution into your own script"
        )
    return f"{kind}:{number}"


def _variables(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Names and values of pgbench's variables; UsageError for what pgbench refuses, overrides, or must not be recorded.

    >>> _variables(["batch=500", "since=now() - interval '1 day'"])
    (('batch', '500'), ('since', "now() - interval '1 day'"))
    """
    variables: dict[str, str] = {}
    for text in given:
        name, _, value = text.partition("=")
        if not _VARIABLE.fullmatch(name) or not value:
            raise UsageError(f"-D {text} is not NAME=VALUE: letters, digits and _, no digit first", "-D batch=500")
        if name in _TAKEN:
            raise UsageError(f"-D {name} is refused: {name} is set by {_TAKEN[name]}", "name yours otherwise")
        if name in variables:
            raise UsageError(f"-D names {name} twice", "give it once")
        if hidden_in(text) != text or in_text(text) != text:
            raise UsageError(
                f"-D {name} looks like a secret, and values of -D are recorded and shown in the list of processes",
                "name the variable otherwise; a script reads a secret from a table",
            )
        variables[name] = value
    return tuple(variables.items())


def _check_variables(workload: Workload) -> None:
    """UsageError for a variable that none of the user's scripts reads, and for one that nothing defines: pgbench sends
    NULL for it, but with the simple protocol, where the server finds it.
    """
    scripts = scripts_of(workload)
    own = [(name, text) for name, text, _ in scripts if name in workload.files]
    for name, _ in workload.variables:
        if not any(re.search(rf"(?<!:):{name}(?![\w\x80-\U0010ffff])", text, re.ASCII) for _, text in own):
            raise UsageError(f"-D {name} is used by no script of {workload.text}", f"write :{name} where it is wanted")
    every = "\n".join(text for _, text, _ in scripts)
    if workload.protocol is Protocol.SIMPLE or re.search(r"\\(gset|aset)\b", every, re.I):
        return
    known = {*_TAKEN, *dict(workload.variables), *re.findall(r"\\set(?:shell)?\s+(\S+)", every, re.I)}
    sent = ((name, text, one) for name, text in own for one in script_parts(text).statements)
    used = ((name, text, found) for name, text, one in sent for found in _USED.finditer(text, one.start, one.end))
    for name, text, found in used:
        if found["name"] and found["name"] not in known:
            line = text.count("\n", 0, found.start()) + 1
            raise UsageError(
                f"the script {name}, line {line}: nothing defines :{found['name']}, and pgbench would send NULL",
                f"\\set {found['name']} …, or -D {found['name']}=VALUE",
            )


def _init_file(path: object) -> str | None:
    return None if path is None else _readable(str(path), "file of --init", "a file for psql")


def _existing(raw: Mapping[str, Any]) -> bool:
    if raw.get("tables") is None:
        return False
    if raw["tables"] != "existing":
        raise UsageError(f"{raw['tables']!r} is not a choice of --tables", "--tables existing, or leave it out")
    if raw.get("init") is not None:
        raise UsageError("--init cannot be used with --tables existing", "leave one of them out")
    return True
