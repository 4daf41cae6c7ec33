"""Print the book into `_build/book.pdf` (`make pdf`): jupyter-book writes one long page, which the browser prints.
(Its own builder `pdfhtml` does not wait for formulas, and replaces _build/html by the long page.)"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import browser
import yaml
from playwright.sync_api import Browser, sync_playwright
from pypdf import PdfReader
from stamp import ROOT

# Pages that are nothing without a screen, or tables with thousands of rows.
LEFT_OUT = ("book/grow", "book/head_dump", "book/every_head")
# The book's title and contents first, as the theme prints them, and each chapter on a new page.
STYLE = """@media print {
  #jb-print-docs-body { display: block !important; }
  .bd-main .bd-content .bd-article h1:first-of-type { display: none; }
  span[id^='document-'] { display: block; break-before: page; }
  #jb-print-toc a { display: flex; justify-content: space-between; }
  #jb-print-toc a::after { content: attr(data-page); }
}"""
NUMBER = "<div style='font-size: 8pt; width: 100%; text-align: center'><span class='pageNumber'></span></div>"
NUMBER_CONTENTS = """pages => document.querySelectorAll('#jb-print-toc a').forEach(
  line => (line.dataset.page = pages[line.hash.slice(1)]))"""


def write_long_page(folder: Path, root: Path = ROOT) -> Path:
    """Write the book as one page that lies at the root, without LEFT_OUT; links from page to page lead inside it."""
    listed = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    for part in listed["parts"]:
        part["chapters"] = [entry for entry in part["chapters"] if entry["file"] not in LEFT_OUT]
    listed["parts"] = [part for part in listed["parts"] if part["chapters"]]
    (folder / "_toc.yml").write_text(yaml.safe_dump(listed, sort_keys=False), encoding="utf-8")
    options = ["--toc", folder / "_toc.yml", "--path-output", folder, "--builder", "singlehtml", "--quiet", "--quiet"]
    command = [Path(sys.executable).with_name("jupyter-book"), "build", root, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    single = folder / "_build" / "singlehtml"
    text = (single / "book" / "intro.html").read_text(encoding="utf-8").replace('href="book/intro.html#', 'href="#')
    text = re.sub(r'href="(?:\.\./)?((?:book|notebooks)/\w+)\.html[^"]*"', r'href="#document-\1"', text)
    (single / "book.html").write_text(re.sub(r'(src|href)="\.\./', r'\1="', text), encoding="utf-8")
    return single / "book.html"


def print_page(chrome: Browser, page: Path, out: Path) -> None:
    """Print a page when its formulas and images are there, and again when it is known on which pages its parts are."""
    tab = chrome.new_page()
    tab.set_default_timeout(0)
    tab.goto(page.as_uri())
    tab.evaluate("() => window.MathJax?.startup?.promise")
    tab.evaluate("() => document.querySelectorAll('img').forEach(image => (image.loading = 'eager'))")
    tab.add_style_tag(content=STYLE)
    tab.wait_for_function("() => [...document.images].every(image => image.complete)")
    options = {"format": "A4", "print_background": True, "outline": True, "tagged": True, "scale": 0.8}
    options |= {"display_header_footer": True, "header_template": "<i></i>", "footer_template": NUMBER}
    tab.pdf(path=out, **options)
    reader = PdfReader(out)
    places = reader.named_destinations.items()  # where links lead to, as "/" and the name of an anchor
    pages = {name[1:]: reader.get_destination_page_number(place) + 1 for name, place in places}
    tab.evaluate(NUMBER_CONTENTS, pages)
    tab.pdf(path=out, **options)


if __name__ == "__main__":
    out, program = ROOT / "_build" / "book.pdf", browser.find()
    with tempfile.TemporaryDirectory() as own:
        page = write_long_page(Path(own))
        with sync_playwright() as playwright, playwright.chromium.launch(executable_path=program) as chrome:
            print_page(chrome, page, out)
    print(f"The book: {out}")
