"""What a guard needs of an external Patroni cluster: its etcd by the target file, its members by Patroni's REST."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from walproof.errors import UsageError
from walproof.model.ports import Clock
from walproof.model.takeover import LeaderLock, SignsOfLife
from walproof.model.topology import Endpoint
from walproof.patroni.etcd3 import EtcdAccess
from walproof.patroni.leader_lock import EtcdLeaderLock
from walproof.patroni.rest import PatroniRest, is_this_machine
from walproof.targets.patroni.file import Etcd3Part, PatroniFile, secret
from walproof.targets.patroni.signs_of_life import Addresses, PatroniSignsOfLife

_EXAMPLE = '[etcd3] hosts = ["10.0.0.21:2379"] in the target file'


@dataclass(frozen=True, slots=True)
class PatroniTakeover:
    """members: who Patroni lists, with connection parameters."""

    rest: PatroniRest
    file: PatroniFile
    members: Callable[[], Mapping[str, Endpoint]]
    clock: Clock

    def lock(self) -> LeaderLock:
        """The leader lock; UsageError where the target file names no etcd 3."""
        part = self._etcd3()
        if not part.scope:
            raise UsageError(
                "a guard takes the leader lock of the scope that the target file names, and of no other",
                f"below [etcd3]: scope = {json.dumps(self._scope(), ensure_ascii=False)}",
            )
        return EtcdLeaderLock(_access(part), f"/{part.namespace.strip('/')}/{part.scope}/", self.clock.now)

    def signs_of_life(self) -> SignsOfLife:
        """Starts asking the members."""
        return PatroniSignsOfLife(self._addresses, self.rest.plain_get(), self.clock)

    def _etcd3(self) -> Etcd3Part:
        if self.file.other_dcs:
            raise UsageError(
                f"a guard cannot use {self.file.other_dcs} as the DCS: it knows etcd 3 only (Patroni's etcd3)", _EXAMPLE
            )
        if self.file.etcd3 is None:
            raise UsageError("a guard needs Patroni's etcd, which the target file does not name", _EXAMPLE)
        return self.file.etcd3

    def _scope(self) -> str:
        """The scope as Patroni's REST gives it, which may be a lie: to be shown, never to be obeyed."""
        for member in self.rest.cluster()["members"]:
            patroni = self.rest.status(str(member.get("api_url", ""))).get("patroni") or {}
            if patroni.get("scope"):
                return str(patroni["scope"])
        return "…"

    def _addresses(self) -> Mapping[str, Addresses]:
        listed = {str(m["name"]): m for m in self.rest.cluster()["members"]}
        found = {}
        for name, endpoint in self.members().items():
            member = listed.get(name, {})
            url = str(member.get("api_url", "")).removesuffix("/patroni")
            if url:
                found[name] = Addresses(endpoint, url, f"{member.get('host', '')}:{member.get('port') or 5432}")
        return found


def _access(part: Etcd3Part) -> EtcdAccess:
    for url in part.urls if part.username and not part.plain_http else ():
        if urlsplit(url).scheme != "https" and not is_this_machine(urlsplit(url).hostname or ""):
            raise UsageError(
                f"the password of etcd is not sent to {urlsplit(url).hostname} over plain HTTP",
                'protocol = "https" below [etcd3] in the target file, or plain_http = true',
            )
    password = secret(part.password_file, "etcd3.password_file")
    return EtcdAccess(part.urls, part.username, password, part.cacert, part.cert, part.key)
