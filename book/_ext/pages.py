"""Bring what Sphinx reads up to date, and add to the page of a notebook what its text lacks: an anchor at each cell, a
name for each folded one, the pictures themselves. Folds in a row become one. The headline figure moves below the first
paragraph. Chapters are numbered by their files. Thebe is left out: it would come from a public server; MathJax, where a
page has no maths."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.errors import ExtensionError
from sphinx.util import logging

from transformer_circuits.figures.style import themed
from transformer_circuits.paths import chapter_number

logger = logging.getLogger(__name__)


def make_sources(app, config) -> None:
    """Run the notebooks, and make the generated pages, that are not up to date. In `make book` that has been done."""
    Path(app.outdir, ".complete").unlink(missing_ok=True)  # says that these are the pages of `make book`
    if os.environ.get("TRANSFORMER_CIRCUITS_BOOK") != "1":
        command = [sys.executable, "-m", "book_build", "--sources", "--root", app.srcdir]
        if subprocess.run(command).returncode:
            raise ExtensionError("what the book is made from could not be made: see the message above")


def with_outputs(app, docname: str, source: list[str]) -> None:
    """Read a notebook as the build ran it: its file has no outputs."""
    executed = Path(app.srcdir) / "_build" / "executed" / f"{Path(docname).name}.ipynb"
    if docname.startswith("notebooks/") and executed.is_file():
        app.env.note_dependency(str(executed))  # new outputs are a new page, although the notebook is the old one
        source[0] = executed.read_text(encoding="utf-8")


def notebook_cells(app, doctree) -> Iterator[tuple[nodes.container, dict]]:
    """Return each code cell that the page shows, with what the notebook's file contains of it."""
    path = Path(app.env.doc2path(app.env.docname))
    if path.suffix != ".ipynb":
        return
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for node in doctree.findall(nodes.container):
        if node.get("nb_element") == "cell_code":
            yield node, cells[node["cell_index"]]


def draw_pictures(app, doctree) -> None:
    """Put the pictures that cells drew into the page itself, where they take its colors and its font."""
    for node, cell in notebook_cells(app, doctree):
        for number, image in enumerate(list(node.findall(nodes.image))):
            drawn = Path(app.env.relfn2path(image["uri"], app.env.docname)[1])
            if drawn.suffix == ".svg":
                prefix = f"{cell['id']}-{number}"
                svg = themed(drawn.read_text(encoding="utf-8"), image.get("alt", ""), prefix)
                image.replace_self(nodes.raw("", svg, format="html"))


def name_cells(app, doctree) -> None:
    """Make each cell `x` a target of links as `#cell-x`, whether or not it shows a numbered figure. Show what a folded
    cell contains, also when it is open: the comment in its first line, or the title in its metadata."""
    for node, cell in notebook_cells(app, doctree):
        node["ids"].append(f"cell-{cell['id']}")
        first = "".join(cell["source"]).partition("\n")[0].replace("# Plot", "# Code of the figure")
        if node.get("hide_mode") in ("input", "all") and first.startswith("# "):
            node["prompt_show"] = node["prompt_hide"] = first[2:].strip()
        elif title := cell["metadata"].get("mystnb", {}).get("code_prompt_show"):
            node["prompt_hide"] = title


def gather_folds(app, doctree) -> None:
    """Put folded cells in a row, from three on, into one fold."""
    for section in doctree.findall(nodes.section):
        for folded, row in itertools.groupby(list(section), key=lambda node: node.get("hide_mode") == "all"):
            if folded and len(cells := list(row)) > 2:
                start = f'<details class="hide"><summary>{len(cells)} more computations</summary>'
                section.insert(section.index(cells[0]), nodes.raw("", start, format="html"))
                section.insert(section.index(cells[-1]) + 1, nodes.raw("", "</details>", format="html"))


