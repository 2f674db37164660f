"""Doing one thing inside a named network namespace: the thread enters and returns. Creates and removes none."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from walproof.errors import MachineError

NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)  # os.setns came with Python 3.12 only


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """The calling thread is in that network namespace for the block; MachineError when it is missing or forbidden."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(namespace)
        try:
            yield
        finally:
            _set(home)
    finally:
        os.close(home)


def exists(namespace: str) -> bool:
    """Whether a network namespace of that name is there."""
    return (NAMESPACES / namespace).exists()


def _enter(namespace: str) -> None:
    try:
        there = os.open(NAMESPACES / namespace, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as no:
        raise MachineError(
            f"the network namespace {namespace} is not there ({no.strerror})", "is the lab up? `walproof lab status`"
        ) from no
    try:
        _set(there)
    except OSError as no:
        raise MachineError(
            f"the network namespace {namespace} may not be entered ({no.strerror})",
            "run as the user who started the lab, or as root",
        ) from no
    finally:
        os.close(there)


def _set(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
