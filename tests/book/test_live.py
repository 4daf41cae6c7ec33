"""Pictures that answer, in a browser, used by keyboard and pointer: what they say is what the numbers give."""

import re

import numpy as np
import pytest
from live_page import HEAD, copy_static
from playwright.sync_api import expect

from transformer_circuits.figures.widgets import live

PICTURES = {
    "eigenvalues": live("eigenvalues", "drag two vectors", start=[[2.0, 0.5], [0.3, 1.5]]),
    "circuits": live("circuits", "choose a source", head="0.3", sources=[
        {"source": " keep", "destinations": [[" in", 2.0], [" at", 1.0]], "outs": [[" mind", 3.0], ["<b>bay", 2.0]], "right": [[True, False], [False, True]], "bugs": [[False, True], [False, False]]},
        {"source": " two", "destinations": [[" has", 2.0]], "outs": [[" three", 3.0]], "right": [[True]], "bugs": [[False]]},
    ]),
}  # fmt: skip
QUESTION = """<details data-answer="64" data-chance="0.3" data-unit="%"><summary>Answer</summary>64%</details>
<details data-answer="keys" data-choices="queries|keys|values"><summary>Answer</summary>keys</details>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    root = tmp_path_factory.mktemp("live")
    copy_static(root, "dom.js", "heads.js", "widgets.js", "live.js", "live.css")
    body = "".join(f'<section id="{kind}">{picture._repr_html_()}</section>' for kind, picture in PICTURES.items())
    page = root / "live.html"
    page.write_text(f'{HEAD}<body>{body}{QUESTION}<script src="_static/widgets.js"></script>')
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
    expect(section.locator("td.bug")).to_have_count(1)
    expect(section.locator("td.bug")).to_contain_text("✗")
    expect(section).to_contain_text("<b>bay")
    section.get_by_role("button", name="two").click()
    expect(section.locator("td")).to_have_count(1)


def test_predictions_open_the_answer_with_what_chance_gives(page):
    page.get_by_label("Your guess").first.fill("20")
    page.get_by_role("button", name="That is my guess").click()
    expect(page.locator(".tc-predict").first).to_contain_text("You said 20%. It is 64%. By chance: 0.3%.")
    expect(page.locator("details").first).to_have_attribute("open", "")
    page.get_by_role("button", name="queries").click()
    expect(page.locator(".tc-predict").nth(1)).to_contain_text("Not quite. The answer is: keys.")


class TestInItsChapter:
    """What a picture says on its page is what the chapter's cells print there."""

    def test_paths(self, html, reused):
        page = reused.open(html / "notebooks" / "08_term_importance.html")
        words, picture = page.locator("article").text_content(), page.locator(".tc-live[data-kind=paths]")

        def loss():
            return float(re.search(r"Loss ([\d.]+) nats", picture.inner_text())[1])

        whole = loss()
        for side in ("keys", "queries"):
            picture.get_by_role("button", name=side).click()
            rise = float(re.search(rf"first layer hidden from the {side}\s+([\d.]+)", words)[1])
            assert abs(loss() - whole - rise) < 0.011, side  # two losses of two digits
            picture.get_by_role("button", name=side).click()
            assert loss() == whole

    def test_circuits(self, html, reused):
        page = reused.open(html / "notebooks" / "04_skip_trigrams.html")
        picture = page.locator(".tc-live[data-kind=circuits]")
        picture.evaluate("picture => { picture.closest('details').open = true; }")  # other words, in a fold
        lists = [picture.locator("ul").nth(column).locator("code").all_text_contents() for column in (0, 1)]
        assert "·my" in lists[0] and "·parent" in lists[1]  # of the figure above, in the first source
        expect(picture).to_contain_text("·child … ·the → ·parent: right")
        assert picture.inner_text().count("✓") > 6  # the first source has right pairs to see

    def test_graph(self, html, reused):
        page = reused.open(html / "notebooks" / "06_composition.html")
        words, picture = page.locator("article").inner_text(), page.locator(".tc-live[data-kind=graph]")
        printed = re.findall(r"(\w+) of (1\.\d+) read (0\.\d+): ([\d.]+) times chance", words)
        assert len(printed) >= 3
        for side, reader, writer, ratio in printed:
            picture.get_by_role("radio", name=f"Head {reader}", exact=True).click()
            line = picture.locator("li", has_text=f"head {writer}, with its {side}")
            expect(line).to_contain_text(f"{ratio} × chance")
