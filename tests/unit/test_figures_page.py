"""The list of the paper's figures fits the notebooks and the claims, and its page shows what the cells show."""

import hashlib

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from transformer_circuits import paths
from transformer_circuits.claims import ledger
from transformer_circuits.pages import paper_figures as figures
from transformer_circuits.pages import scoreboard

SVG, TABLE = "<svg/>", "<table><tr><td>row</td></tr></table>"
WIDGET = '<div class="circuits-widget" aria-label="Heads"></div>'


def cells(**shown: tuple[str, str] | None) -> figures.Cells:
    """Return a notebook 01_one with a cell for each name, showing a format and its data, or nothing."""
    made = []
    for name, output in shown.items():
        figure = {"caption": "One. Two."}
        cell = new_code_cell("", metadata={"mystnb": {"image": {"alt": "a < b"}, "figure": figure}})
        cell["id"] = name
        cell.outputs = [new_output("display_data", {output[0]: output[1]})] if output else []
        made.append(cell)
    return figures.Cells({"01_one": new_notebook(cells=made)}, {"01_one": "One"})


def listing(*entries: dict) -> figures.Listed:
    return figures.Listed(paper=[{"section": "S", "figures": list(entries)}])


def test_the_list_names_cells_that_exist_and_shows_every_claim_that_is_measured():
    listed, there = figures.load(paths.ROOT / "book" / "figures.yml"), set()
    for path in (paths.ROOT / "notebooks").glob("*.ipynb"):
        there |= {f"{path.stem}/{cell.id}" for cell in nbformat.read(path, as_version=4).cells}
    named = {place for figure in listed.figures() for place in figure.cell} | set(listed.also.values())
    assert named - there == set()
    measured = {claim.id for claim in ledger.load_claims().values() if claim.kind != "identity"}
    assert measured - listed.places().keys() == set()


def test_a_page_has_the_picture_the_table_the_verdict_and_where_an_interactive_figure_is():
    shown = cells(drawing=("image/svg+xml", SVG), rows=("text/html", TABLE), heads=("text/html", WIDGET))
    places = ["01_one/drawing", "01_one/rows", "01_one/heads"]
    entry = {"title": "A & B", "kind": "figure", "ours": "Same.", "cell": places, "claims": ["T8"]}
    text = figures.page(listing(entry), shown, scoreboard.Results({}))
    assert "A &amp; B" in text and 'alt="a &lt; b"' in text and "not run" in text and "1 One" in text
    assert 'href="scoreboard.html#T8"' in text and 'href="../notebooks/01_one.html#cell-drawing"' in text
    picture = hashlib.sha256(SVG.encode()).hexdigest()
    assert f'src="../_images/{picture}.svg"' in text and "<td>row</td>" in text
    assert '<a href="../notebooks/01_one.html#cell-heads">An interactive figure</a>' in text
    assert [shown.what(place) for place in places] == ["figure", "numbers", "figure"]


ENTRY = "paper: [{section: S, figures: [{title: T, kind: figure, cell: [01_one/c]}]}]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("paper: []\nalso: {Q99: 01_one/c}", "claims.yml does not have: Q99"),
        (ENTRY, "either `ours` or `none`"),
        (ENTRY.replace("kind", "knd"), "paper.0.figures.0.kind: Field required"),
    ],
)
def test_a_list_with_a_mistake_is_named_in_one_sentence(tmp_path, text, message):
    path = tmp_path / "figures.yml"
    path.write_text(text)
    with pytest.raises(figures.FiguresError, match=message):
        figures.load(path)


def test_a_cell_without_a_picture_and_a_cell_that_is_not_there_are_named():
    shown = cells(nothing=None, text=("text/plain", "<Figure>"), words=("text/html", "<p>nothing to see</p>"))
    for name in ("nothing", "text", "words"):
        with pytest.raises(figures.FiguresError, match=f"01_one/{name}, which shows no picture and no table"):
            shown.shown(f"01_one/{name}")
    with pytest.raises(figures.FiguresError, match="01_one/gone, but notebooks/ has none of this name"):
        shown.shown("01_one/gone")
