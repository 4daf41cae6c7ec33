"""Tokens as text on a page: whitespace and invisible characters made visible, markup never interpreted."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

VISIBLE = str.maketrans({" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍", "\x0b": "␋", "\x0c": "␌", "\xa0": "⍽"})


# Control and format characters, separators, private use, surrogates, unassigned: a page shows nothing for them, or a box.
UNSEEN = frozenset(["Cc", "Cf", "Zs", "Zl", "Zp", "Co", "Cs", "Cn"])
# Letters and marks by category, and yet blank: joiners, fillers, the empty braille cell.
BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
VARIATION_SELECTORS = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))


def show_token(token: str) -> str:
    """The token with all its characters visible: " the" -> "·the", "\\n" -> "↵", "\\t" -> "⇥", a zero-width space -> "<U+200B>".

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
    blank = unicodedata.category(character) in UNSEEN or character in BLANK or any(code in part for part in VARIATION_SELECTORS)
    return f"<U+{code:04X}>" if blank else character


class Table:
    """An HTML table that a notebook displays, and that prints as plain text."""

    def __init__(self, frame: pd.DataFrame, token_columns: frozenset[str], digits: int, caption: str | None) -> None:
        self.frame, self.token_columns, self.digits, self.caption = frame, token_columns, digits, caption

    def _text(self, column: str, value: object) -> str:
        if isinstance(value, str):
            return show_token(value) if column in self.token_columns else value
        if isinstance(value, float):
            return "" if math.isnan(value) else f"{value:.{self.digits}f}"
        if isinstance(value, Iterable):
            return "  ".join(self._text(column, v) for v in value)
        return str(value)

    def _cell(self, column: str, value: object) -> str:
        if not isinstance(value, str) and isinstance(value, Iterable):
            return " ".join(self._cell(column, v) for v in value)
        text = html.escape(self._text(column, value))
        return f'<code class="token">{text}</code>' if isinstance(value, str) and column in self.token_columns else text

    def _repr_html_(self) -> str:
        columns = list(self.frame.columns)
        number = [pd.api.types.is_numeric_dtype(self.frame[c]) for c in columns]
        head = "".join(f'<th scope="col">{html.escape(str(c))}</th>' for c in columns)
        rows = [
            "".join(
                f"<td{' class=number' if n else ''}>{self._cell(c, v)}</td>" for c, n, v in zip(columns, number, row, strict=True)
            )
            for row in self.frame.astype(object).itertuples(index=False, name=None)
        ]
        caption = f"<caption>{html.escape(self.caption)}</caption>" if self.caption else ""
        body = "\n".join(f"<tr>{row}</tr>" for row in rows)
        return (
            f'<div class="token-table"><table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'
        )

    def __repr__(self) -> str:
        shown = {c: [self._text(c, v) for v in self.frame[c].astype(object)] for c in self.frame.columns}
        return pd.DataFrame(shown).to_string(index=False)


def token_table(
    rows: pd.DataFrame | Sequence[Mapping[str, object]],
    tokens: Iterable[str] | None = None,
    digits: int = 2,
    caption: str | None = None,
) -> Table:
    """A table for a notebook, from a DataFrame or a list of rows; everything in it appears literally.

    Args:
        rows: cells hold strings, numbers, or lists of either (a list of tokens is shown as one token after another); NaN is left blank.
        tokens: names of the columns whose strings are tokens, shown with visible whitespace; None means every column of strings.
        digits: decimals of numbers that are not whole.
        caption: shown above the table.

    Raises:
        ValueError: there are no rows, or `tokens` names a column that is not there.
    """
    frame = pd.DataFrame(rows)
    if frame.empty:
        raise ValueError("token_table was given no rows to show.")
    frame.columns = [str(c) for c in frame.columns]
    named = frozenset(frame.columns if tokens is None else tokens)
    if missing := named - set(frame.columns):
        raise ValueError(f"token_table has no column named {sorted(missing)}; its columns are {list(frame.columns)}.")
    return Table(frame, named, digits, caption)
