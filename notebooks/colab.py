"""Prepare Colab: a notebook's first cell runs this, after it has fetched the repository that this file is part of.

It installs what is missing or too old, at the versions of constraints.txt, and leaves alone what is there: torch, numpy
and everything that the running notebook has imported keep their versions, since a package that changes under a running
notebook breaks it. Standard library only.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT = {"torch", "numpy", "torchvision", "torchaudio"}  # even if they have not been imported yet


def normal(name: str) -> str:
    """Return the name of a package as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def numbers(version: str) -> list[int]:
    """Return the numbers of a release: 2.11.0+cu128 is [2, 11, 0]."""
    return [int(part) for part in re.match(r"\d+(\.\d+)*", version)[0].split(".")]


def missing(requirements: list[str], versions: dict[str, str], pins: dict[str, str]) -> list[str]:
    """Return the tested versions of the required packages that are not installed, or are too old. `versions`: of what
    is installed, by normal names."""
    found = {}
    for requirement in requirements:
        name, least = re.match(r"([\w.-]+)(?:>=([\d.]+))?", requirement).groups()
        name = normal(name)
        if name not in versions or least and numbers(versions[name]) < numbers(least):
            found[name] = f"{name}=={pins[name]}"
    return [*found.values()]


def constraints(versions: dict[str, str], imported: set[str]) -> list[str]:
    """Return pip's constraints that keep the packages in use at their versions."""
    in_use = KEPT | imported
    return [f"{name}=={version}" for name, version in sorted(versions.items()) if normal(name) in in_use]


def install(requirements: list[str], versions: dict[str, str]) -> None:
    """Install packages without changing those in use. Exits with one sentence if pip cannot."""
    providers = importlib.metadata.packages_distributions()
    modules = {module for module in sys.modules if "." not in module}
    imported = {normal(name) for module in modules for name in providers.get(module, [])}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(constraints(versions, imported)))
        file.flush()
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--constraint", file.name, *requirements]
        result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        reason = (result.stderr.strip() or "pip failed").splitlines()[-1]
        todo = "choose Runtime → Disconnect and delete runtime, and run this cell again"
        sys.exit(f"The book's packages could not be installed ({reason}): {todo}.")


def main() -> None:
    versions = {package.name: package.version for package in importlib.metadata.distributions() if package.name}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    needed = [*project["dependencies"], *project["optional-dependencies"]["chapters"]]
    requirements = missing(needed, {normal(name): version for name, version in versions.items()}, pins)
    if requirements:
        install(requirements, versions)
    source = str(ROOT / "src")
    if source not in sys.path:
        sys.path.insert(0, source)
        others = filter(None, [source, os.environ.get("PYTHONPATH")])
        os.environ["PYTHONPATH"] = os.pathsep.join(others)  # for programs that cells start
    print(f"The book is in {ROOT}; installed: {', '.join(requirements) or 'nothing, all was there'}.")


if __name__ == "__main__":
    main()
