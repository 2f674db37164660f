"""Recipes: parsed by what reads them, right for the version, valid against CloudNativePG's own schema."""

import configparser
import io
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from tests.fixtures.priced_records import price_record, prove_record
from tests.fixtures.tiers import each
from walproof.advising.advise import advise, choose_environment
from walproof.advising.evidence import evidence_of
from walproof.advising.recipes import quoted, recipe, recipes
from walproof.advising.requirements import classes_of
from walproof.errors import UsageError
from walproof.model.advice import Choice, ClusterProfile, Requirements
from walproof.model.guarantee import Level, QuorumKind

PLACE = ClusterProfile("patroni", 18, "4.1.0", ("n1", "n2", "n3"), "n1", "lab")
SHARED = Path(__file__).parents[3] / "shared" / "cnpg"


def choices() -> tuple[Choice, ...]:
    evidence = evidence_of([("a", price_record()), ("b", prove_record(Level.ON))])
    around = choose_environment(evidence, None, None)
    strict = advise(evidence, Requirements(rpo_s=0.0, rto_s=30.0), around, classes_of(["logs:rpo=2s"])).choices
    loose = advise(evidence, Requirements(), around).choices
    return (*strict, *loose)


def first() -> Choice:
    return next(c for c in choices() if c.strict)


