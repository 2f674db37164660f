"""Which target a `--target` means. A target is one folder with a `TYPE`, and one line in TARGETS."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from walproof.errors import UsageError
from walproof.machine.redaction import without_secrets
from walproof.model.advice import ClusterProfile
from walproof.model.cnpg_facts import CNPG_MANAGER
from walproof.model.declared import Declared, Skipped
from walproof.model.guarantee import ConfigChange, Setting
from walproof.model.ports import Target
from walproof.model.standby_names import is_host_and_port
from walproof.patroni.config import version_of
from walproof.targets import Rights, TargetType, cnpg, lab, patroni, postgres, simulated
from walproof.targets.external.configuration_patches import listed
from walproof.targets.external.target_file import HINT, kind_of

if TYPE_CHECKING:
    from walproof.targets.cnpg.target import CnpgCluster

TARGETS: list[TargetType] = [
    lab.TYPE,
    simulated.TYPE,
    cnpg.TYPE,
    patroni.TYPE,
    postgres.TYPE,
]


def choose(address: str | None, *, answering: bool = True) -> Target:
    """The target of that address (None: the lab); UsageError for no target.

    TargetError when it does not answer; not `answering`: only where that has to be known before anything is undone.
    """
    text = "lab" if address is None else address
    for kind in TARGETS:
        if kind.accepts(text):
            return kind.open(text) if answering or kind.unasked is None else kind.unasked(text)
    kind_named = kind_of(text)
    if kind_named is not None:
        names = ", ".join(kind.name for kind in TARGETS if kind.external)
        raise UsageError(f"the target file {text}: kind {kind_named!r} is not known", f"the kinds are {names}")
    raise UsageError(f"{without_secrets(text)!r} is no target: neither a file, a URL nor a DSN", HINT)


def choose_guarded(address: str | None) -> "CnpgCluster":
    """The CloudNativePG cluster of that address; UsageError for any other target, which is asked nothing."""
    if address is None or not cnpg.TYPE.accepts(address):
        raise UsageError(
            "`guard` supports CloudNativePG clusters alone",
            "--target cnpg:NAMESPACE/NAME; for Patroni see docs/decisions/0007-no-guard-for-patroni.md",
        )
    from walproof.targets.cnpg.target import open_cnpg

    return open_cnpg(address)


def declared_in(files: Iterable[str]) -> tuple[list[Declared], Skipped]:
    """Every cluster that these files, folders, globs or - declare; the files that could not be read, each with why."""
    from walproof.targets.files.clusters import declared_by

    return declared_by(files)


def settings_for(change: ConfigChange, cluster: ClusterProfile) -> tuple[Setting, ...]:
    """What applying the change to such a cluster would set, by its manager, without asking it; UsageError."""
    if cluster.manager == CNPG_MANAGER:
        from walproof.targets.cnpg.configuration import asked_of as asked_of_operator

        return listed(asked_of_operator(change, {}))
    if cluster.manager == "patroni":
        from walproof.targets.patroni.configuration import asked_of as asked_of_patroni

        return listed(asked_of_patroni(change, version_of(cluster.patroni) or (4, 1)))
    from walproof.targets.postgres.target import asked_of, settings_of

    return settings_of(asked_of(change, [name for name in cluster.members if not is_host_and_port(name)]))


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
