"""The address of a CloudNativePG cluster, cnpg:NAMESPACE/NAME?context=…, and its target file."""

import re
from typing import Literal
from urllib.parse import parse_qsl, quote

from pydantic import Field, field_validator

from walproof.errors import UsageError
from walproof.targets.external.target_file import Strict, TargetFile, is_file, read_file, validated

SCHEME = "cnpg:"
LOAD_WORDS = {"load-image": "image", "load-pods": "pods"}
"""Words of an address that stand for keys of [load]."""
EXAMPLE = "cnpg:NAMESPACE/NAME, with ?context=NAME for another context of the kubeconfig"
_PLACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


class LoadPart(Strict):
    """Load from within the cluster, by pods of this image; without one it runs where walproof does."""

    image: str = ""
    """A reference that the cluster can pull, or that was loaded into its nodes."""
    pods: int = Field(default=1, ge=1, le=64)
    requests: dict[str, str] = {"cpu": "500m", "memory": "256Mi"}
    limits: dict[str, str] = {"memory": "1Gi"}
    """No limit of processors by default: a load that is throttled measures its own limit."""
    pull_secret: str = ""
    node_selector: dict[str, str] = {}

    @field_validator("image")
    @classmethod
    def _is_a_reference(cls, image: str) -> str:
        if any(character.isspace() for character in image):
            raise ValueError(f"{image!r} is no image reference")
        return image


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

    load: LoadPart = LoadPart()

    @field_validator("cluster")
    @classmethod
    def _is_a_place(cls, cluster: str) -> str:
        if not _PLACE.fullmatch(cluster):
            raise ValueError(f"{cluster!r} is not NAMESPACE/NAME")
        return cluster

    @property
    def namespace(self) -> str:
        return self.cluster.partition("/")[0]

    @property
    def name(self) -> str:
        return self.cluster.partition("/")[2]

    @property
    def login_secret(self) -> str:
        """Of the user to log in as: the one that is named, else the application's."""
        return self.secret or f"{self.name}-app"


def shown(cluster: str, context: str) -> str:
    """The address as it is kept in records and journals, with the context that was in effect.

    >>> shown("db/pg", "kind-a"), shown("db/pg", "")
    ('cnpg:db/pg?context=kind-a', 'cnpg:db/pg')
    """
    return f"{SCHEME}{cluster}" + (f"?context={quote(context, safe='/:@')}" if context else "")


def read_address(address: str) -> tuple[str | None, CnpgFile]:
    """(the target file's path, None for an address; the target); UsageError when it is not valid."""
    if is_file(address):
        return read_file(CnpgFile, address)
    place, _, query = address.removeprefix(SCHEME).partition("?")
    words = dict(parse_qsl(query))
    if not _PLACE.fullmatch(place) or set(words) - {"context", *LOAD_WORDS}:
        raise UsageError(f"{address!r} is no CloudNativePG cluster", EXAMPLE)
    load = {LOAD_WORDS[word]: text for word, text in words.items() if word in LOAD_WORDS}
    if load and "image" not in load:
        raise UsageError("load pods need an image", "--load-image REFERENCE; docs/kubernetes.md says how it is built")
    tree: dict[str, object] = {"kind": "cnpg", "cluster": place, "context": words.get("context", ""), "load": load}
    return None, validated(CnpgFile, tree, address)
