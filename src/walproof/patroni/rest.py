"""Patroni's REST interface over HTTP, the same for every cluster Patroni manages; decides nothing about it."""

import ssl
from dataclasses import dataclass, field
from typing import Any

import httpx2

from walproof.errors import TargetError, UsageError
from walproof.model.facts import PatroniFacts, PatroniMember

LEADER_ROLES = ("leader", "primary", "master")


@dataclass(frozen=True, slots=True)
class RestAccess:
    """How to reach Patroni: URLs of members in order, basic auth, client certificate, CA file ("" the system's).

    `timeout_s` is how long each member may take to connect and to answer; `hint` is what to type when none does.
    """

    urls: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    verify: bool = True
    timeout_s: float = 3.0
    hint: str = "patronictl list"


class PatroniRest:
    """A client of Patroni. Any member will do for the cluster as a whole: the first URL that answers is used.

    Members' own URLs are learned from /cluster. Safe to use from several threads.
    """

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

    def _first(self, path: str, at: str = "") -> tuple[str, Any]:
        """(URL, parsed answer) of the first member that answers, or of the one `at` that URL."""
        error = ""
        for url in [at] if at else list(self._known):
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
        """GET /cluster; its members' addresses are tried too when the first does not answer."""
        _, cluster = self._first("/cluster")
        if not isinstance(cluster, dict) or not isinstance(cluster.get("members"), list):
            raise TargetError("the address answers, but not with Patroni's /cluster", "is it the REST port (8008)?")
        for member in cluster["members"]:
            url = str(member.get("api_url", "")).removesuffix("/patroni")
            if url and url not in self._known:
                self._known.append(url)
        return cluster

    def config(self, *, at: str = "") -> dict[str, Any]:
        """GET /config: the dynamic configuration, as the first member that answers (or the one at that URL) knows it.

        Patroni answers from a view of the DCS that may be one loop old; the leader's is the newest.
        """
        _, config = self._first("/config", at)
        if not isinstance(config, dict):
            raise TargetError("Patroni gives no dynamic configuration", "see GET /config")
        return config

    def status(self, url: str) -> dict[str, Any]:
        """GET of one member's /patroni (or another URL that gives an object); {} when it does not answer."""
        try:
            status = self._client.get(url).json()
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError):
            return {}
        return status if isinstance(status, dict) else {}

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

    def send(self, method: str, url: str, body: dict[str, Any], *, timeout_s: float = 120.0) -> str:
        """Request a change; Patroni's answer. TargetError when it refuses, naming missing credentials on 401."""
        try:
            answer = self._client.request(method, url, json=body, timeout=timeout_s)
        except (httpx2.HTTPError, OSError) as wrong:
            raise TargetError(f"Patroni at {url} does not answer: {wrong}", self.access.hint) from None
        if answer.status_code in (401, 403):
            raise TargetError(
                f"Patroni at {url} refuses this without credentials",
                "give [rest] user and password, or cert, in the target file",
            )
        if answer.status_code >= 300:
            raise TargetError(f"Patroni refuses: {answer.text.strip()}", self.access.hint)
        return str(answer.text)

    def patch(self, change: dict[str, Any], *, at: str = "") -> None:
        """PATCH /config; None removes a key."""
        self._change_config("PATCH", change, at)

    def replace(self, config: dict[str, Any]) -> None:
        """PUT /config: exactly this and nothing else."""
        self._change_config("PUT", config, "")

    def _change_config(self, method: str, body: dict[str, Any], at: str) -> None:
        url = at or self._first("/cluster")[0]
        self.send(method, f"{url.rstrip('/')}/config", body, timeout_s=10)

    def restart(self, url: str) -> None:
        """Restart PostgreSQL of the member at that URL; returns when Patroni has done it."""
        self.send("POST", f"{url}/restart", {})

    def reinitialize(self, url: str) -> None:
        """Remove the data of the member at that URL and clone it from the leader; returns once it has started."""
        self.send("POST", f"{url}/reinitialize", {"force": True}, timeout_s=30)

    def switch_over(self, url: str, leader: str, to: str | None) -> None:
        """Planned switchover from `leader`, at that URL, to `to` (None: Patroni chooses); returns when it is done."""
        self.send("POST", f"{url}/switchover", {"leader": leader, **({"candidate": to} if to else {})})


def facts_of(rest: PatroniRest) -> PatroniFacts:
    """Configuration, members and versions, for the doctor; TargetError when no member answers."""
    cluster, config = rest.cluster(), rest.config()
    versions = rest.versions(cluster)
    members = []
    for row in cluster["members"]:
        lag = row.get("lag")
        members.append(
            PatroniMember(
                str(row.get("name")),
                str(row.get("role")),
                str(row.get("state")),
                row.get("timeline"),
                lag if isinstance(lag, int) else None,
                bool(row.get("pending_restart")),
                dict(row.get("tags") or {}),
                versions.get(str(row.get("name")), "").removeprefix("?"),
            )
        )
    paused = bool(cluster.get("pause") or config.get("pause"))
    return PatroniFacts(config, tuple(members), paused, rest.access.urls[0])
