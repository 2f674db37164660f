"""What other users of the machine, and pages in their browsers, reach of a lab of root's: no port that asks nobody."""

import re
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.fixtures.labs import why_no_lab
from tests.fixtures.tiers import every
from walproof.lab import members, patroni
from walproof.lab.blueprint import Blueprint

pytestmark = [pytest.mark.nightly, pytest.mark.lab, pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")]

ETCD = (2379, 2380)
"""For clients and for peers: answered to members alone (test_lab_superuser.py), for neither asks for a password."""
ASKED = {5432: "SCRAM", 8008: "a password before it changes anything", 2381: "reads alone: metrics and health"}
"""Ports of a member that the host reaches, and what keeps others from changing anything there."""
A_PAGE = {"Host": "evil.example", "Origin": "https://evil.example", "Content-Type": "text/plain"}
"""What `fetch(url, {method: "POST", body})` sends without asking first."""


def listening(process: psutil.Process) -> set[int]:
    """Every TCP port that somebody listens at in the network of that process, as the kernel lists them."""
    rows = [line.split() for line in Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A"}


def test_every_port_of_a_member_is_one_of_those_that_ask(lab: Blueprint) -> None:
    for member in lab.members:
        first = members.processes(lab, member)[0]
        assert listening(first) == {*ETCD, *ASKED}


def test_a_page_changes_nothing(lab: Blueprint) -> None:
    before = patroni.observe(lab).leader
    body = b'{"leader": "%s", "key": "L3NlcnZpY2UvbGFiL2NvbmZpZw==", "value": "e30="}' % str(before).encode()

    def refused(port: int, path: str) -> None:
        for member in lab.members:
            asked = urllib.request.Request(f"http://{lab.address(member)}:{port}{path}", data=body, headers=A_PAGE)
            with pytest.raises(urllib.error.HTTPError, match=re.compile("401|404")):
                urllib.request.urlopen(asked, timeout=5)
        assert patroni.observe(lab).leader == before

    every([(8008, "/switchover"), (8008, "/restart"), (8008, "/reinitialize"), (2381, "/v3/kv/put"),
           (2381, "/v3/kv/range")], refused)  # fmt: skip
