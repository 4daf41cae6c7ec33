"""What each notebook and each generated page gave, kept until something that it can read changes.

    _build/results/NAME/: its files, and .made.json, written last, with its key and the seconds that it took

The key of a notebook covers its code cells, the claims that they name, the library, weights and data, Python, and the
installed releases; if they name the workbooks' judge, that too. That of a generated page covers the library, all
claims, `pages`, weights and data. Notes (*.md) beside weights and data are for people.
"""

import hashlib
import importlib.metadata
import json
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import yaml

import transformer_circuits

SOURCE = Path(transformer_circuits.__file__).resolve().parents[1]  # src/: the library, and what stands beside it
CLAIMS = Path("transformer_circuits", "claims", "claims.yml")
# Hidden files, caches, backups of editors, and the records that no chapter reads.
IGNORED = re.compile(r"[.#].*|.*(\.egg-info|~|\.swp)|__pycache__|held_out_seed\.yml")


class BuildError(Exception):
    """The book cannot be built; the message says what to fix."""


def sha256(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def files_in(root: Path, *names: str) -> list[Path]:
    """Return these files, and all in these folders, except what IGNORED names; by their places in `root`."""
    paths = [path for name in names for path in sorted([root / name, *(root / name).rglob("*")]) if path.is_file()]
    places = [path.relative_to(root) for path in paths]
    return [place for place in places if not any(map(IGNORED.fullmatch, place.parts))]


def digest(root: Path, places: Iterable[Path]) -> str:
    """Return the SHA-256 of files and of their places in `root`."""
    return sha256([(str(place), hashlib.sha256((root / place).read_bytes()).hexdigest()) for place in places])


def data_in(root: Path) -> list[Path]:
    """Return the files of a book's weights and data, without notes, by their places in `root`."""
    return [place for place in files_in(root, "weights", "data") if place.suffix != ".md"]


def read_by_results(root: Path) -> dict[Path, tuple[int, int]]:
    """Return the date and the size of each file that a result may depend on."""
    paths = [SOURCE / place for place in files_in(SOURCE, "transformer_circuits", "workbooks", "book_build/pages")]
    paths += [root / place for place in data_in(root)]
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


class Store:
    """The results of the book in `root`, as far as they are those of its present files."""

    def __init__(self, root: Path) -> None:
        self.root, self.results, self.before = root, root / "_build" / "results", read_by_results(root)
        installed = sorted({f"{found.name}=={found.version}" for found in importlib.metadata.distributions()})
        library = [place for place in files_in(SOURCE, "transformer_circuits") if place != CLAIMS]
        pages = [CLAIMS, *files_in(SOURCE, "book_build/pages")]
        self.environment = sha256(sys.version, installed)
        self.inputs = sha256(self.environment, digest(SOURCE, library), digest(root, data_in(root)))
        self.of_pages = sha256(self.inputs, digest(SOURCE, pages))
        self.workbooks = digest(SOURCE, files_in(SOURCE, "workbooks"))
        sections = yaml.load((SOURCE / CLAIMS).read_text(encoding="utf-8"), yaml.CSafeLoader)["sections"]
        self.claims = {claim["id"]: claim for section in sections for claim in section["claims"]}

    def key(self, source: str | None) -> str:
        """Return the key of a notebook with this code, or of a generated page (None)."""
        if source is None:
            return self.of_pages
        named = sorted(set(re.findall(r"\b[A-Z]\d+\b", source)) & self.claims.keys())
        judge = self.workbooks if "workbooks" in source else ""
        return sha256(self.inputs, source, [self.claims[id] for id in named], judge)

    def made(self, name: str) -> dict:
        """Return what is known of the last result of this name; an empty one if there is none."""
        file = self.results / name / ".made.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}

    def find(self, name: str, source: str | None = None) -> Path | None:
        """Return the folder with a result that is up to date; None if there is none."""
        return self.results / name if self.made(name).get("key") == self.key(source) else None

    def new(self, name: str) -> Path:
        """Return an empty folder for a result, instead of the last one."""
        shutil.rmtree(self.results / name, ignore_errors=True)
        (self.results / name).mkdir(parents=True)
        return self.results / name

    def keep(self, name: str, source: str | None = None, seconds: float = 0.0) -> None:
        """Declare a result complete. Raises BuildError if a file that it can read changed since the store opened."""
        now = read_by_results(self.root)
        if changed := [path for path in self.before | now if self.before.get(path) != now.get(path)]:
            raise BuildError(f"{changed[0]} changed while the book was built: build again.")
        write_whole(self.results / name / ".made.json", json.dumps({"key": self.key(source), "seconds": seconds}))


def write_whole(path: Path, text: str) -> None:
    """Replace a file such that even a kill leaves the old or the new one. One with this text stays untouched."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
