"""A CloudNativePG cluster by its namespace and name: everything else is asked of Kubernetes, anew as pods change."""

import os

from walproof.model.topology import ClusterView
from walproof.targets.cnpg.client import Client
from walproof.targets.cnpg.file import CnpgFile, read_address, shown
from walproof.targets.cnpg.kubeconfig import connection
from walproof.targets.cnpg.manager import CnpgManager
from walproof.targets.cnpg.state import joined
from walproof.targets.external.cluster import ExternalCluster


class CnpgCluster(ExternalCluster):
    """An external cluster whose members are pods."""

    def __init__(self, name: str, file: CnpgFile, manager: CnpgManager) -> None:
        super().__init__(name, file, manager.login, manager)
        self._cnpg = manager

    def observe(self) -> ClusterView:
        """One observation of every instance there is, by its pod's name: SQL and Kubernetes together."""
        return joined(super().observe(), self._cnpg.state)

    def close(self) -> None:
        """Remove walproof's own database, and take no more connections for members."""
        super().close()
        self._cnpg.addresses.close()


def open_cnpg(address: str) -> CnpgCluster:
    """The cluster of an address or a target file; UsageError, MachineError or ApiError when there is none."""
    path, file = read_address(address)
    configuration, context = connection(file.context, os.environ)
    api = Client(configuration, file.namespace, context)
    return CnpgCluster(path or shown(file.cluster, context), file, CnpgManager(api, file))
