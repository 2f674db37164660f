"""A program running in one workspace or in several at once, what it prints in a file there."""

from collections.abc import Sequence
from typing import Self

from walproof.load.cpu_usage import Used
from walproof.model.load import Workspace

_OUTPUT = "output"


class StartedProgram:
    """A program that was started in workspaces; as a context manager it is ended and they are closed."""

    def __init__(self, programs: Sequence[tuple[Sequence[str], Workspace]]) -> None:
        """Argument lists, each with the workspace it is started in."""
        self._workspaces = [workspace for _, workspace in programs]
        self._processes = [workspace.start(argv, _OUTPUT) for argv, workspace in programs]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for workspace in self._workspaces:
            workspace.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """Its process ids on this machine, without those it starts."""
        return tuple(pid for process in self._processes for pid in process.pids)

    @property
    def ended(self) -> bool:
        """Whether it ended by itself, in one of its places at least."""
        return any(process.exit_code is not None for process in self._processes)

    def _cpu(self) -> Used:
        """Processor seconds of each process so far."""
        return Used({number: process.cpu_s() for number, process in enumerate(self._processes)}, {}, {})

    def _lost(self) -> str:
        """Which place was lost, "" when none was."""
        return next((workspace.lost for workspace in self._workspaces if workspace.lost), "")

    def _text(self) -> str:
        found = [path for workspace in self._workspaces for path in workspace.fetch(_OUTPUT)]
        return "".join(path.read_text(errors="replace") for path in found)
