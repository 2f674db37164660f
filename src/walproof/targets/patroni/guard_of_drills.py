"""A guard that `prove` starts for an external Patroni cluster: the drills' own, it ends with them however they end."""

import socket
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from walproof.machine.programs import program
from walproof.model.ports import Clock
from walproof.model.takeover import GuardStatus
from walproof.targets.patroni.guard_process import DRILLED, GuardProcess


@dataclass(slots=True)
class GuardOfDrills:
    """target: the path of the target file, which names etcd."""

    target: str
    clock: Clock
    _folder: "TemporaryDirectory[str] | None" = None
    _process: GuardProcess | None = None

    def start(self) -> None:
        """Start it where it does not run; MachineError with its own words when it ends."""
        if self._process is None:
            self._folder = TemporaryDirectory(prefix="walproof-guard-")
            self._process = GuardProcess(
                Path(self._folder.name),
                _free_port(),
                ["--target", self.target, "--allow", "takeover", *DRILLED],
                self.clock,
                under=(str(program("setpriv")), "--pdeathsig", "TERM", "--"),
            )
        self._process.start()

    def stop(self) -> None:
        """End it and forget what it wrote; nothing where it does not run."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def status(self) -> GuardStatus | None:
        """What it does now; None where it does not run or does not answer."""
        return self._process.status() if self._process is not None else None

    def log(self) -> str:
        """What it wrote so far."""
        return self._process.log() if self._process is not None else ""


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])
