"""Each shipped model as a folder for a hub of models, and as the zip that a release needs: `make hub`, in `_build/hub`.

A folder has what `load_model` reads (manifest, shards, tokenizer, log) and a card. The zips have the same without the
card, and the same bytes wherever they are made; their checksums go into `models/released.sha256`.
"""

import io
import zipfile
from pathlib import Path

from book_build.pages import model_cards, render
from transformer_circuits import paths
from transformer_circuits.models import list_models, release
from transformer_circuits.models.registry import manifest
from transformer_circuits.models.shards import TOKENIZER, sha256

OUT = paths.BUILD / "hub"


def files_of(name: str) -> dict[str, bytes]:
    """Return the content of a model's files by name, with its tokenizer; melodies have none."""
    files = {path.name: path.read_bytes() for path in (paths.WEIGHTS / name).glob("[!.]*")}
    if manifest(name).get(TOKENIZER):
        files.setdefault(TOKENIZER, (paths.DATA / TOKENIZER).read_bytes())
    return files


def data_files() -> dict[str, bytes]:
    """Return the content of the book's data by path; notes and records of claims stay in the repository."""
    files = (path for path in paths.DATA.rglob("[!.]*") if path.is_file() and path.suffix not in (".md", ".yml"))
    return {path.relative_to(paths.DATA).as_posix(): path.read_bytes() for path in files}


def zipped(files: dict[str, bytes]) -> bytes:
    """Return a zip of these files: the same bytes on every machine."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            about = zipfile.ZipInfo(name)  # of 1980, without compression
            about.create_system, about.external_attr = 3, 0o644 << 16
            archive.writestr(about, files[name])
    return content.getvalue()


def archives() -> dict[str, bytes]:
    """Return the zips of a release by name: each model, and the book's data."""
    return {name: zipped(files_of(name)) for name in list_models()} | {release.BOOK_DATA: zipped(data_files())}


def write_folder(name: str) -> None:
    """Write the folder of a model, with a card: front matter that hubs read, what it is, how to load it."""
    about = {"melodies": name.startswith("melodies"), "address": release.address().partition("/releases/")[0]}
    about["seed"] = manifest(name)["training"]["run"]["training"].get("seed")
    card = render("hub.md", model=name, card=model_cards.card(name), **about)
    (OUT / name).mkdir(parents=True, exist_ok=True)
    for file, content in (files_of(name) | {"README.md": card.encode()}).items():
        (OUT / name / file).write_bytes(content)


def main() -> None:
    for name in list_models():
        write_folder(name)
    contents = archives()
    for name, content in contents.items():
        (OUT / f"{name}.zip").write_bytes(content)
    lines = [f"{sha256(content)}  {name}.zip\n" for name, content in contents.items()]
    Path(str(release.SUMS)).write_text("".join(lines), encoding="utf8")
    print(f"{OUT}: a folder and a zip for each of {len(contents) - 1} models, and the book's data.")


if __name__ == "__main__":
    main()
