"""The page "Watch it learn" in a browser, from disk, without network: it shows the film, whose end is the shipped model, and all can use it."""

import re

import numpy as np
import pytest
import torch
from live_page import LivePage, make_site, opened
from playwright.sync_api import expect

from book_build.pages import watch
from transformer_circuits.circuits import heads
from transformer_circuits.figures.tokens import show_token
from transformer_circuits.measures import weights
from transformer_circuits.models.registry import load_model, training_film

NAME = "attn-only-2l"
FILMED = training_film(NAME)
ROUNDED = 0.02  # half a shade of 32


@pytest.fixture(scope="module")
def site(html, tmp_path_factory):
    return make_site(tmp_path_factory.mktemp("site"), "watch")


@pytest.fixture
def page(reused, site):
    """The page at the last moment of its film, and still."""
    return opened(reused.page, f"{site.as_uri()}#t=40M")


def choose(page, layer, head):
    page.get_by_role("radio", name=re.compile(rf"Head {layer}\.{head}\b")).click()


def numbers(text):
    return [float(x.replace("−", "-")) for x in re.findall(r"[−\d.]*\d", text)]


def drawn(page, selector, value):
    """Return a number of each element of the page that the selector finds; `value` is JavaScript of the element `e`."""
    return np.array(page.locator(selector).evaluate_all(f"all => all.map(e => {value})"))


def pattern(film, text, layer, head):
    """A head's attention [destination, source] on a text at the last snapshot."""
    n = len(film[f"text_{text}"])
    found = np.zeros((n, n))
    found[np.tril_indices(n)] = film[f"pattern_{text}"][-1, layer, head] / 255
    return found


def test_the_last_moment_shows_the_patterns_and_predictions_of_the_film(page):
    tokenizer = load_model(NAME, device="cpu").tokenizer
    for k, text in enumerate(watch.TEXTS):
        page.locator("details").evaluate("e => (e.open = true)")
        page.get_by_role("button", name=text).click()
        best, chance = FILMED[f"top_token_{k}"][-1], FILMED[f"top_probability_{k}"][-1] / 255
        for layer, head, place in ((0, 4, 5), (1, 0, len(best) - 1), (1, 3, 12)):
            choose(page, layer, head)
            page.locator(f"#watch-token-{place}").click()
            attention = drawn(page, ".watch-token", "+e.style.getPropertyValue('--a')")
            assert np.abs(attention - pattern(FILMED, k, layer, head)[place]).max() < ROUNDED
            bars = drawn(page, ".watch-next rect", "e.getAttribute('width') / 100")
            assert np.abs(bars - chance[place]).max() < ROUNDED
            words = page.locator(".watch-next code").all_text_contents()
            assert words[0] == show_token(tokenizer.decode([int(best[place, 0])]))


def test_the_last_moment_shows_the_scores_and_circuits_of_the_film(page):
    scores = np.stack([FILMED[name][-1] for name in ("previous_token", "rest", "induction", "positivity")])
    for layer, head in ((0, 1), (0, 4), (1, 2)):
        choose(page, layer, head)
        name, *shown = numbers(page.locator(".watch-about").text_content())
        assert name == float(f"{layer}.{head}")
        assert np.allclose(np.array(shown) / [100, 100, 100, 1], scores[:, layer, head], atol=ROUNDED)
    expect(page.locator(".watch-about")).to_contain_text("Head 1.2: induction head")
    shown = numbers(page.locator(".watch-curve b").text_content())
    assert np.allclose(np.array(shown) / 100, FILMED["induction"][-1].max(), atol=ROUNDED)


@pytest.mark.parametrize("name", watch.LABELS)
def test_the_films_of_shipped_models_end_with_the_shipped_weights(name):
    film, model = training_film(name), load_model(name, device="cpu").requires_grad_(False)
    tokens = torch.from_numpy(film["text_0"].astype(np.int64))[None]
    logits, A = model(tokens)[0], heads.patterns(model, tokens)[:, 0].numpy()
    for layer, head in np.ndindex(A.shape[:2]):
        assert np.abs(pattern(film, 0, layer, head) - A[layer, head]).max() < 0.05
    best = torch.from_numpy(film["top_token_0"][-1].astype(np.int64))
    chance = logits.softmax(-1).gather(-1, best).numpy()
    assert np.abs(film["top_probability_0"][-1] / 255 - chance).max() < 0.05
    positivity = weights.positivity((model.W_E @ model.OV @ model.W_U).eigenvalues).numpy()
    assert np.abs(film["positivity"][-1] - positivity).max() < 0.02


def test_nothing_moves_by_itself_if_motion_is_unwanted(page):
    page.emulate_media(reduced_motion="reduce")
    moving = drawn(page, ".watch *", "parseFloat(getComputedStyle(e).transitionDuration)")
    assert np.nanmax(moving) == 0


def test_it_begins_early_plays_by_itself_and_ends_at_the_last_moment(page, site):
    page.emulate_media(reduced_motion="no-preference")
    opened(page, site.as_uri())
    first = int(page.locator("#watch").get_attribute("data-at"))
    assert 0 < first < len(FILMED["tokens"]) - 1
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.wait_for_function("(first) => document.getElementById('watch').dataset.at > first", arg=first)
    page.get_by_role("slider").press("End")
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    expect(page.locator("#watch")).to_have_attribute("data-at", str(len(FILMED["tokens"]) - 1))


class TestWatch(LivePage):
    data = f"watch/films/{NAME}.js"
    says = rf"^The file films/{NAME}.js is .*damaged; build the book again \(make book\)\.$"
