"""What runs that were killed left in a namespace: objects of walproof's whose maker has ended, by name or by label."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from walproof.targets.cnpg import owned
from walproof.targets.cnpg.api import JOBS, SECRETS, ApiError, Kind, KubernetesApi, Tree
from walproof.targets.cnpg.chaos_mesh import EXPERIMENTS
from walproof.targets.cnpg.objects import Owned, OwnedMetadata, read
from walproof.targets.cnpg.owned import MADE_BY, OURS, ended


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
    """Everything of ours that the Cluster owns, whoever made it; what cannot be read or listed is left out."""
    load, role = owned.load_name(cluster), owned.role_name(cluster)
    asked: list[tuple[Kind, Callable[[], Sequence[Tree]]]] = [
        *((kind, partial(_named, api, kind, name)) for kind, name in ((JOBS, load), (SECRETS, load), (SECRETS, role))),
        *((kind, partial(api.list, kind, OURS)) for kind in EXPERIMENTS),
    ]
    found: list[Left] = []
    for kind, ask in asked:
        try:
            objects = [read(Owned, tree).metadata for tree in ask()]
        except ApiError as wrong:
            if wrong.code not in (403, 404):
                raise
            continue
        ours = [one for one in objects if owned.LABELS.items() <= one.labels.items()]
        found += [Left(kind, one) for one in ours if cluster in one.owners]
    return tuple(found)


def _named(api: KubernetesApi, kind: Kind, name: str) -> Sequence[Tree]:
    return [api.get(kind, name)]


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
