"""The scoreboard page: every claim, the paper's value, ours, the verdict. Made from what the notebooks recorded, never typed.

    python -m transformer_circuits.claims.scoreboard OUT.md
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from pathlib import Path
from urllib.parse import quote

from transformer_circuits import paths
from transformer_circuits.claims import ledger, show
from transformer_circuits.claims.ledger import Verdict

PROSE = """\
# Scoreboard

Every claim of the paper that this book measures. The criteria were written down before any result existed and are judged
by code; the numbers below are those that the chapters recorded when this book was built. *Identity* claims hold on any
weights, up to rounding; the others depend on the models, which are smaller here than in the paper and were trained on less text
(see [the models](models.md)). "Not reproduced" is a result too.

"""


def page(folder: Path, notebooks: Path) -> str:
    """The page in MyST Markdown, from the records in `folder`; chapters are linked to as from a page in `book/`.

    Raises LedgerError for a file in the folder that is no record of a claim.
    """
    claims, records = ledger.load_claims(), ledger.read_records(folder)
    verdicts = list(ledger.verdicts(records).values())
    counts = [(verdict, verdicts.count(verdict)) for verdict in Verdict if verdict in verdicts]
    owners = ledger.notebooks_of_claims(notebooks)
    links = {id: f"../notebooks/{quote(owners[id].stem)}.html" for id in records if id in owners}

    parts = [PROSE, f"{len(claims)} claims, {len(records)} of them measured:\n\n", raw(show.html("counts", counts=counts))]
    for section, group in itertools.groupby(claims.values(), key=lambda claim: claim.section):
        table = show.html("table", claims=list(group), records=records, links=links)
        parts += [f"\n## {section}\n\n", raw(table)]
    return "".join(parts)


def raw(text: str) -> str:
    """HTML inside of MyST, handed through as it is."""
    return f"```{{raw}} html\n{text}\n```\n"


def write_page(path: str | os.PathLike[str]) -> Path:
    """Write the scoreboard page from the records of the last run. Raises LedgerError as `page` does."""
    path = Path(path)
    ledger.write_whole(path, page(ledger.claims_folder(), paths.ROOT / "notebooks"))
    return path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m transformer_circuits.claims.scoreboard", description="Write the scoreboard page.")
    parser.add_argument("out", type=Path, help="Markdown file to write")
    try:
        write_page(parser.parse_args(arguments).out)
    except ledger.LedgerError as error:
        print(f"The scoreboard was not written. {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
