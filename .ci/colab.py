"""Prepare Colab: a notebook's first cell runs this, after it has fetched the repository to the folder above this one.

Installs what is missing and leaves alone what is there: torch, numpy and everything that the running notebook has imported keep their
versions, since a package that changes under a running notebook breaks it. Running it again changes nothing. Standard library only.
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
    return re.sub(r"[-_.]+", "-", name).lower()


def missing(requirements: list[str], installed: set[str]) -> list[str]:
    """Return the requirements whose package is not installed; installed ones are used at the version that Colab brings."""
    return [line for line in requirements if normal(re.match(r"[\w.-]+", line)[0]) not in installed]


def held(versions: dict[str, str], imported: set[str]) -> list[str]:
    """Return constraints that keep the packages in use at their versions."""
    kept = KEPT | imported
    return [f"{name}=={version}" for name, version in sorted(versions.items()) if normal(name) in kept]


def main() -> None:
    versions = {found.name: found.version for found in importlib.metadata.distributions() if found.name}
    providers = importlib.metadata.packages_distributions()
    loaded = {module for module in sys.modules if "." not in module}
    imported = {normal(name) for module in loaded for name in providers.get(module, [])}
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = missing(about["dependencies"], {normal(name) for name in versions})
    if wanted:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("\n".join(held(versions, imported)))
            file.flush()
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--constraint", file.name, *wanted]
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip() or "pip failed").splitlines()[-1]
            sys.exit(f"The book's packages could not be installed: {reason}")
    source = str(ROOT / "src")
    if source not in sys.path:
        sys.path.insert(0, source)
        paths = filter(None, [source, os.environ.get("PYTHONPATH")])
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for programs that cells start
    done = f"installed {', '.join(wanted)}" if wanted else "nothing had to be installed"
    print(f"The book is in {ROOT}; {done}.")


if __name__ == "__main__":
    main()
