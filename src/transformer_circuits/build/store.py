"""What notebooks and makers of pages gave, kept with everything that it depends on.

    _build/results/NAME/KEY/.needs.json and the result's own files

A result counts while the code cells, the installed releases, and each file that was read (modules of the package, weights, data) are the
same. Of each name several results are kept, so that a change that is taken back runs nothing.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

import transformer_circuits

PACKAGE = Path(transformer_circuits.__file__).resolve().parent
WATCHED = ("src", "weights", "data")  # folders of the book whose files results may depend on, besides the package
CLAIMS = f"{PACKAGE.name}/claims/claims.yml"
ALWAYS = [f"{PACKAGE.name}/{name}" for name in ("__init__.py", "forks.py")]  # in every process
KEPT = 6  # results of one name
NEEDS = ".needs.json"


class BuildError(Exception):
    """The book cannot be built; the message says what to fix."""


def ignored(part: str) -> bool:
    """Return whether a file or folder of this name changes nothing: hidden, a cache, an editor's backup."""
    return part.startswith((".", "#")) or part.endswith((".egg-info", "~", ".swp")) or part == "__pycache__"


def sha256(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def digests(root: Path, names: Iterable[str] = (".",)) -> dict[str, str]:
    """Return the SHA-256 of all files in these files and folders of `root` that are not ignored, by their path in `root`."""
    found = {}
    for name in names:
        for path in sorted([root / name, *(root / name).rglob("*")]):
            relative = path.relative_to(root)
            if path.is_file() and not any(map(ignored, relative.parts)):
                found[relative.as_posix()] = sha256(path.read_bytes())
    return found


def digest(root: Path, names: Iterable[str] = (".",)) -> str:
    return sha256(json.dumps(digests(root, names)))


def entries_of_claims() -> dict[str, str]:
    """Return the SHA-256 of each entry of the ledger by CLAIMS#id: a chapter depends on those that it names."""
    text = (PACKAGE.parent / CLAIMS).read_text(encoding="utf-8")
    sections = yaml.load(text, yaml.CSafeLoader)["sections"]  # safe_load takes ten times as long
    return {f"{CLAIMS}#{claim['id']}": sha256(json.dumps(claim)) for part in sections for claim in part["claims"]}


def state(name: str, files: dict[str, str]) -> str | None:
    """Return what a result depends on of a file, or of a folder's list of files; None if there is no such file."""
    if name in files:
        return files[name]
    inside = sorted(file for file in files if file.startswith(f"{name}/"))
    return sha256("\n".join(inside)) if inside else None


class Store:
    """The results of a book whose sources are in `root`, as far as they are those of its present files."""

    def __init__(self, root: Path) -> None:
        self.root, self.build = root, root / "_build"
        self.results = self.build / "results"
        self.watched = [f"{folder}{os.sep}" for folder in (PACKAGE, *(root / name for name in WATCHED))]
        installed = sorted({f"{found.name}=={found.version}" for found in importlib.metadata.distributions()})
        self.environment = sha256("\n".join([sys.version, *installed]))
        self.present = self.snapshot()

    def snapshot(self) -> dict[str, str]:
        """Return the SHA-256 of every file that results may depend on: by its path in the folder of the package, or in the book."""
        return digests(PACKAGE.parent, [PACKAGE.name]) | digests(self.root, WATCHED) | entries_of_claims()

    def find(self, name: str, source: str = "") -> Path | None:
        """Return the folder with the result of `source` on the present files; None if there is none. A damaged one is removed."""
        known = (self.results / name).glob(f"[!.]*/{NEEDS}")
        for needs in sorted(known, key=lambda path: path.stat().st_mtime_ns, reverse=True):
            try:
                found = json.loads(needs.read_text(encoding="utf-8"))
                same = (found["source"], found["environment"]) == (sha256(source), self.environment)
                if same and all(state(n, self.present) == was for n, was in found["files"].items()):
                    if found["content"] != digest(needs.parent):
                        raise ValueError
                    os.utime(needs)
                    return needs.parent
            except (ValueError, KeyError):
                print(f"the kept result of {name} is damaged: it is made again", flush=True)
                shutil.rmtree(needs.parent)
        return None

    def needs(self, log: Path, source: str) -> dict[str, str | None]:
        """Return the state of each file that a log of `forks.note_reads` names. Raises BuildError if one changed since the store was opened."""
        names = set()
        for path in map(Path, log.read_text(encoding="utf-8").splitlines() if log.is_file() else ()):
            name = path.relative_to(PACKAGE.parent if path.is_relative_to(PACKAGE) else self.root).as_posix()
            # Each import lists the folder of the module, whose other files do not matter.
            of_code = path.is_dir() and name.startswith((PACKAGE.name, "src"))
            if not of_code and not any(map(ignored, Path(name).parts)):
                names.add(name)
        named = [f"{CLAIMS}#{id}" for id in re.findall(r"\b[A-Z]\d+\b", source)]
        if CLAIMS in names and (chosen := self.present.keys() & named):
            names = (names - {CLAIMS}) | chosen
        now = self.snapshot()
        needed = {name: state(name, now) for name in sorted(names.union(ALWAYS))}
        if changed := [name for name, found in needed.items() if found != state(name, self.present)]:
            raise BuildError(f"{changed[0]} changed while notebooks ran: build again.")
        return needed

    def keep(self, name: str, source: str, files: dict[str, str | None], made: Path) -> None:
        """Move the folder `made`, the result of `source`, to the others, and forget the oldest."""
        about = {"source": sha256(source), "environment": self.environment, "files": files}
        folder = self.results / name / sha256(json.dumps(about))[:16]
        (made / NEEDS).write_text(json.dumps(about | {"content": digest(made)}, indent=1), encoding="utf-8")
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
        others = sorted(folder.parent.glob(f"[!.]*/{NEEDS}"), key=lambda path: path.stat().st_mtime_ns)
        for needs in others[:-KEPT]:
            needs.unlink()  # first: after a kill it does not count as a result
            shutil.rmtree(needs.parent)


@contextlib.contextmanager
def own_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Make a folder that no other process writes to, not even one that a killed build left running; remove folders of killed builds."""
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def write_whole(path: Path, text: str) -> None:
    """Replace a file such that it is the old or the new one, even after a kill."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
