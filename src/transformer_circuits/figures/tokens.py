"""Tokens as text on a page: whitespace and invisible characters made visible, markup never interpreted."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence

import pandas as pd

VISIBLE = str.maketrans({" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍", "\x0b": "␋", "\x0c": "␌", "\xa0": "⍽"})


# Control and format characters, separators, private use, surrogates, unassigned: a page shows nothing for them, or a box.
UNSEEN = frozenset(["Cc", "Cf", "Zs", "Zl", "Zp", "Co", "Cs", "Cn"])
# Letters and marks by category, but blank: joiners, fillers, the empty braille cell.
BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
VARIATION_SELECTORS = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))


def show_token(token: str) -> str:
    """Return the token with all its characters visible: " the" -> "·the", "\\n" -> "↵", "\\t" -> "⇥", a zero-width space -> "<U+200B>".

    Control characters become the pictures that Unicode has for them, others that cannot be seen their code points. The result is
    plain text, not HTML.
    """
    return "".join(_visible(character) for character in token.translate(VISIBLE))


def _visible(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    selects = any(code in part for part in VARIATION_SELECTORS)
    blank = unicodedata.category(character) in UNSEEN or character in BLANK or selects
    return f"<U+{code:04X}>" if blank else character


class Table:
    """An HTML table that a notebook displays, and that prints as plain text."""

    def __init__(
        self, frame: pd.DataFrame, tokens: Collection[str], digits: int, caption: str | None
    ) -> None:
        self.frame, self.tokens, self.digits, self.caption = frame, tokens, digits, caption

    def _parts(self, column: str, value: object) -> list[tuple[str, bool]]:
        """Return what a cell shows: pieces of text, and whether each is a token."""
        if isinstance(value, str):
            is_token = column in self.tokens
            return [(show_token(value) if is_token else value, is_token)]
        if isinstance(value, float):
            return [("" if math.isnan(value) else f"{value:.{self.digits}f}", False)]
        if isinstance(value, Iterable):
            return [part for item in value for part in self._parts(column, item)]
        return [(str(value), False)]

    def _cell(self, column: str, value: object) -> str:
        kind = " class=number" if pd.api.types.is_numeric_dtype(self.frame[column]) else ""
        parts = [(html.escape(text), is_token) for text, is_token in self._parts(column, value)]
        shown = [f'<code class="token">{text}</code>' if is_token else text for text, is_token in parts]
        return f"<td{kind}>{' '.join(shown)}</td>"

    def _repr_html_(self) -> str:
        columns = list(self.frame.columns)
        head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in columns)
        caption = f"<caption>{html.escape(self.caption)}</caption>" if self.caption else ""
        rows = [
            f"<tr>{''.join(map(self._cell, columns, row))}</tr>"
            for row in self.frame.astype(object).itertuples(index=False, name=None)
        ]
        body = f"<tbody>\n{chr(10).join(rows)}\n</tbody>"
        return (
            f'<div class="token-table"><table>{caption}<thead><tr>{head}</tr></thead>\n{body}</table></div>'
        )

    def __repr__(self) -> str:
        shown = {
            column: [
                "  ".join(text for text, _ in self._parts(column, value))
                for value in self.frame[column].astype(object)
            ]
            for column in self.frame.columns
        }
        return pd.DataFrame(shown).to_string(index=False)


def token_table(
    rows: pd.DataFrame | Sequence[Mapping[str, object]],
    tokens: Iterable[str] | None = None,
    digits: int = 2,
    caption: str | None = None,
) -> Table:
    """Return a table for a notebook, from a DataFrame or a list of rows; everything in it appears literally.

    Cells contain strings, numbers, or lists of either (a list of tokens is shown as one token after another); NaN is left blank. `tokens`
    names the columns whose strings are tokens, shown with visible whitespace (default: every column). `digits`: decimals of numbers that
    are not whole. Raises ValueError if `tokens` names an unknown column.
    """
    frame = pd.DataFrame(rows).rename(columns=str)
    named = frozenset(frame.columns if tokens is None else tokens)
    if missing := named - set(frame.columns):
        raise ValueError(f"tokens must name columns of {list(frame.columns)}, got {sorted(missing)}")
    return Table(frame, named, digits, caption)
