"""PostgreSQL whose flushes each take as long as any other, in memory: disks that members do not share.

Three members on one machine flush to one disk, which is slower the more of them flush and faster the next minute; in
production each has its own. Here `postgres` is started with a library that sleeps in place of fdatasync and fsync.
"""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from walproof.errors import MachineError
from walproof.machine.programs import lookup, postgres_bin

_LIBRARY = """
#define _GNU_SOURCE
#include <time.h>

static int flushed(void)
{
    struct timespec left = {0, NANOSECONDS};
    while (nanosleep(&left, &left) != 0)
        ;
    return 0;
}

int fdatasync(int file) { (void) file; return flushed(); }
int fsync(int file) { (void) file; return flushed(); }
"""
_STARTED = """#!/bin/sh
LD_PRELOAD={library} exec {postgres} "$@"
"""


@contextmanager
def steady_postgres(flush_ms: float) -> Iterator[str]:
    """The folder of such programs, for a lab whose files are in memory; MachineError without a C compiler."""
    compiler = lookup("cc")
    if compiler is None:
        raise MachineError("the program cc is missing", "apt-get install gcc libc6-dev")
    real = postgres_bin(None)
    with tempfile.TemporaryDirectory(prefix="walproof-steady-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        code, library = folder / "steady.c", folder / "steady.so"
        code.write_text(_LIBRARY.replace("NANOSECONDS", str(round(flush_ms * 1e6))))
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", library, code], check=True)
        programs = folder / "bin"
        programs.mkdir()
        for one in real.iterdir():
            (programs / one.name).symlink_to(one)
        postgres = programs / "postgres"
        postgres.unlink()
        postgres.write_text(_STARTED.format(library=library, postgres=real / "postgres"))
        postgres.chmod(0o755)
        yield str(programs)
