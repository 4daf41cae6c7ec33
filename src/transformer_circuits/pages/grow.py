"""The page "Grow one": a model that trains in the reader's browser.

    python -m transformer_circuits.pages.grow OUT.md       (the build does)

The page is `book/_static/grow/`: train.js computes, grow.js draws, both written by hand. This module writes its text, with the thresholds of
`measures`.
"""

import html
import json
import sys
from pathlib import Path

from transformer_circuits.measures.attention import INDUCTION_HEAD, PREVIOUS_TOKEN_HEAD
from transformer_circuits.measures.weights import COMPOSES
from transformer_circuits.pages import render


def page() -> str:
    thresholds = {"induction": INDUCTION_HEAD, "previous": PREVIOUS_TOKEN_HEAD, "composes": COMPOSES}
    return render(
        "grow.md",
        thresholds=html.escape(json.dumps(thresholds)),
        induction=INDUCTION_HEAD,
        previous=f"{PREVIOUS_TOKEN_HEAD:.0%}",
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
