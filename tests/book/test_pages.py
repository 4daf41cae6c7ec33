"""Every page of the built book, in a real browser, from disk, with the network cut off."""

import re
from pathlib import Path
from urllib.parse import unquote, urldefrag

import lxml.html
import pytest

from book_build.build import notebooks, titles
from transformer_circuits.paths import ROOT

# What a reader must never see: unfinished maths, roles and directives, an object's name in place of the thing, a traceback.
RAW = re.compile(
    r"\$\$|\$[^\s$][^$\n]{0,60}\$|\\\(|\\\[|\\begin\{|\{[a-z:]+\}`|^:::|np\.float64|Traceback \(most recent call last\)|\[\d;\d+m|WARNING"
    r"|<(Figure size|Axes|matplotlib|IPython|transformer_circuits|pandas)\b",
    re.MULTILINE,
)
# The page's words, without code that is shown as code and without tokens, which may look like anything.
WORDS = """() => {
  const article = document.querySelector('article').cloneNode(true);
  article.querySelectorAll('.cell_input, pre.literal, .highlight, code, script, style, .tc-attend, .token-table, mjx-container')
    .forEach(e => e.remove());
  document.body.append(article);
  const text = article.innerText;
  article.remove();
  return text;
}"""
# What the cells printed, where a traceback or an object's name would stand.
PRINTED = "() => [...document.querySelectorAll('.cell_output pre')].map(e => e.innerText).join('\\n')"


# Those far below are lazy: they load when they are asked for.
IMAGES = """() => Promise.all([...document.querySelectorAll('article img')].map(async image => {
  image.loading = 'eager';
  await image.decode().catch(() => null);
  return [image.alt, image.src, image.naturalWidth];
}))"""


def parse(path: Path) -> lxml.html.HtmlElement:
    return lxml.html.fromstring(path.read_bytes())  # in a fiftieth of Beautiful Soup's time


# The smallest text of the pictures that are seen, in pixels.
SMALLEST = """() => Math.min(99, ...[...document.querySelectorAll('article svg.tc-picture text')].filter(t => t.getClientRects().length).map(t => {
  const picture = t.closest('svg');
  return parseFloat(getComputedStyle(t).fontSize) * picture.getBoundingClientRect().width / picture.viewBox.baseVal.width;
}))"""
FILTERS = "() => [...document.querySelectorAll('article img')].map(i => getComputedStyle(i).filter)"


@pytest.mark.parametrize("name", titles(ROOT))  # those of single heads are read without a browser
def test_page_reads_offline_and_fits_a_phone(html, name, reused):
    page = reused.open(html / f"{name}.html")
    assert page.locator("article h1").count() >= 1

    maths = page.locator("article .math").count()
    assert page.locator("article mjx-container").count() >= maths, "some maths was left untypeset"
    assert page.locator("mjx-merror, [data-mjx-error]").count() == 0, "MathJax could not read a formula"

    words, printed = page.evaluate(WORDS), page.evaluate(PRINTED)
    for text in (words, re.sub(r"\$\$|\\[\[(]|\\begin", "", printed)):  # passages of LaTeX
        found = RAW.search(text)
        assert not found, f"raw markup: {text[found.start() - 40 : found.end() + 80]!r}"

    images = page.evaluate(IMAGES)
    pictures = page.locator("article svg.tc-picture").evaluate_all(
        "found => found.map(p => p.getAttribute('aria-label'))"
    )
    assert all(pictures), "a picture has no alternative text (mystnb.image.alt)"
    for alt, source, width in images:
        assert width, f"{source} does not load"
        named = alt.strip() and not re.search(r"\.(svg|png)$", alt)
        assert named, f"{source} has no alternative text (mystnb.image.alt)"

    page.locator("html").evaluate("e => (e.dataset.theme = 'dark')")  # contrast: test_accessibility
    assert set(page.evaluate(FILTERS)) <= {"none"}, "figures must not be dimmed"
    page.set_viewport_size({"width": 400, "height": 800})
    wide = page.evaluate("() => document.documentElement.scrollWidth")
    assert wide <= 400, f"the page is {wide} pixels wide on a screen of 400"
    assert page.evaluate(SMALLEST) >= 10, "a picture has text of less than 10 pixels on a screen of 400"


