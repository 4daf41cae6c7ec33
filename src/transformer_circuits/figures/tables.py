"""Tables of results: formatted numbers and words as headers, as HTML on a page and as text for nbval."""

import html
import math
import re
from collections.abc import Mapping
from numbers import Real

import pandas as pd

FORMAT = ".2f"
MINUS = "\N{MINUS SIGN}"
SENTENCE = 30  # characters from which on a cell is a sentence, and is not aligned as numbers are


class ResultTable:
    """A DataFrame whose numbers have been formatted; what `table` returns."""

    def __init__(self, texts: pd.DataFrame) -> None:
        self.texts = texts

    def _repr_html_(self) -> str:
        words = not self.texts.map(lambda text: any(map(str.isdigit, text))).any(axis=None)
        sentences = words or self.texts.map(len).max(axis=None) > SENTENCE
        bare = self.texts.rename_axis(index=[None] * self.texts.index.nlevels)  # else pandas adds a row for its names
        shown = bare.to_html(border=0, classes=["results", "sentences"] if sentences else "results")  # escaped
        for name in self.texts.index.names:
            shown = shown.replace("<th></th>", f"<th>{html.escape(str(name or ''))}</th>", 1)
        return shown

    def __repr__(self) -> str:
        return self.texts.to_string()


def table(frame: pd.DataFrame | pd.Series, formats: str | Mapping[str, str] = FORMAT) -> ResultTable:
    """Return a table to show as the last value of a cell, or with `display`.

    `formats`: a format for all numbers that are not whole (".2f", ".1%"), or one for each column, FORMAT for the
    others. Integers keep their digits, NaN is left blank. A pair is an estimate and its standard error: "0.64 ± 0.01".
    """
    frame = frame.to_frame("" if frame.name is None else frame.name) if isinstance(frame, pd.Series) else frame

    def text(value: object, form: str) -> str:
        if isinstance(value, tuple):
            return " ± ".join(text(part, form) for part in value)
        value = value.item() if hasattr(value, "item") else value  # of a tensor
        if isinstance(value, bool) or not isinstance(value, Real):
            return re.sub(r"(?<!\S)-(?=\d)", MINUS, str(value))
        if math.isnan(value):
            return ""
        form = "," if hasattr(value, "__index__") and form.endswith("f") else re.sub("^[+-]?", r"\g<0>z", form)
        return format(value, form).replace("-", MINUS)

    of_column = dict.fromkeys(frame, formats if isinstance(formats, str) else FORMAT)
    of_column |= {} if isinstance(formats, str) else formats
    columns = {name: [text(value, of_column[name]) for value in frame[name]] for name in frame}
    return ResultTable(pd.DataFrame(columns, index=frame.index))
