"""--json of every verb that has it: one object on standard output, of the issues' schemas, finite numbers or null."""

import json
from collections.abc import Callable
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from walproof.advising.doctor.catalogue import as_json as doctor_json
from walproof.model.facts import Facts
from walproof.reporting.console_output import status_json
from walproof.targets.simulated.target import simulated

Run = Callable[..., tuple[int, dict[str, Any]]]
Tree = dict[str, Any]

NUMBER: Tree = {"type": ["number", "null"]}
WHOLE: Tree = {"type": "integer", "minimum": 0}
TEXT: Tree = {"type": "string"}
NAME: Tree = {"type": ["string", "null"]}


def an_object(**fields: Tree) -> Tree:
    """Every field is required; more may be there."""
    return {"type": "object", "required": list(fields), "properties": fields}


def a_list(of: Tree) -> Tree:
    return {"type": "array", "items": of}


INTERVAL = an_object(value=NUMBER, low=NUMBER, high=NUMBER)
PRICE = an_object(
    record=TEXT,
    baseline=TEXT,
    stopped_by={"enum": ["precision", "budget", "interrupted", "done"]},
    arms=a_list(
        an_object(
            level=TEXT,
            clients=WHOLE,
            blocks=WHOLE,
            tps=INTERVAL,
            ratio=INTERVAL,
            latency_ms=an_object(mean=NUMBER, p50=NUMBER, p95=NUMBER, p99=NUMBER, p999=NUMBER, max=NUMBER),
            caveats=a_list(TEXT),
        )
    ),
)
PROVE = an_object(
    record=TEXT,
    drills=a_list(
        an_object(
            fault=TEXT,
            level=TEXT,
            **{n: WHOLE for n in ("acknowledged", "downgraded", "unknown", "refused", "lost", "recovered")},
            rto_s=NUMBER,
            rpo_s=NUMBER,
            leader_before=NAME,
            leader_after=NAME,
            timeline_before={"type": ["integer", "null"]},
            timeline_after={"type": ["integer", "null"]},
            verdict={"enum": ["held", "broken", "expected loss", "undecided", "skipped"]},
            why=TEXT,
        )
    ),
    loss_bound={"type": "object", "additionalProperties": NUMBER},
)
SALVAGED = an_object(
    salvage={
        **a_list(
            an_object(
                number=WHOLE,
                verdict={"enum": ["held", "broken", "undecided"]},
                **{n: WHOLE for n in ("lost", "found", "unwritten", "not_found", "not_lost")},
                members=a_list(TEXT),
                rows=a_list(TEXT),
                why=TEXT,
            )
        ),
        "minItems": 1,
    },
)
STATUS = an_object(
    members=a_list(
        an_object(
            name=TEXT,
            role=TEXT,
            state=TEXT,
            timeline={"type": ["integer", "null"]},
            lag_bytes={"type": ["integer", "null"]},
            address=TEXT,
        )
    ),
    leader=NAME,
    synchronous_standby_names=TEXT,
)
STUDIES = an_object(studies={**a_list(an_object(name=TEXT, title=TEXT, source=TEXT)), "minItems": 5})
CLAIMS = an_object(
    record=TEXT,
    claims={
        **a_list(
            an_object(
                claim=TEXT,
                paper=TEXT,
                measured=TEXT,
                verdict={"enum": ["reproduced", "not reproduced", "undecided"]},
                why=TEXT,
            )
        ),
        "minItems": 3,
    },
)
ADVICE = an_object(
    choices=a_list({"type": "object"}), refused=a_list(an_object(requirement=TEXT, limit=TEXT, nearest=TEXT))
)
FORECAST = an_object(
    seed=WHOLE,
    failures=TEXT,
    forecasts={
        **a_list(
            an_object(
                configuration=TEXT,
                layout=TEXT,
                guarded={"type": "boolean"},
                guard=TEXT,
                years=WHOLE,
                unavailable_minutes_per_year=INTERVAL,
                unavailable_minutes_p95=INTERVAL,
                unavailable_minutes_p999=INTERVAL,
                availability=INTERVAL,
                availability_nines=NUMBER,
                losses_per_year=INTERVAL,
                probability_of_loss_in_a_year=INTERVAL,
                probability_of_loss_is_upper_bound={"type": "boolean"},
                probability_of_loss_by_structure=INTERVAL,
                durability_nines=NUMBER,
                lost_commits_per_year=NUMBER,
                rare_relative_error=NUMBER,
                transactions_per_second={"anyOf": [INTERVAL, {"type": "null"}]},
                commit_latency_p95_ms={"anyOf": [INTERVAL, {"type": "null"}]},
                parts=a_list(an_object(name=TEXT, minutes=NUMBER, takeovers=NUMBER, losses=NUMBER, basis=TEXT)),
                sensitivity_minutes=a_list(an_object(assumption=TEXT, low=NUMBER, high=NUMBER)),
                caveats=a_list(TEXT),
            )
        ),
        "minItems": 1,
    },
    assumptions=a_list(an_object(name=TEXT, place=TEXT, per_year=NUMBER, low=NUMBER, high=NUMBER, source=TEXT)),
    people=an_object(decide_s=NUMBER, force_s=NUMBER),
)
DOCTOR = an_object(target=TEXT, members=a_list({"type": "object"}), checks=WHOLE, findings=a_list({"type": "object"}))


