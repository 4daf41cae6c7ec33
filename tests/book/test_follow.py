"""The page "Follow a name" in a browser, from disk: what it shows are the numbers of the model, by keyboard and pointer, and tokens appear literally."""

import json
import re
import shutil

import pytest
import torch
from live_page import HEAD
from playwright.sync_api import expect

from book_build.pages import follow
from transformer_circuits.models import load_model
from transformer_circuits.paths import ROOT

STATIC = ROOT / "book" / "_static"


@pytest.fixture(scope="module")
def numbers():
    with torch.no_grad():
        return follow.numbers(*(load_model(name, device="cpu") for name in (follow.TWO, follow.ONE)))


def make(root, numbers):
    """Write the page with these numbers, without the theme around it, and return it."""
    static = root / "_static"
    shutil.copytree(STATIC / "follow", static / "follow")
    for name in ("dom.js", "heads.js", "widgets.js"):
        shutil.copy(STATIC / name, static)
    (static / "follow" / "data.js").write_text(f"pageData({json.dumps(numbers)});", encoding="utf-8")
    page = root / "follow.html"
    style = "<style>.bd-article { max-width: 1000px }</style>"
    body = '<div class="tc-follow-here" data-whole="1"></div><script src="_static/widgets.js"></script>'
    page.write_text(f'{HEAD}{style}<body class="bd-article">{body}')
    return page


@pytest.fixture(scope="module")
def site(tmp_path_factory, numbers):
    return make(tmp_path_factory.mktemp("follow"), numbers)


@pytest.fixture
def page(reused, site):
    reused.page.emulate_media(reduced_motion="reduce")
    reused.page.goto(site.as_uri())
    reused.page.wait_for_selector(".tc-follow svg text")
    return reused.page


def percent(share):
    return "<0.1%" if share < 0.001 else f"{share:.1%}" if share > 0.99 or share < 0.1 else f"{share:.0%}"


def chance(data, run):
    return percent(data["runs"][run]["probabilities"][data["likely"].index(data["answer"])])


def attention(data, run):
    return percent(data["runs"][run]["pattern"][-1][data["target"]])


def test_the_numbers_are_those_of_a_run_with_hooks_of_our_own(numbers):
    data = numbers["sentences"]["A name"]
    model = load_model("attn-only-2l", device="cpu")
    ids = model.to_tokens(data["text"])
    layer, head = map(int, numbers["heads"]["induction"].split("."))
    writer = int(numbers["heads"]["previous"].split(".")[1])
    written = {}

    def keep(z, hook):
        written["by"] = z[:, :, writer] @ model.W_O[0, writer]

    def cut(stream, hook):
        return stream - written["by"] + written["by"].mean(dim=1, keepdim=True)

    # All heads of the layer lose the note here; the pattern of one head depends on its own keys alone.
    hooks = [("blocks.0.attn.hook_z", keep), ("blocks.1.attn.k.hook_in", cut)]
    with torch.no_grad(), model.hooks(fwd_hooks=hooks):
        _, cache = model.run_with_cache(ids)
    expected = cache["pattern", layer][0, head, -1]
    torch.testing.assert_close(torch.tensor(data["runs"]["cut"]["pattern"][-1]), expected, atol=2e-3, rtol=0)
    logits = model(ids)[0, -1]
    total = sum(value for _, value in data["paths"]) + data["others"][1]
    answer = ids[0, data["target"]]
    assert total == pytest.approx(float(logits[answer] - logits.mean()), abs=0.01)
    score = data["runs"]["intact"]["scores"][data["target"]]
    assert sum(part[data["target"]] for part in data["parts"].values()) == pytest.approx(score, abs=0.01)


def test_arrow_keys_walk_through_the_steps_and_the_switches_change_the_numbers(page, numbers):
    data, say = numbers["sentences"]["A name"], page.locator(".tc-follow-say")
    page.get_by_label("Next step").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    expect(say).to_contain_text(f"{attention(data, 'intact')} of the attention is on {data['answer']}")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(say).to_contain_text(f"{data['answer']} {chance(data, 'intact')}")
    page.keyboard.press("ArrowRight")  # the last step cuts
    expect(page.get_by_role("switch", name=re.compile("cut the notes"))).to_be_checked()
    expect(say).to_contain_text(f"falls from {attention(data, 'intact')} to {attention(data, 'cut')}")
    expect(say).to_contain_text(f"its chance from {chance(data, 'intact')} to {chance(data, 'cut')}")
    expect(page.locator(".tc-follow svg").first).to_contain_text(attention(data, "cut"))
    page.get_by_role("switch", name="one layer").check()
    page.get_by_label("Previous step").click()
    expect(say).to_contain_text(f"{data['answer']} has {chance(data, 'one')}")
    page.get_by_role("switch", name="one layer").uncheck()
    expect(say).to_contain_text(chance(data, "intact"))  # going back from the last step undid the cut
    slider = page.get_by_label("Step", exact=True)
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(slider).to_have_value("6")


def test_each_sentence_shows_its_own_numbers_and_both_lenses_can_be_moved(page, numbers):
    for label, data in numbers["sentences"].items():
        page.get_by_label("Sentence").select_option(label)
        source = page.get_by_role("listbox", name="The token that is attended to")
        source.get_by_role("option").nth(data["target"]).click()
        page.keyboard.press("ArrowLeft")
        names, values = data["moves"][data["target"] - 1]
        expect(page.locator(".tc-follow-lenses li").first).to_have_text(re.compile(re.escape(names[0])))
        asks = page.get_by_role("listbox", name="The token that asks").get_by_role("option")
        expect(asks.nth(data["target"])).to_contain_text(attention(data, "intact"))
        expect(page.locator(".tc-follow-below")).to_contain_text(f"{data['others'][0]} other paths")


def test_hostile_tokens_are_shown_literally(reused, numbers, tmp_path):
    hostile = json.loads(json.dumps(numbers).replace('"ram"', '"<b>&amp;"'))
    page = reused.page
    page.goto(make(tmp_path, hostile).as_uri())
    expect(page.locator(".tc-follow svg").first).to_contain_text("<b>&amp;")
    page.locator(".tc-follow-line li").nth(3).click()
    expect(page.locator(".tc-follow-say code").first).to_have_text("<b>&amp;")


@pytest.mark.parametrize("width", [400, 1300])
def test_nothing_is_wider_than_the_screen(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    page.locator(".tc-follow-line input").fill("8")
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = """() => [...document.querySelectorAll('.tc-follow svg text')].filter((text) => {
        const picture = text.closest('svg').getBoundingClientRect(), box = text.getBoundingClientRect();
        const seen = text.textContent && text.getAttribute('opacity') !== '0';
        return seen && (box.left < picture.left - 1 || box.right > picture.right + 1);
    }).map((text) => text.textContent)"""
    assert page.evaluate(outside) == []
