"""python -m transformer_circuits.claims accept: list how the verdicts of the last build differ from the accepted ones, and accept them."""

import json
import sys

from transformer_circuits import paths
from transformer_circuits.claims.ledger import ACCEPTED_FILE, Verdict, changed, load_claims, read_accepted

VERDICTS = paths.BUILD / "verdicts.json"  # written by the build, from the executed notebooks
HEAD = "# The verdict on every claim as last accepted: python -m transformer_circuits.claims accept\n"


def accept() -> None:
    if not VERDICTS.is_file():
        sys.exit("no verdicts yet; run `make book` first")
    stored = json.loads(VERDICTS.read_text(encoding="utf-8"))
    now = {id: Verdict(verdict) for id, verdict in stored.items()}
    lines = [f"{id}: {old} → {new}" for id, old, new in changed(now, read_accepted(ACCEPTED_FILE))]
    print("\n".join(lines) or "every verdict is the accepted one")
    accepted = [f"{id}: {now.get(id, Verdict.NOT_RUN)}\n" for id in load_claims()]
    ACCEPTED_FILE.write_text(HEAD + "".join(accepted), encoding="utf-8")


if __name__ == "__main__":
    accept() if sys.argv[1:] == ["accept"] else sys.exit(__doc__)
