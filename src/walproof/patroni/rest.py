"""Patroni's REST interface over HTTP, the same for every cluster Patroni manages; decides nothing about it."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2

from walproof.errors import TargetError, UsageError
from walproof.machine.addresses import is_loopback
from walproof.machine.quoting import pasted
from walproof.machine.untrusted import from_json, one_line
from walproof.model.facts import PatroniFacts, PatroniMember
from walproof.model.patroni_values import is_on, known_tags
from walproof.patroni.config import version_of
from walproof.patroni.known_cluster import KnownCluster, Member, url_of_patroni
from walproof.patroni.private_http import private_client

_MOST_URLS = 300
_NO_KEY = "walproof_reads"
_STATUS, _CLUSTER = "/patroni", "/cluster"
MOST_MEMBERS = 100
"""Each is asked."""


@dataclass(frozen=True, slots=True)
class RestAccess:
    """How to reach Patroni: URLs of members in order, basic auth, client certificate, CA file ("" the system's).

    User and password go to these hosts and ports only, over TLS, to this machine itself, or where `plain_http` says so.
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
    plain_http: bool = False

    def withheld(self, url: str) -> UsageError | None:
        """Why user and password are not sent to that URL; None where they may be, and where there are none."""
        if not self.user:
            return None
        host, where = _host(url), f"{urlsplit(url).scheme}://{urlsplit(url).netloc}"
        if _place(url) not in map(_place, self.urls):
            return UsageError(
                f"the password of Patroni's REST is not sent to {urlsplit(url).netloc}, which you did not name",
                pasted("rest = [..., {where:toml}] in the target file names it", where=where),
            )
        if urlsplit(url).scheme != "https" and not is_loopback(host) and not self.plain_http:
            return UsageError(
                f"the password of Patroni's REST is not sent to {host} over plain HTTP",
                "give rest an https:// URL, or plain_http = true below [restapi] in the target file",
            )
        return None


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").lower()


def _place(url: str) -> tuple[str, int | None]:
    """Host and port: on one machine another port may be another user's server.

    >>> _place("https://DB1.example/patroni"), _place("http://[::1]:8008")
    (('db1.example', 443), ('::1', 8008))
    """
    try:
        port = urlsplit(url).port
    except ValueError:  # no number
        return _host(url), -1
    return _host(url), port or {"http": 80, "https": 443}.get(urlsplit(url).scheme)


class PatroniRest:
    """A client of one cluster's Patroni. Any member will do for it as a whole: the first URL that answers is used.

    Which cluster that is, the first to tell it in its /patroni says for good: a name may lead to another one later, and
    who tells another, or none any more, has not answered; nor has, from the first /cluster on, who lists none of its
    members (`KnownCluster`). Members' own URLs are learned from /cluster. Safe to use from several threads.
    """

    def __init__(self, access: RestAccess) -> None:
        self.access = access
        self._client = private_client(
            ca_file=access.ca_file,
            cert_file=access.cert_file,
            key_file=access.key_file,
            verify=access.verify,
            timeout_s=access.timeout_s,
        )
        self._known = list(access.urls)
        self.meant = KnownCluster()

    def close(self) -> None:
        self._client.close()

    def _get(self, url: str) -> httpx2.Response:
        """GET, with user and password where they may go."""
        return self._client.get(url, auth=None if self.access.withheld(url) else self._auth)

    @property
    def _shown(self) -> str:
        return f"the user {self.access.user} with its password" if self._auth else "this without credentials"

    @property
    def _auth(self) -> tuple[str, str] | None:
        return (self.access.user, self.access.password) if self.access.user else None

    def _first(self, path: str, *at: str) -> tuple[str, Any]:
        """(URL, parsed answer) of the first member that answers and is the cluster's, or of those `at` these URLs."""
        error, other = "", ""
        for url in list(filter(None, at)) or list(self._known):
            try:
                answer = self._get(url.rstrip("/") + path)
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as wrong:
                error = f"{url}: {wrong}"
                continue
            if answer.status_code == 401:
                withheld = self.access.withheld(url)
                if withheld:
                    raise withheld
                raise TargetError(
                    f"Patroni at {url} refuses the user", "give [restapi] user and password in the target file"
                )
            if answer.is_redirect:
                error = f"{url} redirects, which is not followed"
                continue
            try:
                parsed = from_json(answer.content)
            except ValueError:
                error = f"{url} answers, but is not Patroni"
                continue
            status = parsed if path == _STATUS else self._status(url, _STATUS)
            listed = parsed if path == _CLUSTER else self._status(url, _CLUSTER) if self.meant.members else {}
            stranger = self.meant.stranger(status, listed, to_change=path == _STATUS)
            if not stranger:
                return url, parsed
            other = f"{url} {stranger}"
        hint = pasted("check the REST address: curl {url:argument}", url=(self._known or ["URL"])[0])
        raise TargetError(
            f"no Patroni answers ({'; '.join(filter(None, (error, other)))})",
            "let each name in rest lead to that one cluster" if other else hint,
        )

    def members(self) -> tuple[Member, ...]:
        """All that the cluster was seen to list, now and before; TargetError when none answers."""
        if not self.meant.members:
            self.cluster()
        return self.meant.members

    def cluster(self, *, at: str = "") -> dict[str, Any]:
        """GET /cluster of the first member that answers, or of the one at that URL; members' addresses are learned."""
        _, cluster = self._first(_CLUSTER, at)
        if not isinstance(cluster, dict) or not _are_members(cluster.get("members")):
            raise TargetError("the address answers, but not with Patroni's /cluster", "is it the REST port (8008)?")
        if len(cluster["members"]) > MOST_MEMBERS:
            raise TargetError(
                f"Patroni lists {len(cluster['members'])} members, and walproof asks {MOST_MEMBERS} at most",
                "is it the address of one cluster?",
            )
        for member in cluster["members"]:
            member["api_url"] = url_of_patroni(member.get("api_url"))
            url = str(member["api_url"]).removesuffix("/patroni")
            if url and url not in self._known and len(self._known) < _MOST_URLS:
                self._known.append(url)
        return cluster

    def config(self, *, at: str = "") -> dict[str, Any]:
        """GET /config: the dynamic configuration, as the first member that answers (or the one at that URL) knows it.

        Patroni answers from a view of the DCS that may be one loop old; the leader's is the newest.
        """
        return _configuration(self._first("/config", at)[1])

    def identity(self) -> str:
        """The system identifier of PostgreSQL, as the first member told it that told one; "" where none does."""
        for member in () if self.meant.system else self.cluster()["members"]:
            if not self.meant.system:
                self.status(member["api_url"])
        return self.meant.system

    def status(self, url: str) -> dict[str, Any]:
        """GET of one member's /patroni (or another URL that gives an object); {} when it does not answer, or another
        cluster's does.
        """
        status = self._status(url)
        return {} if self.meant.stranger(status, {}, may_be_untold=True) else status

    def check_one_cluster(self) -> None:
        """TargetError where a URL that the user named tells another cluster than the first: a name may have moved."""
        with ThreadPoolExecutor(8) as asking:
            told = list(asking.map(self._told, self.access.urls))
        for url, (status, listing) in zip(self.access.urls, told, strict=True):
            if stranger := self.meant.stranger(status, listing, may_be_untold=True):
                raise TargetError(f"{url} {stranger}", "let each name in rest lead to that one cluster")

    def _told(self, url: str) -> tuple[dict[str, Any], dict[str, Any]]:
        status = self._status(url, _STATUS)
        return status, self._status(url, _CLUSTER) if status else {}

    def _status(self, url: str, path: str = "") -> dict[str, Any]:
        try:
            status = from_json(self._get(url.rstrip("/") + path).content)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError):
            return {}
        return status if isinstance(status, dict) else {}

    def versions(self, cluster: dict[str, Any] | None = None) -> dict[str, str]:
        """Patroni's version on each member of /cluster, "?" where it does not answer."""
        members = (cluster or self.cluster())["members"]
        patronis = {str(m.get("name")): self.status(str(m.get("api_url", ""))).get("patroni") for m in members}
        return {name: str(p.get("version", "?")) if isinstance(p, dict) else "?" for name, p in patronis.items()}

    def version(self) -> tuple[int, ...]:
        """The oldest member's version, () when no member says it."""
        versions = [version_of(v) for v in self.versions().values()]
        return min((v for v in versions if v), default=())

    def member_url(self, member: str) -> str:
        """The REST address of one member; TargetError when Patroni knows none of that name."""
        for listed in self.cluster()["members"]:
            if listed.get("name") == member and listed["api_url"]:
                return str(listed["api_url"]).removesuffix("/patroni")
        raise TargetError(f"Patroni knows no member {member!r}", "patronictl list")

    def send(self, method: str, path: str, body: dict[str, Any], *, at: str = "", timeout_s: float = 120.0) -> str:
        """Request a change of the member at that URL, or of the first that takes it; Patroni's answer.

        TargetError when it refuses, naming missing credentials on 401, or does not tell just before that it is the
        cluster's. UsageError before anything is sent where user and password are needed and may not go there.
        """
        url = f"{self._to_change(at).rstrip('/')}{path}"
        try:
            answer = self._client.request(method, url, json=body, timeout=timeout_s, auth=self._auth)
        except (httpx2.HTTPError, OSError) as wrong:
            raise TargetError(f"Patroni at {url} does not answer: {wrong}", self.access.hint) from None
        if answer.status_code in (401, 403):
            raise TargetError(
                f"Patroni at {url} refuses {self._shown}: {answer.status_code}, {one_line(answer.text, 200)}",
                "give [restapi] user and password, or cert_file, in the target file",
            )
        if answer.is_redirect:
            raise TargetError(f"Patroni at {url} redirects, which is not followed", "name the member's own address")
        if answer.status_code >= 300:
            raise TargetError(f"Patroni refuses: {answer.text.strip()}", self.access.hint)
        return str(answer.text)

    def _to_change(self, at: str) -> str:
        """The first URL that answers, of all or of that one, that may be sent user and password."""
        urls = [at] if at else list(self._known)
        allowed = [url for url in urls if self.access.withheld(url) is None]
        if not allowed:
            raise self.access.withheld(urls[0]) or TargetError("no Patroni is named", self.access.hint)
        return self._first(_STATUS, *allowed)[0]

    def patch(self, change: dict[str, Any], *, at: str = "") -> None:
        """PATCH /config: these keys and no other; None removes a key."""
        self.send("PATCH", "/config", change, at=at, timeout_s=10)

    def newest_config(self) -> dict[str, Any]:
        """The dynamic configuration as the DCS holds it now, whereas GET /config may answer from a loop ago.

        Patroni reads the DCS before it patches and answers with the result: removing a missing key reads only.
        """
        try:
            return _configuration(from_json(self.send("PATCH", "/config", {_NO_KEY: None}, timeout_s=10)))
        except ValueError:
            return _configuration(None)

    def restart(self, url: str) -> None:
        """Restart PostgreSQL of the member at that URL; returns when Patroni has done it."""
        self.send("POST", "/restart", {}, at=url)

    def reinitialize(self, url: str) -> None:
        """Remove the data of the member at that URL and clone it from the leader; returns once it has started."""
        self.send("POST", "/reinitialize", {"force": True}, at=url, timeout_s=30)

    def switch_over(self, leader: str, to: str | None, *, at: str = "") -> None:
        """Planned switchover from `leader` to `to` (None: Patroni chooses), asked of any member, or of the one `at`
        that URL; returns when it is done.
        """
        self.send("POST", "/switchover", {"leader": leader, **({"candidate": to} if to else {})}, at=at)