@cache
def validator(kind: str) -> Any:
    """Cached: the schema is half a megabyte of YAML."""
    path = SHARED / f"postgresql.cnpg.io_{kind}.yaml"
    if not path.exists():
        pytest.skip("CloudNativePG's schema is not under ../shared/cnpg")
    tree = yaml.load(path.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return jsonschema.Draft7Validator(closed(tree["spec"]["versions"][0]["schema"]["openAPIV3Schema"]))


def closed(tree: Any) -> Any:
    """Unknown keys are errors, as the API server's strict validation makes them."""
    if isinstance(tree, dict):
        made = {k: closed(v) for k, v in tree.items()}
        if "properties" in made and "additionalProperties" not in made:
            free = made.get("x-kubernetes-preserve-unknown-fields") or set(made["properties"]) == {"apiVersion", "kind"}
            made["additionalProperties"] = bool(free)
        return made
    return [closed(v) for v in tree] if isinstance(tree, list) else tree


@each(range(6))
def test_cloudnativepg_clusters_and_poolers_are_valid(number: int) -> None:
    every = choices()
    made = recipes(every[number % len(every)], PLACE)
    for name, kind in (("cnpg", "clusters"), ("cnpg-pooler", "poolers")):
        tree = yaml.safe_load(made[name].text)
        validator(kind).validate(tree)
        assert tree["spec"]


def test_the_schema_would_refuse_a_misspelt_key() -> None:
    tree = yaml.safe_load(recipe(first(), PLACE, "cnpg").text)
    tree["spec"]["postgresql"]["synchronous"]["durability"] = "required"
    with pytest.raises(jsonschema.ValidationError):
        validator("clusters").validate(tree)


def test_cloudnativepg_requires_durability_exactly_when_nothing_may_be_lost() -> None:
    for choice in choices():
        sync = yaml.safe_load(recipe(choice, PLACE, "cnpg").text)["spec"]["postgresql"].get("synchronous")
        assert (sync is None) == (choice.quorum == 0)
        if sync:
            assert (sync["dataDurability"] == "required") == choice.strict
            assert sync["number"] == choice.quorum


def test_patroni_gets_quorum_mode_only_where_it_has_it() -> None:
    new = yaml.safe_load(recipe(first(), PLACE, "patroni").text)
    assert new["synchronous_mode"] == "quorum"
    assert new["failsafe_mode"] is True
    old = recipe(first(), replace(PLACE, patroni="3.3.2"), "patroni").text
    assert yaml.safe_load(old)["synchronous_mode"] is True
    assert "no quorum mode" in old
    older = recipe(first(), replace(PLACE, patroni="2.1.7"), "patroni").text
    assert "failsafe_mode" not in yaml.safe_load(older)
    assert "master_start_timeout" in yaml.safe_load(older)


def test_patroni_keeps_its_own_rule_of_timeouts_and_never_names_standbys() -> None:
    tree = yaml.safe_load(recipe(first(), PLACE, "patroni").text)
    assert tree["loop_wait"] + 2 * tree["retry_timeout"] <= tree["ttl"]
    assert "synchronous_standby_names" not in tree["postgresql"]["parameters"]


def test_an_asynchronous_choice_switches_synchronous_mode_off() -> None:
    loose = next(c for c in choices() if c.quorum == 0)
    tree = yaml.safe_load(recipe(loose, PLACE, "patroni").text)
    assert tree["synchronous_mode"] == "off"
    assert "synchronous_standby_names = ''" in recipe(loose, PLACE, "plain").text


def test_plain_statements_name_every_member_and_end_in_a_reload() -> None:
    text = recipe(first(), PLACE, "plain").text
    assert """'ANY 1 ("n1", "n2", "n3")'""" in text
    assert "pg_reload_conf()" in text
    assert "idle_replication_slot_timeout" in text
    assert "idle_replication_slot_timeout" not in recipe(first(), replace(PLACE, postgres=15), "plain").text


def test_a_value_with_a_quote_is_quoted() -> None:
    assert quoted("it's") == "'it''s'"


def test_pgbouncer_reads_its_lines_and_the_pool_is_the_one_priced() -> None:
    parser = configparser.ConfigParser(interpolation=None, comment_prefixes=(";",))
    parser.read_file(io.StringIO(recipe(first(), PLACE, "pgbouncer").text))
    assert int(parser["pgbouncer"]["default_pool_size"]) == first().pool
    assert parser["pgbouncer"]["pool_mode"] == "transaction"


def test_haproxy_accepts_its_lines(tmp_path: Path) -> None:
    if shutil.which("haproxy") is None:
        pytest.skip("HAProxy is not installed")
    here = replace(PLACE, members=("127.0.0.1", "127.0.0.2"))
    path = tmp_path / "haproxy.cfg"
    path.write_text("global\n    maxconn 100\n" + recipe(first(), here, "haproxy").text)
    done = subprocess.run(["haproxy", "-c", "-f", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_application_sets_each_class_locally() -> None:
    text = recipe(first(), PLACE, "application").text
    assert "-- logs:" in text
    assert "SET LOCAL synchronous_commit" in text
    assert "target_session_attrs=read-write" in text


def test_first_becomes_priority_in_every_recipe() -> None:
    priority = replace(first(), quorum_kind=QuorumKind.FIRST)
    assert yaml.safe_load(recipe(priority, PLACE, "patroni").text)["synchronous_mode"] == "on"
    assert (
        yaml.safe_load(recipe(priority, PLACE, "cnpg").text)["spec"]["postgresql"]["synchronous"]["method"] == "first"
    )


def test_the_targets_own_manager_comes_first_and_unknown_recipes_are_refused() -> None:
    assert next(iter(recipes(first(), PLACE))) == "patroni"
    assert next(iter(recipes(first(), replace(PLACE, manager="none")))) == "plain"
    with pytest.raises(UsageError, match="no recipe"):
        recipe(first(), PLACE, "oracle")


def test_a_recipe_lists_a_name_with_a_colon_and_tells_which_member_has_none() -> None:
    choice = next(c for c in choices() if c.quorum == 1 and c.quorum_kind is not QuorumKind.FIRST)
    cluster = ClusterProfile("none", members=("10.0.0.1:5432", "east:send", "west"))
    text = recipe(choice, cluster, "plain").text
    assert """= 'ANY 1 ("east:send", "west")';""" in text
    assert "10.0.0.1:5432: no name of its own" in text
