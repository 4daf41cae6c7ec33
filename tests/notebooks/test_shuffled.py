"""A reader may run a chapter's cells once more, in any order: each still works, and prints what it printed. So no name is used for two things.

Names are looked at in all chapters. To run all twice takes ten minutes: `SHUFFLED=all`, once a week in the workflow `weekly`.
"""

import json
import os
import random
import symtable
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

import matplotlib
import nbformat
import pytest
from strip_outputs import CHECKED

from book_build import forks
from book_build.build import code_cells, notebooks
from transformer_circuits.paths import ROOT

SOME = ("03", "09")  # short ones; chapter 0 runs twice below
CHOSEN = [path for path in notebooks(ROOT) if os.environ.get("SHUFFLED") == "all" or path.stem[:2] in SOME]


@pytest.mark.parametrize("path", notebooks(ROOT), ids=lambda path: path.stem)
def test_a_name_that_other_cells_read_is_given_in_one_cell(path):
    assert shared_names({cell.id: cell.source for cell in rerun(path)}) == []


def test_a_name_that_two_cells_give_and_a_third_reads_is_found():
    cells = {"a": "x = [1, 2]\ni = 1", "b": "def f(y):\n    return len(x) + y", "c": "x, i = 5, 2\nprint(i)"}
    assert shared_names(cells) == ["x is given in a and c, and read in b"]
    assert shared_names(cells | {"c": "print(f(3), [x for x in 'ab'])"}) == []


def shared_names(cells: Mapping[str, str]) -> list[str]:
    """Return the names that several cells give and another one reads."""
    tables = {id: symtable.symtable(source, id, "exec") for id, source in cells.items()}
    given = {id: {s.get_name() for s in table.get_symbols() if s.is_assigned()} for id, table in tables.items()}
    read = {id: set(read_in(table)) - given[id] for id, table in tables.items()}
    found = []
    for name in sorted(set().union(*read.values())):
        givers = [id for id in cells if name in given[id]]
        if len(givers) > 1:
            readers = [id for id in cells if name in read[id]]
            found.append(f"{name} is given in {' and '.join(givers)}, and read in {', '.join(readers)}")
    return found


def read_in(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the names of the cell that its code, and the functions in it, read."""
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module"):
            yield symbol.get_name()
    for child in table.get_children():
        yield from read_in(child)


@pytest.mark.parametrize("path", CHOSEN, ids=lambda path: path.stem)
def test_cells_work_once_more_in_any_order(path, tmp_path):
    assert run_twice(path, tmp_path) == []


OF_ANOTHER_NAME = """
assert chances["if Zorblax came first"] != chances["if Halden came first"]
assert "Zorblax".endswith(two.to_string(tokens[0, 1 - pieces:]))
assert names[begin + 1 : begin + 1 + pieces] == names[-pieces:]
"""


def test_chapter_0_asks_for_another_name_as_it_invites_to(tmp_path):
    chapter = nbformat.read(ROOT / "notebooks" / "00_how_to_read.ipynb", as_version=4)
    (given,) = (cell for cell in chapter.cells if 'name, other_name = "Gramley"' in cell.source)
    given.source = given.source.replace("Gramley", "Zorblax")
    chapter.cells.append(nbformat.v4.new_code_cell(OF_ANOTHER_NAME))
    nbformat.write(chapter, tmp_path / "00_zorblax.ipynb")
    assert run_twice(tmp_path / "00_zorblax.ipynb", tmp_path) == []


def run_twice(path: Path, folder: Path) -> list[str]:
    """Return what went wrong in a chapter whose cells ran in order, and then once more in another order."""
    # The server is one for all tests of this process, and kernels that are forked from it draw inline.
    variables = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    forks.start_server(variables)
    out = folder / "problems.json"
    forks.start(in_a_fork, str(path), str(out), variables).join()
    return json.loads(out.read_text())


def in_a_fork(path: str, out: str, variables: Mapping[str, str]) -> None:
    forks.enter(variables, str(Path(path).parent))
    matplotlib.use("agg")
    try:
        found = list(problems(Path(path)))
    except BaseException:
        found = [traceback.format_exc()]
    Path(out).write_text(json.dumps(found))


def problems(path: Path) -> Iterator[str]:
    import matplotlib.pyplot as plt
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell.instance()
    cells = rerun(path)
    again = random.Random(0).sample(cells, len(cells))
    first = {}
    for run, cell in [*((1, cell) for cell in cells), *((2, cell) for cell in again)]:
        with capture_output() as printed:
            result = shell.run_cell(cell.source, store_history=False)
        plt.close("all")
        name = f"{path.stem}/{cell.id}, run {run} ({cell.source.splitlines()[-1]})"
        if error := result.error_before_exec or result.error_in_exec:
            yield f"{name}: {type(error).__name__}: {error}"
            continue
        texts = [printed.stdout, *(output.data.get("text/plain", "") for output in printed.outputs)]
        shown = "\n".join(texts).strip() if CHECKED in tags(cell) else ""
        if first.setdefault(cell.id, shown) != shown:
            yield f"{name} prints {shown!r} instead of {first[cell.id]!r}"


def rerun(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in code_cells(nbformat.read(path, as_version=4)) if "remove-cell" not in tags(cell)]


def tags(cell: nbformat.NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])
