"""The stage as the front page and the chapters show it, from disk: what it says are the numbers of the models, by keyboard and pointer."""

import json

import pytest
import torch
from bs4 import BeautifulSoup
from live_page import HEAD, copy_static, percent
from playwright.sync_api import expect

from book_build.pages import engine, follow
from transformer_circuits.models import load_model
from transformer_circuits.paths import ROOT


@pytest.fixture(scope="module")
def numbers():
    with torch.no_grad():
        return follow.numbers(*(load_model(name, device="cpu") for name in engine.MODELS))


@pytest.fixture(scope="module")
def site(tmp_path_factory, numbers):
    """A page that shows these numbers, without the theme around it."""
    root = tmp_path_factory.mktemp("follow")
    copy_static(root, "follow", "dom.js", "heads.js", "widgets.js", "palette.css")
    (root / "_static" / "follow" / "data.js").write_text(f"pageData({json.dumps(numbers)});", encoding="utf-8")
    page = root / "intro.html"
    still = '<link rel="stylesheet" href="_static/palette.css"><p><img src="_static/follow_a_name.png" alt=""></p>'
    page.write_text(f'{HEAD}<body>{still}<script src="_static/widgets.js"></script>')
    return page


@pytest.fixture
def page(reused, site):
    reused.page.emulate_media(reduced_motion="reduce")
    reused.page.goto(site.as_uri())
    reused.page.wait_for_selector(".tc-say b")
    reused.complaints.clear()  # the still picture, which is not copied
    return reused.page


def chance(data, run):
    view = data["runs"][run]
    return percent(dict(view["next"])[view["answer"]])


def attention(data, run):
    view = data["runs"][run]
    return percent(view["row"][view["followed"]])


def test_the_numbers_of_the_intact_model_are_those_of_a_run_of_our_own(numbers):
    """Those without the notes: test_play, where the page runs the same models with the same cut."""
    data, model = numbers["sentences"]["A name"], load_model("attn-only-2l", device="cpu")
    layer, head = map(int, numbers["heads"]["induction"].split("."))
    ids, intact = model.to_tokens(data["text"]), data["runs"]["intact"]
    with torch.no_grad():
        logits, cache = model.run_with_cache(ids)
    total = sum(value for _, value in intact["paths"]) + intact["others"][1]
    answer = ids[0, intact["followed"]]
    assert total == pytest.approx(float(logits[0, -1, answer] - logits[0, -1].mean()), abs=0.01)
    scores = torch.tensor(list(intact["parts"].values())).sum(dim=0)
    torch.testing.assert_close(scores, cache["attn_scores", layer][0, head, -1], atol=0.01, rtol=0)


def test_three_buttons_change_the_picture_the_prediction_and_the_sentence(page, numbers):
    data, say, guesses = numbers["sentences"]["A name"], page.locator(".tc-say"), page.locator(".tc-next")
    for button, run in (("Intact", "intact"), ("Cut the notes", "cut"), ("One layer", "one")):
        page.get_by_role("button", name=button).click()
        expect(page.get_by_role("button", name=button)).to_have_attribute("aria-pressed", "true")
        expect(say).to_contain_text(f"{attention(data, run)}")
        expect(guesses.locator(".answer")).to_contain_text(f"{data['runs'][run]['answer']}{chance(data, run)}")
        first = max(data["runs"][run]["next"], key=lambda pair: pair[1])[0]
        expect(guesses.locator("li").first).to_contain_text(first)
        expect(page.get_by_role("img")).to_contain_text(attention(data, run))


def test_without_scripts_the_front_page_says_the_same_sentence(page, numbers):
    data = numbers["sentences"]["A name"]
    page.get_by_role("button", name="Intact").click()
    expect(page.locator(".tc-say")).to_contain_text(attention(data, "intact"))
    front = BeautifulSoup((ROOT / "book" / "intro.md").read_text(encoding="utf-8"), "html.parser")
    assert front.noscript.p.text == page.locator(".tc-say").inner_text()


def test_the_words_below_the_picture_have_its_numbers(numbers):
    data = numbers["sentences"]["A name"]
    words = follow.said(data)
    assert words["answer"] == data["runs"]["intact"]["answer"]
    assert words["attention"] == {run: attention(data, run) for run in ("intact", "cut")}
    assert words["chance"] == {run: chance(data, run) for run in data["runs"]}


def test_arrow_keys_walk_through_the_steps(page, numbers):
    data, story = numbers["sentences"]["A name"], page.locator(".tc-story")
    view = data["runs"]["intact"]
    page.get_by_role("button", name="Step through it").press("Enter")
    expect(page.get_by_role("button", name="Next")).to_be_focused()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(story).to_contain_text("Step 4 of 8")
    note = view["parts"]["note"]
    above = note[view["followed"]] - sum(note) / len(note)
    expect(story.locator(".tc-bars li").first).to_contain_text(f"+{above:.1f}")
    page.keyboard.press("ArrowRight")
    expect(story).to_contain_text(f"{view['answer']} gets {attention(data, 'intact')}")
    page.keyboard.press("ArrowRight")
    own = dict(view["paths"])[f"{view['high']}·{view['low']}"]
    expect(story).to_contain_text(f"({own:.1f}): head {view['low']} says where, not what".replace("-", "−"))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")  # the last step cuts
    expect(page.get_by_role("button", name="Cut the notes")).to_have_attribute("aria-pressed", "true")
    expect(story).to_contain_text(f"falls from {attention(data, 'intact')} to {attention(data, 'cut')}")
    expect(story).to_contain_text(f"its chance falls from {chance(data, 'intact')} to {chance(data, 'cut')}")
    page.keyboard.press("ArrowLeft")  # going back from it undoes that
    expect(story).to_contain_text(f"give {view['answer']} {chance(data, 'intact')}")


@pytest.mark.parametrize("width", [400, 1300])
def test_nothing_is_wider_than_the_screen(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    outside = """() => [...document.querySelectorAll('.tc-arcs text, .tc-label')].filter((text) => {
        const picture = text.closest('.tc-scene').getBoundingClientRect(), box = text.getBoundingClientRect();
        return text.textContent && (box.left < picture.left - 1 || box.right > picture.right + 1);
    }).map((text) => text.textContent)"""
    page.get_by_role("button", name="Step through it").click()
    for _ in range(8):
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(outside) == []
        page.get_by_role("button", name="Next").or_(page.get_by_role("button", name="Done")).click()