def only(text: str) -> Tree:
    """The one object that this text is; NaN and Infinity are no JSON."""

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is no JSON number")

    tree = json.loads(text, parse_constant=refuse)
    assert isinstance(tree, dict)
    return tree


@pytest.fixture
def run(walproof: Callable[..., tuple[int, str, str]]) -> Run:
    """Exit code and the object on standard output."""

    def go(*words: str) -> tuple[int, Tree]:
        code, out, err = walproof(*words)
        assert out, err  # what it says where it fails
        return code, only(out)

    return go


@pytest.mark.parametrize("words", [
    ("--levels", "off,local,on", "--clients", "1,4", "--budget", "20s"),
    ("--aa", "--clients", "1", "--budget", "5s"),
    ("--levels", "on", "--clients", "2", "--budget", "1ms"),
    ("--mix", "on=10,local=90", "--clients", "2", "--budget", "10s"),
    ("--levels", "on", "--clients", "2", "--load", "0.5", "--budget", "10s"),
    ("--break-even", "--levels", "on", "--budget", "30s"),
    ("--tune", "--limit", "20ms", "--budget", "60s"),
    ("--levels", "on", "--clients", "1,2,3,4,6,8,12,16", "--hold-out", "--budget", "30s"),
],ids=["grid", "aa", "no time", "mix", "open loop", "break-even", "tune", "hold-out"])  # fmt: skip
def test_price(run: Run, words: tuple[str, ...]) -> None:
    code, found = run("price", "--target", "sim", *words, "--json")
    assert code == 0
    jsonschema.validate(found, PRICE)


@pytest.mark.parametrize("lie", ["", "lost", "two-leaders", "no-kill", "names", "downgraded"])
def test_prove(lie: str, run: Run) -> None:
    target = f"sim?lie={lie}" if lie else "sim"
    code, found = run("prove", "--target", target, "--fault", "kill,partition", "--json")
    assert code in (0, 1, 4)
    jsonschema.validate(found, PROVE)
    assert len(found["drills"]) == 4


def test_status() -> None:
    target = simulated("sim")
    jsonschema.validate(status_json(target.observe()), STATUS)
    target.faults.kill(str(target.observe().leader))
    jsonschema.validate(status_json(target.observe()), STATUS)


def test_study_list_and_run(run: Run) -> None:
    jsonschema.validate(run("study", "list", "--json")[1], STUDIES)
    words = ("patroni-tradeoff", "--quick", "--target", "sim", "--json")
    jsonschema.validate(run("study", "run", *words)[1], CLAIMS)


def test_advise_from_priced_and_proven_records(run: Run) -> None:
    run("price", "--target", "sim", "--clients", "1,4", "--budget", "20s", "--record", "p", "--json")
    run("prove", "--target", "sim", "--levels", "off,on", "--record", "d", "--json")
    code, found = run("advise", "p", "d", "--rpo", "0", "--json")
    assert code == 0
    jsonschema.validate(found, ADVICE)
    assert found["choices"]
    code, found = run("advise", "p", "d", "--rpo", "0", "--max-commit-latency", "1us", "--json")
    assert code == 1
    jsonschema.validate(found, ADVICE)
    assert found["refused"]


def test_doctor() -> None:
    text = json.dumps(doctor_json(Facts("external", ()), ()))
    jsonschema.validate(only(text), DOCTOR)


@pytest.mark.usefixtures("quick_forecasts")
def test_forecast(run: Run) -> None:
    run("prove", "--target", "sim", "--fault", "kill", "--levels", "on", "--record", "d", "--json")
    run("price", "--target", "sim", "--clients", "1", "--levels", "on", "--budget", "10s", "--record", "p", "--json")
    words = ("--levels", "local,on", "--years", "2000", "--json")
    code, found = run("forecast", "d", "p", *words)
    assert code == 0
    jsonschema.validate(found, FORECAST)
    assert [one["guarded"] for one in found["forecasts"]] == [False, False]
    assert [bool(one["transactions_per_second"]) for one in found["forecasts"]] == [True] * 2
