"""Refuses a lab that this machine cannot have, with the first thing that is missing and what to do. Starts nothing."""

from walproof.errors import MachineError
from walproof.lab.requirements import judge, observe

_MORE = "`walproof lab doctor` shows everything; in a checkout, `make install` installs it"


def check_machine(*, postgres_of_wheel: bool = True) -> None:
    """Find what a lab needs, without trying namespaces; MachineError names the first thing that is missing."""
    outputs = observe.quick()
    if not postgres_of_wheel:
        outputs.pop("PostgreSQL", None)
    if (row := judge.blocking(judge.judged(outputs))) is not None:
        raise MachineError(row.found, f"{row.todo}; {_MORE}")


def why_no_namespaces(first_port: int, reason: str) -> MachineError:
    """The error for an ordinary user who may have no namespaces for that reason: which setting refuses them."""
    row = judge.blocking(judge.judged(observe.everything(first_port)))
    if row is not None:
        return MachineError(row.found, row.todo)
    return MachineError(f"ordinary users may not have namespaces: {reason}", "run as root (sudo)")
