"""`dataDurability: preferred` over real PostgreSQL: pitfalls, lone acknowledgements, an RTO by its parts; K7 too."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import kubectl as imitated
from tests.fixtures.kubernetes.stand_in import manifest
from tests.fixtures.kubernetes.target import ADDRESS, Kubernetes, current_context, real_stand_in, settled

pytestmark = [pytest.mark.lab, pytest.mark.nightly]
PREFERRED = {"synchronous": {"method": "any", "number": 1, "dataDurability": "preferred"}}
ALONE = re.compile(r"pg-1 acknowledged ([\d,]+) commits at on alone, the first ([\d.]+) s after it")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    folder, cluster = tmp_path_factory.mktemp("cnpg"), manifest(postgresql=PREFERRED)
    with real_stand_in(folder, speed=5, cluster=cluster) as (running, members), current_context(running):
        yield Kubernetes(running, members, folder)


@pytest.fixture
def preferred(started: Kubernetes) -> Iterator[Kubernetes]:
    """Healthy before and after, with nothing left of walproof's."""
    settled(started.running, started.members)
    yield started
    settled(started.running, started.members)
    assert started.left() == []


def drill(kubernetes: Kubernetes, fault: str, *words: str) -> dict[str, Any]:
    """One of four writers at on."""
    asked = ("prove", "--target", ADDRESS, "--fault", fault, "--levels", "on", "--writers", "4", *words, "--json")
    _, out = kubernetes.ended(*asked, "--allow", f"load,{fault}")
    (found,) = json.loads(out)["drills"]
    return dict(found)


def test_k2_and_k5_are_reproduced_on_real_postgresql(preferred: Kubernetes) -> None:
    before = preferred.spec()
    words = ("prove", "--pitfall", "K2,K5", "--target", ADDRESS, "--json")
    code, out = preferred.ended(*words)
    assert code == 2 and "kill-member" in out, "not without consent by name"
    code, out = preferred.ended(*words, "--allow", "kill-member")
    found = {one["pitfall"]: one for one in json.loads(out)["pitfalls"]}
    assert code == 0 and {one["verdict"] for one in found.values()} == {"reproduced"}, found
    assert "acknowledged by pg-1 alone" in found["K2"]["evidence"]
    assert preferred.spec() == before


def test_lone_acknowledgements_under_preferred_are_found_counted_and_timed(preferred: Kubernetes) -> None:
    found = drill(preferred, "kill-member", "--victim", "all-standbys")
    alone = ALONE.search(found["why"])
    assert alone is not None and found["verdict"] == "undecided" and found["findings"]["lost"] == 0, found
    assert int(alone[1].replace(",", "")) > 0 and float(alone[2]) < 10
    assert found["findings"]["not_in_effect_s"] > 0


def test_the_parts_of_an_rto_add_up_to_it(preferred: Kubernetes) -> None:
    found = drill(preferred, "kill")
    parts = {part: found["recovery"][f"{part}_s"] for part in ("operator", "lease", "promotion", "endpoint", "client")}
    assert found["rto_s"] and parts["operator"] and parts["client"], found
    assert sum(part or 0.0 for part in parts.values()) == pytest.approx(found["rto_s"], abs=0.01), found


@pytest.mark.parametrize("breaks", ["1", ""])
def test_k7_a_forward_ends_with_its_first_client_of_tls_or_does_not(
    preferred: Kubernetes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, breaks: str
) -> None:
    members = preferred.members
    if members.psql(members.primary, "SHOW ssl", ()).stdout != b"on\n":
        pytest.skip("this PostgreSQL is built without TLS")
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!/bin/sh\nexec {sys.executable} -P {imitated.__file__}\n")
    kubectl.chmod(0o755)
    generation = members.generations[members.primary]
    monkeypatch.setenv("FORWARD_TO", f"{members.address(members.primary, generation)}:5432")
    monkeypatch.setenv("FORWARD_BREAKS", breaks)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    code, out = preferred.ended("prove", "--pitfall", "K7", "--target", ADDRESS, "--json")
    (found,) = json.loads(out)["pitfalls"]
    expected = (0, "reproduced") if breaks else (1, "not reproduced")
    assert (code, found["verdict"]) == expected, found
