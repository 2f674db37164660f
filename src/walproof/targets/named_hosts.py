"""Which hosts the user named: in the DSN, PGHOST or a service, and in the target file. All others the cluster named."""

from dataclasses import replace

from walproof.model.topology import Endpoint
from walproof.targets.external.target_file import TargetFile


def with_named_hosts(parameters: Endpoint, file: TargetFile) -> Endpoint:
    """The same connection parameters, with what tells a host of the user's from one that only the cluster names.

    Patroni's /cluster, pg_stat_replication and pods say where members are: who writes there is not the user.
    """
    of_members = (at.rpartition(":")[0] or at for at in file.members.values())
    hosts = (
        *(host for host, _ in parameters.hosts),
        *(part.host[0] for part in file.routes.values()),
        *(host.strip("[]") for host in of_members),
        *(file.named_hosts or ()),
    )
    return replace(parameters, named=tuple(sorted({host.lower() for host in hosts if host})))
