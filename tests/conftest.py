"""Fixtures for every test, and checks: ignored signals or another's umask would be inherited by what is started."""

import os
import re
import signal
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from tests.fixtures.browsers import one_chromium
from tests.fixtures.command_line import walproof
from tests.fixtures.durations import Durations
from tests.fixtures.labs import healthy_again, lab, own_state, shared_lab
from tests.fixtures.plain_pair import debian, pair
from tests.fixtures.quick_forecasts import quick_forecasts
from tests.fixtures.runs_on_a_pair import runs
from tests.fixtures.tiers import left_by_rows

__all__ = [
    "debian", "healthy_again", "lab", "one_chromium", "own_state", "pair", "quick_forecasts", "runs", "shared_lab",
    "walproof",
]  # fmt: skip

# The same examples each time, however slow the machine: an example that fails is mended, not met by chance.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or "PYTEST_XDIST_WORKER" in os.environ:
    # Under nohup the tests go on at a hang-up, but what they start has the default: no handler outlives exec.
    signal.signal(signal.SIGHUP, lambda *_: None)


UMASK = os.umask(0o022)
os.umask(UMASK)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Importing Patroni sets 077 (its file_perm.py): other users could not read what later tests write for them."""
    os.umask(UMASK)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Else the next broken pipe ends this worker, whichever test has it."""
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN, "the test left SIGPIPE as it set it"


LABS = {
    "shared lab A": re.compile("/test_(lab_life|faults|links_of_lab|lab_superuser|lab_ports)[.]py"),
    "shared lab B": re.compile(
        r"/test_(external_patroni|prove|price|prove_\w+)[.]py|watch[.]py::test_a_fault_pressed|contract/.*\[(lab|patroni)"
        "|::test_the_labs_factors|::test_live_and_files_agree_on_a_lab"
    ),
}
"""Tests that want a lab as any lab is made, of two workers."""
FIRST = ("lab B", "lab A", "lab/test_cnpg", "tests/lab/", "tests/contract/", "on_servers", "tests/hostile/", "")


class Spread(LoadFileScheduling):  # type: ignore[misc]
    """One worker runs a file's tests, which share its fixtures, and those of all files that share a lab."""

    def _split_scope(self, nodeid: str) -> str:
        own = nodeid.partition("[")[2] if "tests/contract/" in nodeid else ""
        shared = (scope for scope, names in LABS.items() if names.search(nodeid))
        return next(shared, f"{super()._split_scope(nodeid)}{own}")

    def _assign_work_unit(self, node: Any) -> None:
        """What takes longest first: the shared labs, the stand-in, other servers, and then what computes."""
        of = {scope: next(n for n, word in enumerate(FIRST) if word in scope) for scope in self.workqueue}
        self.workqueue.move_to_end(min(of, key=of.__getitem__), last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Spread:
    """Also for --dist loadfile."""
    return Spread(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Each run keeps its durations."""
    config.pluginmanager.register(Durations())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test on a real cluster is tried once more, as the summary says: until ten runs show that none needs it."""
    if shared := [f"{item.nodeid}: {', '.join(names)}" for item in items if (names := left_by_rows(item))]:
        raise pytest.UsageError("rows of @each share what one leaves; parametrise instead:\n" + "\n".join(shared))
    for item in items:
        if item.get_closest_marker("lab") or item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=5))
