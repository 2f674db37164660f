"""Words of strangers and of servers on the terminal: they are no markup, and nothing in them moves the terminal."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.command_line import Run, walproof
from tests.fixtures.kubernetes.port import FakeApi
from tests.fixtures.priced_records import price_record, prove_record
from tests.fixtures.records import recorded
from walproof.cli import main
from walproof.errors import MachineError
from walproof.model.guarantee import Level
from walproof.model.topology import ClusterView
from walproof.reporting.console_output import console, print_result, print_status, print_tables
from walproof.targets.cnpg.created_objects import MADE_BY, metadata, secret, swept
from walproof.targets.cnpg.kubernetes_api import SECRETS

__all__ = ["walproof"]
ODD = "measured [/lost] [link=http://evil.example/x]the docs[/link] [conceal]hidden[/conceal] :bomb:"
ESCAPES = "\x1b]0;pwned\a\x1b[2J\x9b2J\rforged"
SHOWN = "\ufffd]0;pwned\ufffd\ufffd[2J\ufffd2J\ufffdforged"


@pytest.fixture(autouse=True)
def _a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """With colours, as a terminal has."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def advice(walproof: Run, folder: Path, caveat: str) -> str:
    """A file of advice with that caveat, of its first choice and of all."""
    records = [str(recorded(folder / "priced", "price", price_record()))]
    records += [str(recorded(folder / "proved", "prove", prove_record(Level.ON)))]
    tree: dict[str, Any] = json.loads(walproof("advise", *records, "--rpo", "0", "--target", "sim", "--json")[1])
    tree["choices"][0]["caveats"] = tree["caveats"] = [caveat]
    file = folder / "advice.json"
    file.write_text(json.dumps(tree))
    return str(file)


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
@pytest.mark.parametrize(("caveat", "shown"), [(ODD, ODD), (ESCAPES, SHOWN)])
def test_a_caveat_of_anothers_advice_is_shown_as_it_is(
    walproof: Run, tmp_path: Path, caveat: str, shown: str, dry: tuple[str, ...]
) -> None:
    code, out, err = walproof("apply", advice(walproof, tmp_path, caveat), "--target", "sim", *dry)
    assert (code, err) == (0, "")
    assert f"caveat: {shown}" in out and "\x1b]" not in out and "\a" not in out
    assert "\x1b[33m" in out, "our own colours stay"


def test_the_error_and_its_hint_move_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def refused() -> None:
        raise MachineError(f"it says {ESCAPES}", f"first\n  second {ESCAPES}")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(main, "walproof", type("Verb", (), {"main": staticmethod(lambda **_: refused())}))
        patched.setattr(main, "_as_ordinary_user", lambda argv: None)
        with pytest.raises(SystemExit):
            main.main([])
    assert capsys.readouterr().err == f"walproof: it says {SHOWN}\n  hint: first   second {SHOWN}\n"


def test_no_way_of_printing_moves_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_result({}, f"  {ESCAPES}", as_json=False)
    assert capsys.readouterr().out == f"  {SHOWN}\n"
    print_tables(ESCAPES, (), f"[red]{ESCAPES}")
    print_status(ClusterView(0.0, (), None, f"[/lost]{ESCAPES}"), console())
    out = capsys.readouterr().out
    assert f"[red]{SHOWN}" in out and f"[/lost]{SHOWN}" in out
    assert "\x1b]" not in out and "\x1b[2J" not in out and "\r" not in out
    assert "\x1b[1m" in out, "our own bold stays"


def test_a_maker_that_is_no_host_name_is_neither_shown_nor_to_be_pasted() -> None:
    """Whoever may make secrets in the namespace writes their annotations."""
    api = FakeApi()
    meta = metadata("pg-walproof", api.cluster)
    meta["annotations"][MADE_BY] = f"{ESCAPES}$(touch${{IFS}}pwned) 7 1 a-boot"
    api.put(SECRETS, secret(meta, "Opaque", {}))
    says = "secret pg-walproof was made by walproof on an unknown machine, where it may still run: left alone"
    assert swept(api, "pg") == [f"{says} (kubectl delete secret/pg-walproof -n default where it has ended)"]
