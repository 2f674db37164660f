"""Pictures and captured run of a demo, `make pictures`: writes docs/pictures, docs/demo.md, the README's excerpt."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

from playwright.sync_api import Page, TimeoutError

from tests.fixtures.browsers import chromium

README, PAGE, PICTURES = Path("README.md"), Path("docs/demo.md"), Path("docs/pictures")
_CAPTURED = re.compile(r"<!-- captured -->\n```\n(.*?)\n```\n<!-- /captured -->", re.DOTALL)
WALPROOF = [sys.executable, "-m", "walproof"]


def _demo(record: Path) -> str:
    """Run the demo with its live page, take the page's picture during the drills, and give what it printed."""
    environment = {**os.environ, "COLUMNS": "100", "PYTHONUNBUFFERED": "1"}
    argv = [*WALPROOF, "demo", "--watch", "--record", str(record)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    printed: list[str] = []
    reader = threading.Thread(target=lambda out=process.stdout: printed.append(out.read()), daemon=True)
    reader.start()
    try:
        with chromium(height=860) as browser:
            _take_live_picture(browser.page, process.stderr)
    finally:
        if process.poll() is None and sys.exc_info()[0] is not None:
            process.send_signal(signal.SIGINT)
    if process.wait() != 0:
        raise SystemExit(f"the demo ended with {process.returncode}")
    reader.join()
    return printed[0]


def _take_live_picture(page: Page, lines: IO[str]) -> None:
    """Open the live page the demo names, and take its picture once a new leader is shown."""
    url = ""
    for line in lines:
        sys.stderr.write(line)
        found = re.search(r"http://\S+", line)
        if found and not url:
            url = found[0]
            page.goto(url)
        if url and "killing the leader" in line:
            with contextlib.suppress(TimeoutError):
                page.locator("#events").get_by_text(" is leader").first.wait_for(timeout=60_000)
            page.screenshot(path=str(PICTURES / "live.png"))


def _report(record: Path, folder: Path) -> None:
    html = folder / "report.html"
    subprocess.run([*WALPROOF, "report", str(record), "--html", str(html)], check=True, stdout=subprocess.DEVNULL)
    with chromium(height=1500) as browser:
        page = browser.page
        page.goto(f"file://{html}")
        page.wait_for_timeout(1000)
        page.screenshot(path=str(PICTURES / "report.png"))


def captured(page: str) -> str:
    """The run that a page shows."""
    return str(_CAPTURED.findall(page)[0])


def excerpt(run: str) -> str:
    """The conclusion, the price table and the drills of what the demo printed."""
    prices = run.split("\n\ntail, stalls and WAL", 1)[0]
    drills = run.split("\n\ndrills\n", 1)[1].split("\n  1: ", 1)[0]
    return "\n".join(line.rstrip() for line in f"{prices}\n\ndrills\n{drills}".split("\n"))


def _write(page: Path, run: str) -> None:
    block = f"<!-- captured -->\n```\n{run}\n```\n<!-- /captured -->"
    page.write_text(_CAPTURED.sub(lambda _: block, page.read_text()))


def main() -> None:
    """Everything anew."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record"
        printed = _demo(record)
        _report(record, Path(folder))
        run = "$ walproof demo\n" + printed.replace(str(record), "records/…-demo").rstrip()
        _write(PAGE, run)
        _write(README, excerpt(run))
    print(f"pictures in {PICTURES}, captured run in {PAGE} and {README}")


if __name__ == "__main__":
    main()
