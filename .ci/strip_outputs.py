"""Remove from a notebook what running it adds, but for the outputs that nbval compares: git compares and stores what
`python .ci/strip_outputs.py < NOTEBOOK` prints, once `make` has set the filter up, and `make outputs` writes it."""

import json
import sys

CHECKED = "nbval-check-output"  # tag of cells whose outputs are kept in git, for nbval to compare
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {"name": "python", "pygments_lexer": "ipython3"}  # JupyterLab adds with which Python it was last run


def stripped(text: str) -> str:
    """Return a notebook (JSON) as it is kept in git."""
    notebook = json.loads(text)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        if CHECKED not in cell["metadata"].get("tags", []):
            cell["outputs"] = []
        for output in cell["outputs"]:
            if "execution_count" in output:
                output["execution_count"] = number
        cell["execution_count"] = number if cell["outputs"] else None
        for key in ("execution", "collapsed", "scrolled", "ExecuteTime"):
            cell["metadata"].pop(key, None)
    notebook["metadata"] |= {"kernelspec": KERNEL, "language_info": LANGUAGE}
    notebook["metadata"].pop("widgets", None)
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(stripped(sys.stdin.buffer.read().decode()).encode())
