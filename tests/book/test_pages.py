"""Every page of the built book, in a real browser, from disk, with the network cut off."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from bs4 import BeautifulSoup

from transformer_circuits.build import Book
from transformer_circuits.paths import ROOT

PAGES = [f"{name}.html" for name in Book(ROOT).files()]
MEGABYTE = 1_000_000

# What a reader must never see: unfinished maths, roles and directives, an object's name in place of the thing, a traceback.
RAW = re.compile(
    r"\$\$|\\\(|\\\[|\\begin\{|\{[a-z:]+\}`|^:::|np\.float64|Traceback \(most recent call last\)|\[\d;\d+m|WARNING"
    r"|<(Figure size|Axes|matplotlib|IPython|transformer_circuits|pandas)\b",
    re.MULTILINE,
)
# The page's words, without code that is shown as code and without tokens, which may look like anything.
WORDS = """() => {
  const article = document.querySelector('article').cloneNode(true);
  article.querySelectorAll('.cell_input, pre.literal, .highlight, code, script, style, .circuits-widget, .token-table, mjx-container')
    .forEach(e => e.remove());
  document.body.append(article);
  const text = article.innerText;
  article.remove();
  return text;
}"""
# What the cells printed, where a traceback or an object's name would stand.
PRINTED = "() => [...document.querySelectorAll('.cell_output pre')].map(e => e.innerText).join('\\n')"


@pytest.fixture(params=PAGES)
def path(request, html) -> Path:
    return html / request.param


def test_page_reads_offline(path, watched):
    page = watched.open(path)
    assert watched.requests == [], "the page asks the network for these"
    assert watched.complaints == []
    assert page.locator("article h1").count() >= 1

    maths = page.locator("article .math").count()
    assert page.locator("article mjx-container").count() >= maths, "some maths was left untypeset"
    assert page.locator("mjx-merror, [data-mjx-error]").count() == 0, "MathJax could not read a formula"

    words, printed = page.evaluate(WORDS), page.evaluate(PRINTED)
    assert not (found := RAW.search(words)), f"raw markup on the page: {words[found.start() - 40 : found.end() + 40]!r}"
    assert not (found := RAW.search(re.sub(r"\$\$|\\[\[(]", "", printed))), f"raw output: {printed[found.start() : found.end() + 80]!r}"

    images = page.evaluate("() => [...document.querySelectorAll('article img')].map(i => [i.alt, i.src, i.complete && i.naturalWidth])")
    for alt, source, width in images:
        assert width, f"{source} does not load"
        assert alt.strip() and not re.search(r"\.(svg|png)$", alt), f"{source} has no alternative text (mystnb.image.alt)"

    page.wait_for_function(NONE_BLANK)  # widgets draw some time after they are there


NONE_BLANK = """() => [...document.querySelectorAll('.circuits-widget canvas')].filter(c => c.width && c.height && c.offsetParent).every(c => {
  const empty = document.createElement('canvas');
  empty.width = c.width; empty.height = c.height;
  return c.toDataURL() !== empty.toDataURL();
})"""


def test_page_fits_a_phone(path, watched):
    watched.page.set_viewport_size({"width": 400, "height": 800})
    page = watched.open(path)
    wide = page.evaluate("() => document.documentElement.scrollWidth")
    assert wide <= 400, f"the page is {wide} pixels wide on a screen of 400"


def test_page_is_light(path):
    assert path.stat().st_size < 3 * MEGABYTE


def test_every_figure_has_a_number_and_a_caption(path):
    for image in soup(path).select("article .cell_output img"):
        figure = image.find_parent("figure")
        assert figure and figure.figcaption and figure.figcaption.get_text(strip=True), f"{image['src']} has no caption"


def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def test_links_within_the_book_lead_somewhere(path):
    page = soup(path)
    for link in page.select("article a[href], nav a[href], .prev-next-area a[href]"):
        target, fragment = urldefrag(link["href"])
        if re.match(r"[a-z]+:", target):
            continue
        file = (path.parent / unquote(target)).resolve() if target else path
        assert file.is_file(), f"{link['href']!r} leads nowhere"
        if fragment and file.suffix == ".html":
            there = page if file == path else soup(file)
            anchor = unquote(fragment)
            assert there.find(id=anchor) or there.find(attrs={"name": anchor}), f"{link['href']!r} names a place that is not there"


def test_no_page_refers_to_a_script_elsewhere(html):
    for path in html.rglob("*.html"):
        for tag in soup(path).select("script[src], link[rel=stylesheet][href], img[src], iframe[src]"):
            assert not re.match(r"(https?:)?//", tag.get("src") or tag.get("href")), f"{path.name} loads {tag}"
        for host in ("unpkg.com", "jsdelivr", "cdnjs", "googleapis"):
            assert host not in path.read_text(encoding="utf-8"), f"{path.name} mentions {host}"


def test_the_first_page_leads_to_the_book(html, watched):
    page = watched.page
    page.goto((html / "index.html").as_uri())
    page.wait_for_url("**/book/intro.html")


def test_chapters_have_a_button_for_colab(html):
    address = "colab.research.google.com/github"
    for path in Book(ROOT).notebooks():
        links = [a["href"] for a in soup(html / "notebooks" / f"{path.stem}.html").select(f"a[href*='{address}']")]
        assert any(link.endswith(f"/blob/main/notebooks/{path.name}") for link in links)


def test_figures_across_the_book_are_numbered(html):
    captions = [c for p in Book(ROOT).notebooks() for c in soup(html / "notebooks" / f"{p.stem}.html").select("figcaption")]
    numbers = [c.select_one(".caption-number").get_text(strip=True) for c in captions]
    assert len(set(numbers)) == len(numbers) and all(re.match(r"Fig\. \d+", n) for n in numbers)


def test_search_finds_a_chapter(html, watched):
    page = watched.page
    page.goto((html / "search.html").as_uri() + "?q=residual")
    page.wait_for_selector("#search-results li a")
    assert watched.complaints == [] and watched.requests == []
