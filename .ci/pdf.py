"""Print the book into `_build/book.pdf` (`make pdf`): jupyter-book writes one long page, which the browser prints.

(`jupyter-book build . --builder pdfhtml` does not wait for formulas, and replaces _build/html by the long page.)
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from playwright.sync_api import sync_playwright
from stamp import ROOT

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"
# Pages that are nothing without a screen, or tables with thousands of rows.
LEFT_OUT = ("book/watch", "book/grow", "book/head_dump", "book/every_head")
# The book's title and contents first, as the theme prints them, and each chapter on a new page.
STYLE = """@media print {
  #jb-print-docs-body { display: block !important; }
  .bd-main .bd-content .bd-article h1:first-of-type { display: none; }
  span[id^='document-'] + section { break-before: page; }
}"""
NUMBER = "<div style='font-size: 8pt; width: 100%; text-align: center'><span class='pageNumber'></span></div>"


def write_long_page(folder: Path) -> Path:
    """Write the book as one page that lies at the root, without LEFT_OUT; links from page to page lead inside it."""
    listed = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    for part in listed["parts"]:
        part["chapters"] = [entry for entry in part["chapters"] if entry["file"] not in LEFT_OUT]
    listed["parts"] = [part for part in listed["parts"] if part["chapters"]]
    (folder / "_toc.yml").write_text(yaml.safe_dump(listed, sort_keys=False), encoding="utf-8")
    options = ["--toc", folder / "_toc.yml", "--path-output", folder, "--builder", "singlehtml", "--quiet", "--quiet"]
    command = [sys.executable, "-c", JUPYTER_BOOK, "build", ROOT, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    single = folder / "_build" / "singlehtml"
    text = (single / "book" / "intro.html").read_text(encoding="utf-8").replace('href="book/intro.html#', 'href="#')
    text = re.sub(r'href="(?:\.\./)?((?:book|notebooks)/\w+)\.html[^"]*"', r'href="#document-\1"', text)
    (single / "book.html").write_text(re.sub(r'(src|href)="\.\./', r'\1="', text), encoding="utf-8")
    return single / "book.html"


def print_page(page: Path, out: Path) -> None:
    """Print a page when its formulas are typeset and its images are there."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)  # else the one that Playwright has fetched
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=program) as browser:
        tab = browser.new_page()
        tab.set_default_timeout(0)
        tab.goto(page.as_uri())
        tab.evaluate("() => window.MathJax?.startup?.promise")
        tab.evaluate("() => document.querySelectorAll('img').forEach(image => (image.loading = 'eager'))")
        tab.add_style_tag(content=STYLE)
        tab.wait_for_function("() => [...document.images].every(image => image.complete)")
        options = {"format": "A4", "print_background": True, "outline": True, "tagged": True}
        tab.pdf(path=out, display_header_footer=True, header_template="<i></i>", footer_template=NUMBER, **options)


if __name__ == "__main__":
    out = ROOT / "_build" / "book.pdf"
    out.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pdf-", dir=out.parent) as own:
        print_page(write_long_page(Path(own)), out)
    print(f"The book: {out}")