def test_every_page_is_light_with_links_that_lead_somewhere_and_asks_for_nothing_elsewhere(html):
    heads = [str(path.relative_to(html).with_suffix("")) for path in html.glob("book/head_dump/*/*.html")]
    paths = [(html / f"{name}.html").resolve() for name in [*titles(ROOT), *heads]]
    pages = {path: parse(path) for path in paths}
    anchors = {path: set(page.xpath("//@id | //@name")) for path, page in pages.items()}
    for path, page in pages.items():
        text = path.read_text(encoding="utf-8")
        assert len(text.encode()) < 3_000_000, f"{path.name} is heavy"
        for source in page.xpath("//script/@src | //link[@rel='stylesheet']/@href | //img/@src | //iframe/@src"):
            assert not re.match(r"(https?:)?//", source), f"{path.name} loads {source}"
        for image in page.xpath("//noscript//img/@src"):
            assert (path.parent / image).is_file(), f"{path.name} lacks {image}, for browsers without scripts"
        for host in ("unpkg.com", "jsdelivr", "cdnjs", "googleapis"):
            assert host not in text, f"{path.name} mentions {host}"
        assert "searchindex.js" not in text, f"{path.name} loads what the search page needs"
        assert ("_static/play" in text) == (path.stem == "follow"), (
            f"{path.name} loads what comes with megabytes of data"
        )
        for link in page.xpath("//a/@href"):
            target, fragment = urldefrag(link)
            target = target.partition("?")[0]  # Play is asked for its other model so
            if re.match(r"[a-z]+:", target):
                continue
            file = (path.parent / unquote(target)).resolve() if target else path
            assert file.is_file(), f"{path.name}: {link!r} leads nowhere"
            there = not fragment or "=" in fragment or file not in anchors or unquote(fragment) in anchors[file]
            assert there, f"{path.name}: {link!r} names an anchor that does not exist"


def test_a_page_is_printed_without_sidebars_and_folded_code(html, watched):
    page = watched.page
    page.goto((html / "notebooks" / "06_composition.html").as_uri())
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    sidebars = (".bd-sidebar-primary", ".bd-sidebar-secondary", ".bd-header-article", ".prev-next-area")
    for gone in (*sidebars, "details.hide:not([open])"):
        assert page.locator(f"{gone}:visible").count() == 0, gone
    assert page.locator("article details:not(.hide):not(.tc-criterion):not([open])").count() == 0
    assert page.locator("article figure svg:visible").count() >= 2
    assert page.pdf(format="A4")[:5] == b"%PDF-"


def test_every_figure_has_a_number_of_its_own_a_caption_and_every_chapter_a_button_for_colab(html):
    numbers = []
    for path in notebooks(ROOT):
        page = parse(html / "notebooks" / f"{path.stem}.html")
        for headline in page.xpath("//article//*[contains(@class, 'tc-headline')]"):
            assert not headline.xpath("preceding::*[contains(@class, 'cell_output')]"), "it stands above all cells"
            (figure,) = headline.xpath(".//figure/@id")
            assert page.xpath(f"//*[@class='tc-origin']//a[@href='#{figure}']"), "its cell says where it is"
        shown = "*[contains(@class, 'cell_output')]//*[self::img or contains(@class, 'tc-picture')]"
        bare = page.xpath(
            f"//article//{shown}[not(ancestor::figure or ancestor::details)]/@*[name()='src' or name()='aria-label']"
        )
        assert not bare, f"without a caption: {bare}"
        captions = page.xpath("//figcaption//*[contains(@class, 'caption-number')]")
        numbers += [number.text_content().strip() for number in captions]
        links = page.xpath("//a[contains(@href, 'colab.research.google.com/github')]/@href")
        assert any(link.endswith(f"/blob/main/notebooks/{path.name}") for link in links)
    assert len(set(numbers)) == len(numbers) and all(re.match(r"Fig\. [AE]?\d+\.\d+", number) for number in numbers)
