"""What is installed from elsewhere is pinned: PyPI by hash and below the next major, images and actions by digest."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.fixtures.tiers import each
from tools.renew_locks import BUILD, CHECKOUT, EVERYTHING, IMAGE, IN_IMAGE, hashes, suits

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))
RUNTIME = [
    *PROJECT["project"]["dependencies"],
    *(one for extra in ("lab", "kubernetes") for one in PROJECT["project"]["optional-dependencies"][extra]),
    *PROJECT["build-system"]["requires"],
]
WORKFLOWS = sorted((CHECKOUT / ".github" / "workflows").glob("*.yml"))
INSTALLERS = [
    CHECKOUT / "Containerfile",
    CHECKOUT / "Makefile",
    CHECKOUT / ".ci" / "run",
    *WORKFLOWS,
    *(path for path in (CHECKOUT / "tools").iterdir() if path.is_file() and path.suffix in ("", ".sh")),
]
_DIGEST = re.compile(r"debian:12-slim@(sha256:[0-9a-f]{64})")


def locked(path: Path) -> list[tuple[Requirement, list[str]]]:
    """The requirements of a lock, each with its hashes."""
    whole = path.read_text("utf-8").replace(" \\\n    ", " ")
    lines = [line for line in whole.splitlines() if not line.startswith("#")]
    return [(Requirement(line.split(" --hash=")[0]), line.split(" --hash=")[1:]) for line in lines]


@each(RUNTIME)
def test_a_dependency_ends_below_its_next_major(text: str) -> None:
    assert "<" in {specifier.operator for specifier in Requirement(text).specifier}


@each([BUILD, EVERYTHING, IMAGE])
def test_each_package_of_a_lock_is_one_version_with_its_hashes(lock: Path) -> None:
    for requirement, its in locked(lock):
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), requirement
        assert its and all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in its), requirement


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@each(["3.11", "3.12", "3.13", "3.14"])
def test_the_locks_hold_what_pyproject_asks_for(python: str) -> None:
    here = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    pins = {
        normal(requirement.name): str(requirement.specifier).removeprefix("==")
        for lock in (EVERYTHING, BUILD)
        for requirement, _ in locked(lock)
        if requirement.marker is None or requirement.marker.evaluate(here)
    }
    asked = [Requirement(text) for text in [*RUNTIME, *PROJECT["project"]["optional-dependencies"]["dev"]]]
    for one in asked:
        if one.name != "walproof":
            assert SpecifierSet(str(one.specifier)).contains(pins[normal(one.name)]), one


def test_the_image_has_the_versions_that_are_tested() -> None:
    everything = {str(requirement): its for requirement, its in locked(EVERYTHING)}
    image = {str(requirement): its for requirement, its in locked(IMAGE)}
    assert {Requirement(text).name for text in image} == set(IN_IMAGE)
    assert image.items() <= everything.items()


@each(INSTALLERS)
def test_nothing_of_pypi_is_installed_without_its_hash(path: Path) -> None:
    commands = path.read_text("utf-8").replace("\\\n", " ").replace("&&", "\n").splitlines()
    for command in commands:
        if re.search(r"\bpip\S* (install|-)", command) and "uninstall" not in command and "pip()" not in command:
            own = {"--no-deps", "--no-build-isolation"} <= set(command.split()) and " -r " not in command
            assert "--require-hashes" in command or own, command


def steps() -> list[dict[str, Any]]:
    jobs = [job for path in WORKFLOWS for job in yaml.safe_load(path.read_text("utf-8"))["jobs"].values()]
    return [step for job in jobs for step in job["steps"]]


def test_actions_are_pinned_by_commit_and_keep_no_credentials() -> None:
    used = [step for step in steps() if "uses" in step]
    assert used
    for step in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"])
        assert step["with"]["persist-credentials"] is False


def test_images_are_pinned_by_one_digest() -> None:
    texts = [path.read_text("utf-8") for path in (CHECKOUT / "Containerfile", *WORKFLOWS)]
    images = [line for text in texts for line in re.findall(r"^ *(?:ARG BASE=|container:|image:) *\S+.*$", text, re.M)]
    found = [_DIGEST.search(line) for line in images]
    assert len(found) == 3 and all(found), images
    assert len({match[1] for match in found if match}) == 1


def test_a_privileged_job_runs_for_no_pull_request_that_nobody_has_labelled() -> None:
    for path in WORKFLOWS:
        read = yaml.safe_load(path.read_text("utf-8"))
        assert read["permissions"] == {"contents": "read"}
        for name, job in read["jobs"].items():
            container = job["container"]
            if isinstance(container, dict) and "--privileged" in container.get("options", ""):
                assert job["if"].startswith("github.event_name == 'push' || (github.event.action == 'labeled'"), name


@each([
    ("numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", "cp311", "x86_64", True),
    ("numpy-2.4.6-cp311-cp311-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl", "cp311", "aarch64", True),
    ("numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", "cp311", "aarch64", False),
    ("numpy-2.4.6-cp311-cp311-musllinux_1_2_x86_64.whl", "cp311", "x86_64", False),
    ("numpy-2.4.6-cp311-cp311-win_amd64.whl", "cp311", "x86_64", False),
    ("psutil-7.2.2-cp36-abi3-manylinux2010_x86_64.whl", "cp313", "x86_64", True),
    ("later-1-cp313-abi3-manylinux2010_x86_64.whl", "cp311", "x86_64", False),
    ("psutil-7.2.2-cp313-cp313t-manylinux2010_x86_64.whl", "cp313", "x86_64", False),
    ("click-8.5.1-py3-none-any.whl", "cp314", "aarch64", True),
    ("ruff-0.17.6-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.whl", "cp312", "aarch64", True),
])  # fmt: skip
def test_the_wheels_that_a_machine_can_use(wheel: str, python: str, machine: str, fits: bool) -> None:
    assert suits(wheel, python, machine) is fits


def test_a_source_archive_counts_only_where_no_wheel_fits() -> None:
    def of(name: str) -> dict[str, Any]:
        return {"url": f"https://pypi/{name}", "hashes": {"sha256": name}}

    wheels = [of("a-1-py3-none-any.whl"), of("a-1-cp311-cp311-win_amd64.whl")]
    assert hashes({"wheels": wheels, "sdist": of("a-1.tar.gz")}) == ["a-1-py3-none-any.whl"]
    assert hashes({"wheels": wheels[1:], "sdist": of("a-1.tar.gz")}) == ["a-1.tar.gz"]
