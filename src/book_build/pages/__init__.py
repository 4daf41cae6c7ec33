"""Pages that are made, not written. Their words are in templates/, as jinja2 templates of MyST and HTML."""

import base64
import gzip
import json
import re
from collections.abc import Mapping

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


def as_script(facts: Mapping[str, object], content: bytes) -> str:
    """Return a script that hands a page its data: a page opened from disk may load scripts, but no other files."""
    data = base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode()
    return f'pageData({json.dumps(facts)}, "{data}");\n'


# A comment of MyST, below a page's title: JupyterLab, where links of notebooks open the source of a page, shows it.
SOURCE = "% *This is the source of a page. `make book` makes the page: open the file of this name in `_build/html`.*"


def render(name: str, **variables: object) -> str:
    """Return a page in MyST from a template, which may contain what `filled` returns."""
    page = TEMPLATES.get_template(name).render(filled=filled, **variables)
    return re.sub(r"^# .*$", rf"\g<0>\n\n{SOURCE}", page, count=1, flags=re.MULTILINE)
