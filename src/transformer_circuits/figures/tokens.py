"""Tokens as text on a page: whitespace and invisible characters made visible, markup never interpreted."""

import functools
import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import pandas as pd
from pandas.api.types import is_numeric_dtype

PICTURES = {chr(code): chr(0x2400 + code) for code in range(32)}  # of control characters
VISIBLE = str.maketrans(PICTURES | {" ": "·", "\n": "↵", "\t": "⇥", "\r": "⇤", "\xa0": "⍽", "\x7f": "␡"})
# Printable to Python, but blank: joiners, fillers, the empty braille cell, variation selectors.
SELECTORS = frozenset(map(chr, [*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]))
BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | SELECTORS


def show_token(token: str) -> str:
    """Return the token as text (not HTML) with all its characters visible: " the" -> "·the", "\\n" -> "↵".

    Control characters become Unicode's pictures of them, others that cannot be seen code points: "<U+200B>".
    """
    unseen = {c for c in token.translate(VISIBLE) if not c.isprintable() or c in BLANK}
    return "".join(f"<U+{ord(c):04X}>" if c in unseen else c for c in token.translate(VISIBLE))


class TokenTable:
    """A table for a notebook, from a DataFrame, rows, or columns: HTML, or plain text. Everything appears literally.

    Cells contain strings, numbers, or lists of either; NaN is left blank. `tokens`: columns of tokens (default:
    all). `digits`: decimals of floats. `markup`: columns that are HTML already. `attributes`: of its box.
    """

    def __init__(
        self,
        rows: pd.DataFrame | Sequence[Mapping[str, object]] | Mapping[str, Sequence[object]],
        tokens: Iterable[str] | None = None,
        digits: int = 2,
        markup: Iterable[str] = (),
        **attributes: str,
    ) -> None:
        frame = pd.DataFrame(rows).rename(columns=str)
        self.frame, self.digits = frame.astype(object), digits
        self.markup, self.attributes = list(markup), {"class": "token-table"} | attributes
        self.tokens = list(frame if tokens is None else tokens)
        self.kinds = [" class=number" if is_numeric_dtype(values) else "" for _, values in frame.items()]

    def _shown(self, plain: Callable[[str], str], token: Callable[[str], str], between: str) -> pd.DataFrame:
        """Return what each cell shows: strings as written by `plain` or `token`; lists joined by `between`."""

        def write(value: object, text: Callable[[str], str]) -> str:
            if isinstance(value, float):
                return "" if math.isnan(value) else f"{value:.{self.digits}f}"
            if isinstance(value, Iterable) and not isinstance(value, str):
                return between.join(write(item, text) for item in value)
            return text(value) if isinstance(value, str) else str(value)

        texts = dict.fromkeys(self.frame, plain) | dict.fromkeys(self.tokens, token) | dict.fromkeys(self.markup, str)
        return pd.DataFrame({c: [write(x, texts[c]) for x in values] for c, values in self.frame.items()})

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in self.frame)
        rows = ""
        for row in self._shown(html.escape, as_code, " ").itertuples(index=False, name=None):
            cells = [f"<td{kind}>{text}</td>" for kind, text in zip(self.kinds, row)]
            rows += f"<tr>{''.join(cells)}</tr>\n"
        box = "".join(f' {name}="{html.escape(value)}"' for name, value in self.attributes.items())
        start = f"<div{box}><table><thead><tr>{head}</tr></thead>"
        return f"{start}\n<tbody>\n{rows}</tbody></table></div>"

    def __repr__(self) -> str:
        return self._shown(str, show_token, "  ").to_string(index=False)


@functools.lru_cache(maxsize=1 << 14)  # lists of a head dump repeat each token a hundred times
def as_code(token: str, kind: str = "") -> str:
    return f'<code class="token{kind}">{html.escape(show_token(token))}</code>'
