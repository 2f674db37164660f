"""A confined program has no right, and not the terminal of who started it: it could type there (TIOCSTI), or read."""

import ast
import os
import pty
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "walproof"
_PROBE = """#!/bin/sh
(exec 3</dev/tty) 2>/dev/null && echo opens-the-terminal
[ -t 0 ] && echo reads-the-terminal
echo ran
"""
_CHECKED = """
import sys
from pathlib import Path
from walproof.lab.configuration import canonical
print(canonical(Path(sys.argv[1]), "work_mem", "4MB"))
"""
_COPIED = """
import subprocess, sys
from pathlib import Path
from types import SimpleNamespace
from walproof.salvaging.server import Copy
folder = Path(sys.argv[1])
copy = SimpleNamespace(old=SimpleNamespace(programs=folder), sockets=folder, work=folder, number=300)
with Copy._start(copy, ["postgres"], stdout=subprocess.PIPE) as process:
    print(process.stdout.read())
"""


@pytest.fixture
def programs() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "postgres").write_text(_PROBE)
        (Path(folder) / "postgres").chmod(0o755)
        (Path(folder) / "passwd").touch(0o644)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="what root starts")
@pytest.mark.parametrize("script", [_CHECKED, _COPIED], ids=["a check of a parameter", "an old primary's server"])
def test_it_opens_no_terminal_of_roots(script: str, programs: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", script, str(programs)])
    printed = b""
    try:
        while more := os.read(terminal, 4096):
            printed += more
    except OSError:  # the terminal's other end is closed
        pass
    os.waitpid(pid, 0)
    os.close(terminal)
    assert b"ran" in printed and b"-the-terminal" not in printed, printed


def test_every_confined_program_is_started_apart() -> None:
    """By pid_files.start, in a session of its own, or with APART."""
    starts = []
    for path in SRC.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef) and path.name != "privileges.py":
                names = {one.id for one in ast.walk(function) if isinstance(one, ast.Name)}
                if any(name.startswith("confined") for name in names):
                    starts.append((path.name, function.name, "APART" in names or "pid_files" in names))
    assert len(starts) >= 6 and all(apart for *_, apart in starts), starts
