"""The live model of the page "Play" in a browser, from disk, without network: equal to TransformerLens, and usable by all."""

import re

import numpy as np
import pytest
import torch
from live_page import LivePage, follow, make_site, opened
from playwright.sync_api import expect

from book_build.pages import play
from transformer_circuits.circuits import heads
from transformer_circuits.data import held_out_documents, held_out_windows
from transformer_circuits.models import load_model

HOSTILE = [
    "", " ", "\n\n\n", "\0a\0", "</script><script>alert(1)</script>", "<!-- <b>&amp;</b> -->", "👩‍👩‍👧 🏳️‍🌈 naïve ﬁ İ", "שלום עולם \u202eabc\u202c",
    "\ud800 a \udfff\ud83d b", "<|start|>", "a<|start|><|start|>b <|start|",
      "x" * 3000, "ab" * 900 + " " * 700, "'ll 're it'S we'd''", "\u0085\ufeff\u2028 \u3000x",
    "١٢٣ ½ ²  \t\r\n x", "日本語の文章、한국어", "e\u0301\u0300 \u200b\u200d", "constructor __proto__ toString",
]  # fmt: skip
LAST = 4  # positions that are compared, at the end of a text: a whole context would be 30 MB to hand over
CALL = """async ([text, edits, last]) => {
  const { ids, n, logits, patterns, losses } = await play.run(text, edits);
  const kept = (all, width) => Array.from({ length: all.length / n / width },
    (_, i) => all.slice(((i + 1) * n - Math.min(n, last)) * width, (i + 1) * n * width));
  return { ids, logits: kept(logits[0], logits[0].length / n), patterns: patterns.map((layer) => kept(layer, n)), losses };
}"""


@pytest.fixture(scope="module")
def two():
    return load_model(play.MODEL, device="cpu").requires_grad_(False)


@pytest.fixture(scope="module")
def means(two):
    return [heads.mean_z(two, held_out_windows(16, two.cfg.n_ctx)[:, :-1], layer) for layer in (0, 1)]


@pytest.fixture(scope="module")
def site(html, tmp_path_factory):
    return make_site(tmp_path_factory.mktemp("site"), "play", "forward.js")


def reference(two, tokens, means, off=(), mean=False, cut="", frozen=False, **rest):
    """Logits and patterns of TransformerLens's hooks for the edits of engine.js."""
    off, side, hooks = [tuple(head) for head in off], rest.get("from", ""), []
    means = means if mean else None
    everywhere = [head for head in off if not side or head[0] == 1]
    hooks += heads.without_heads(everywhere, means)
    if side and side not in cut and any(layer == 0 for layer, _ in off):
        hooks += play.hidden_from(two, side, off, means)
    for each in cut:
        hooks += play.hidden_from(two, each)
    if frozen:
        hooks += heads.freeze(two.run_with_cache(tokens)[1])
    return two.run_with_hooks(tokens, fwd_hooks=hooks)[0], heads.patterns(two, tokens, hooks)[:, 0]


def edits(two):
    """Each kind of switch, and some together; the heads are those with most to lose."""
    looks_back = heads.previous_token_scores(two, held_out_windows(4, 128)[:, :-1])
    first, second = [0, int(looks_back[0].argmax())], [1, int(looks_back[1].argmax())]
    others = [[layer, (head + 1) % two.cfg.n_heads] for layer, head in (first, second)]
    return [
        {}, {"off": [first]}, {"off": [second]}, {"off": [first, second, *others], "mean": True},
        {"cut": "K"}, {"cut": "Q"}, {"cut": "V"}, {"cut": "QKV"},
        {"off": [first], "frozen": True}, {"off": [first], "from": "K"}, {"off": [first, second], "from": "Q"},
        {"off": [first, others[0]], "from": "V", "mean": True},
        {"off": [second], "cut": "K"}, {"cut": "V", "frozen": True}, {"off": [[0, h] for h in range(two.cfg.n_heads)]},
    ]  # fmt: skip


