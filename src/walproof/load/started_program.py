"""A program running in a workspace, what it prints in a file there."""

from collections.abc import Sequence
from typing import Self

from walproof.model.load import Workspace

_OUTPUT = "output"


class StartedProgram:
    """A program that was started in a workspace; as a context manager it is ended and the workspace closed."""

    def __init__(self, argv: Sequence[str], workspace: Workspace) -> None:
        self._workspace = workspace
        self._process = workspace.start(argv, _OUTPUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._workspace.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """Its process ids on this machine, without those it starts."""
        return self._process.pids

    @property
    def ended(self) -> bool:
        """Whether it ended by itself."""
        return self._process.exit_code is not None

    def _text(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self._workspace.fetch(_OUTPUT))
