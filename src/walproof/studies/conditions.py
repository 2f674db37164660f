"""What a study's lab declares, as conditions that a target meets or misses: each missed one is a caveat. Pure."""

from collections.abc import Iterator

from walproof.model.guarantee import read_standby_names
from walproof.model.topology import ClusterView, Description
from walproof.model.units import counted
from walproof.studies.declaration import LabNeeded


def missed(lab: LabNeeded, described: Description, view: ClusterView) -> tuple[str, ...]:
    """One sentence for each condition that the study declares and the target, as found, does not meet."""
    declared = lab.model_fields_set
    found = [
        *(_members(lab, view) if "members" in declared else ()),
        *(_quorum(lab, view) if declared & {"sync", "quorum"} else ()),
        *(_wal_volume(lab, described) if "wal_volume" in declared else ()),
        *_parameters(lab, described),
    ]
    return tuple(found)


def _members(lab: LabNeeded, view: ClusterView) -> Iterator[str]:
    here = len(view.members)
    if here != lab.members:
        yield f"{counted(here, 'member')}, the study has {lab.members}"


def _quorum(lab: LabNeeded, view: ClusterView) -> Iterator[str]:
    wanted, found = lab.sync.replication(lab.quorum), read_standby_names(view.standby_names)
    asynchronous = wanted.method is None or wanted.number == 0
    here = None if found is None else (found.kind, found.k)
    if here != (None if asynchronous else (wanted.method, wanted.number)):
        shown = "asynchronous" if found is None else f"{found.kind} {found.k}"
        yield f"{shown}, the study has {wanted.text.removesuffix(' strict')}"


def _wal_volume(lab: LabNeeded, described: Description) -> Iterator[str]:
    asked = "on a volume of its own" if lab.wal_volume else "with the data"
    if described.wal_volume is None:
        yield f"where WAL is written is not known, the study has it {asked}"
    elif described.wal_volume is not lab.wal_volume:
        here = "on a volume of its own" if described.wal_volume else "with the data"
        yield f"WAL is {here}, the study has it {asked}"


def _parameters(lab: LabNeeded, described: Description) -> Iterator[str]:
    for name, value in lab.parameters.items():
        here = described.settings.get(name, "not known")
        if here != value:
            yield f"{name} is {here}, the study has {value}"
