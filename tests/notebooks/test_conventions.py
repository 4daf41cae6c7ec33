"""Each chapter keeps the conventions; and each convention is seen to notice when it is broken."""

from __future__ import annotations

import copy
import importlib.util

import nbformat
import pytest
from conventions import CHECKED, CHECKS, figure_labels, notebooks, problems
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from transformer_circuits.build import Book, is_generated
from transformer_circuits.paths import ROOT

METADATA = {
    "kernelspec": {"name": "python3", "display_name": "Python 3"},
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}
FIGURE = {"mystnb": {"figure": {"caption": "Loss.", "name": "fig-loss"}, "image": {"alt": "Loss falls as the model reads on."}}}


def stamp():
    spec = importlib.util.spec_from_file_location("stamp", ROOT / ".ci" / "stamp.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", notebooks(ROOT), ids=lambda p: p.stem)
def test_conventions(path):
    assert problems(nbformat.read(path, as_version=4)) == []


@pytest.mark.parametrize("path", notebooks(ROOT), ids=lambda p: p.stem)
def test_first_cell(path):
    notebook = nbformat.read(path, as_version=4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert first.source == stamp().first_cell(), "run `make stamp` (or python .ci/stamp.py)"
    assert first.metadata == stamp().FOLDED, "run `make stamp` (or python .ci/stamp.py)"


def test_every_figure_of_the_book_has_a_label_of_its_own(good):
    labels = [name for path in notebooks(ROOT) for name in figure_labels(nbformat.read(path, as_version=4))]
    assert {name for name in labels if labels.count(name) > 1} == set()
    assert figure_labels(good) == ["fig-loss"]


def test_table_of_contents_lists_every_notebook():
    listed = Book(ROOT).notebooks()
    assert sorted(listed) == notebooks(ROOT)
    assert len(set(listed)) == len(listed)
    missing = [f for f in Book(ROOT).files() if not is_generated(f) and not list(ROOT.glob(f"{f}.*"))]
    assert missing == []


@pytest.fixture
def good():
    checked = new_code_cell("print(1)", metadata={"tags": [CHECKED]}, execution_count=1)
    checked.outputs = [new_output("stream", name="stdout", text="1\n")]
    cells = [
        new_markdown_cell("# Heads add up\n\nPlain text, $x$."),
        new_code_cell("plt.plot(x)\nplt.show()", metadata=copy.deepcopy(FIGURE)),
        checked,
    ]
    return new_notebook(cells=cells, metadata=METADATA)


def test_a_good_notebook_passes(good):
    assert problems(good) == []


def break_outputs(nb):
    nb.cells[1].outputs = [new_output("stream", name="stdout", text="left over")]


def break_check(nb):
    nb.cells[2].outputs = []


def break_picture(nb):
    nb.cells[2].outputs = [new_output("display_data", data={"image/png": "aGk="})]


def break_widgets(nb):
    nb.metadata["widgets"] = {}


def break_role(nb):
    nb.cells[0].source += "\n\nSee {cite:t}`elhage2021`."


def break_directive(nb):
    nb.cells[0].source += "\n\n```{note}\nhello\n```"


def break_fence(nb):
    nb.cells[0].source += "\n\n:::note\nhello\n:::"


def break_order(nb):
    nb.cells.insert(0, new_code_cell("1"))


def break_title(nb):
    nb.cells.append(new_markdown_cell("# Another title"))


def break_caption(nb):
    del nb.cells[1].metadata["mystnb"]["figure"]["caption"]


def break_alt(nb):
    del nb.cells[1].metadata["mystnb"]["image"]


def break_label(nb):
    nb.cells[1].metadata["mystnb"]["image"]["alt"] = "loss_plot"


def break_length(nb):
    nb.cells[1].source = "\n".join(["x = 1"] * 16)


def break_number(nb):
    nb.cells += [new_markdown_cell("More.") for _ in range(50)]


def break_skip(nb):
    nb.cells[1].metadata["tags"] = ["nbval-skip"]


def break_marker(nb):
    nb.cells[1].source += "\n# NBVAL_IGNORE_OUTPUT"


BREAKS = [value for name, value in sorted(globals().items()) if name.startswith("break_")]


@pytest.mark.parametrize("damage", BREAKS, ids=lambda f: f.__name__)
def test_each_convention_notices(good, damage):
    damage(good)
    assert problems(good)


def test_every_check_is_seen_to_fail(good):
    seen = set()
    for damage in BREAKS:
        notebook = copy.deepcopy(good)
        damage(notebook)
        seen |= {problem.split(":")[0] for problem in problems(notebook)}
    assert seen == {check.__name__ for check in CHECKS}


def test_long_cells_may_be_hidden_and_comments_do_not_count(good):
    good.cells[1].source = "\n".join(["x = 1"] * 20)
    good.cells[1].metadata = {"tags": ["hide-input"]}
    good.cells.append(new_code_cell("\n".join(["# why", "", "x = 1"] * 15)))
    assert problems(good) == []
