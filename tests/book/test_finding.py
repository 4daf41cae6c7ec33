"""How readers find things: the search, the page of the library, what to cite, where to suggest an edit."""

import pkgutil
import re
from urllib.parse import urlencode

import pytest
from small_book import soup

from book_build.build import GENERATED, files
from transformer_circuits import circuits, measures, models
from transformer_circuits.paths import ROOT


@pytest.mark.parametrize(("query", "term", "page"), [
    ("induction head", "induction head", "notebooks/07_induction_heads.html"),
    ("skip-trigram", "skip-trigram", "notebooks/04_skip_trigrams.html"),
    ("K-composition", "K-composition", "notebooks/06_composition.html"),
    ("residual stream", "residual stream", "notebooks/01_residual_stream.html"),
    ("eigenvalues", None, "notebooks/05_copying.html"),
    ("layer normalization", "layer normalization", "notebooks/a4_layer_normalization.html"),
])  # fmt: skip
def test_search_gives_the_glossarys_entry_and_the_chapter_first(html, reused, query, term, page):
    reused.page.goto(f"{(html / 'search.html').as_uri()}?q={query.replace(' ', '+')}")
    reused.page.get_by_text(re.compile(r"found \d+ page")).wait_for()
    items = reused.page.locator("#search-results li")
    if term:
        assert items.first.locator("a").inner_text() == term
    pages = [item for item in items.locator("a").evaluate_all("links => links.map(a => a.getAttribute('href'))")]
    assert next(name for name in pages if name.startswith("notebooks/")).partition("#")[0] == page
    assert pages.index(next(name for name in pages if name.startswith(page))) < 4
    chapter = items.filter(has=reused.page.locator(f"a[href='{page}']")).first
    assert re.search(r"\(.{20,}\)", chapter.inner_text()), "a sentence says what the page is about"


def found(html, reused, query) -> list[str]:
    """Return what the search lists, without anchors."""
    reused.page.goto(f"{(html / 'search.html').as_uri()}?{urlencode({'q': query})}")
    reused.page.get_by_text(re.compile(r"found \d+ page")).wait_for()
    links = reused.page.locator("#search-results li a").evaluate_all("links => links.map(a => a.getAttribute('href'))")
    return list(links)


@pytest.mark.parametrize(("query", "answer"), [
    ("does my model have induction heads?", "does-my-model-have-induction-heads"),
    ("is one layer unable, or only too small?", "is-one-layer-unable-or-only-too-small"),
    ("can a head compute a function of several sources?", "can-a-head-compute-a-function-of-several-sources"),
    ("patch clean to corrupt, or back?", "should-one-patch-clean-to-corrupt-or-back"),
    ("how do 4 d_model neurons fit one stream?", "how-do-4-d-model-neurons-fit-one-stream"),
    ("why does the paper avoid feature?", "why-does-the-paper-avoid-the-word-feature"),
    ("after A B … A C … A, B or C?", "after-a-b-a-c-a-does-it-attend-to-b-or-c"),
    ("heads that fail on random tokens", "which-heads-fail-on-random-tokens"),
    ("is there really no privileged basis?", "is-there-really-no-privileged-basis"),
    ("how to formalize composition; rival measures",
     "how-can-one-formalize-composition-and-what-are-rival-measures"),
    ("shortformer", "what-is-shortformer"),
    ("BOS", "what-does-the-bos-token-do"),
])  # fmt: skip
def test_search_gives_the_answer_to_a_question_among_the_first_three(html, reused, query, answer):
    assert soup(html / "book" / "questions.html").find(id=answer)
    assert f"book/questions.html#{answer}" in found(html, reused, query)[:3]


@pytest.mark.parametrize("query", ["QK", "OV"])
def test_search_knows_words_of_two_letters(html, reused, query):
    assert found(html, reused, query)[:2] == [f"book/glossary.html#term-{query}", "notebooks/03_paths_qk_ov.html"]


def test_the_library_has_its_page(html):
    page = soup(html / "book" / "api.html")
    packages = {package.__name__: package.__path__ for package in (models, measures, circuits)}
    modules = {f"{name}.{found.name}" for name, path in packages.items() for found in pkgutil.iter_modules(path)}
    assert modules - {section.get("id", "").removeprefix("module-") for section in page.select("[id]")} == set()
    signature = page.find(id="transformer_circuits.measures.attention.induction_score").text
    assert "Float[Tensor, 'row head dest src']" in signature
    assert "Alias for field" not in page.text and "Annotated[" not in page.text


def test_each_page_can_be_cited_and_edited_if_a_person_wrote_it(html):
    for name in files(ROOT):
        page = soup(html / f"{name}.html")
        assert "Cite as: " in page.select_one(".extra_footer").text, name
        made = name in GENERATED or name in ("book/scoreboard", "book/figures")
        edits = [link["href"].partition("/edit/main/")[2] for link in page.select("a[href*='/edit/main/']")]
        assert bool(edits) != made and all((ROOT / edit).is_file() for edit in edits), name
