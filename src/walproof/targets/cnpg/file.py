"""The address of a CloudNativePG cluster, cnpg:NAMESPACE/NAME?context=…, and its target file."""

import re
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, quote

from pydantic import field_validator

from walproof.errors import UsageError
from walproof.targets.external.target_file import TargetFile, is_file, read_tree, validated

SCHEME = "cnpg:"
EXAMPLE = "cnpg:NAMESPACE/NAME, with ?context=NAME for another context of the kubeconfig"
_PLACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


class CnpgFile(TargetFile):
    """A cluster of CloudNativePG, by its namespace and name."""

    cluster: str
    """NAMESPACE/NAME."""
    context: str = ""
    """The kubeconfig's context, "" its current one, or the pod's own account."""
    secret: str = ""
    """The secret whose user walproof logs in as, "" the application's."""
    reach: Literal["auto", "pods", "port-forward"] = "auto"
    """How members are reached: by their pod's address, or through the API server."""

    @field_validator("cluster")
    @classmethod
    def _is_a_place(cls, cluster: str) -> str:
        if not _PLACE.fullmatch(cluster):
            raise ValueError(f"{cluster!r} is not NAMESPACE/NAME")
        return cluster

    @property
    def namespace(self) -> str:
        """Where it is."""
        return self.cluster.partition("/")[0]

    @property
    def name(self) -> str:
        """What it is called."""
        return self.cluster.partition("/")[2]


def shown(cluster: str, context: str) -> str:
    """The address as it is kept in records and journals, with the context that was in effect.

    >>> shown("db/pg", "kind-a"), shown("db/pg", "")
    ('cnpg:db/pg?context=kind-a', 'cnpg:db/pg')
    """
    return f"{SCHEME}{cluster}" + (f"?context={quote(context, safe='/:@')}" if context else "")


def read_address(address: str) -> tuple[str | None, CnpgFile]:
    """(the target file's path, None for an address; the target); UsageError when it is not valid."""
    if is_file(address):
        path = Path(address)
        return str(path.absolute()), validated(CnpgFile, read_tree(path), str(path))
    place, _, query = address.removeprefix(SCHEME).partition("?")
    words = dict(parse_qsl(query))
    if not _PLACE.fullmatch(place) or set(words) - {"context"}:
        raise UsageError(f"{address!r} is no CloudNativePG cluster", EXAMPLE)
    return None, CnpgFile(kind="cnpg", cluster=place, context=words.get("context", ""))
