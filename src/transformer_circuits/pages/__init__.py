"""Pages that are made, not written: the build runs these modules. Their words are in templates/, as jinja2 templates of MyST and HTML."""

from typing import Any

import jinja2
import pandas as pd

from transformer_circuits.claims import show

# Adds to the templates of a claim's card. What goes into MyST is not escaped: modules hand over Markdown, or HTML.
TEMPLATES = show.TEMPLATES.overlay(
    loader=jinja2.ChoiceLoader([jinja2.PackageLoader(__name__), show.TEMPLATES.loader]),
    autoescape=lambda name: not name.endswith(".md"),
    keep_trailing_newline=True,
)


def filled(name: str, **variables: object) -> str:
    """Return HTML from a template, as MyST hands it through."""
    return f"```{{raw}} html\n{show.html(TEMPLATES.get_template(name), **variables)}\n```"


def render(name: str, **variables: object) -> str:
    """Return a page in MyST from a template, which may contain what `filled` returns."""
    return TEMPLATES.get_template(name).render(filled=filled, **variables)


def pipe_table(frame: pd.DataFrame) -> str:
    """Write a data frame as a table in Markdown; whole numbers in groups of three digits, others with three decimals."""

    def cell(value: Any) -> str:
        if isinstance(value, (int, float)):
            return f"{value:,.0f}" if value == int(value) else f"{value:.3f}"
        return str(value).replace("|", "\\|")

    shown = frame.map(cell).rename(columns=lambda name: str(name).replace("_", " "))
    return shown.to_markdown(disable_numparse=True)
