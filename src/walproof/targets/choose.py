"""Which target a `--target` means. A target is one folder with a `TYPE`, and one line in TARGETS."""

from walproof.errors import UsageError
from walproof.machine.redaction import without_secrets
from walproof.model.ports import Target
from walproof.targets import Rights, TargetType, cnpg, lab, patroni, postgres, simulated
from walproof.targets.external.target_file import HINT, kind_of

TARGETS: list[TargetType] = [
    lab.TYPE,
    simulated.TYPE,
    cnpg.TYPE,
    patroni.TYPE,
    postgres.TYPE,
]


def choose(address: str | None) -> Target:
    """The target of that address (None: the lab); TargetError when it does not answer, UsageError for no target."""
    text = "lab" if address is None else address
    for kind in TARGETS:
        if kind.accepts(text):
            return kind.open(text)
    kind_named = kind_of(text)
    if kind_named is not None:
        names = ", ".join(kind.name for kind in TARGETS if kind.external)
        raise UsageError(f"the target file {text}: kind {kind_named!r} is not known", f"the kinds are {names}")
    raise UsageError(f"{without_secrets(text)!r} is no target: neither a file, a URL nor a DSN", HINT)


def rights_of(kind: str, address: str | None) -> Rights:
    """The rights that a kind of target needs, of the cluster of that address; UsageError where it needs none."""
    rights = next((one.rights for one in TARGETS if one.name == kind), None)
    if rights is None:
        raise UsageError(f"{kind} asks no API server for rights", "cnpg does")
    return rights(address)


def is_external(address: str | None) -> bool:
    """Whether the address means a cluster that walproof did not start, where all needs consent. Reads no file."""
    text = "lab" if address is None else address
    return not any(kind.accepts(text) for kind in TARGETS if not kind.external)
