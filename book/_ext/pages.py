"""What pages have besides their text: a description and a preview picture in the head, and an anchor at each cell of a notebook."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

from docutils import nodes

PREVIEW = "book/_static/readme.png"
LENGTH = 200  # characters of a description; search engines and messengers show about as many


def add_anchors(app, doctree) -> None:
    """Each cell `x` can be linked as `#cell-x`, whether or not it shows a numbered figure."""
    path = Path(app.env.doc2path(app.env.docname))
    if path.suffix != ".ipynb":
        return
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for node in doctree.findall(nodes.container):
        if node.get("nb_element") == "cell_code" and (name := cells[node["cell_index"]].get("id")):
            node["ids"].append(f"cell-{name}")


def description(doctree) -> str:
    """The first paragraph of running text, cut after a sentence or a word."""
    for paragraph in doctree.findall(nodes.paragraph) if doctree else ():
        if isinstance(paragraph.parent, (nodes.section, nodes.document)):
            text = re.sub(r"\s+", " ", paragraph.astext()).strip()
            if len(text) <= LENGTH:
                return text
            cut = text[: LENGTH - 2]
            return cut[: cut.rindex(". ") + 1] if ". " in cut[LENGTH // 2 :] else f"{cut.rsplit(' ', 1)[0]} …"
    return ""


def add_metadata(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """The picture's address is that in the public repository, since those who make previews ask for a whole one."""
    theme = app.config.html_theme_options
    title = re.sub(r"<[^>]*>", "", context.get("title") or "") or app.config.html_title
    about = description(doctree) or f"{title}: a page of {app.config.html_title}."
    found = {
        "og:type": "article",
        "og:site_name": app.config.html_title,
        "og:title": html.unescape(title),
        "og:description": about,
        "og:image": f"{theme['repository_url']}/raw/{theme['repository_branch']}/{PREVIEW}",
    }
    named = {"description": about, "twitter:card": "summary_large_image"}
    tags = [f'<meta property="{key}" content="{html.escape(value)}">' for key, value in found.items()]
    tags += [f'<meta name="{key}" content="{html.escape(value)}">' for key, value in named.items()]
    context["metatags"] = "\n".join([context.get("metatags", ""), *tags])


def setup(app) -> dict[str, bool]:
    app.connect("doctree-read", add_anchors)
    app.connect("html-page-context", add_metadata)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
