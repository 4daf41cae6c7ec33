"""python -m transformer_circuits.claims check | accept: compare the verdicts of the last build with the accepted ones, or accept them."""

from __future__ import annotations

import argparse
import json
import sys

from transformer_circuits import paths
from transformer_circuits.claims import ledger

VERDICTS = paths.BUILD / "verdicts.json"  # written by the build, from the executed notebooks


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m transformer_circuits.claims", description=__doc__)
    parser.add_argument("action", choices=["check", "accept"])
    action = parser.parse_args(arguments).action
    if not VERDICTS.is_file():
        print("no verdicts yet; run `make book` first", file=sys.stderr)
        return 1
    now = {
        id: ledger.Verdict(verdict)
        for id, verdict in json.loads(VERDICTS.read_text(encoding="utf-8")).items()
    }
    changes = ledger.changed(now, ledger.read_accepted())
    print(
        "\n".join(f"{id}: {old} → {new}" for id, old, new in changes) or "every verdict is the accepted one"
    )
    if action == "accept":
        ledger.accept(now)
        return 0
    return bool(changes)


if __name__ == "__main__":
    sys.exit(main())
