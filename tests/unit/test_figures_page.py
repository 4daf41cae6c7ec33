"""The list of the paper's figures fits the notebooks and the claims; what is shown small is what the cells show."""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from transformer_circuits import paths
from transformer_circuits.claims import ledger
from transformer_circuits.pages import figures, scoreboard

LISTED = figures.load(paths.ROOT / "book" / "figures.yml")
SVG = '<svg width="4"><metadata>x</metadata><path d="M 1.2345 0.04" style="fill: #f00"/><path d="M 2 3" style="fill: #f00"/></svg>'
TABLE = "<table><thead><tr><th>n</th></tr></thead><tbody>" + "".join(f"<tr><td>row {i}</td></tr>" for i in range(9)) + "</tbody></table>"


def cells(**shown):
    """A notebook 01_one with a cell for each name, showing a format and its data, or nothing."""
    made = []
    for name, output in shown.items():
        cell = new_code_cell("", metadata={"mystnb": {"image": {"alt": "a < b"}, "figure": {"caption": "One. Two."}}})
        cell["id"], cell.outputs = name, [new_output("display_data", {output[0]: output[1]})] if output else []
        made.append(cell)
    return figures.Cells({"01_one": new_notebook(cells=made)}, {"01_one": "One"})


def listing(*entries):
    return figures.Listed(paper=[{"section": "S", "figures": list(entries)}])


def test_the_list_names_cells_that_exist_and_shows_every_claim_that_is_no_identity():
    there = set()
    for path in (paths.ROOT / "notebooks").glob("*.ipynb"):
        there |= {f"{path.stem}/{cell.id}" for cell in nbformat.read(path, as_version=4).cells}
    named = {place for figure in LISTED.figures() for place in figure.cell} | set(LISTED.also.values())
    assert named - there == set()
    measured = {claim.id for claim in ledger.load_claims().values() if claim.kind != "identity"}
    assert measured - figures.places(LISTED).keys() == set()


def test_a_page_has_the_picture_the_table_and_the_verdict(tmp_path):
    shown = cells(drawing=("image/svg+xml", SVG), rows=("text/html", TABLE))
    entry = {"title": "A & B", "kind": "figure", "ours": "Same.", "cell": ["01_one/drawing", "01_one/rows"], "claims": ["T8"]}
    text = figures.page(listing(entry), shown, scoreboard.Results({}), tmp_path / "figures")
    assert "A &amp; B" in text and 'alt="a &lt; b"' in text and 'href="scoreboard.html#T8"' in text and "not run" in text
    assert 'href="../notebooks/01_one.html#cell-drawing"' in text and "1 One" in text
    assert "row 2" in text and "row 3" not in text and "The first 3 of 9 rows." in text
    (written,) = (tmp_path / "figures").iterdir()
    assert written.read_text() == '<svg width="4"><style>.s0{fill: #f00}</style><path d="M 1.2 0" class="s0"/><path d="M 2 3" class="s0"/></svg>'


def test_the_heads_of_a_widget_become_small_heat_maps(tmp_path):
    widget = '<div class="circuits-widget" aria-label="Heads"></div><script type="application/json">{"attention":[[[1,0],[0.5,0.5]]]}</script>'
    text = figures.shown(cells(heads=("text/html", widget)), "01_one/heads", tmp_path / "figures")
    assert (tmp_path / "figures" / "01_one-heads.png").read_bytes()[:4] == b"\x89PNG" and "Heads; small heat maps" in text


@pytest.mark.parametrize("shown", [None, ("text/plain", "<Figure size 640x480>"), ("text/html", "<p>nothing to see</p>")])
def test_a_cell_without_a_picture_is_named_in_one_sentence(tmp_path, shown):
    with pytest.raises(figures.FiguresError, match=re.escape("figures.yml names the cell 01_one/c, which shows no picture and no table")):
        figures.shown(cells(c=shown), "01_one/c", tmp_path)


def test_a_cell_that_is_not_there_and_a_claim_that_is_not_there_are_named(tmp_path):
    with pytest.raises(figures.FiguresError, match="the cell 01_one/gone, and there is none of this name"):
        figures.shown(cells(), "01_one/gone", tmp_path)
    path = tmp_path / "figures.yml"
    path.write_text("paper: []\nalso: {Q99: 01_one/c}")
    with pytest.raises(figures.FiguresError, match="claims.yml does not have: Q99"):
        figures.load(path)
    path.write_text("paper: [{section: S, figures: [{title: T, kind: figure, cell: [01_one/c]}]}]")
    with pytest.raises(figures.FiguresError, match="either `ours` or `none`"):
        figures.load(path)


def test_figures_of_ours_alone_are_listed_by_chapter():
    own = figures.others(listing(), cells(c=("image/svg+xml", SVG)))
    assert own == {"1 One": [("../notebooks/01_one.html#cell-c", "One")]}
