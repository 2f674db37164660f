"""Several statements in one .sql file: each stands below a line `-- name: NAME`."""

import re
from collections.abc import Mapping
from importlib.resources import files


def statements(package: str, file: str) -> Mapping[str, str]:
    """The text below each name, without what stands above the first; several statements may share a name.

    >>> list(statements("walproof.load", "pgbench_scripts.sql"))
    ['tpcb-like', 'simple-update', 'select-only', 'insert', 'batch']
    """
    text = (files(package) / file).read_text(encoding="utf-8")
    _, *parts = re.split(r"^-- name: (\S+)\n", text, flags=re.MULTILINE)
    return {name: f"{body.rstrip()}\n" for name, body in zip(parts[::2], parts[1::2], strict=True)}
