"""Files from the network: fetched once, checked by their SHA-256, whole or not there."""

import hashlib
import os
import re
import urllib.request
from pathlib import Path

from tqdm import tqdm

from .shards import WeightsError

BLOCK = 1 << 20


def download(url: str, path: Path, sha256: str) -> Path:
    """Return `path`, fetched from `url` unless it has this SHA-256 already; a damaged file is fetched anew. Raises
    OSError if there is no connection or no room, and WeightsError for another file."""
    if path.is_file() and checksum(path) == sha256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, open(partial, "wb") as file:
            size = int(answer.headers["Content-Length"] or 0)
            with tqdm(total=size, desc=path.name, unit="B", unit_scale=True, disable=None, leave=False) as bar:
                while block := answer.read(BLOCK):
                    bar.update(file.write(block))
        if (got := checksum(partial)) != sha256:
            raise WeightsError(f"{without_password(url)} must have SHA-256 {sha256}, got {got}")
        return partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def checksum(path: Path) -> str:
    """Return a file's SHA-256."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def without_password(text: str) -> str:
    """Return a sentence or an address without the user names and passwords of the addresses in it."""
    return re.sub(r"(?<=://)[^/\s@]+@", "", text)
