"""Print the book into `_build/book.pdf` (`make pdf`): jupyter-book writes one long page, which the browser prints.

(`jupyter-book build . --builder pdfhtml` does not wait for figures, and replaces _build/html by the long page.)
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"
# Pages that are nothing without a screen, or tables with thousands of rows.
LEFT_OUT = ("book/play", "book/watch", "book/grow", "book/head_dump", "book/every_head")
DRAWN = "() => [...document.querySelectorAll('.circuits-widget')].every(w => w.querySelector('canvas, span, button'))"
# The book's title and contents first, as the theme prints them, and each chapter on a new page.
STYLE = """@media print {
  #jb-print-docs-body { display: block !important; }
  .bd-main .bd-content .bd-article h1:first-of-type { display: none; }
  span[id^='document-'] + section { break-before: page; }
}"""
NUMBER = "<div style='font-size: 8pt; width: 100%; text-align: center'><span class='pageNumber'></span></div>"


def contents() -> str:
    """Return the table of contents without LEFT_OUT."""
    listed = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    for part in listed["parts"]:
        part["chapters"] = [entry for entry in part["chapters"] if entry["file"] not in LEFT_OUT]
    return yaml.safe_dump(listed, sort_keys=False)


def rooted(text: str) -> str:
    """Return the long page as one that lies at the root; links from page to page lead inside it."""
    text = text.replace('href="book/intro.html#', 'href="#')
    text = re.sub(r'href="(?:\.\./)?((?:book|notebooks)/\w+)\.html[^"]*"', r'href="#document-\1"', text)
    return re.sub(r'(src|href)="\.\./', r'\1="', text)


def print_page(page: Path, out: Path) -> None:
    """Print a page when its formulas are typeset and its figures are drawn."""
    with sync_playwright() as playwright:
        program = next(filter(None, map(shutil.which, BROWSERS)), None)  # else the one that Playwright has fetched
        browser = playwright.chromium.launch(executable_path=program)
        tab = browser.new_page()
        tab.set_default_timeout(0)
        tab.goto(page.as_uri())
        tab.evaluate("() => window.MathJax?.startup?.promise")
        tab.evaluate("() => document.querySelectorAll('img').forEach(image => (image.loading = 'eager'))")
        tab.add_style_tag(content=STYLE)
        tab.wait_for_function(DRAWN)
        tab.wait_for_function("() => [...document.images].every(image => image.complete)")
        options = {"format": "A4", "print_background": True, "outline": True, "tagged": True}
        tab.pdf(path=out, display_header_footer=True, header_template="<i></i>", footer_template=NUMBER, **options)
        browser.close()


def main() -> None:
    build = ROOT / "_build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pdf-", dir=build) as own:
        toc = Path(own, "_toc.yml")
        toc.write_text(contents(), encoding="utf-8")
        options = ["--toc", toc, "--path-output", own, "--builder", "singlehtml", "--quiet", "--quiet"]
        command = [sys.executable, "-c", JUPYTER_BOOK, "build", ROOT, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        single = Path(own, "_build", "singlehtml")
        (single / "book.html").write_text(rooted((single / "book" / "intro.html").read_text(encoding="utf-8")))
        print_page(single / "book.html", build / "book.pdf")
    print(f"The book: {build / 'book.pdf'}")


if __name__ == "__main__":
    main()
