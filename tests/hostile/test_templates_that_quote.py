"""A template puts no text of another into a file unless a filter quotes it."""

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from walproof.machine import text_templates
from walproof.machine.text_templates import filled


@pytest.fixture
def template(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(text_templates, "files", lambda _: tmp_path)
    text_templates._compiled.cache_clear()
    return tmp_path


@pytest.mark.parametrize("text", ["a: {{ x }}", "a: {{ x|upper }}", "{% macro m(y) %}{{ y }}{% endmacro %}{{ m(x) }}"])
def test_a_text_without_a_filter_is_refused(text: str, template: Path) -> None:
    (template / "t.j2").write_text(text)
    with pytest.raises(ValueError, match="no filter that quotes it"):
        filled("any", "t.j2", x="evil\nb: 1")


def test_a_filtered_text_stands_as_its_syntax_has_it(template: Path) -> None:
    (template / "t.j2").write_text("a: {{ x|yaml }} {{ n }}")
    assert filled("any", "t.j2", x="e<&'\n", n=3) == 'a: "e<&\'\\u000a" 3'
    with pytest.raises(UndefinedError):
        filled("any", "t.j2", n=3)
