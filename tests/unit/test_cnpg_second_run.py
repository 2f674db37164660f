"""Load pods where another run's are there under the same names: at work, killed here, or ended elsewhere."""

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_cnpg_load_pods import TARGET, Running, Who, client, ended, running, until
from walproof.machine.clock import RealClock
from walproof.records.journal import Journal
from walproof.targets.cnpg.created_objects import MADE_BY
from walproof.targets.cnpg.creating_load_pods import LoadPods
from walproof.targets.cnpg.kubernetes_api import ApiError


def another(here: Running, folder: Path) -> tuple[LoadPods, Journal]:
    """Load pods of a second run on the same Cluster."""
    journal = Journal(folder / "another")
    return LoadPods(Who(client(here.cluster), here.pods._login.file), TARGET, RealClock(), lambda: journal), journal


def relabelled(here: Running, kind: str, maker: str) -> None:
    def change(item: dict[str, Any]) -> None:
        item["metadata"]["annotations"][MADE_BY] = maker

    here.cluster.store.modify(kind, "pg-walproof", change)


def test_a_second_run_is_refused_and_takes_nothing_of_the_first(tmp_path: Path) -> None:
    with running(tmp_path) as here:
        (place,) = here.pods.open()
        later, journal = another(here, tmp_path)
        with pytest.raises(ApiError, match="another run of walproof is at work on this cluster, or was killed"):
            later.open()
        assert journal.pending() == () and here.objects("Job", "Secret") == ["pg-walproof", "pg-walproof"]
        assert ended(place, "echo", "goes on") == "goes on\n"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_a_run_left_whose_load_has_ended_is_replaced(tmp_path: Path, elsewhere: bool) -> None:
    """Killed here; or anywhere, and its agents have ended since."""
    with running(tmp_path) as here:
        here.pods.open()
        (name,) = here.runner.pods
        for kind in ("Job", "Secret"):
            relabelled(
                here, kind, "elsewhere 7 1 a-boot" if elsewhere else f"{socket.gethostname()} 999999999 1 no-boot"
            )
        later, journal = another(here, tmp_path)
        if elsewhere:
            with pytest.raises(ApiError, match="its secret pg-walproof was made on elsewhere"):
                later.open()
            os.kill(here.runner.pods[name].process.pid, signal.SIGTERM)
            os.kill(here.runner.pods[name].process.pid, signal.SIGKILL)
            until(lambda: "Failed" in str(here.cluster.store.find("Job", "pg-walproof")))
        try:
            (place,) = later.open()
            assert ended(place, "echo", "done") == "done\n" and len(here.runner.pods) == 2
            # The first run's journal is reverted later: it takes nothing of this one's.
            here.pods.close()
            assert here.journal.pending() == () and here.objects("Job", "Secret") == ["pg-walproof", "pg-walproof"]
            assert ended(place, "echo", "goes on") == "goes on\n"
        finally:
            later.close()
        assert here.objects("Job", "Secret", "Pod") == [] and journal.pending() == ()
