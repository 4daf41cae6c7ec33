"""Pages that are made, not written. Their words are in templates/, as jinja2 templates of MyST and HTML."""

import jinja2

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
