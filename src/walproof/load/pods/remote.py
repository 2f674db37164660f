"""A load pod from this side: asked over a connection that is made anew when it breaks; lost when it stays silent.

Files come back whole: in pieces, compared by their checksum. A pod is not believed: names, sizes and what is unpacked
are checked, and one that answers what no load pod answers is lost, with nothing of it written.
"""

import hashlib
import itertools
import shutil
import socket
import threading
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, FiniteFloat, NonNegativeInt, ValidationError, field_validator

from walproof.errors import Error, TargetError
from walproof.load.local_runner import new_work_directory
from walproof.load.pods.agent import MEMORY_MIB, PIECE, Header, Malformed, file_name, receive, send
from walproof.machine.toml_files import first_error
from walproof.machine.untrusted import one_line
from walproof.model.load import PlaceClock
from walproof.model.ports import Clock
from walproof.model.topology import Endpoint

LOST_AFTER_S = 60.0
"""An API server may be gone for a while: the load goes on meanwhile."""
_ANSWER_S = 10.0
_AGAIN_S = 0.25
_POLL_S = 0.05
_PINGS, _CLOCK_S = 5, 60.0
LOST = 255
"""The exit code that stands for a process of a pod that was lost."""
_numbers = itertools.count(1)


class LoadLost(TargetError):
    """A load pod is gone, has been silent for too long, or cannot be believed."""


class Hello(BaseModel):
    """What a load pod says of itself."""

    code: str
    passfile: str
    addresses: dict[str, str | None]


class _Clocks(BaseModel):
    monotonic: FiniteFloat
    wall: FiniteFloat


class _Opened(BaseModel):
    directory: str


class _State(BaseModel):
    exit_code: int | None
    cpu_s: FiniteFloat
    sockets: NonNegativeInt


class _Sum(BaseModel):
    sha256: str


class _Listed(BaseModel):
    files: dict[Annotated[str, AfterValidator(file_name)], NonNegativeInt]

    @field_validator("files")
    @classmethod
    def _fit(cls, files: dict[str, int]) -> dict[str, int]:
        if sum(files.values()) > MEMORY_MIB << 20:
            raise ValueError(f"{sum(files.values())} bytes of files, and its memory has {MEMORY_MIB} MiB")
        return files


A = TypeVar("A", bound=BaseModel)


