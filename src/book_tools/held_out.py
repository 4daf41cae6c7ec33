"""Judge a held-out seed by the book's criteria: run chapters with another model, and keep their records.

    python -m book_tools.held_out notebooks/06_composition.ipynb notebooks/07_induction_heads.ipynb

Code cells that name "attn-only-2l" get the seed's name; cells that fail for it are listed and skipped. The records go
to data/held_out_seed.yml. Run it once, when every criterion has been committed, and keep only claims about this model
(`--claims T3 T8`): a chapter judges others too.
"""

import argparse
import re
import subprocess
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from book_build.build import TIMEOUT, code_cells, source_of
from transformer_circuits.claims import ledger, show
from transformer_circuits.claims.ledger import Record
from transformer_circuits.paths import DATA, ROOT

MODEL, SEED = "attn-only-2l", "attn-only-2l-seed-3"


def judged(path: Path, name: str) -> tuple[list[Record], list[str]]:
    """Run a notebook on another model. Returns its records, and a line for each cell that failed. Raises ValueError if
    the notebook does not name MODEL: its records would be those of the book's model."""
    notebook = nbformat.read(path, as_version=4)
    cells, before = code_cells(notebook), source_of(notebook)
    for cell in cells:
        cell.source = re.sub(rf"(['\"]){MODEL}\1", rf"\g<1>{name}\g<1>", cell.source)
    if source_of(notebook) == before:
        raise ValueError(f'{path.name} has no "{MODEL}" in its code cells, so it judges other models; leave it out')
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=TIMEOUT, allow_errors=True, resources=resources).execute()
    errors = [(cell.id, output) for cell in cells for output in cell.outputs if output.output_type == "error"]
    failed = [f"{path.name}, cell {id}: {error.ename}: {error.evalue}" for id, error in errors]
    return list(show.records_in(notebook)), failed


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Judge a held-out seed by the book's criteria.")
    parser.add_argument("notebooks", nargs="+", type=Path, help="the chapters to run")
    parser.add_argument("--claims", nargs="*", default=[], help="the claims to keep (default: all)")
    parser.add_argument("--model", default=SEED, help=f"name of the model in the place of {MODEL} (default: {SEED})")
    parser.add_argument("--out", type=Path, default=DATA / ledger.HELD_OUT, help="the file to write")
    options = parser.parse_args(arguments)
    records: list[Record] = []
    for path in options.notebooks:
        found, failed = judged(path, options.model)
        records += [record for record in found if record.id in (options.claims or [record.id])]
        print(f"{path.name}: {len(found)} claims judged", *failed, sep="\n  ", flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    ledger.save_elsewhere(options.out, options.model, f"by the criteria of commit {commit.stdout.strip()}", records)


if __name__ == "__main__":
    main()
