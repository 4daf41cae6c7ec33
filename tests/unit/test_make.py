"""What `make` does before it does anything: a new .venv where the old one does not serve, or one sentence, before pip is asked anything.

The Pythons are stand-ins: shell scripts that tell a version, copy themselves where a .venv is to be made, and note what pip is asked for.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_circuits.paths import ROOT

PYTHON = """#!/bin/sh
case "$1 $2" in
"-c "*) exec {real} -c "import sys; sys.version_info = {version}; sys.base_prefix = '{name}'; {lacks}
$2" ;;
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo "{name} made $3" >> log ;;
"-m pip") {pip} ;;
esac
"""
TOOLS = "sh make cat rm mkdir cp git head tail cksum".split()


class Machine:
    """A folder with the Makefile, and a PATH with these tools and the Pythons that a test makes."""

    def __init__(self, place: Path) -> None:
        self.bin, self.book = place / "bin", place / "book"
        self.bin.mkdir()
        (self.book / ".ci").mkdir(parents=True)
        for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/venv"):
            shutil.copy(ROOT / name, self.book / name)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))

    def python(self, name: str, minor: int, lacks: str = "", pip: str | None = None) -> None:
        without = f"sys.modules['{lacks}'] = None" if lacks else ""
        pip = pip or f'echo "{name} ran pip" >> log'
        stub = PYTHON.format(real=sys.executable, version=(3, minor, 1), name=name, lacks=without, pip=pip)
        (self.bin / name).write_text(stub)
        (self.bin / name).chmod(0o755)

    def make(self, *arguments: str) -> tuple[int, str, list[str]]:
        """Return the exit status of `make ready`, what it says, and what was done."""
        command = [str(self.bin / "make"), "ready", *arguments]
        environment = {"PATH": str(self.bin)}
        done = subprocess.run(command, cwd=self.book, env=environment, capture_output=True, text=True)
        log = self.book / "log"
        noted = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        said = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("make:")]
        return done.returncode, "\n".join(said), noted


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


NEW = ["python3 made .venv", "python3 ran pip"]


def test_packages_are_installed_once_and_again_when_versions_change(machine):
    machine.python("python3", 12)
    assert machine.make() == (0, "", NEW)
    assert machine.make() == (0, "", [])
    constraints = machine.book / "constraints.txt"
    later = constraints.stat().st_mtime + 10_000
    os.utime(constraints, (later, later))
    assert machine.make() == (0, "", []), "a date in the future is no change"
    constraints.write_text("torch==1.0")
    assert machine.make() == (0, "", NEW[1:])
    assert machine.make() == (0, "", [])


@pytest.mark.parametrize(("minor", "lacks", "says"), [
    (10, "", "python3 is Python 3.10, and the book needs Python 3.11 to 3.13: install one"),
    (14, "", "python3 is Python 3.14, and the book needs Python 3.11 to 3.13: install one"),
    (11, "ensurepip", "python3 has no venv module: install it (Debian: apt-get install python3-venv)."),
    (None, "", "python3 is not there, or does not start, and the book needs"),
])  # fmt: skip
def test_a_python_that_does_not_serve_is_said_not_to(machine, minor, lacks, says):
    if minor:
        machine.python("python3", minor, lacks)
    status, said, noted = machine.make()
    assert (status, noted) == (2, []) and "\n" not in said and said.startswith(says)


def test_a_venv_of_another_python_is_made_anew_only_for_one_that_the_user_names(machine):
    machine.python("python3", 11)
    machine.python("python3.12", 12)
    machine.make()
    made = ["python3.12 made .venv", "python3.12 ran pip"]
    assert machine.make("PYTHON=python3.12") == (0, "A new .venv: it was made by another Python than python3.12.", made)
    assert machine.make("PYTHON=python3.12") == machine.make() == (0, "", [])


@pytest.mark.parametrize(("harm", "why"), [
    ("dangling", "its Python is gone, or is not 3.11 to 3.13"),
    ("copied", "it was made in another folder"),
    ("pip failed", "the last one was not finished"),
])  # fmt: skip
def test_a_venv_that_does_not_serve_is_made_anew(machine, tmp_path, harm, why):
    machine.python("python3", 11, pip="exit 1" if harm == "pip failed" else None)
    status, said, _ = machine.make()
    assert said.startswith("pip could not install the packages" if status else "")
    interpreter = machine.book / ".venv" / "bin" / "python"
    if harm == "dangling":
        interpreter.unlink()
        interpreter.symlink_to("/nowhere/python3")
    elif harm == "copied":
        (machine.book / ".venv" / "bin" / "pytest").write_text("#!/the/old/place")
        machine.book = shutil.copytree(machine.book, tmp_path / "copy", copy_function=shutil.copy2)
    machine.python("python3", 11)
    assert machine.make() == (0, f"A new .venv: {why}.", NEW)
    assert not (machine.book / ".venv" / "bin" / "pytest").exists()
