"""python -m transformer_circuits.claims accept: list how the verdicts of the last build differ from the accepted ones, and accept them."""

from __future__ import annotations

import json
import sys

from transformer_circuits import paths
from transformer_circuits.claims import ledger
from transformer_circuits.claims.ledger import ACCEPTED_FILE

VERDICTS = paths.BUILD / "verdicts.json"  # written by the build, from the executed notebooks


def accept() -> None:
    if not VERDICTS.is_file():
        sys.exit("no verdicts yet; run `make book` first")
    stored = json.loads(VERDICTS.read_text(encoding="utf-8"))
    now = {id: ledger.Verdict(verdict) for id, verdict in stored.items()}
    changes = ledger.changed(now, ledger.read_accepted(ACCEPTED_FILE))
    lines = [f"{id}: {old} → {new}" for id, old, new in changes]
    print("\n".join(lines) or "every verdict is the accepted one")
    ledger.accept(now, ACCEPTED_FILE)


if __name__ == "__main__":
    accept() if sys.argv[1:] == ["accept"] else sys.exit(__doc__)
