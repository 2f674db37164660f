"""Renews the locks that everything from PyPI is installed by, with hashes: `.venv/bin/python -m tools.renew_locks`.

Resolves pyproject.toml anew for Linux and Python 3.11 or newer, by uv in a folder that is removed afterwards. Kept are
the hashes of wheels that these machines can use; of a source archive only where a package has no such wheel.
"""

import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[1]
BUILD, EVERYTHING, IMAGE = (CHECKOUT / "tools" / f"{name}.lock" for name in ("build", "requirements", "image"))
PYTHONS = ("cp311", "cp312", "cp313", "cp314")
MACHINES = ("x86_64", "aarch64")
IN_IMAGE = ("numpy", "psycopg", "psycopg-binary", "typing-extensions")
"""What the load pods' agent and ledger import; installed without what these would bring besides."""
_LINUX = "implementation_name == 'cpython' and platform_python_implementation == 'CPython' and sys_platform == 'linux'"
_RENEWED = "# Written by `python -m tools.renew_locks`; installed with pip's --require-hashes.\n"


def suits(wheel: str, python: str, machine: str) -> bool:
    """Whether CPython of that tag on glibc and that processor can use the wheel of this file name.

    >>> suits("numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", "cp311", "x86_64")
    True
    >>> suits("psutil-7.2.2-cp313-cp313t-manylinux2010_x86_64.whl", "cp313", "x86_64")
    False
    """
    tags, abis, platforms = (part.split(".") for part in wheel.removesuffix(".whl").split("-")[-3:])
    stable = "abi3" in abis and any(tag.startswith("cp3") and int(tag[3:]) <= int(python[3:]) for tag in tags)
    plain = "none" in abis and "py3" in tags
    runs = any(one == "any" or ("linux" in one and one.endswith(machine)) for one in platforms)
    return runs and "musl" not in wheel and (stable or plain or (python in tags and python in abis))


def hashes(package: dict[str, Any]) -> list[str]:
    """The SHA-256 of what may be installed, sorted."""
    wheels = {one["url"].rpartition("/")[2]: one for one in package.get("wheels", ())}
    kept = [one for name, one in wheels.items() if any(suits(name, p, m) for p in PYTHONS for m in MACHINES)]
    return sorted(one["hashes"]["sha256"] for one in kept or [package["sdist"]])


def entry(package: dict[str, Any]) -> str:
    """A requirement with its hashes."""
    marker = str(package.get("marker", "")).replace(f" and {_LINUX}", "")
    only = f" ; {marker}" if marker not in ("", "python_full_version >= '3.11'") else ""
    lines = [f"{package['name']}=={package['version']}{only}", *(f"--hash=sha256:{one}" for one in hashes(package))]
    return " \\\n    ".join(lines) + "\n"


def resolved(uv: Path, source: Path, *options: str) -> list[dict[str, Any]]:
    """The packages that a file of requirements, or pyproject.toml, asks for."""
    lock = source.with_name("pylock.toml")
    command = [str(uv), "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
    subprocess.run([*command, "--format", "pylock.toml", "--output-file", str(lock), *options, source], check=True)
    packages: list[dict[str, Any]] = tomllib.loads(lock.read_text("utf-8"))["packages"]
    return packages


def main() -> int:
    """Write the three locks."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        uv, project = Path(folder, "bin", "uv"), Path(folder, "pyproject.toml")
        subprocess.run([Path(folder, "bin", "pip"), "install", "-q", "--disable-pip-version-check", "uv"], check=True)
        text = (CHECKOUT / "pyproject.toml").read_text("utf-8")
        project.write_text(f'{text}\n[tool.uv]\nenvironments = ["{_LINUX}"]\n', "utf-8")
        building = Path(folder, "building.txt")
        building.write_text("\n".join(tomllib.loads(text)["build-system"]["requires"]), "utf-8")
        everything = resolved(uv, project, "--extra", "dev")
        build = resolved(uv, building)
    for path, packages in (
        (BUILD, build),
        (EVERYTHING, everything),
        (IMAGE, [package for package in everything if package["name"] in IN_IMAGE]),
    ):
        path.write_text(_RENEWED + "".join(map(entry, packages)), "utf-8")
        print(f"{path.name}: {len(packages)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
