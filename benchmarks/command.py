"""A function as a command: its parameters are the arguments, its keyword-only ones the options; and how it judges."""

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NoReturn, get_args, get_origin

from walproof.errors import ExitCode
from walproof.model.estimate import Estimate

Function = Callable[..., int]
_AsWritten = argparse.RawDescriptionHelpFormatter


def command(*functions: Function) -> NoReturn:
    """Run the function, or the one of several that the first argument names; the exit code is what it returns.

    A parameter's default is the option's, its annotation the type; a `bool` is a switch, a `Literal` a choice, a tuple
    any number of words. The usage is the docstring of the module, and of the function where there are several.
    """
    main = sys.modules["__main__"]
    program = f"python -m {main.__spec__.name.removesuffix('.__main__')}" if main.__spec__ else None
    parser = argparse.ArgumentParser(prog=program, description=main.__doc__, formatter_class=_AsWritten)
    if len(functions) == 1:
        _add_arguments(parser, functions[0])
    else:
        names = parser.add_subparsers(required=True, metavar="NAME")
        for function in functions:
            text = inspect.getdoc(function) or ""
            word, says = function.__name__.replace("_", "-"), text.splitlines()[0].replace("%", "%%")
            one = names.add_parser(word, help=says, description=text, formatter_class=_AsWritten)
            _add_arguments(one, function)
    given = vars(parser.parse_args())
    sys.exit(given.pop("function")(**given))


def _add_arguments(parser: argparse.ArgumentParser, function: Function) -> None:
    parser.set_defaults(function=function)
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        kind, more = _kind(parameter.annotation), dict[str, Any](default=parameter.default)
        if kind is bool:
            more["action"] = "store_true"
        elif get_origin(kind) is Literal:
            more["choices"] = get_args(kind)
        else:
            more["metavar"] = name.rstrip("_").upper()
            more |= {"nargs": "*", "type": get_args(kind)[0]} if get_origin(kind) is tuple else {"type": kind}
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            parser.add_argument(f"--{name.rstrip('_').replace('_', '-')}", dest=name, **more)
        else:
            parser.add_argument(name, **{"nargs": "?", **more})


def _kind(annotation: Any) -> Any:
    """The type without `| None`."""
    choices = get_args(annotation)
    return next(one for one in choices if one is not type(None)) if type(None) in choices else annotation


def judged(what: str, value: float, limit: str, good: bool) -> int:
    """Print one figure and its limit; exit code 0 when it is met, 1 when not."""
    shown = f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
    print(f"{'met' if good else 'NOT MET'}: {what}: {shown} ({limit})", flush=True)
    return 0 if good else 1


def judged_least(what: str, value: Estimate, least: float) -> int:
    """Print a figure with its 95 % interval; exit code 0 where all of it is at least that, 1 where none is, else 4."""
    verdict, code = (
        ("met", 0)
        if value.low >= least
        else ("NOT MET", 1)
        if value.high < least
        else ("undecided", ExitCode.UNDECIDED)
    )
    interval = f"95 % interval {value.low:.3f} to {value.high:.3f}"
    print(f"{verdict}: {what}: {value.value:.3f} ({interval}; at least {least:g})", flush=True)
    return code


def chosen(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """The names asked for, all when none is; ends the program where one is unknown."""
    everything = list(known)
    if unknown := [name for name in names if name not in everything]:
        sys.exit(f"unknown: {', '.join(unknown)}; choose from {', '.join(everything)}")
    return list(names) or everything