class RemotePod:
    """One load pod; asked by several threads, one after the other."""

    def __init__(
        self, name: str, token: str, connect: Callable[[], Any], gone: Callable[[], str], clock: Clock
    ) -> None:
        """`connect` gives a connected socket to its agent, which wants the token; `gone` why the pod is no more."""
        self.name, self._token, self._connect, self._gone, self._clock = name, token, connect, gone, clock
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None
        self._clocks: deque[tuple[float, PlaceClock]] = deque(maxlen=64)
        self.lost = ""

    def ask(self, do: str, body: bytes = b"", **words: Any) -> tuple[Header, bytes]:
        """What the agent answers; LoadLost when there is no answer, OSError for what it could not do."""
        with self._lock:
            header, content = self._answered({"do": do, "token": self._token, **words}, body)
        if "error" in header:
            raise OSError(f"in the load pod {self.name}: {one_line(header['error'], 300)}")
        return header, content

    def checked(self, what: type[A], do: str, **words: Any) -> A:
        """As `ask`, for an answer of that kind; LoadLost for any other."""
        header, _ = self.ask(do, **words)
        try:
            return what.model_validate(header)
        except ValidationError as wrong:
            reason = one_line(first_error(wrong), 300)
            raise self.disbelieved(f"answers {do} with what no load pod answers: {reason}") from None

    def disbelieved(self, why: str) -> LoadLost:
        """The error of a pod that cannot be believed: it is lost from now on."""
        self.lost = f"the load pod {self.name} {why}"
        return LoadLost(self.lost, "is it walproof's image, and the right Kubernetes?")

    def _answered(self, asked: Header, body: bytes) -> tuple[Header, bytes]:
        deadline = self._clock.now() + LOST_AFTER_S * self._clock.patience
        while not self.lost:
            try:
                if self._socket is None:
                    self._socket = self._connect()
                    self._socket.settimeout(_ANSWER_S)
                send(self._socket, asked, body)
                return receive(self._socket, within_s=LOST_AFTER_S)
            except Malformed as wrong:
                self._disconnect()
                raise self.disbelieved(f"sends what no load pod sends: {wrong}") from None
            except (OSError, Error):
                self._disconnect()
            with suppress(Error):
                self.lost = self._gone()
            if not self.lost and self._clock.now() > deadline:
                self.lost = f"the load pod {self.name} did not answer for {LOST_AFTER_S:.0f} s"
            if not self.lost:
                self._clock.pause(_AGAIN_S)
        raise LoadLost(self.lost, "kubectl describe pod says more; the next run starts new ones")

    def _disconnect(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
        self._socket = None

    def close(self) -> None:
        """Close the connection; the pod stays."""
        with self._lock:
            self._disconnect()

    def measure_clock(self, times: int = 1) -> None:
        """Compare its clocks with ours; the answer's way there and back bounds the error."""
        for _ in range(times):
            before = self._clock.now()
            there = self.checked(_Clocks, "clock")
            after = self._clock.now()
            middle = (before + after) / 2
            offset_s, ahead_s = middle - there.monotonic, there.wall - middle
            self._clocks.append((after, PlaceClock(offset_s, ahead_s, (after - before) / 2)))

    def clock(self) -> PlaceClock:
        """Its clocks by the fastest answer of the last minute; LoadLost when there was none and it gives none."""
        if not self.lost:
            with suppress(LoadLost):
                self.measure_clock(_PINGS)
        newest = self._clock.now() - _CLOCK_S
        recent = [one for at, one in self._clocks if at >= newest] or [one for _, one in self._clocks]
        if not recent:
            raise LoadLost(self.lost or f"the load pod {self.name} gave no time")
        return min(recent, key=lambda one: one.uncertainty_s)


class RemoteProcess:
    pids = ()

    def __init__(self, pod: RemotePod, clock: Clock, number: int) -> None:
        self._pod, self._clock, self._number = pod, clock, number

    def _state(self, *, sockets: bool = False) -> _State:
        try:
            return self._pod.checked(_State, "state", process=self._number, sockets=sockets)
        except LoadLost:
            return _State(exit_code=LOST, cpu_s=0.0, sockets=0)

    def cpu_s(self) -> float:
        return self._state().cpu_s

    @property
    def exit_code(self) -> int | None:
        """None while it runs, LOST when its pod was lost."""
        return self._state().exit_code

    def sockets(self) -> int:
        return self._state(sockets=True).sockets

    def finish(self) -> None:
        with suppress(LoadLost):
            self._pod.ask("finish", process=self._number)

    def wait(self, timeout_s: float) -> bool:
        deadline = self._clock.now() + timeout_s
        while self.exit_code is None:
            if self._clock.now() >= deadline:
                return False
            self._clock.pause(_POLL_S)
        return True

    def kill(self) -> None:
        with suppress(LoadLost):
            self._pod.ask("kill", process=self._number)


class RemoteWorkspace:
    """A work directory in a load pod, and copies of what lies there in a directory of this machine."""

    def __init__(self, pod: RemotePod, clock: Clock, seen: Callable[[Endpoint], Endpoint]) -> None:
        """`seen` gives an endpoint as it is reached from the pod."""
        self._pod, self._clock, self.seen_from_there = pod, clock, seen
        self._number = next(_numbers)
        self.directory = pod.checked(_Opened, "open", workspace=self._number).directory
        self._copies = new_work_directory()
        for kind in ("heads", "whole"):
            (self._copies / kind).mkdir()
        self._largest: dict[str, int] = {}
        self._damaged = ""

    @property
    def lost(self) -> str:
        return self._pod.lost or self._damaged

    def clock(self) -> PlaceClock:
        return self._pod.clock()

    def put(self, name: str, text: str) -> None:
        self._pod.ask("put", text.encode(), workspace=self._number, name=name)

    def start(self, argv: Sequence[str], log: str) -> RemoteProcess:
        return self._started(log, argv=list(argv))

    def start_module(self, module: str, argument: str, log: str) -> RemoteProcess:
        return self._started(log, module=module, argument=argument)

    def _started(self, log: str, **what: Any) -> RemoteProcess:
        number = next(_numbers)
        self._pod.ask("start", workspace=self._number, process=number, log=log, **what)
        return RemoteProcess(self._pod, self._clock, number)

    def fetch(self, pattern: str, *, head: int | None = None) -> tuple[Path, ...]:
        """Copies of the files there; () when they cannot be had, and then `lost` says why."""
        if self.lost:
            return ()
        try:
            listed = self._pod.checked(_Listed, "list", workspace=self._number, pattern=pattern).files
            self._check(pattern, listed)
            entries = sorted(listed.items())
            if head is not None:
                return tuple(self._head(name, min(size, head)) for name, size in entries)
            return tuple(self._whole(name, size) for name, size in entries)
        except LoadLost:
            pass
        except _Damaged as wrong:
            self._damaged = f"{wrong} of the load pod {self._pod.name} came back damaged twice"
        except OSError as wrong:
            self._damaged = f"files of the load pod {self._pod.name} cannot be had: {wrong}"
        return ()

    def _check(self, pattern: str, listed: dict[str, int]) -> None:
        """LoadLost for names that were not asked for, and for more files, one answer after another, than fit there."""
        for name, size in listed.items():
            if not fnmatchcase(name, pattern):
                raise self._pod.disbelieved(f"names {one_line(name, 80)} where {pattern} was asked for")
            self._largest[name] = max(size, self._largest.get(name, 0))
        if sum(self._largest.values()) > 2 * MEMORY_MIB << 20:
            raise self._pod.disbelieved(f"names ever other files, and its memory has {MEMORY_MIB} MiB")

    def _head(self, name: str, size: int) -> Path:
        path = self._copies / "heads" / name
        path.write_bytes(self._piece(name, 0, size))
        return path

    def _piece(self, name: str, at: int, size: int) -> bytes:
        _, body = self._pod.ask("read", workspace=self._number, name=name, at=at, size=size)
        try:
            piece = zlib.decompressobj().decompress(body, size + 1)
        except zlib.error:
            return b""
        if len(piece) > size:
            raise self._pod.disbelieved(f"packed more into a piece of {name} than the {size} bytes asked for")
        return piece

    def _whole(self, name: str, size: int) -> Path:
        path = self._copies / "whole" / name
        for _ in range(2):
            wanted = self._pod.checked(_Sum, "read", workspace=self._number, name=name, sum=size).sha256
            if path.is_file() and path.stat().st_size == size and _sha256(path) == wanted:
                return path
            with path.open("wb") as file:
                for at in range(0, size, PIECE):
                    file.write(self._piece(name, at, min(PIECE, size - at)))
            if _sha256(path) == wanted:
                return path
        raise _Damaged(name)

    def close(self) -> None:
        """Remove the directory there and the copies here."""
        with suppress(LoadLost, OSError):
            if not self._pod.lost:
                self._pod.ask("close", workspace=self._number)
        shutil.rmtree(self._copies, ignore_errors=True)


class _Damaged(Exception):
    """A file that came back other than it is there, twice."""


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
