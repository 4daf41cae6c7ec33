"""The list of the paper's figures fits the notebooks and the claims, and its page shows what the cells show."""

import nbformat
from nbformat.v4 import new_code_cell, new_notebook, new_output

from transformer_circuits import paths
from transformer_circuits.claims import ledger
from transformer_circuits.pages import paper_figures as figures
from transformer_circuits.pages import scoreboard

SVG, TABLE = "<svg/>", "<table><tr><td>row</td></tr></table>"


def cells(**shown: tuple[str, str] | None) -> figures.Cells:
    """Return a notebook 01_one with a cell for each name, showing a format and its data, or nothing."""
    made = []
    for name, output in shown.items():
        cell = new_code_cell("", metadata={"mystnb": {"image": {"alt": "a < b"}}})
        cell["id"] = name
        cell.outputs = [new_output("display_data", {output[0]: output[1]})] if output else []
        made.append(cell)
    return figures.Cells({"01_one": new_notebook(cells=made)}, {"01_one": "One"})


def test_the_list_is_complete_names_cells_and_claims_that_exist_and_shows_every_claim_that_is_measured():
    listed, there = figures.load(paths.ROOT / "book" / "figures.yml"), set()
    for path in (paths.ROOT / "notebooks").glob("*.ipynb"):
        there |= {f"{path.stem}/{cell.id}" for cell in nbformat.read(path, as_version=4).cells}
    named = {place for figure in listed.figures for place in figure.cell} | set(listed.also.values())
    assert named - there == set()
    for figure in listed.figures:
        assert figure.cell or figure.page, figure.title
        assert bool(figure.ours) != bool(figure.none), f"{figure.title} needs either `ours` or `none`"
        assert set(figure.claims) <= ledger.load_claims().keys(), figure.title
    assert listed.also.keys() <= ledger.load_claims().keys()
    measured = {claim.id for claim in ledger.load_claims().values() if claim.kind != "identity"}
    assert measured - listed.places().keys() == set()


def test_a_page_has_the_picture_the_table_and_the_verdict():
    shown = cells(drawing=("image/svg+xml", SVG), rows=("text/html", TABLE))
    places = ["01_one/drawing", "01_one/rows"]
    entry = {"title": "A & B", "kind": "figure", "ours": "Same.", "cell": places, "claims": ["T8"]}
    listed = figures.Listed(paper=[{"section": "S", "figures": [entry]}])
    text = figures.page(listed, shown, scoreboard.Results({}))
    assert "A &amp; B" in text and 'alt="a &lt; b"' in text and "not run" in text and "1 One" in text
    assert 'href="scoreboard.html#claim-T8"' in text and 'href="../notebooks/01_one.html#cell-drawing"' in text
    assert 'src="../_images/01_one-drawing.svg"' in text and "<td>row</td>" in text
    assert [shown.what(place) for place in places] == ["figure", "numbers"]
