"""`apply` sets what the advice lists, and what no drill decides only where it is named."""

import json
from pathlib import Path

import pytest

from tests.fixtures.command_line import Run, one_sentence, walproof
from tests.fixtures.fake_patroni import fake_patroni
from tests.fixtures.priced_records import PAIR, advice_file, price_record
from tests.fixtures.records import recorded
from tests.fixtures.same_list import ANYWHERE, WITH_MANAGER, same_list
from walproof.advising.advise import chosen, read_advice
from walproof.advising.recipes import config_change
from walproof.machine.clock import RealClock
from walproof.model.advice import ClusterProfile
from walproof.model.topology import ClusterView
from walproof.patroni.rest import PatroniRest, RestAccess
from walproof.records.journal import Journal
from walproof.targets.external.configuration_patches import at, listed, paths_of
from walproof.targets.patroni.configuration import PatroniConfiguration

__all__ = ["walproof"]


def test_advise_and_apply_list_the_same_on_a_simulated_cluster(walproof: Run, tmp_path: Path) -> None:
    lists = same_list(lambda *words: walproof(*words)[:2], "sim", tmp_path, ANYWHERE)
    assert [one["synchronous_commit"] for one in lists] == ["on", "on", "local", "remote_apply"]
    assert lists[2]["synchronous_standby_names"] == ""


def test_advise_and_apply_list_the_same_under_patroni_and_that_is_what_is_patched(
    walproof: Run, tmp_path: Path
) -> None:
    with fake_patroni(ttl=30) as fake:
        fake.members = [fake.listed()]
        file = str(fake.file(tmp_path / "t.toml", '[restapi]\nuser = "u"\npassword_file = "p"\nplain_http = true\n'))
        Path("p").write_text("secret")
        Path("p").chmod(0o600)
        lists = same_list(lambda *words: walproof(*words)[:2], file, tmp_path, WITH_MANAGER)
        assert [one.get("ttl") for one in lists] == [None] * 4 + ["27", "30"]
        assert fake.written == []
        # Without the wait, which asks members that are not there.
        choice = chosen(read_advice((tmp_path / "advice.json").read_text()), 1)
        rest = PatroniRest(RestAccess((fake.url,), "u", "secret"))
        configuration = PatroniConfiguration("c", RealClock(), rest, dict, lambda: ClusterView(0.0, (), None, ""))
        plan = configuration.plan(config_change(choice, ClusterProfile(patroni="4.1.3")))
        configuration.apply(plan, Journal(tmp_path / "journal.jsonl"))
        patch = fake.written[0].body
        assert {one.name: one.value for one in listed({path: at(patch, path) for path in paths_of(patch)})} == lists[-1]


@pytest.mark.parametrize(("manager", "says"), [("lab", "does not list"), ("pair", "does not list")])
def test_what_the_advice_does_not_list_is_not_set(walproof: Run, tmp_path: Path, manager: str, says: str) -> None:
    """Advice for a lab, and for two servers of other names, applied to a simulated cluster."""
    file = advice_file(tmp_path / "advice.json", cluster=None if manager == "lab" else PAIR)
    done = walproof("apply", str(file), "--target", "sim", "--dry-run")
    one_sentence(done, says)
    assert "walproof advise RECORD --target sim --json" in done[2]


def test_a_setting_more_or_less_in_the_file_is_refused(walproof: Run, tmp_path: Path) -> None:
    same_list(lambda *words: walproof(*words)[:2], "sim", tmp_path, ANYWHERE[:1])
    file = tmp_path / "advice.json"
    tree = json.loads(file.read_text())
    settings = tree["choices"][0]["settings"]
    for changed, says in (
        (settings[1:], "does not list synchronous_commit = on, which would be set on sim"),
        ([*settings, {"name": "fsync", "value": "off"}], "lists fsync = off, which would not be set on sim"),
        ([], "does not list what it sets"),
    ):
        tree["choices"][0]["settings"] = changed
        file.write_text(json.dumps(tree))
        one_sentence(walproof("apply", str(file), "--target", "sim"), says)


def test_what_no_drill_decides_is_applied_only_by_name(walproof: Run, tmp_path: Path) -> None:
    record = str(recorded(tmp_path / "p", "price", price_record()))
    code, out, _ = walproof("advise", record, "--rpo", "0")
    assert code == 4
    assert out.startswith("nothing that meets --rpo 0s is proven: ") and "was never drilled" in out.splitlines()[0]
    assert "\nprove it first: walproof prove --target lab --levels " in out
    code, _, err = walproof("apply", record, "--rpo", "0", "--target", "sim")
    assert (code, "is not proven" in err, "walproof prove" in err, "--choice 1" in err) == (4, True, True, True)
    assert walproof("apply", record, "--rpo", "0", "--target", "sim", "--dry-run")[0] == 0
    code, out, _ = walproof("apply", record, "--rpo", "0", "--target", "sim", "--choice", "1")
    assert (code, "not proven: " in out) == (0, True)
    code, out, _ = walproof("advise", record, "--rpo", "0", "--level", "remote_apply")
    assert (code, "remote_apply ANY 1, 16 clients, as asked, is not proven: " in out) == (4, True)
    assert walproof("apply", record, "--rpo", "0", "--level", "remote_apply", "--target", "sim")[0] == 0
    assert walproof("advise", record)[0] == 0