def lift_headline(app, doctree) -> None:
    """Move figures of the cells tagged `headline` below the page's first paragraph, into the first screen, or below the
    opening's question, whose answer they may show.

    The cell keeps its code, and a link upward. In JupyterLab and on Colab the figure is where it is computed.
    """
    lifted = nodes.container(classes=["tc-headline"])
    for node, cell in notebook_cells(app, doctree):
        if "headline" in cell["metadata"].get("tags", []):
            figures = list(node.findall(nodes.figure))
            if not figures:
                logger.warning("this cell is tagged `headline`, but shows no figure", location=node)
            for figure in figures:
                figure.parent.replace(figure, link_to(app, figure))  # its id goes along with it
                lifted.append(figure)
    if lifted.children:
        page = next(doctree.findall(nodes.section))
        page.insert(place_of_headline(page), lifted)


def place_of_headline(page: nodes.section) -> int:
    """Return where the headline of a page belongs: after its first paragraph, or after the question of its opening."""
    paragraphs = [i for i, node in enumerate(page) if isinstance(node, nodes.paragraph)]
    asked = [i for i in paragraphs if page[i].astext().startswith("Before you look")]
    folds = [i for i, node in enumerate(page) if isinstance(node, nodes.raw) and "</details>" in node.astext()]
    answered = [i for i in folds if asked and i > asked[0]]
    return (answered or paragraphs or [0])[0] + 1  # 0: the title


def link_to(app, figure: nodes.figure) -> nodes.paragraph:
    """Return a line that leads from the place where a figure is computed to the figure."""
    target = {"refdomain": "std", "reftype": "numref", "reftarget": figure["names"][0]}
    target |= {"refexplicit": False, "refwarn": True, "refdoc": app.env.docname}
    text = nodes.inline("", "%s", classes=["std", "std-numref"])
    parts = [addnodes.pending_xref("", text, **target), nodes.Text(" is at the top of this page.")]
    return nodes.paragraph("", "", *parts, classes=["tc-origin"])


def number_by_file(app, env) -> None:
    """Number chapters, their sections and their figures by the names of their files, as in 18.2 and A3.2: the story is
    not in the order of the numbers, and Sphinx would count through.

    Sphinx has assigned its numbers and has stored them when this runs, so that a later build does not take ours for a
    change.
    """
    for page, contents in env.tocs.items():
        named = chapter_number(page.removeprefix("notebooks/"))
        numbered, number = named.isdigit(), (named,) if named else ()  # of appendices, figures alone
        for part in (env.titles[page], *contents.findall(nodes.reference)):
            if "secnumber" in part:
                part["secnumber"] = (*number, *part["secnumber"][1:]) if numbered else None
        sections = env.toc_secnumbers.get(page, {})
        sections.update({id: (*number, *at[1:]) if numbered else () for id, at in sections.items()})
        for figures in env.toc_fignumbers.get(page, {}).values():
            figures.update({id: (*number, i) for i, id in enumerate(figures, 1)})


def write_in_two_processes(app, env) -> None:
    """Write pages in two processes; jupyter-book has no option for it. (Not all of its extensions allow pages to be
    read so.)"""
    app.parallel = 3  # of which one only hands pages out


def drop_scripts(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Drop Thebe, and MathJax from pages without maths: Sphinx adds it to a page that lists others which have some."""
    unwanted = ["thebe"] if 'class="math' in context.get("body", "") else ["thebe", "mathjax"]

    def wanted(script) -> bool:
        text = f"{script.filename} {script.attributes.get('body')}".lower()
        return not any(name in text for name in unwanted)

    context["script_files"] = [script for script in context["script_files"] if wanted(script)]


def setup(app) -> dict[str, bool]:
    app.connect("config-inited", make_sources, priority=1)  # before the table of contents looks for pages
    app.connect("source-read", with_outputs)
    app.connect("doctree-read", draw_pictures, priority=100)  # before Sphinx collects images
    for change in (name_cells, gather_folds, lift_headline):
        app.connect("doctree-read", change)
    app.connect("env-check-consistency", number_by_file)
    app.connect("env-check-consistency", write_in_two_processes)
    app.connect("html-page-context", drop_scripts, priority=999)  # after all others have added their scripts
    return {"parallel_read_safe": True, "parallel_write_safe": True}
