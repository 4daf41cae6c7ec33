"""How readers find things: the search, the page of the library, what to cite."""

import pkgutil
import re
from urllib.parse import urlencode

import pytest
from small_book import soup

from transformer_circuits import circuits, measures, models


def found(html, reused, query) -> list[str]:
    """Return what the search lists."""
    reused.page.goto(f"{(html / 'search.html').as_uri()}?{urlencode({'q': query})}")
    reused.page.get_by_text(re.compile(r"found \d+ page")).wait_for()
    return reused.page.locator("#search-results li a").evaluate_all("links => links.map(a => a.getAttribute('href'))")


@pytest.mark.parametrize(("query", "term", "page"), [
    ("induction head", True, "notebooks/07_induction_heads.html"),
    ("skip-trigram", True, "notebooks/04_skip_trigrams.html"),
    ("K-composition", True, "notebooks/06_composition.html"),
    ("residual stream", True, "notebooks/01_residual_stream.html"),
    ("eigenvalues", False, "notebooks/05_copying.html"),
    ("layer normalization", True, "notebooks/a4_layer_normalization.html"),
    ("QK", True, "notebooks/03_paths_qk_ov.html"),  # words of two letters
    ("OV", True, "notebooks/03_paths_qk_ov.html"),
])  # fmt: skip
def test_search_gives_the_glossarys_entry_and_the_chapter_first(html, reused, query, term, page):
    pages = found(html, reused, query)
    if term:
        assert pages[0].lower() == f"book/glossary.html#term-{query.replace(' ', '-')}".lower()
    assert next(name for name in pages if name.startswith("notebooks/")).partition("#")[0] == page
    assert pages.index(next(name for name in pages if name.startswith(page))) < 4
    chapter = reused.page.locator("#search-results li", has=reused.page.locator(f"a[href='{page}']")).first
    assert re.search(r"\(.{20,}\)", chapter.inner_text()), "a sentence says what the page is about"


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
    assert f"book/questions.html#{answer}" in found(html, reused, query)[:3]


def test_the_library_has_its_page(html):
    page = soup(html / "book" / "api.html")
    assert "Cite as: " in page.select_one(".extra_footer").text
    packages = {package.__name__: package.__path__ for package in (models, measures, circuits)}
    modules = {f"{name}.{found.name}" for name, path in packages.items() for found in pkgutil.iter_modules(path)}
    assert modules - {section.get("id", "").removeprefix("module-") for section in page.select("[id]")} == set()
    signature = page.find(id="transformer_circuits.measures.attention.induction_score").text
    assert "Float[Tensor, 'row head dest src']" in signature
    assert "Alias for field" not in page.text and "Annotated[" not in page.text
