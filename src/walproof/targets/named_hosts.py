"""Which hosts the user named: in the DSN, PGHOST or a service, and in the target file. All others the cluster named."""

from dataclasses import replace
from itertools import product

from walproof.model.topology import Endpoint
from walproof.targets.external.target_file import TargetFile


def with_named_hosts(parameters: Endpoint, file: TargetFile) -> Endpoint:
    """The same connection parameters, with what tells a host of the user's from one that only the cluster names.

    Patroni's /cluster, pg_stat_replication and pods say where members are: who writes there is not the user.
    """
    members = ((at.rpartition(":") if ":" in at else (at, "", "5432")) for at in file.members.values())
    places = (
        *parameters.hosts,
        *(part.host for part in file.routes.values()),
        *((host.strip("[]"), int(port)) for host, _, port in members if port.isdecimal()),
        # Where Patroni's REST is the user has said, not where PostgreSQL is: there it is at the DSN's port.
        *product(file.named_hosts or (), {port for _, port in parameters.hosts}),
    )
    return replace(parameters, named=tuple(sorted({(host.lower(), port) for host, port in places if host})))
