"""What runs that were killed left in a namespace: objects with walproof's label whose maker has ended."""

from dataclasses import dataclass

from walproof.targets.cnpg.api import JOBS, SECRETS, ApiError, Kind, KubernetesApi
from walproof.targets.cnpg.chaos_mesh import EXPERIMENTS
from walproof.targets.cnpg.objects import Owned, OwnedMetadata, read
from walproof.targets.cnpg.owned import MADE_BY, OURS, ended

KINDS = (JOBS, SECRETS, *EXPERIMENTS)
"""Everything that walproof makes; Chaos Mesh's kinds may not be installed."""


@dataclass(frozen=True, slots=True)
class Left:
    """One object of walproof's that belongs to a Cluster."""

    kind: Kind
    meta: OwnedMetadata

    @property
    def ended(self) -> bool | None:
        """Whether whoever made it has ended; None where that was on another machine."""
        return ended(self.meta.annotations.get(MADE_BY, ""))


def left_behind(api: KubernetesApi, cluster: str) -> tuple[Left, ...]:
    """Everything with our label that the Cluster owns, whoever made it; kinds that cannot be listed are left out."""
    found: list[Left] = []
    for kind in KINDS:
        try:
            objects = [read(Owned, tree) for tree in api.list(kind, OURS)]
        except ApiError as wrong:
            if wrong.code not in (403, 404):
                raise
            continue
        found += [Left(kind, one.metadata) for one in objects if cluster in one.metadata.owners]
    return tuple(found)


def swept(api: KubernetesApi, cluster: str) -> list[str]:
    """Delete what nobody owns any more; sentences about what another machine's walproof may still own."""
    sentences = []
    for left in left_behind(api, cluster):
        if left.ended:
            api.delete(left.kind, left.meta.name)
        elif left.ended is None:
            where = left.meta.annotations.get(MADE_BY, "").split(" ")[0] or "an unknown machine"
            what = f"{left.kind.plural[:-1]} {left.meta.name}"
            sentences.append(f"{what} was made by walproof on {where}, where it may still run: left alone")
    return sentences
