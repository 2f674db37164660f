"""The reasons why nothing is salvaged, from refusals.toml, as errors."""

import tomllib
from importlib.resources import files

from walproof.errors import Error, MachineError, UsageError
from walproof.machine.untrusted import one_line

_TABLE = tomllib.loads((files("walproof.salvaging") / "refusals.toml").read_text("utf-8"))


def refused(name: str, **words: object) -> Error:
    """The error of that name, its words of others on one line; UsageError or MachineError."""
    entry, shown = _TABLE[name], {key: one_line(value, 300) for key, value in words.items()}
    kind = UsageError if entry.get("usage") else MachineError
    return kind(entry["says"].format(**shown), entry["do"].format(**shown))
