"""Leave Thebe out of the pages: jupyter-book always adds it, it would come from a public server on a click, and this book has no use for it."""

from __future__ import annotations


def drop_thebe(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    def wanted(script) -> bool:
        return "thebe" not in f"{script.filename} {script.attributes.get('body')}".lower()

    context["script_files"] = [script for script in context["script_files"] if wanted(script)]


def setup(app) -> dict[str, bool]:
    app.connect("html-page-context", drop_thebe, priority=999)  # after all others have added theirs
    return {"parallel_read_safe": True, "parallel_write_safe": True}
