"""Functions that set the commit level of their transaction are named with it; those that mention the word are not."""

from tests.fixtures.sick import well, with_member, with_settings
from tests.fixtures.tiers import each
from walproof.advising.doctor.catalogue import diagnosed
from walproof.advising.doctor.finding import Severity
from walproof.model.facts import Override
from walproof.targets.sql.levels_of_functions import COMPUTED, levels_set


@each([
        ("BEGIN PERFORM set_config('synchronous_commit', 'off', true); UPDATE t SET n = 1; END", "plpgsql", ("off",)),
        ("DECLARE x int; BEGIN SET LOCAL synchronous_commit = off; RETURN NEW; END", "plpgsql", ("off",)),
        ("BEGIN IF fast THEN SET LOCAL synchronous_commit TO 'local'; END IF; RETURN NEW; END", "plpgsql", ("local",)),
        ("BEGIN SET SESSION synchronous_commit = remote_write; END", "plpgsql", ("remote_write",)),
        ("BEGIN FOR r IN SELECT 1 FOR UPDATE LOOP SET LOCAL synchronous_commit = 0; END LOOP; END", "plpgsql",
         (COMPUTED,)),
        ("BEGIN EXECUTE 'SET LOCAL synchronous_commit = off'; END", "plpgsql", ("off",)),
        ("BEGIN EXECUTE format('SET LOCAL synchronous_commit TO %L', lvl); END", "plpgsql", (COMPUTED,)),
        ("BEGIN EXECUTE $q$SELECT set_config('synchronous_commit', 'false', true)$q$; END", "plpgsql", ("off",)),
        ("BEGIN PERFORM pg_catalog.set_config('Synchronous_Commit', lvl, true); END", "plpgsql", (COMPUTED,)),
        ("SELECT set_config('synchronous_commit'::text, 'on'::text, true)", "sql", ("on",)),
        ("SET LOCAL synchronous_commit = off; INSERT INTO t VALUES (1); SET LOCAL synchronous_commit = on", "sql",
         ("off", "on")),
        ("plpy.execute(\"SET LOCAL synchronous_commit TO 'off'\")", "plpython3u", ("off",)),
        ("spi_exec_query(\"SELECT set_config('synchronous_commit', 'local', true)\");", "plperl", ("local",)),
        # What only mentions the word.
        ("-- SET LOCAL synchronous_commit = off\nBEGIN RETURN NEW; END", "plpgsql", ()),
        ("/* set_config('synchronous_commit', 'off', true) */ SELECT 1", "sql", ()),
        ("BEGIN RAISE NOTICE 'SET synchronous_commit = off is faster'; END", "plpgsql", ()),
        ("BEGIN UPDATE seen SET synchronous_commit = 'off' WHERE id = 1; END", "plpgsql", ()),
        ("BEGIN INSERT INTO seen VALUES (1) ON CONFLICT DO UPDATE SET synchronous_commit = 'off'; END", "plpgsql", ()),
        ("SELECT current_setting('synchronous_commit')", "sql", ()),
        ("SELECT setting FROM pg_settings WHERE name = 'synchronous_commit'", "sql", ()),
        ("BEGIN EXECUTE 'ALTER ROLE app SET synchronous_commit = off'; END", "plpgsql", ()),
        ("INSERT INTO notes VALUES ('SET LOCAL synchronous_commit = off')", "sql", ()),
        ("# plpy.execute('SET LOCAL synchronous_commit = off')\nreturn 1", "plpython3u", ()),
        ("BEGIN PERFORM set_config('work_mem', '1MB', true); x := 'synchronous_commit'; END", "plpgsql", ()),
        ("BEGIN RETURN 'synchronous_commit'", "plpgsql", ()),
        ("SELECT 'not closed, synchronous_commit", "sql", ()),
        ("", "sql", ()),
    ])  # fmt: skip
def test_a_level_is_read_out_of_a_source(source: str, language: str, levels: tuple[str, ...]) -> None:
    assert levels_set(source, language) == levels


def nested(depth: int, source: str) -> str:
    for number in range(depth):
        source = f"EXECUTE $q{number}$ {source} $q{number}$;"
    return source


@each([
    (nested(3, "SET LOCAL synchronous_commit = off"), "plpgsql", ("off",)),
    (nested(400, "SET LOCAL synchronous_commit = off"), "plpgsql", ("off",)),
    (nested(2000, "SET LOCAL synchronous_commit = off"), "plpgsql", ("off",)),
    ("DO " + nested(400, "SELECT 'synchronous_commit'"), "sql", ()),
    ("set " * 24_000 + "synchronous_commit = off", "sql", ()),
    ("loop set " * 10_000 + "synchronous_commit = off", "plpgsql", ("off",)),
    ("x " * 60_000 + "; SET LOCAL synchronous_commit = local", "plpgsql", ("local",)),
    ("\n" * 90_000 + "spi('SET LOCAL synchronous_commit = off')", "plperl", ("off",)),
])  # fmt: skip
def test_a_source_made_to_stop_the_doctor_is_read_all_the_same(
    source: str, language: str, levels: tuple[str, ...]
) -> None:
    """Any role that may create a function writes such a source: none ends the doctor or keeps it for minutes."""
    assert levels_set(source, language) == levels


@each([
    ("source", "off", Severity.WARNING),
    ("source", COMPUTED, Severity.WARNING),
    ("source", "remote_apply", Severity.NOTE),
    ("function", "off", Severity.NOTE),
])  # fmt: skip
def test_the_function_and_its_level_are_named(what: str, value: str, severity: Severity) -> None:
    facts = with_member(well(), "n1", overrides=(Override(what, "enq(integer)", value, "shop", "take it out"),))
    (finding,) = diagnosed(facts)
    assert finding.severity is severity
    assert "function enq(integer) in database shop" in finding.evidence and value in finding.evidence


def test_a_clause_widens_no_window_of_off() -> None:
    slow = with_settings(well(), "*", wal_writer_delay="2000ms")
    for what, found in (("function", False), ("source", True), ("role", True)):
        facts = with_member(slow, "n1", overrides=(Override(what, "app", "off", reset="RESET"),))
        assert ("wide-window-of-off" in {f.id for f in diagnosed(facts)}) is found
