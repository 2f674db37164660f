"""Load pods where another run's are there under the same names: at work, killed here, or elsewhere."""

from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

from tests.fixtures.kubernetes.kinds import named
from tests.fixtures.tiers import each
from tests.unit.test_cnpg_load_pods import TARGET, Running, Who, client, ended, running
from walproof.machine.clock import RealClock
from walproof.machine.pid_files import here, machine, name_of_machine
from walproof.records.journal import Journal
from walproof.targets.cnpg.created_objects import MADE_BY, refuse_beside
from walproof.targets.cnpg.creating_load_pods import LoadPods
from walproof.targets.cnpg.kubernetes_api import ApiError

BOOT = here().partition(" ")[2]

ODD = "\x1b]0;pwned\a\x1b[2J$(touch${IFS}pwned)"
"""By one who may make secrets: a maker that moves the terminal, and is run where the hint is pasted."""


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
        with pytest.raises(ApiError, match="another run of walproof is at work on this cluster"):
            later.open()
        assert journal.pending() == () and here.objects("Job", "Secret") == ["pg-walproof", "pg-walproof"]
        assert ended(place, "echo", "goes on") == "goes on\n"


@each([
    (f"{machine()} 7 1 another-boot", "is at work on, or was killed on, this cluster", "--ended-on"),
    (f"{machine()} 999999999 1 {BOOT}", "was killed on this cluster", "walproof revert removes"),
    (f"{gethostname()}/00000000 7 1 boot", "is at work on, or was killed on, this cluster", "--ended-on"),
    ("elsewhere 7 1 a-boot", "is at work on, or was killed on, this cluster", "--ended-on elsewhere"),
    ("", "is at work on, or was killed on, this cluster", "kubectl delete job/pg-walproof -n default"),
    (f"{ODD} 7 1 boot", "is at work on, or was killed on, this cluster",
     "killed: kubectl delete job/pg-walproof -n default"),
])  # fmt: skip
def test_what_a_run_left_is_named_with_its_label_machine_and_age(
    made_by: str, says: str, hint: str, tmp_path: Path
) -> None:
    """Before anything of the second run is made, whatever became of the first."""
    with running(tmp_path) as here:
        here.pods.open()
        (job,) = here.cluster.store.listed(named("Job"))[0]
        for kind in ("Job", "Secret"):
            relabelled(here, kind, made_by)
        before = here.objects("Job", "Secret", "Pod")
        with pytest.raises(ApiError, match=says) as wrong:
            refuse_beside(client(here.cluster), "pg")
        later, journal = another(here, tmp_path)
        with pytest.raises(ApiError, match=says):
            later.open()
        run = job["metadata"]["labels"]["walproof/run"]
        assert f"its job pg-walproof (walproof/run={run}) was made " in wrong.value.message
        assert " s ago on " + (name_of_machine(made_by) or "an unknown machine") in wrong.value.message
        assert hint in wrong.value.hint
        assert "pwned" not in wrong.value.message + wrong.value.hint
        assert journal.pending() == () and here.objects("Job", "Secret", "Pod") == before
        here.pods.close()
        assert here.objects("Job", "Secret", "Pod") == [], "its own run may"
