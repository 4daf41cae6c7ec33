"""`make pdf`, with a small book: its contents say on which page each chapter begins."""

import re

import pdf
from pypdf import PdfReader
from small_book import make_book

CONTENTS = """format: jb-book
root: book/intro
parts: [{caption: All, chapters: [{file: book/long}, {file: book/last}]}]"""


def test_the_contents_say_on_which_page_each_chapter_begins(browser, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_CIRCUITS_BOOK", "1")  # nothing is to be run
    root, own = make_book(tmp_path / "root"), tmp_path / "own"
    own.mkdir()
    (root / "_toc.yml").write_text(CONTENTS)
    (root / "book" / "long.md").write_text("# The long one\n" + "\nA line.\n" * 150)
    (root / "book" / "last.md").write_text("# The last one\n")
    pdf.print_page(browser, pdf.write_long_page(own, root), tmp_path / "book.pdf")
    pages = [page.extract_text() for page in PdfReader(tmp_path / "book.pdf").pages]
    listed = dict(re.findall(r"^(The \w+ one) (\d+)$", pages[0], re.MULTILINE))
    begins = {re.match("The .* one", text)[0]: str(n) for n, text in enumerate(pages, 1) if text.startswith("The ")}
    assert listed == begins and begins.keys() == {"The long one", "The last one"} and int(begins["The last one"]) > 3
