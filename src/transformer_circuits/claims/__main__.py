"""python -m transformer_circuits.claims check | accept: look through the records of the built book, or accept its verdicts."""

from __future__ import annotations

import argparse
import sys

from transformer_circuits import paths
from transformer_circuits.claims import ledger


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m transformer_circuits.claims", description=__doc__)
    parser.add_argument("action", choices=["check", "accept"])
    action = parser.parse_args(arguments).action
    folder = ledger.claims_folder()
    if not folder.is_dir():
        print("No claim has been recorded yet: run `make book` first.", file=sys.stderr)
        return 1
    changelog = (paths.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if action == "accept":
        try:
            now = ledger.accept(folder, changelog=changelog)
        except ledger.LedgerError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"accepted {sum(v != ledger.Verdict.NOT_RUN for v in now.values())} verdicts of {len(now)} claims")
        return 0
    problems = ledger.check_records(folder, paths.ROOT / "notebooks", ledger.read_accepted(), changelog)
    print("\n".join(problems) or "every claim is in order")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
