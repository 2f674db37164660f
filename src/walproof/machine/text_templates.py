"""Text files that stand as templates in a package."""

from functools import cache
from importlib.resources import files
from typing import Any

from walproof.machine.quoting import QUOTING


def filled(package: str, file: str, **words: object) -> str:
    """The text of a template with these words in it, as they are: filters quote. A word it lacks is an error."""
    return str(_compiled(package, file).render(words))


@cache
def _compiled(package: str, file: str) -> Any:
    from jinja2 import Environment, StrictUndefined  # where it is needed: few commands write such files

    here = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    here.filters.update(QUOTING)
    return here.from_string((files(package) / file).read_text(encoding="utf-8"))