def _are_members(listed: object) -> bool:
    """Whether it is a list of objects whose ports are numbers and whose tags are objects, as Patroni's are."""
    return isinstance(listed, list) and all(
        isinstance(one, dict) and isinstance(one.get("port", 0), int) and isinstance(one.get("tags") or {}, dict)
        for one in listed
    )


def _configuration(config: object) -> dict[str, Any]:
    if not isinstance(config, dict):
        raise TargetError("Patroni gives no dynamic configuration", "see GET /config")
    return config


def facts_of(rest: PatroniRest) -> PatroniFacts:
    """Configuration, members and versions, for the doctor; TargetError when no member answers."""
    cluster, config = rest.cluster(), rest.config()
    members = members_of(cluster, rest.versions(cluster))
    paused = is_on(cluster, "pause") or is_on(config, "pause")
    return PatroniFacts(config, members, paused, rest.access.urls[0])


def members_of(cluster: Mapping[str, Any], versions: Mapping[str, str]) -> tuple[PatroniMember, ...]:
    """The members of an answer of /cluster, with the versions that are known."""
    return tuple(
        PatroniMember(
            name=str(row.get("name")),
            role=str(row.get("role")),
            state=str(row.get("state")),
            timeline=row.get("timeline"),
            lag_bytes=lag if isinstance(lag := row.get("lag"), int) else None,
            pending_restart=bool(row.get("pending_restart")),
            tags=known_tags(row.get("tags") or {}, version_of(version)),
            version=version,
        )
        for row in cluster["members"]
        for version in [versions.get(str(row.get("name")), "").removeprefix("?")]
    )
