"""What Sphinx's autodoc shows of the library besides its docstrings."""

from __future__ import annotations

import re

# Annotated[int, Gt(gt=0)]: what pydantic checks is left out of signatures.
CHECKED = re.compile(r"Annotated\[([^,]+), (?:[^\[\]]|\[[^\[\]]*\])*\]")


def shorten(app, what: str, name: str, obj: object, options: object, signature: str | None, returns: str | None):
    return signature and CHECKED.sub(r"\1", signature), returns


def skip(app, what: str, name: str, obj: object, skipped: bool, options: object) -> bool | None:
    """Leave out fields of named tuples, which the signature lists."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def setup(app) -> dict[str, bool]:
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
