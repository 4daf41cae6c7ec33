"""DataTables, which makes tables searchable and sortable, as itables ships it, for the book's static files.

itables' own HTML is not used: it puts the script into every page, or imports it as a module, which browsers refuse to pages that
are opened from disk. Here the module becomes an ordinary script, loaded from one place by the pages that have such a table.
"""

from __future__ import annotations

import functools
import importlib.resources
import re


@functools.cache
def files() -> dict[str, str]:
    """Script and style by place among the static files; the script sets one global, `itables`, with what the module exports.

    Licences (DataTables and its parts are MIT) stand at the script's end. RuntimeError if the installed itables is another.
    """
    shipped = importlib.resources.files("itables").joinpath("html")
    module = shipped.joinpath("dt_bundle.js").read_text(encoding="utf-8")
    script, exports = re.subn(r"\bexport\{([^}]*)\};", _as_global, module)
    if exports != 1:
        raise RuntimeError("The installed itables is not release 2.9.1, which the tables need: reinstall from constraints.txt.")
    style = shipped.joinpath("dt_bundle.css").read_text(encoding="utf-8")
    return {"datatables/datatables.js": f"(()=>{{{script}\n}})();\n", "datatables/datatables.css": style}


def _as_global(exports: re.Match[str]) -> str:
    names = re.findall(r"(\w+) as (\w+)", exports[1])
    return "window.itables={" + ",".join(f"{outside}:{inside}" for inside, outside in names) + "};"
