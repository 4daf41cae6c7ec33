"""Remove from a notebook what running it adds, but for the outputs that nbval compares.

python .ci/strip_outputs.py < NOTEBOOK     what git compares and stores, once `make` has set the filter up
python .ci/strip_outputs.py NOTEBOOK …     in the files themselves (`make strip`: all)
"""

import json
import sys
from pathlib import Path

CHECKED = "nbval-check-output"
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


def main(paths: list[str]) -> None:
    if not paths:
        sys.stdout.buffer.write(stripped(sys.stdin.buffer.read().decode()).encode())
    for path in map(Path, paths):
        path.write_bytes(stripped(path.read_text(encoding="utf-8")).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
