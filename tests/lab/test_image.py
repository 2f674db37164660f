"""The image of the load pods, without a container daemon: the Containerfile's own steps in a folder, then its agent.

What the base image and apt bring is this machine's; Python packages, their versions, the package and the code are the
image's. The agent runs as a user that is not root, with nothing of this checkout on its path.
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from walproof.load.pods.agent import checksum, receive, send

pytestmark = pytest.mark.lab
TOKEN = "of-this-run"
CHECKOUT = Path(__file__).parents[2]
TEXT = (CHECKOUT / "Containerfile").read_text("utf-8").replace("\\\n", " ")
USER = int(re.search(r"^USER (\d+)", TEXT, re.MULTILINE)[1])  # type: ignore[index]


def steps() -> list[list[str]]:
    """The commands that make /opt/walproof, as the Containerfile has them."""
    (run,) = [line for line in TEXT.splitlines() if line.startswith("RUN python3 -m venv")]
    return [shlex.split(command) for command in run.removeprefix("RUN ").split("&&")]


def copied(build: Path) -> None:
    """What the Containerfile copies, where it copies it to."""
    build.mkdir()
    for line in re.findall(r"^COPY (?!--from)(.*)$", TEXT, re.MULTILINE):
        *sources, _ = line.split()
        for source in sources:
            here = CHECKOUT / source
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            if here.is_dir():
                shutil.copytree(here, build / source, ignore=ignored)
            else:
                shutil.copy(here, build / here.name)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One that anybody may read, as an image's files are; its path holds none of the paths that are replaced."""
    made = Path(tempfile.mkdtemp(prefix="load-image-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def image(folder: Path) -> Path:
    """/opt/walproof."""
    made, build = folder / "walproof", folder / "build"
    copied(build)
    for command in steps():
        words = [w.replace("/opt/walproof", str(made)).replace("/tmp/walproof", str(build)) for w in command]
        words[0] = sys.executable if words[0] == "python3" else words[0]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]})
        if done.returncode and "No matching distribution" in done.stderr:
            pytest.skip(f"no package index answers: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, f"{words}: {done.stderr}"
    return made


def answers(address: tuple[str, int]) -> dict[str, object]:
    """What the agent says of itself."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection(address, timeout=10) as connection:
                send(connection, {"do": "hello", "token": TOKEN})
                found, _ = receive(connection)
                return found
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "the agent does not answer"
            time.sleep(0.05)


@pytest.mark.nightly
def test_the_image_runs_the_same_code_as_a_user_that_is_not_root(image: Path, folder: Path) -> None:
    secret = folder / "secret"
    secret.mkdir(exist_ok=True)
    (secret / "pgpass").write_text("*:*:*:*:nothing\n")
    (secret / "token").write_text(TOKEN)
    address = ("127.0.77.1", 7199)
    command = [str(image / "bin" / "python3"), "-m", "walproof.load.pods.agent", "--listen", "127.0.77.1:7199"]
    user = {"user": USER, "group": USER, "extra_groups": []} if os.getuid() == 0 else {}
    agent = subprocess.Popen(  # type: ignore[call-overload]
        [*command, "--secret", str(secret)], cwd="/", env={"PATH": f"{image}/bin:/usr/bin:/bin"}, **user
    )
    try:
        hello = answers(address)
        assert hello["code"] == checksum()
        own = Path(f"/proc/{agent.pid}/status").read_text()
        assert re.search(rf"^Uid:\s+{USER}\s", own, re.MULTILINE) or os.getuid() != 0
        with socket.create_connection(address) as connection:
            send(connection, {"do": "end", "token": TOKEN})
            receive(connection)
        assert agent.wait(20) == 0
    finally:
        agent.kill()
        agent.wait()
    assert not Path(str(hello["passfile"])).exists()


@pytest.mark.nightly
def test_the_ledger_needs_nothing_that_the_image_lacks(image: Path) -> None:
    modules = "import walproof.load.ledger.writer, walproof.load.ledger.reader, psycopg; print(psycopg.pq.__impl__)"
    done = subprocess.run(
        [str(image / "bin" / "python3"), "-c", modules], capture_output=True, text=True, check=False, cwd="/", env={}
    )
    assert done.returncode == 0 and done.stdout == "binary\n", done.stderr


def test_the_image_is_pinned_rootless_and_copies_no_more_than_it_needs() -> None:
    assert re.search(r"^ARG BASE=docker\.io/library/debian:\d+-slim@sha256:[0-9a-f]{64}$", TEXT, re.MULTILINE)
    assert USER > 0
    allowed = {line[1:] for line in (CHECKOUT / ".containerignore").read_text().splitlines() if line.startswith("!")}
    wanted = {w for line in re.findall(r"^COPY (?!--from)(.*)$", TEXT, re.MULTILINE) for w in line.split()[:-1]}
    assert allowed == wanted
