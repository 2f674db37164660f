"""A confined program has no right, and inherits none: terminal (TIOCSTI), environment, folder and keys are not ours."""

import ast
import os
import pty
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "walproof"
_PROBE = """#!/bin/sh
(exec 3</dev/tty) 2>/dev/null && echo opens-the-terminal
[ -t 0 ] && echo reads-the-terminal
[ -n "$PGPASSWORD" ] && echo reads-the-environment
[ "$(pwd)" = / ] || echo is-in-our-folder
grep -q walproof-test-key /proc/keys && echo has-the-keyring
echo ran
"""
_KEY = """
import ctypes, os
if os.uname().machine == "x86_64":  # as kinit and pam_keyinit do
    libc = ctypes.CDLL(None)
    libc.syscall(250, 1, None)
    libc.syscall(248, b"user", b"walproof-test-key", b"x", 1, -3)
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
# rows: a check of a parameter, an old primary's server
@pytest.mark.parametrize("script", [_CHECKED, _COPIED])
def test_it_inherits_nothing_of_roots(script: str, programs: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(
            sys.executable,
            [sys.executable, "-c", _KEY + script, str(programs)],
            {**os.environ, "PGPASSWORD": "the-production-superusers"},
        )
    printed = b""
    try:
        while more := os.read(terminal, 4096):
            printed += more
    except OSError:  # the terminal's other end is closed
        pass
    os.waitpid(pid, 0)
    os.close(terminal)
    assert b"ran" in printed and not re.search(rb"\w+-the-\w+|is-in-our-folder", printed), printed


def test_every_confined_program_is_started_apart() -> None:
    """By pid_files.start, in a session of its own, or as `apart` says."""
    starts = []
    for path in SRC.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef) and path.name != "privileges.py":
                names = {one.id for one in ast.walk(function) if isinstance(one, ast.Name)}
                if any(name.startswith("confined") for name in names):
                    starts.append((path.name, function.name, "apart" in names or "pid_files" in names))
    assert len(starts) >= 6 and all(apart for *_, apart in starts), starts
