"""The conventions that every notebook keeps beside what git's filter sees to (test_stamp). The functions yield the sentences that say what is wrong, none if nothing is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from nbformat import NotebookNode
from strip_outputs import CHECKED

from workbooks import EXERCISES

MOST_LINES = 22  # of code in any cell
WIDEST = 92  # characters in a line of code that a page shows
SKIPS = {"nbval-skip", "nbval-ignore-output", "skip-execution", "raises-exception"}
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
MYST = re.compile(r"\{[a-z][a-z:_-]*\}`|^\s*(```+|:::+|~~~+)\s*\{|^:::|^\([\w-]+\)=\s*$", re.MULTILINE)


def code_cells(notebook: NotebookNode) -> list[tuple[int, NotebookNode]]:
    return [(i, cell) for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]


def tagged(cell: NotebookNode, start: str) -> bool:
    return any(tag.startswith(start) for tag in cell.metadata.get("tags", []))


def in_a_code_cell(cell: NotebookNode) -> Iterator[str]:
    if tagged(cell, CHECKED) and not cell.outputs:
        yield f"is tagged {CHECKED} but has nothing to compare: run `make outputs`"
    elif any(set(output.get("data", ())) - {"text/plain", "text/html"} for output in cell.outputs):
        yield "keeps an output that is neither printed nor a table: nbval compares text only"
    if ".to_string(" in cell.source:
        yield "prints a table: show it with `figures.tables.table`"
    lines = len(re.findall(r"^ *[^\s#]", cell.source, re.MULTILINE))
    if lines > MOST_LINES:
        yield f"has {lines} lines of code, more than {MOST_LINES}: split it, or leave something out"
    shown = not tagged(cell, "hide") and not tagged(cell, "remove") and "# @param" not in cell.source
    if shown and max(map(len, cell.source.splitlines())) > WIDEST:
        yield f"shows a line of more than {WIDEST} characters, which a page breaks: split it"
    if tagged(cell, "hide") and not cell.source.startswith("# "):
        yield "is folded but its first line does not say what it holds, such as `# Plot`"
    if SKIPS & set(cell.metadata.get("tags", [])) or "NBVAL_" in cell.source:
        yield "hides a failure from nbval or from the build: every cell is run and none may fail"


def in_a_notebook(notebook: NotebookNode) -> Iterator[str]:
    cells, code = notebook.cells, code_cells(notebook)
    if not any(tagged(cell, CHECKED) for _, cell in code):
        yield f"no cell is tagged {CHECKED}: a number could drift unseen"
    prose = {i: cell.source for i, cell in enumerate(cells) if cell.cell_type == "markdown"}
    # Colab and GitHub show MyST as raw text, so that notebooks do without; one title, first.
    titles = []
    for i, text in prose.items():
        if found := MYST.search(text):
            yield f"cell {i} holds MyST, which Colab shows raw: {found[0].strip()!r}"
        text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        titles += [i] * len(re.findall(r"^# ", text, re.MULTILINE))
    if titles != [0] or not cells[0].source.startswith("# "):
        yield f"titles (# ...) in the cells {titles}: one must begin the first cell"


def code_in_text(notebook: NotebookNode) -> Iterator[str]:
    """Python in Markdown, such as the solution of an exercise, runs when a reader tries it: it parses, and the package has what it names."""
    prose = [(i, cell.source) for i, cell in enumerate(notebook.cells) if cell.cell_type == "markdown"]
    blocks = [(i, code) for i, source in prose for code in PYTHON.findall(source)]
    imported: dict[str, object] = {}
    for source in [cell.source for _, cell in code_cells(notebook)] + [code for _, code in blocks]:
        for line in re.findall(r"^\s*(from transformer_circuits[\w.]* import .*)", source, re.MULTILINE):
            exec(line, imported)
    modules = {name: value for name, value in imported.items() if isinstance(value, ModuleType)}
    for i, code in blocks:
        for node in ast.walk(ast.parse(code)):
            match node:
                case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in modules:
                    if not hasattr(modules[name], attribute):
                        yield f"cell {i} uses {name}.{attribute}, which does not exist"


def stubs(notebook: NotebookNode) -> list[tuple[int, ast.FunctionDef]]:
    """Return the cells that consist of one function that is not written yet, and that function."""
    found = []
    for i, cell in code_cells(notebook):
        if re.search(r"^    raise NotImplementedError$", cell.source, re.MULTILINE):
            found.append((i, ast.parse(cell.source).body[0]))
    return found


def workbook(notebook: NotebookNode) -> Iterator[str]:
    """A stub has the signature and the docstring of its solution; its check follows, then its help, and what it finds is closed."""
    for i, stub in stubs(notebook):
        solution = ast.parse(EXERCISES[stub.name].code).body[0]
        solution.body[1:] = ast.parse("raise NotImplementedError").body
        if ast.dump(stub) != ast.dump(solution):
            yield f"cell {i} must be the signature and the docstring of {stub.name}'s solution, and raise NotImplementedError"
        checked = notebook.cells[i + 1]
        if not checked.source.endswith(f" = check({stub.name})") or not tagged(checked, CHECKED):
            yield f"cell {i + 1} must be `... = check({stub.name})`, with the tag {CHECKED}"
        alone = f'helped("{stub.name}")'
        helps = notebook.cells[i + 2]
        if helps.source != alone or not tagged(helps, "remove-input"):
            yield f"cell {i + 2} must be helped({stub.name!r}) alone, with the tag remove-input"
    for i, cell in code_cells(notebook) if stubs(notebook) else ():
        if "plt." in cell.source and "import" not in cell.source and "\ndrawn(\n" not in cell.source:
            yield f"cell {i} shows what a function finds: it must end with drawn(...), which is folded until the check has passed"
        if "answered(" in cell.source and not cell.metadata.get("jupyter", {}).get("source_hidden"):
            yield f"cell {i} has an answer in its code: jupyter.source_hidden must fold it"


def problems(notebook: NotebookNode) -> list[str]:
    code = code_cells(notebook)
    of_cells = [f"cell {i} {problem}" for i, cell in code for problem in in_a_code_cell(cell)]
    return [*in_a_notebook(notebook), *of_cells, *code_in_text(notebook), *workbook(notebook)]


def notebooks(root: Path) -> list[Path]:
    return sorted((root / "notebooks").glob("*.ipynb"))
