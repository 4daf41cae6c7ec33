"""Pictures that answer, in a browser, used by keyboard and pointer: what they say is what the numbers give."""

import re
import shutil

import numpy as np
import pytest
from playwright.sync_api import expect

from transformer_circuits.figures.live import live
from transformer_circuits.paths import ROOT

STATIC = ROOT / "book" / "_static"
RATIOS = np.random.default_rng(0).uniform(0.5, 1.5, (3, 4, 4))
RATIOS[1, 2, 1] = 3.2  # keys of head 1.2 read head 0.1
PICTURES = {
    "eigenvalues": live("eigenvalues", "drag two vectors", start=[[2.0, 0.5], [0.3, 1.5]]),
    "circuits": live("circuits", "choose a source", head="0.3", sources=[
        {"source": " keep", "destinations": [[" in", 2.0], [" at", 1.0]], "outs": [[" mind", 3.0], ["<b>bay", 2.0]], "right": [[True, False], [False, True]]},
        {"source": " two", "destinations": [[" has", 2.0]], "outs": [[" three", 3.0]], "right": [[True]]},
    ]),
    "graph": live("graph", "point at a head", writers=["0.0", "0.1", "0.2", "0.3"], readers=["1.0", "1.1", "1.2", "1.3"], ratios=RATIOS, most=3.2),
    "paths": live("paths", "switch paths", switches=["direct", "layer 1", "layer 2"], at=["direct", "layer 1", "layer 2"], uniform=8.3,
                  losses={"direct": 6.4, "direct+layer 1": 4.9, "direct+layer 2": 3.4, "direct+layer 1+layer 2": 2.8}),
    "training": live("training", "move through the training", tokens=[1e5, 1e6, 1e7, 4e7], at=1, curves=[
        {"name": "induction score", "values": [0.0, 0.02, 0.5, 0.64]}, {"name": "in-context score", "values": [0.1, 0.0, -0.3, -0.4]}]),
}  # fmt: skip
QUESTION = """<details data-answer="64" data-chance="0.3" data-unit="%"><summary>Answer</summary>64%</details>
<details data-answer="keys" data-choices="queries|keys|values"><summary>Answer</summary>keys</details>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    root = tmp_path_factory.mktemp("live")
    (root / "_static").mkdir()
    for name in ("dom.js", "heads.js", "widgets.js", "live.js", "live.css"):
        shutil.copy(STATIC / name, root / "_static")
    body = "".join(f'<section id="{kind}">{picture._repr_html_()}</section>' for kind, picture in PICTURES.items())
    page = root / "live.html"
    head = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    page.write_text(f'{head}<body>{body}{QUESTION}<script src="_static/widgets.js"></script>')
    return page


@pytest.fixture
def page(reused, site):
    reused.page.goto(site.as_uri())
    reused.page.wait_for_selector(".tc-predict")
    return reused.page


def positivity(rows):
    values = np.linalg.eigvals(rows)
    return values.real.sum() / np.abs(values).sum()


def test_arrow_keys_and_the_pointer_move_a_vector_and_eigenvalues_follow(page):
    section = page.locator("#eigenvalues")
    expect(section).to_contain_text(f"Positivity {positivity([[2, 0.5], [0.3, 1.5]]):.2f}")
    section.get_by_role("slider").nth(1).focus()
    for _ in range(30):
        page.keyboard.press("ArrowDown")
    expect(section).to_contain_text(f"Positivity {positivity([[2, 0.5], [0.3, -1.5]]):.2f}".replace("-", "−"))
    handle = section.get_by_role("slider").nth(0).bounding_box()
    x, y = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 300, y)
    page.mouse.up()
    expect(section).to_contain_text("Positivity −1.00")


def test_a_source_token_has_its_column_its_row_and_its_bugs(page):
    section = page.locator("#circuits")
    expect(section.locator("td.right")).to_have_count(2)
    expect(section.locator("td.bug")).to_have_count(2)
    expect(section).to_contain_text("<b>bay")
    section.get_by_role("button", name="two").click()
    expect(section.locator("td")).to_have_count(1)


def test_the_graph_of_heads_begins_with_its_strongest_pair_and_follows_the_keyboard(page):
    section = page.locator("#graph")
    expect(section.locator("li").first).to_have_text(re.compile(r"head 0\.1, with its keys\s*3\.20 × chance"))
    section.get_by_role("radio", name="Head 0.1").focus()
    page.keyboard.press("Enter")
    expect(section.locator("p b")).to_have_text("Head 0.1")
    expect(section.locator("li").first).to_have_text(re.compile(r"head 1\.2"))


def test_switching_paths_moves_the_loss_and_says_what_was_not_measured(page):
    section = page.locator("#paths")
    expect(section).to_contain_text("Loss 2.80 nats")
    section.get_by_role("button", name="layer 1").click()
    expect(section).to_contain_text("Loss 3.40 nats")
    section.get_by_role("button", name="direct").click()
    expect(section).to_contain_text("did not measure layer 2")


def test_the_slider_of_a_training_says_how_far_each_curve_is(page):
    section = page.locator("#training")
    section.get_by_role("slider").focus()
    page.keyboard.press("ArrowRight")
    expect(section).to_contain_text("After 10 million tokens")
    expect(section.locator("li").first).to_contain_text("78% of the way (0.50)")
    expect(section.locator("li").nth(1)).to_contain_text("80% of the way (−0.30)")


def test_predictions_open_the_answer_with_what_chance_gives(page):
    page.get_by_label("Your guess").first.fill("20")
    page.get_by_role("button", name="That is my guess").click()
    expect(page.locator(".tc-predict").first).to_contain_text("You said 20%. It is 64%. By chance: 0.3%.")
    expect(page.locator("details").first).to_have_attribute("open", "")
    page.get_by_role("button", name="queries").click()
    expect(page.locator(".tc-predict").nth(1)).to_contain_text("No: keys.")


@pytest.mark.parametrize("width", [400, 1300])
def test_nothing_is_wider_than_the_screen(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


class TestInItsChapter:
    """What a picture says on its page is what the chapter's cells print there."""

    def test_paths(self, html, reused):
        page = reused.open(html / "notebooks" / "08_term_importance.html")
        words, picture = page.locator("article").inner_text(), page.locator(".tc-live[data-kind=paths]")

        def loss():
            return float(re.search(r"Loss ([\d.]+) nats", picture.inner_text())[1])

        whole = loss()
        for side, row in (("keys", "without K-composition"), ("queries", "without Q-composition")):
            picture.get_by_role("button", name=side).click()
            rise = float(re.search(rf"rise of the loss {row}\s+([\d.]+)", words)[1])
            assert abs(loss() - whole - rise) < 0.011, side  # two losses of two digits
            picture.get_by_role("button", name=side).click()
            assert loss() == whole

    def test_training(self, html, reused):
        page = reused.open(html / "notebooks" / "10_in_context_learning.html")
        words, picture = page.locator("article").inner_text(), page.locator(".tc-live[data-kind=training]")
        printed = re.findall(r"([\d.]+) million tokens\s+([\d.]+)\s+([−\d.]+)", words)[:5]
        slider = picture.get_by_role("slider")
        slider.focus()
        page.keyboard.press("Home")
        for million, *values in printed:
            while slider.get_attribute("aria-valuetext") != f"{million} million tokens":
                before = slider.get_attribute("aria-valuetext")
                page.keyboard.press("ArrowRight")
                assert slider.get_attribute("aria-valuetext") != before, f"no moment of {million} million tokens"
            for i, value in enumerate(values):
                expect(picture.locator("li").nth(i)).to_contain_text(f"({value})")

    def test_circuits(self, html, reused):
        page = reused.open(html / "notebooks" / "04_skip_trigrams.html")
        words, picture = page.locator("article").inner_text(), page.locator(".tc-live[data-kind=circuits]")
        for kind, column in (("destinations", 0), ("out tokens", 1)):
            names = picture.locator("ul").nth(column).locator("code").all_text_contents()
            assert names == re.search(rf"^{kind}: (.*)$", words, re.MULTILINE)[1].split(" ")[:6]

    def test_graph(self, html, reused):
        page = reused.open(html / "notebooks" / "06_composition.html")
        words, picture = page.locator("article").inner_text(), page.locator(".tc-live[data-kind=graph]")
        printed = re.findall(r"(\w+) of (1\.\d+) read (0\.\d+)\s+[\d.]+(?: ✓)?\s+([\d.]+)", words)
        assert len(printed) >= 4
        for side, reader, writer, ratio in printed:
            picture.get_by_role("radio", name=f"Head {reader}", exact=True).click()
            expect(picture.locator("li", has_text=f"head {writer}, with its {side}")).to_contain_text(
                f"{ratio} × chance"
            )
