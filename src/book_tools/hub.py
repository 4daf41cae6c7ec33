"""Each shipped model as a folder for a hub of models: `make hub`, in `_build/hub`.

A folder has what `load_model` reads (manifest, shards, tokenizer, log) and a card.
"""

import importlib.metadata

from book_build.pages import model_cards, render
from transformer_circuits import paths
from transformer_circuits.models import list_models
from transformer_circuits.models.registry import manifest
from transformer_circuits.models.shards import TOKENIZER

OUT = paths.BUILD / "hub"


def files_of(name: str) -> dict[str, bytes]:
    """Return the content of a model's files by name, with its tokenizer; melodies have none."""
    files = {path.name: path.read_bytes() for path in (paths.WEIGHTS / name).glob("[!.]*")}
    if manifest(name).get(TOKENIZER):
        files.setdefault(TOKENIZER, (paths.DATA / TOKENIZER).read_bytes())
    return files


def write_folder(name: str) -> None:
    """Write the folder of a model, with a card: front matter that hubs read, what it is, how to load it."""
    urls = importlib.metadata.metadata("transformer-circuits-reproduced").get_all("Project-URL")
    address = dict(url.split(", ") for url in urls)["Repository"]
    about = {"melodies": name.startswith("melodies"), "address": address}
    about["seed"] = manifest(name)["training"]["run"]["training"].get("seed")
    card = render("hub.md", model=name, card=model_cards.card(name), **about)
    (OUT / name).mkdir(parents=True, exist_ok=True)
    for file, content in (files_of(name) | {"README.md": card.encode()}).items():
        (OUT / name / file).write_bytes(content)


def main() -> None:
    for name in list_models():
        write_folder(name)
    print(f"{OUT}: a folder for each of {len(list_models())} models.")


if __name__ == "__main__":
    main()
