"""What each notebook and each generated page gave, kept until something that it can read changes.

    _build/results/NAME/: its files, and .key, written last

The key of a notebook covers its code cells, and all that notebooks can read: the library, the workbooks' judge, weights
and data, Python, and the installed releases. That of a page covers the makers of pages instead of code cells.
"""

import hashlib
import importlib.metadata
import re
import shutil
import sys
from pathlib import Path

import transformer_circuits
from transformer_circuits.paths import write_atomically

RESULTS = Path("_build", "results")
SOURCE = Path(transformer_circuits.__file__).resolve().parents[1]  # src/: the library, and what stands beside it
# Hidden files and caches; beside weights and data, notes for people.
IGNORED = re.compile(r"(^|/)(\.|__pycache__/)|^(weights|data)/.*\.md$")


class BuildError(Exception):
    """The book cannot be built; the message says what to fix."""


def sha256(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def digest(root: Path, *names: str) -> str:
    """Return the SHA-256 of these files, and of all in these folders, with their places in `root`."""
    paths = [path for name in names for path in sorted([root / name, *(root / name).rglob("*")]) if path.is_file()]
    places = [place for path in paths if not IGNORED.search(place := path.relative_to(root).as_posix())]
    return sha256(*(f"{place} {hashlib.sha256((root / place).read_bytes()).hexdigest()}" for place in places))


class Store:
    """The results of the book in `root`, as far as they are those of its present files."""

    def __init__(self, root: Path) -> None:
        self.root, self.results = root, root / RESULTS
        releases = sorted({f"{found.name}=={found.version}" for found in importlib.metadata.distributions()})
        read = digest(SOURCE, "transformer_circuits", "workbooks"), digest(root, "weights", "data")
        self.inputs = sha256(sys.version, *releases, *read)
        self.of_pages = sha256(self.inputs, digest(SOURCE, "book_build/pages"))

    def key(self, source: str | None) -> str:
        """Return the key of a notebook with this code, or of a generated page (None)."""
        return self.of_pages if source is None else sha256(self.inputs, source)

    def find(self, name: str, source: str | None = None) -> Path | None:
        """Return the folder with a result that is up to date; None if there is none."""
        key = self.results / name / ".key"
        return key.parent if key.is_file() and key.read_text() == self.key(source) else None

    def new(self, name: str) -> Path:
        """Return an empty folder for a result, instead of the last one."""
        shutil.rmtree(self.results / name, ignore_errors=True)
        (self.results / name).mkdir(parents=True)
        return self.results / name

    def keep(self, name: str, source: str | None = None) -> None:
        """Declare a result complete. Raises BuildError if what it can read changed since the store opened."""
        if Store(self.root).of_pages != self.of_pages:
            raise BuildError("A file that notebooks or pages read changed while the book was built: build again.")
        write_whole(self.results / name / ".key", self.key(source))


def write_whole(path: Path, text: str) -> None:
    """Write a text to a file. One with this text stays untouched: Sphinx need not read it again."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_atomically(path, text.encode())
