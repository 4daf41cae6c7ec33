"""Pictures that answer: small ones on a chapter's page, drawn by `book/_static/live.js`; elsewhere a sentence."""

import html

from transformer_circuits.figures.widgets import as_json

KINDS = ("eigenvalues", "circuits", "graph", "paths")


class Live:
    """One such picture with its numbers; a notebook displays it."""

    def __init__(self, kind: str, label: str, numbers: dict[str, object]) -> None:
        self.kind, self.label, self.json = kind, label, as_json(numbers)

    def _repr_html_(self) -> str:
        label = html.escape(self.label)
        return (
            f'<div class="tc-live" data-kind="{self.kind}" aria-label="{label}" role="group">'
            f"<p>On the page of this chapter, this picture answers: {label}.</p>"
            f'<script type="application/json">{self.json}</script></div>'
        )

    def __repr__(self) -> str:
        return f"On the page of this chapter, this picture answers: {self.label}."


def live(kind: str, label: str, **numbers: object) -> Live:
    """Return a picture of one of KINDS, to show as the last value of a cell.

    `label`: what a reader can do, without a period. `numbers`: what live.js reads. Raises ValueError for other kinds.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    return Live(kind, label, numbers)
