"""The page "Grow one": a model that trains in the reader's browser (`book/_static/grow/`). This module: its text."""

import html
import json
from pathlib import Path

from book_build.pages import render
from transformer_circuits.measures.attention import INDUCTION_HEAD, PREVIOUS_TOKEN_HEAD
from transformer_circuits.measures.weights import COMPOSES


def main(folder: Path) -> str:
    thresholds = {"induction": INDUCTION_HEAD, "previous": PREVIOUS_TOKEN_HEAD, "composes": COMPOSES}
    data, previous = html.escape(json.dumps(thresholds)), f"{PREVIOUS_TOKEN_HEAD:.0%}"
    return render("grow.md", thresholds=data, induction=INDUCTION_HEAD, previous=previous)
