"""Fixes of the doctor are pasted into a shell, psql or YAML: a name that a server states is one word there."""

import shlex
from dataclasses import replace

import yaml

from tests.fixtures.cnpg.seeds import healthy
from tests.fixtures.sick import member, setting, well, with_member, with_patroni, with_settings
from tests.fixtures.tiers import each
from walproof.advising.doctor.catalogue import diagnosed
from walproof.advising.doctor.checks_standby import _rebuilt
from walproof.advising.doctor.finding import bring_back, in_pod, patch_cluster
from walproof.machine.quoting import pasted
from walproof.model.facts import Facts, Sender
from walproof.model.patroni_values import parse_int

EVIL = ("n2;reboot", "n2 $(reboot)", "n2'`reboot`", 'n2"|reboot', "n2\nreboot")


@each(EVIL)
def test_a_members_name_is_one_word_of_a_command(name: str) -> None:
    cnpg = healthy().cnpg
    assert cnpg is not None
    fixes = (_rebuilt(well(), name), _rebuilt(healthy(), name), in_pod(cnpg, name, pasted("psql")))
    assert all(name in shlex.split(fix) for fix in fixes), fixes
    assert bring_back(name, "nosync: true").endswith(f"CLUSTER {shlex.quote(name)}")


@each(["on'; reboot; '", "$(reboot)", "on' && reboot #"])
def test_a_value_of_a_server_stays_within_the_patch(level: str) -> None:
    cnpg = healthy().cnpg
    assert cnpg is not None
    words = shlex.split(patch_cluster(cnpg, {"postgresql": {"parameters": {"synchronous_commit": level}}}))
    assert words[-2] == "--patch" and level in yaml.safe_load(words[-1])["spec"]["postgresql"]["parameters"].values()
    differs = with_settings(healthy(), "pg-1", synchronous_commit=level)
    fixes = [finding.fix for finding in diagnosed(differs) if "kubectl patch" in finding.fix]
    assert fixes and all(shlex.split(fix)[-2] == "--patch" for fix in fixes)


@each(["o'brien", "a'; reboot; '", 'a"b'])
def test_a_role_is_one_word_of_the_grant(user: str) -> None:
    grant = 'GRANT pg_monitor TO "{}";'.format(user.replace('"', '""'))
    plain = with_member(well(managed=False), "n1", monitor=False, user=user)
    assert grant in [finding.fix for finding in diagnosed(plain)]
    pods = with_member(healthy(), "pg-1", monitor=False, user=user)
    fix = next(finding.fix for finding in diagnosed(pods) if "pg_monitor" in finding.fix)
    assert shlex.split(fix)[-1] == grant


@each(["0x" + "f" * 9000, "0" + "7" * 9000, "9" * 9000])
def test_a_number_of_thousands_of_digits_is_none(digits: str) -> None:
    assert parse_int(digits) is None
    assert diagnosed(with_patroni(well(), maximum_lag_on_failover=digits, synchronous_mode="off"))


@each(["o'brien", "x' #", "a': b"])
def test_a_name_in_patroni_yml_is_one_value(name: str) -> None:
    written = replace(setting("synchronous_standby_names", "ghost"), file="/data/postgresql.conf")
    senders = (Sender(name, state="streaming"),)
    leader = member("n1", leader=True)
    first = replace(leader, settings={**leader.settings, written.name: written}, senders=senders)
    asynchronous = with_patroni(well(), synchronous_mode="off")
    facts: Facts = replace(asynchronous, members=(first, *asynchronous.members[1:]))
    fix = next(finding.fix for finding in diagnosed(facts) if finding.id == "names-match-nobody")
    assert name in yaml.safe_load(fix.partition(" below postgresql")[0])["synchronous_standby_names"]


@each([5, True, 1.5, ["use_pg_rewind"], "use_pg_rewind"])
def test_a_section_that_holds_no_names_and_values_is_found_and_ends_nothing(section: object) -> None:
    found = {finding.id: finding for finding in diagnosed(with_patroni(well(), postgresql=section))}
    assert {"patroni-value-ignored", "patroni-no-rewind"} <= set(found)
    assert "is not set here" in found["patroni-no-rewind"].evidence
