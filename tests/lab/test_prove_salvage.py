"""`prove --salvage` on a real lab: what a partitioned leader committed alone is found again; nothing is left there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.labs import asked, leader_and_standby
from walproof.lab import patroni
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import catalogue

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(400)]


def test_the_lost_commits_of_a_partitioned_leader_are_found_again(lab: Blueprint, tmp_path: Path) -> None:
    drill = ["--fault", "partition", "--levels", "local", "--writers", "4", "--lab", lab.name, "--salvage", "--json"]
    try:
        argv = [sys.executable, "-m", "walproof", "prove", *drill, "--record", str(tmp_path / "rec")]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=350, check=False)
        told = json.loads(done.stdout)
        (one,) = told["salvage"]
        assert (one["verdict"], done.returncode) == ("held", 0), f"{one['why']}: {done.stdout}{done.stderr}"
        assert one["lost"] == one["found"] == told["drills"][0]["lost"] > 0 and one["members"]
        assert "bin_name" not in patroni.config(lab)["postgresql"]
        leader, _ = leader_and_standby(lab)
        assert asked(lab, leader, "SELECT pg_has_role('replicator', 'pg_read_all_data', 'MEMBER')") == [(False,)]
        assert not [path for m in lab.members for path in lab.data_dir(m).parent.glob("data.before-rewind.*")]
    finally:
        catalogue.recover(lab)
