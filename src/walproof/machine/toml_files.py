"""TOML files that users write, and what trees of others describe: an error says the first thing that is wrong."""

import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from walproof.errors import UsageError
from walproof.machine.untrusted import from_toml, printable

M = TypeVar("M", bound=BaseModel)


def read_toml(path: Path, what: str, hint: str) -> dict[str, Any]:
    """What the file says; UsageError, with `what` as its name, where it cannot be read or is no TOML."""
    try:
        tree: dict[str, Any] = printable(from_toml(path.read_text("utf-8")))
    except OSError as wrong:
        raise UsageError(f"{what} cannot be read: {wrong.strerror}", hint) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise UsageError(f"{what} is not TOML: {wrong}", hint) from None
    return tree


def described(model: type[M], tree: object, what: str, hint: str) -> M:
    """What a file's tree describes; UsageError, with `what` as its name, says which key is wrong."""
    try:
        return model.model_validate(tree)
    except ValidationError as wrong:
        raise UsageError(f"{what}: {first_error(wrong, tree)}", hint) from None


def first_error(wrong: ValidationError, tree: Any = None) -> str:
    """`key: message` of the first thing that is wrong; never the value, it may be a secret.

    An item of a list is named by its `name` in the tree, else counted from 1.
    """
    first, keys = wrong.errors(include_url=False, include_input=False, include_context=False)[0], []
    for part in first["loc"]:
        with suppress(LookupError, TypeError):  # a part may name the kind of a union, not a key
            tree = tree[part]
        name = tree.get("name") if isinstance(part, int) and isinstance(tree, dict) else None
        keys.append(repr(name) if name else str(part + 1 if isinstance(part, int) else part))
    key = ".".join(keys)[:80]
    message = (first["msg"][:1].lower() + first["msg"][1:]).removeprefix("value error, ")
    return f"{key}: {message}" if key else message
