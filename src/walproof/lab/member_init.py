"""The first process of a member: starts its programs, reaps every orphan, starts nothing again by itself.

Runs as `python -I -S member_init.py MEMBER_FOLDER` in the member's namespace; standard library only: it starts
in a moment. SIGHUP starts what does not run, SIGTERM ends the programs in reverse order and then itself.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


class MemberInit:
    """The programs of one member by name, as member.json lists them: name, argv, log, await (a URL or null)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[int, str] = {}
        self.wanted = True
        self.ending = False

    def start_missing(self) -> None:
        """Start every program that does not run, in the order of member.json as it is now."""
        for entry in json.loads((self.folder / "member.json").read_text()):
            if entry["name"] in self.running.values():
                continue
            if entry.get("await"):
                self.await_answer(entry["await"])
            if self.ending:
                return
            with (self.folder / entry["log"]).open("ab") as log:
                process = subprocess.Popen(
                    entry["argv"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
                )
            self.running[process.pid] = entry["name"]
            # Reaped by the loop below, never by subprocess.
            process.returncode = 0

    def await_answer(self, url: str) -> None:
        """Request that URL until it answers that it is healthy, at most 20 s: then the program starts without."""
        until = time.monotonic() + 20
        while time.monotonic() < until and not self.ending:
            self.reap()
            try:
                with urllib.request.urlopen(url, timeout=1) as answer:
                    if b'"true"' in answer.read():
                        return
            except OSError:
                pass
            time.sleep(0.05)

    def reap(self) -> None:
        """Collect what ended; orphans too, else Patroni takes a zombie postmaster for a live one for ever."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.running.pop(pid, None)

    def end(self) -> None:
        """End the programs, last started first, each given time to end in order."""
        for pid in reversed(list(self.running)):
            os.kill(pid, signal.SIGTERM)
            until = time.monotonic() + 30
            while pid in self.running and time.monotonic() < until:
                self.reap()
                time.sleep(0.02)


def main(folder: Path) -> None:
    """Be a member until SIGTERM."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    init = MemberInit(folder)
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGHUP, lambda *_: setattr(init, "wanted", True))
    signal.signal(signal.SIGTERM, lambda *_: setattr(init, "ending", True))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    while not init.ending:
        init.reap()
        if init.wanted:
            init.wanted = False
            init.start_missing()
        select.select([woken], [], [], 1.0)
        with contextlib.suppress(BlockingIOError):
            os.read(woken, 4096)
    init.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
