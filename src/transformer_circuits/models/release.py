"""The files of a release for a package without a clone: each model, and the book's data, as a zip that is fetched once.

`released.sha256` has their checksums, the package's metadata the address. `make hub` makes the zips and the list.
"""

import hashlib
import importlib.metadata
import importlib.resources
import os
import shutil
import urllib.error
from pathlib import Path

import torch

from .. import paths
from .shards import WeightsError, reason

SUMS = importlib.resources.files(__package__) / "released.sha256"
BOOK_DATA = "data"  # the name of the zip with the book's data


def checksums() -> dict[str, str]:
    """Return the SHA-256 of each released zip, by the name of the model."""
    lines = SUMS.read_text(encoding="utf8").splitlines()
    return {file.removesuffix(".zip"): sha256 for sha256, file in (line.split() for line in lines)}


def released() -> list[str]:
    """Return the names of the models that can be fetched: none in a clone, which has them."""
    return [] if paths.CLONE else [name for name in checksums() if name != BOOK_DATA]


def data_file(name: str | Path) -> Path:
    """Return a file of the book's data, which is fetched if it is not there. Raises WeightsError if it cannot be."""
    if not paths.CLONE and not paths.DATA.is_dir():
        fetch(BOOK_DATA, paths.DATA)
    return paths.DATA / name


def address() -> str:
    """Return where this release's zips are, or those of the latest one for a package between two releases."""
    about = importlib.metadata.metadata(paths.DISTRIBUTION)
    urls = dict(url.split(", ") for url in about.get_all("Project-URL"))
    place = "latest/download" if "dev" in about["Version"] else f"download/v{about['Version']}"
    return f"{urls['Repository']}/releases/{place}"


def fetch(name: str, folder: Path) -> None:
    """Fetch a released zip, check its SHA-256, and unpack it as `folder`. Raises WeightsError if one of these fails."""
    url, partial = f"{address()}/{name}.zip", folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        file = download(url, paths.ROOT / f"{name}.zip", checksums()[name])
        shutil.unpack_archive(file, partial)
        if not folder.exists():  # else another process was faster
            partial.rename(folder)
        file.unlink(missing_ok=True)
    except (OSError, WeightsError) as error:
        why = "no connection" if type(error) is urllib.error.URLError else reason(error)
        trouble = f"{name!r} is not on this machine, and could not be fetched from {url}: {why}"
        todo = "try again, or set TRANSFORMER_CIRCUITS_ROOT to a clone of the book's repository"
        raise WeightsError(f"{trouble}; {todo}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def download(url: str, path: Path, sha256: str) -> Path:
    """Return `path`, fetched from `url` unless it has this SHA-256 already. Raises OSError if there is no connection or
    no room, and WeightsError for another file."""
    if not path.is_file() or checksum(path) != sha256:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(path), sha256, progress=False)
        except RuntimeError as error:
            raise WeightsError(f"{path.name} must have SHA-256 {sha256}, got another: {error}") from None
    return path


def checksum(path: Path) -> str:
    """Return a file's SHA-256."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
