"""Tell the search which pages say most about a word, and what each page is about.

Sphinx's index says in which pages a word occurs, but not how often, and pages with the same words are listed by name.
The ranking itself is book/_static/search_results.js.
"""

from __future__ import annotations

import collections
import json
import re
from pathlib import Path

from docutils import nodes
from sphinx.search.en import english_stopwords

SCRIPT = Path(__file__).parents[1] / "_static" / "search_results.js"
QUESTIONS = "book/questions"
SHOWN = 160  # characters of a description
WORDS = 80  # of a page, those that it has most often


def sentence(text: str) -> str:
    """Return the first sentence of a text, or as much of a long one as is shown. One of a few words is none: "Peter met
    Mrs."."""
    text = re.sub(r"\s+", " ", re.sub(r" [a-z]+(19|20)\d\d\b", "", text)).strip()  # keys of the bibliography
    first = re.match(r".{40,}?[^.][.?!:](?= |$)|.*", text)[0].rstrip(":")
    return first if len(first) <= SHOWN else f"{first[:SHOWN].rsplit(' ', 1)[0]} …"


def plain(text: str) -> list[str]:
    """Return a text's words without stop words and without a plural s, as search_results.js reads what is asked."""
    words = re.findall(r"[a-z]{2,}", text.lower())  # QK and OV have two letters
    return [word.rstrip("s") for word in words if word not in english_stopwords]


def note_words(app, doctree) -> None:
    """Keep of each page its first sentence, its frequent words, and the definitions of terms; of the page of questions
    also each question's first sentence and all words of its answer."""
    counts = collections.Counter(plain(doctree.astext()))
    paragraphs = [node for node in doctree.findall(nodes.paragraph) if isinstance(node.parent, nodes.section)]
    terms = {
        term["ids"][0]: [term.astext(), sentence(item.children[-1].astext())]
        for item in doctree.findall(nodes.definition_list_item)
        for term in item.findall(nodes.term)
        if term["ids"]
    }
    about = sentence(paragraphs[0].astext()) if paragraphs else ""
    answers = {
        section["ids"][0]: [section[0].astext(), sentence(section[1].astext()), " ".join(set(plain(section.astext())))]
        for section in doctree.findall(nodes.section)
        if app.env.docname == QUESTIONS and not any(isinstance(part, nodes.section) for part in section)
    }
    app.env.metadata[app.env.docname]["found"] = [about, dict(counts.most_common(WORDS)), terms, answers]


def write_script(app, env) -> None:
    """Put what pages are about before the script that ranks them. Sphinx copies it into the file that the search page
    loads."""
    pages = {name: found["found"] for name, found in env.metadata.items() if "found" in found}
    for name, page in pages.items():
        entry = env.external_site_map.get(name)
        page.insert(0, (entry and entry.title) or env.titles[name].astext())  # as the sidebar calls it
    script = Path(app.doctreedir) / SCRIPT.name
    script.write_text(f"const PAGES = {json.dumps(pages)};\n{SCRIPT.read_text(encoding='utf-8')}", encoding="utf-8")
    app.config.html_search_scorer = str(script)


def setup(app) -> dict[str, bool]:
    app.connect("doctree-read", note_words)
    app.connect("env-check-consistency", write_script)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
