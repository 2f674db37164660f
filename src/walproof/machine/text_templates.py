"""Text files that stand as templates in a package."""

from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from walproof.machine.quoting import QUOTING


def filled(package: str, file: str, **words: object) -> str:
    """The text of a template with these words in it, each through the filter of the syntax in which it stands.

    A number needs none. A text without a filter is a ValueError, and a word that is missing an error of jinja2's.
    """
    return str(_compiled(package, file).render(words))


@cache
def _compiled(package: str, file: str) -> Any:
    from jinja2 import Environment, StrictUndefined  # where it is needed: few commands write such files

    # Escaping is on so that what a macro or tojson made is known from a bare text; the filters' own needs none.
    here = Environment(
        undefined=StrictUndefined,
        autoescape=True,
        finalize=_quoted,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    here.filters.update({name: partial(_through, quote) for name, quote in QUOTING.items()})
    return here.from_string((files(package) / file).read_text(encoding="utf-8"))


def _through(quote: Callable[[object], str], value: object) -> Markup:
    return Markup(quote(value))


def _quoted(value: object) -> object:
    """Itself; ValueError for a text that no filter has quoted."""
    if isinstance(value, Markup | int | float):
        return value
    raise ValueError(f"{str(value)[:80]!r} has no filter that quotes it")
