"""Patroni's REST interface over HTTP: one shape for any member of a cluster; decides nothing about it."""

import ssl
from dataclasses import dataclass, field
from typing import Any

import httpx2

from walproof.errors import TargetError, UsageError
from walproof.model.facts import PatroniFacts, PatroniMember

LEADER_ROLES = ("leader", "primary", "master")


@dataclass(frozen=True, slots=True)
class RestAccess:
    """How to reach Patroni: urls of members in order, basic auth, client certificate, CA file ("" the system's)."""

    urls: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    verify: bool = True
    timeout_s: float = 3.0


class PatroniRest:
    """Asks and tells Patroni; the first url that answers is used, members' own urls are learned from /cluster."""

    def __init__(self, access: RestAccess) -> None:
        self.access = access
        auth = (access.user, access.password) if access.user else None
        cert = (access.cert_file, access.key_file or access.cert_file) if access.cert_file else None
        try:
            verify = ssl.create_default_context(cafile=access.ca_file) if access.ca_file else access.verify
            if cert:
                ssl.create_default_context().load_cert_chain(*cert)
        except OSError as wrong:
            files = ", ".join(f for f in (access.ca_file, access.cert_file, access.key_file) if f)
            raise UsageError(
                f"a certificate of [restapi] cannot be read ({files}): {wrong.strerror or wrong}",
                "ca_file, cert_file and key_file are paths of PEM files this user may read",
            ) from None
        # Never through a proxy of the environment: a cluster's REST is a private address.
        self._client = httpx2.Client(auth=auth, cert=cert, verify=verify, timeout=access.timeout_s, trust_env=False)
        self._known = list(access.urls)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def _first(self, path: str) -> tuple[str, Any]:
        error = ""
        for url in list(self._known):
            try:
                answer = self._client.get(url.rstrip("/") + path)
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as wrong:
                error = f"{url}: {wrong}"
                continue
            if answer.status_code == 401:
                raise TargetError(
                    f"Patroni at {url} refuses the user", "give [rest] user and password in the target file"
                )
            try:
                return url, answer.json()
            except ValueError:
                error = f"{url} answers, but is not Patroni"
        raise TargetError(f"no Patroni answers ({error})", "check the REST address: curl " + (self._known or ["?"])[0])

    def cluster(self) -> dict[str, Any]:
        """GET /cluster; its members' addresses are tried too when the first is gone."""
        _, said = self._first("/cluster")
        if not isinstance(said, dict) or not isinstance(said.get("members"), list):
            raise TargetError("the address answers, but not with Patroni's /cluster", "is it the REST port (8008)?")
        for member in said["members"]:
            url = str(member.get("api_url", "")).removesuffix("/patroni")
            if url and url not in self._known:
                self._known.append(url)
        return said

    def config(self) -> dict[str, Any]:
        """GET /config: the dynamic configuration."""
        _, said = self._first("/config")
        if not isinstance(said, dict):
            raise TargetError("Patroni gives no dynamic configuration", "look at GET /config")
        return said

    def status(self, api_url: str) -> dict[str, Any]:
        """GET /patroni of one member; {} when it does not answer."""
        try:
            said = self._client.get(api_url).json()
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError):
            return {}
        return said if isinstance(said, dict) else {}

    def versions(self, cluster: dict[str, Any] | None = None) -> dict[str, str]:
        """Patroni's version on each member of /cluster, "?" where it does not answer."""
        members = (cluster or self.cluster())["members"]
        return {
            str(m.get("name")): str((self.status(str(m.get("api_url", ""))).get("patroni") or {}).get("version", "?"))
            for m in members
        }

    def version(self) -> tuple[int, ...]:
        """The oldest member's version, () when nobody says it."""
        found = [tuple(int(p) for p in v.split(".") if p.isdigit()) for v in self.versions().values()]
        return min((v for v in found if v), default=())

    def member_url(self, member: str) -> str:
        """The REST address of one member; TargetError when Patroni knows none of that name."""
        for listed in self.cluster()["members"]:
            if listed.get("name") == member:
                return str(listed["api_url"]).removesuffix("/patroni")
        raise TargetError(f"Patroni knows no member {member!r}", "patronictl list")

    def tell(self, method: str, url: str, body: dict[str, Any], *, timeout_s: float = 60.0) -> str:
        """Order something; Patroni's words. TargetError when it refuses, naming missing credentials on 401."""
        try:
            answer = self._client.request(method, url, json=body, timeout=timeout_s)
        except (httpx2.HTTPError, OSError) as wrong:
            raise TargetError(f"Patroni at {url} does not answer: {wrong}", "patronictl list") from None
        if answer.status_code in (401, 403):
            raise TargetError(
                f"Patroni at {url} refuses this without credentials",
                "give [rest] user and password, or cert, in the target file",
            )
        if answer.status_code >= 300:
            raise TargetError(f"Patroni refuses: {answer.text.strip()}", "patronictl list")
        return str(answer.text)

    def patch(self, change: dict[str, Any]) -> None:
        """PATCH /config; None removes a key."""
        url, _ = self._first("/cluster")
        self.tell("PATCH", f"{url.rstrip('/')}/config", change, timeout_s=10)

    def replace(self, config: dict[str, Any]) -> None:
        """PUT /config: exactly this and nothing else."""
        url, _ = self._first("/cluster")
        self.tell("PUT", f"{url.rstrip('/')}/config", config, timeout_s=10)


def facts_of(rest: PatroniRest) -> PatroniFacts:
    """What Patroni says of itself, for the doctor."""
    cluster, config = rest.cluster(), rest.config()
    members = []
    for said in cluster["members"]:
        status = rest.status(str(said.get("api_url", "")))
        lag = said.get("lag")
        members.append(
            PatroniMember(
                str(said.get("name")),
                str(said.get("role")),
                str(said.get("state")),
                said.get("timeline"),
                lag if isinstance(lag, int) else None,
                bool(said.get("pending_restart")),
                dict(said.get("tags") or {}),
                str((status.get("patroni") or {}).get("version", "")),
            )
        )
    paused = bool(cluster.get("pause") or config.get("pause"))
    return PatroniFacts(config, tuple(members), paused, rest.access.urls[0])