def plain(text):
    """What a browser makes of lone surrogates, which Python's tokenizer declines."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def passages(two, n, length=60):
    windows = torch.cat([tokens[1:] for _, tokens in held_out_documents()]).unfold(0, length, length)
    return two.tokenizer.batch_decode(windows[torch.linspace(0, len(windows) - 1, n).long()])


def difference(found, wanted):
    return np.abs(np.concatenate(found) - wanted.numpy().ravel()).max()


def test_token_ids_are_those_of_python(page, two):
    texts = passages(two, 1000) + HOSTILE
    found = page.evaluate("async (texts) => (await play.encode(texts)).ids", texts)
    assert found == [two.tokenizer.encode(plain(text)) for text in texts]


def test_logits_and_patterns_are_those_of_transformer_lens(page, two, means):
    every = [(text, {}) for text in (*passages(two, 12), *HOSTILE)]
    every += [(text, edit) for text in passages(two, 2) for edit in edits(two)]
    for text, edit in every:
        found = page.evaluate(CALL, [text, edit, LAST])
        tokens = torch.tensor([two.tokenizer.encode(plain(text))[: two.cfg.n_ctx]])
        assert found["ids"] == tokens[0].tolist()
        logits, patterns = reference(two, tokens, means, **edit)
        scale = float(logits.abs().max())
        apart = [difference(found["logits"], logits[-LAST:]) / scale]
        apart += map(difference, found["patterns"], patterns[..., -LAST:, :])
        losses = torch.nn.functional.cross_entropy(logits[:-1], tokens[0, 1:], reduction="none")
        if len(losses):
            apart.append(difference([found["losses"]], losses) / scale)
        assert max(apart) < 1e-3, (text[:60], edit, apart)


def type_in(page, text):
    before = int(page.locator("#play").get_attribute("data-runs"))
    page.get_by_label("Your text").fill(text)
    page.wait_for_function("(before) => document.getElementById('play').dataset.runs > before", arg=before)


def test_the_twin_can_be_loaded_instead_and_the_text_stays(page, site):
    twin, text = load_model("attn-only-2l-planted", device="cpu"), "Zorblax met Zorblax"
    type_in(page, text)
    page.get_by_role("link", name="its twin").click()
    page.wait_for_selector("#play[data-ready=yes]")
    expect(page.get_by_label("Your text")).to_have_value(text)
    tokens = torch.tensor([twin.tokenizer.encode(text)])
    found = page.evaluate(CALL, [text, {}, LAST])
    assert difference(found["logits"], twin(tokens)[0, -LAST:]) < 1e-3 * float(twin(tokens).abs().max())
    expect(page.locator("button[data-do]")).to_have_count(0)
    opened(page, site.as_uri())


def test_what_is_typed_is_shown_literally_and_predicted(page, two):
    text = "Zorb </script><b>x</b> $y$ Zorb"
    type_in(page, text)
    names = page.locator(".play-token").all_text_contents()
    assert "".join(names).replace("·", " ") == "<|start|>" + text
    logits = two(two.to_tokens(text))[0, -1].softmax(-1)
    best = two.tokenizer.decode([int(logits.argmax())]).replace(" ", "·").replace("\n", "↵")
    expect(page.locator(".play-next tbody tr").first).to_contain_text(best)
    shown = page.locator(".play-next tbody td:nth-child(3)").first.text_content()
    assert abs(float(shown.strip("%")) - 100 * float(logits.max())) <= 0.5
    assert page.locator(".play b").count() == 0


def test_a_text_longer_than_the_context_is_cut_and_said_to_be(page, two):
    type_in(page, "word " * 600)
    expect(page.locator("#play-cut")).to_be_visible()
    expect(page.locator(".play-token")).to_have_count(two.cfg.n_ctx)
    type_in(page, "")
    expect(page.locator("#play-cut")).to_be_hidden()
    expect(page.locator(".play-token")).to_have_count(1)


def test_a_head_is_chosen_and_removed_by_keyboard(page):
    page.locator(".play-pick").first.click()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("radio", checked=True)).to_contain_text("1.0")
    page.keyboard.press("x")
    expect(page.locator(".play-edits")).to_have_text("off: 1.0")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Head 1.0 off", exact=True)).to_be_focused()
    page.get_by_role("button", name="Reset").click()
    expect(page.locator(".play-edits")).to_have_text("all heads on")


def test_the_steps_and_prepared_texts_do_what_they_say(page):
    n, where = play.SEGMENT, page.locator(".play-where")
    for step in page.locator("li:has(button[data-do])").all():
        said = re.findall(r"<?[\d.]+%", step.locator("span").text_content())
        for number, button in enumerate(step.get_by_role("button").all()):
            page.get_by_role("button", name="Python").click()
            button.click()
            # The first step says what it is in the intact model first.
            wanted = said[number + (step.get_by_role("button").first.get_attribute("data-step") == "1")]
            expect(where).to_contain_text(f"followed last time: {wanted}")
        expect(page.locator(".play-edits")).not_to_have_text("all heads on")
        assert page.get_by_label("Your text").input_value() == play.EXAMPLE
    for button in page.get_by_role("group", name="Prepared texts").get_by_role("button").all():
        button.click()
        expect(page.locator(".play-note")).not_to_be_empty()
        expect(page.locator(".play-edits")).to_have_text("all heads on")
    page.get_by_role("button", name="Random tokens, twice").click()
    words = page.get_by_label("Your text").input_value().split()
    assert len(words) == 2 * n and words[:n] == words[n:] and len(set(words)) == n
    expect(page.locator(".play-token")).to_have_count(2 * n + 1)
    expect(page.locator(".play-lasttime")).to_have_count(1)


def test_a_link_brings_back_what_was_there(page):
    type_in(page, "a & b = c\n#1")
    page.locator(".play-power").nth(3).click()
    page.get_by_label("keys", exact=True).uncheck()
    page.get_by_role("button", name="Link to this").click()
    opened(page, page.url)
    assert page.get_by_label("Your text").input_value() == "a & b = c\n#1"
    edits = "off: 0.3; keys of the second layer read the embedding alone"
    expect(page.locator(".play-edits")).to_have_text(edits)


def test_a_hostile_link_is_text(page):
    follow(page, "text=<img src=x onerror=alert(1)>&head=9.9&at=x&off=__proto__&cut=<b>")
    expect(page.get_by_label("Your text")).to_have_value("<img src=x onerror=alert(1)>")
    expect(page.locator(".play-edits")).to_have_text("all heads on")
    assert page.locator(".play-app img, .play-app b").count() == 0


class TestPlay(LivePage):
    data, says = "play/model.js", r"^The file model.js is .*damaged; build the book again \(make book\)\.$"

    def use(self, page):
        page.get_by_role("button", name="Python").click()
        page.locator("button[data-do]").first.click()
        expect(page.locator(".play-edits")).not_to_have_text("all heads on")
