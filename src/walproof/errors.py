"""The tool's own troubles. A broken guarantee is a result, never one of these.

Trouble                 anything walproof says in one sentence and a hint
├── UsageTrouble        what was asked cannot be meant                      exit 2
├── MachineTrouble      something is missing, taken or forbidden here       exit 3
│   ├── TargetTrouble   the cluster does not answer or refuses              exit 3
│   └── WaitedInVain    a named wait ran out                                exit 3
└── UndecidedTrouble    it ran, and nothing can be said                     exit 4
"""


class Trouble(Exception):
    """One sentence that says what happened and why, a hint what to do next, an exit code."""

    exit_code = 3

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageTrouble(Trouble):
    """What was asked cannot be meant: unknown level, negative clients, contradictory factors."""

    exit_code = 2


class MachineTrouble(Trouble):
    """Something is missing, already taken or forbidden on this machine."""


class TargetTrouble(MachineTrouble):
    """The cluster does not answer, refuses, or is not what it was said to be."""


class WaitedInVain(MachineTrouble):
    """A wait from the table of named waits ran out; the message names it."""


class UndecidedTrouble(Trouble):
    """The run ended and nothing can be said from it."""

    exit_code = 4
