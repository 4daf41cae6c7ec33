"""Every page of the built book, in a real browser, from disk, with the network cut off."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from bs4 import BeautifulSoup

from transformer_circuits.build import Book
from transformer_circuits.paths import ROOT

PAGES = [f"{name}.html" for name in Book(ROOT).files()]  # those of single heads are looked at without a browser below

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


NONE_BLANK = """() => [...document.querySelectorAll('.circuits-widget canvas')].filter(c => c.width && c.height && c.offsetParent).every(c => {
  const empty = document.createElement('canvas');
  empty.width = c.width; empty.height = c.height;
  return c.toDataURL() !== empty.toDataURL();
})"""


def test_page_reads_offline_and_fits_a_phone(path, watched):
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
    page.set_viewport_size({"width": 400, "height": 800})
    wide = page.evaluate("() => document.documentElement.scrollWidth")
    assert wide <= 400, f"the page is {wide} pixels wide on a screen of 400"


def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def test_every_page_is_light_with_links_that_lead_somewhere_and_asks_for_nothing_elsewhere(html):
    pages = {(html / f"{name}.html").resolve(): soup(html / f"{name}.html") for name in Book(ROOT).pages()}
    anchors = {path: {tag.get(key) for tag in page.find_all(True) for key in ("id", "name")} for path, page in pages.items()}
    for path, page in pages.items():
        assert path.stat().st_size < 3_000_000, f"{path.name} is heavy"
        for tag in page.select("script[src], link[rel=stylesheet][href], img[src], iframe[src]"):
            assert not re.match(r"(https?:)?//", tag.get("src") or tag.get("href")), f"{path.name} loads {tag}"
        for host in ("unpkg.com", "jsdelivr", "cdnjs", "googleapis"):
            assert host not in path.read_text(encoding="utf-8"), f"{path.name} mentions {host}"
        for link in page.select("article a[href], nav a[href], .prev-next-area a[href]"):
            target, fragment = urldefrag(link["href"])
            if re.match(r"[a-z]+:", target):
                continue
            file = (path.parent / unquote(target)).resolve() if target else path
            assert file.is_file(), f"{path.name}: {link['href']!r} leads nowhere"
            if fragment and file in anchors:
                assert unquote(fragment) in anchors[file], f"{path.name}: {link['href']!r} names a place that is not there"


def test_every_figure_has_a_number_of_its_own_a_caption_and_every_chapter_a_button_for_colab(html):
    numbers = []
    for path in Book(ROOT).notebooks():
        page = soup(html / "notebooks" / f"{path.stem}.html")
        for image in page.select("article .cell_output img"):
            figure = image.find_parent("figure")
            assert figure and figure.figcaption and figure.figcaption.get_text(strip=True), f"{image['src']} has no caption"
        numbers += [caption.select_one(".caption-number").get_text(strip=True) for caption in page.select("figcaption")]
        links = [a["href"] for a in page.select("a[href*='colab.research.google.com/github']")]
        assert any(link.endswith(f"/blob/main/notebooks/{path.name}") for link in links)
    assert len(set(numbers)) == len(numbers) and all(re.match(r"Fig\. \d+", number) for number in numbers)


def test_the_first_page_leads_to_the_book(html, watched):
    page = watched.page
    page.goto((html / "index.html").as_uri())
    page.wait_for_url("**/book/intro.html")


def test_search_finds_a_chapter(html, watched):
    page = watched.page
    page.goto((html / "search.html").as_uri() + "?q=residual")
    page.wait_for_selector("#search-results li a")
    assert watched.complaints == [] and watched.requests == []
