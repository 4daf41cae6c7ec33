"""Tokens as text on a page: whitespace made visible, markup never interpreted."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

VISIBLE = str.maketrans({" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍", "\x0b": "␋", "\x0c": "␌", "\xa0": "⍽"})


def show_token(token: str) -> str:
    """The token with its whitespace made visible: " the" -> "·the", "\\n" -> "↵", "\\t" -> "⇥".

    Other control characters become the pictures that Unicode has for them. The result is plain text, not HTML.
    """
    shown = token.translate(VISIBLE)
    return "".join(chr(0x2400 + ord(c)) if ord(c) < 0x20 else "␡" if c == "\x7f" else c for c in shown)


class Table:
    """An HTML table that a notebook displays, and that prints as plain text."""

    def __init__(self, frame: pd.DataFrame, token_columns: frozenset[str], digits: int, caption: str | None) -> None:
        self.frame, self.token_columns, self.digits, self.caption = frame, token_columns, digits, caption

    def _text(self, column: str, value: object) -> str:
        if isinstance(value, str):
            return show_token(value) if column in self.token_columns else value
        if isinstance(value, float):
            return f"{value:.{self.digits}f}"
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
        rows: cells hold strings, numbers, or lists of either (a list of tokens is shown as one token after another).
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
