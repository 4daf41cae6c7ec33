"""The stage on its own page, from disk, without network: its models equal TransformerLens, and all can use it."""

import itertools
import re
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float
from live_page import PHONE, fits_a_phone, follow, forbidding_workers, make_site, opened, percent
from playwright.sync_api import expect
from torch import Tensor

from book_build.pages import engine
from transformer_circuits.circuits import heads
from transformer_circuits.data import held_out_documents, held_out_windows
from transformer_circuits.models import load_model
from transformer_circuits.models.registry import training_film
from transformer_circuits.models.view import View, without_heads

TWO, ONE = engine.MODELS
HOSTILE = [
    "", " ", "\n\n\n", "\0a\0", "</script><script>alert(1)</script>", "<!-- <b>&amp;</b> -->", "👩‍👩‍👧 🏳️‍🌈 naïve ﬁ İ", "שלום עולם \u202eabc\u202c",
    "\ud800 a \udfff\ud83d b", "<|start|>", "a<|start|><|start|>b <|start|",
      "x" * 3000, "ab" * 900 + " " * 700, "'ll 're it'S we'd''", "\u0085\ufeff\u2028 \u3000x",
    "١٢٣ ½ ²  \t\r\n x", "日本語の文章、한국어", "e\u0301\u0300 \u200b\u200d", "constructor __proto__ toString",
]  # fmt: skip
LAST = 4  # positions that are compared, at the end of a text: a whole context would be 30 MB to hand over
CALL = """async ([text, edits, last]) => {
  const { ids, n, logits, patterns } = await play.run(text, edits);
  const kept = (all, width) => Array.from({ length: all.length / n / width },
    (_, i) => all.slice(((i + 1) * n - Math.min(n, last)) * width, (i + 1) * n * width));
  return { ids, logits: kept(logits, logits.length / n), patterns: patterns.map((layer) => kept(layer, n)) };
}"""


@pytest.fixture(scope="module")
def two():
    return load_model(TWO, device="cpu").requires_grad_(False)


@pytest.fixture(scope="module")
def means(two):
    return [View(two).mean_z(held_out_windows(16, two.cfg.n_ctx)[:, :-1], layer) for layer in (0, 1)]


@pytest.fixture(scope="module")
def site(html, tmp_path_factory):
    files = ("engine.js", *itertools.chain(*engine.MODELS.values()))
    more = [f"play/{file}" for file in files]
    return make_site(tmp_path_factory.mktemp("site"), "follow", "forward.js", "palette.css", *more)


def severed(two, side: str, cuts: list[tuple[int, int]]):
    """Hooks that give readers of the second layer the mean over the text of what writers of the first wrote."""
    written = {}

    def keep(z: Float[Tensor, "row pos head d_head"], hook: Any) -> None:
        written["by"] = torch.einsum("bphd,hdm->hbpm", z, two.W_O[0])

    def cut(x: Float[Tensor, "row pos head d_head"], hook: Any) -> Tensor:
        x = x.clone()
        for reader, writer in cuts:
            gone = written["by"][writer] - written["by"][writer].mean(dim=1, keepdim=True)
            x[:, :, reader] -= gone @ getattr(two, f"W_{side}")[1, reader]
        return x

    return [("blocks.0.attn.hook_z", keep), (f"blocks.1.attn.hook_{side.lower()}", cut)]


def reference(two, tokens, means, off=(), mean=False, cut=(), frozen=False):
    """Logits and patterns of TransformerLens's hooks for the edits of engine.js."""
    off, hooks, H = [tuple(head) for head in off], [], range(two.cfg.n_heads)
    hooks += without_heads(off, means if mean else None)
    for side in "QKV":
        pairs = {
            (r, w)
            for reader, at, writer in cut
            for r in ([reader] if reader >= 0 else H)
            for w in ([writer] if writer >= 0 else H)
            if at == side and (0, w) not in off
        }
        if pairs:
            hooks += severed(two, side, sorted(pairs))
    if frozen:
        hooks += heads.freeze(two.run_with_cache(tokens)[1])
    return two.run_with_hooks(tokens, fwd_hooks=hooks)[0], View(two).patterns(tokens, hooks)[:, 0]


def edits(two):
    """Each kind of switch, and some together; the heads are those with most to lose."""
    looks_back = heads.previous_token_scores(two, held_out_windows(4, 128)[:, :-1])
    first, second = [0, int(looks_back[0].argmax())], [1, int(looks_back[1].argmax())]
    others = [[layer, (head + 1) % two.cfg.n_heads] for layer, head in (first, second)]
    f, s = first[1], second[1]
    return [
        {}, {"off": [first]}, {"off": [second]}, {"off": [first, second, *others], "mean": True},
        {"cut": [[s, "K", f]]}, {"cut": [[s, "Q", f], [s, "V", f]]}, {"cut": [[-1, "K", -1]]}, {"cut": [[-1, "Q", f], [s, "K", -1]]},
        {"off": [first], "frozen": True}, {"off": [first], "cut": [[-1, "K", f], [s, "K", others[0][1]]]},
        {"off": [first, others[0]], "cut": [[-1, "V", -1]], "mean": True},
        {"off": [second], "cut": [[s, "K", f]]}, {"cut": [[s, "V", f]], "frozen": True},
        {"off": [[0, h] for h in range(two.cfg.n_heads)]},
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
    every = [(text, {}) for text in (*passages(two, 4), *HOSTILE)]
    every += [(text, edit) for text in passages(two, 2) for edit in edits(two)]
    for text, edit in every:
        found = page.evaluate(CALL, [text, edit, LAST])
        tokens = torch.tensor([two.tokenizer.encode(plain(text))[: two.cfg.n_ctx]])
        assert found["ids"] == tokens[0].tolist()
        logits, patterns = reference(two, tokens, means, **edit)
        scale = float(logits.abs().max())
        apart = [difference(found["logits"], logits[-LAST:]) / scale]
        apart += map(difference, found["patterns"], patterns[..., -LAST:, :])
        assert max(apart) < 1e-3, (text[:60], edit, apart)


def test_the_one_layer_model_is_that_of_transformer_lens(page, two):
    one, text = load_model("attn-only-1l", device="cpu"), "Zorblax met Zorb"
    page.get_by_role("button", name="One layer").click()
    expect(page.locator(".tc-say")).to_contain_text("Another model, of one layer")
    tokens = torch.tensor([two.tokenizer.encode(text)])
    for off in ([], [[0, 3], [0, 5]]):
        call = CALL.replace("play.run(text, edits)", "play.run(text, edits, 'one')")
        found = page.evaluate(call, [text, {"off": off}, LAST])
        wanted = one.run_with_hooks(tokens, fwd_hooks=without_heads([tuple(head) for head in off]))[0, -LAST:]
        assert difference(found["logits"], wanted) < 1e-3 * float(wanted.abs().max())


def test_the_model_says_of_the_prepared_sentences_what_the_build_says(page):
    numbers = page.evaluate(
        "() => dom.load('follow/data.js', new URL('../_static/', location.href)).then(d => d.facts)"
    )
    for sentence in numbers["sentences"].values():
        type_in(page, sentence["text"])
        for run, button in (("intact", "Intact"), ("cut", "Cut the notes"), ("one", "One layer")):
            page.get_by_role("button", name=button).click()
            view = sentence["runs"][run]
            expect(page.locator(".tc-next .answer")).to_contain_text(
                f"{view['answer']}{percent(dict(view['next'])[view['answer']])}"
            )
            expect(page.locator(".tc-say")).to_contain_text(percent(view["row"][view["followed"]]))
        page.get_by_role("button", name="Intact").click()


def type_in(page, text):
    before = int(page.locator("#stage").get_attribute("data-runs"))
    page.get_by_label("Your text").fill(text)
    page.wait_for_function("(before) => document.getElementById('stage').dataset.runs > before", arg=before)


def test_what_is_typed_is_shown_literally_and_predicted(page, two):
    text = "Zorb </script><b>x</b> $y$ Zorb"
    type_in(page, text)
    names = page.locator(".tc-tokens text").all_text_contents()
    assert "".join(names[1:]).replace("·", " ") == text
    logits = two(two.to_tokens(text))[0, -1].softmax(-1)
    best = two.tokenizer.decode([int(logits.argmax())]).replace(" ", "·").replace("\n", "↵")
    expect(page.locator(".tc-next li").first).to_contain_text(best)
    shown = page.locator(".tc-next em").first.evaluate("e => e.firstChild.textContent")
    assert abs(float(shown.strip("%")) - 100 * float(logits.max())) <= 0.5


def test_a_repeat_in_other_tokens_is_said_to_be_one_and_a_text_that_aligns_is_offered(page):
    type_in(page, "Peter met Blorptang, and Blorp")
    aside = page.locator(".tc-aside")
    expect(aside).to_contain_text("came before, but in other tokens")
    offer = aside.get_by_role("button")
    offer.click()
    expect(aside).to_be_empty()
    expect(page.locator(".tc-say")).to_contain_text("the token whose note says")


def test_a_new_last_token_has_no_answer_and_the_page_says_so(page):
    type_in(page, "Nobody ever saw a giraffe")
    expect(page.locator(".tc-say")).to_contain_text("is new in this text, so there is nothing to look up")
    expect(page.get_by_role("button", name="Step through it")).to_be_hidden()
    type_in(page, "")
    expect(page.locator(".tc-say")).to_contain_text("The text begins here")


def test_a_text_longer_than_the_context_is_cut_and_said_to_be(page, two):
    type_in(page, "word " * 600)
    expect(page.locator("#tc-long")).to_be_visible()
    expect(page.locator(".tc-tokens [role=option]")).to_have_count(two.cfg.n_ctx)
    type_in(page, "")
    expect(page.locator("#tc-long")).to_be_hidden()


def test_a_token_a_head_and_a_connection_are_chosen_and_cut_by_keyboard(page):
    page.get_by_role("listbox", name="Tokens").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".tc-tokens [aria-selected=true]")).to_have_text("·G")
    page.locator(".tc-door summary").press("Enter")
    page.get_by_role("radio", name=re.compile(r"^1\.2")).focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name=re.compile(r"^1\.3"))).to_be_focused()
    page.keyboard.press("x")
    expect(page.locator(".tc-say")).to_contain_text("With head 1.3 off")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Head 1.3 off", exact=True)).to_be_focused()
    page.get_by_label("keys", exact=True).press("Space")
    expect(page.locator(".tc-say")).to_contain_text("head 1.3 without head 0.1 in its keys")
    page.get_by_role("button", name="Put everything back").click()
    expect(page.get_by_role("button", name="Intact")).to_have_attribute("aria-pressed", "true")


@pytest.mark.parametrize("name", [TWO, ONE])
def test_the_films_end_with_the_shipped_weights(name):
    seen, model = training_film(name), load_model(name, device="cpu").requires_grad_(False)
    for k in range(len(engine.FILMED)):
        tokens = torch.from_numpy(seen[f"text_{k}"].astype(np.int64))[None]
        chance = model(tokens)[0].softmax(-1)
        A = View(model).patterns(tokens)[:, 0][..., torch.ones(2 * tokens.shape[-1:], dtype=torch.bool).tril()]
        assert np.abs(seen[f"pattern_{k}"][-1] / 255 - A.numpy()).max() < 0.05
        listed = chance.gather(-1, torch.from_numpy(seen[f"top_token_{k}"][-1].astype(np.int64)))
        assert np.abs(seen[f"top_probability_{k}"][-1] / 255 - listed.numpy()).max() < 0.05


def test_the_slider_shows_the_note_then_the_match_then_the_prediction(page, two):
    page.emulate_media(reduced_motion="reduce")
    page.get_by_role("button", name="Watch it form").click()
    slider, say = page.get_by_role("slider"), page.locator(".tc-say")
    expect(slider).to_be_focused()
    expect(page.get_by_text("cuts are for the finished model")).to_be_visible()
    expect(page.get_by_role("button", name="Cut the notes")).to_be_disabled()
    expect(page.locator(".tc-high .tc-cut, .tc-label .tc-cut").first).to_be_disabled()
    widths, recorded = {}, training_film(TWO)
    for moment, note, match in ((7, 0, 0), (16, 1, 1), (38, 1, 1)):
        slider.fill(str(moment))
        place = engine.ASKING[0]
        shown = recorded["top_token_0"][moment, place, 0]
        expect(page.locator(".tc-next li").first).to_contain_text(engine.show_token(two.tokenizer.decode([int(shown)])))
        expect(page.locator(".tc-label-low")).to_contain_text("leaves a note" if note else "leaves no note yet")
        expect(page.locator(".tc-label-high")).to_contain_text("looks for" if match else "finds no match yet")
        widths[moment] = page.locator(".tc-high path").evaluate_all(
            "all => Math.max(...all.filter(e => e.style.opacity === '1').map(e => parseFloat(e.style.strokeWidth)))"
        )
    assert widths[7] < 2 < widths[16] < widths[38]
    expect(say).to_contain_text("the token whose note says")  # the finished model, run here
    tokens = torch.from_numpy(recorded["text_0"].astype(np.int64))[None]
    chance = two(tokens)[0, place].softmax(-1)
    expect(page.locator(".tc-next .answer")).to_contain_text(percent(float(chance.max())))
    page.get_by_role("button", name="Cut the notes").click()
    expect(say).to_contain_text("All keys hold the same average note")


def test_a_link_brings_back_the_moment_and_one_layer_never_finds_it(page, site, watched):
    page = opened(page, f"{site.as_uri()}#film=1&t=6.32M")
    expect(page.locator(".tc-say")).to_contain_text("After 6.32M tokens of training")
    page.get_by_role("slider").press("ArrowRight")
    page.wait_for_function("() => location.hash.includes('t=7.51M')")
    page = opened(watched.page, page.url)
    expect(page.locator(".tc-say")).to_contain_text("After 7.51M tokens of training")
    expect(page.locator(".tc-tokens text").nth(1)).to_have_text("·ker")
    page.get_by_role("slider").press("End")
    expect(page.locator(".tc-say")).to_contain_text("the token whose note says")  # tokens that no text gives
    expect(page.locator(".tc-tokens text").nth(1)).to_have_text("·ker")
    page.get_by_role("button", name="One layer").click()
    expect(page.locator(".tc-say")).to_contain_text("Another model, of one layer")  # it has been fetched
    page.get_by_role("slider").press("ArrowLeft")
    expect(page.locator(".tc-say")).to_contain_text("the best head of the one layer")
    expect(page.locator(".tc-key")).to_have_text(re.compile(r"^Best induction score: 0\.\d%$"))


def test_snapshots_of_another_text_are_said_to_be_missing_and_one_is_offered(page):
    page.emulate_media(reduced_motion="no-preference")
    type_in(page, "Zorb met Zorb")
    page.get_by_role("button", name="Watch it form").click()
    expect(page.get_by_text("Snapshots were kept of two texts, not of yours.")).to_be_visible()
    page.get_by_role("button", name=engine.FILMED[0]).click()
    expect(page.get_by_label("Your text")).to_have_value(re.compile("^Old Zorblax"))
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("() => +document.querySelector('input[type=range]').value > 8")
    page.get_by_role("button", name="Pause").click()
    type_in(page, "Zorb met Zorb")
    expect(page.get_by_role("slider")).to_be_hidden()


def test_a_link_brings_back_text_cuts_and_step(page, site):
    type_in(page, "a & b = c\n#1 a & b")
    page.locator(".tc-door summary").click()
    page.get_by_role("button", name="Head 0.3 on", exact=True).click()
    page.get_by_label("values", exact=True).uncheck()
    page.get_by_role("button", name="Link to this").click()
    opened(page, page.url)
    assert page.get_by_label("Your text").input_value() == "a & b = c\n#1 a & b"
    expect(page.locator(".tc-say")).to_contain_text("With head 0.3 off, head 1.2 without head 0.1 in its values")
    opened(page, f"{site.as_uri()}#step=4")
    expect(page.locator(".tc-story")).to_contain_text("Step 4 of 8")


def test_a_hostile_link_is_text(page):
    follow(page, "text=<img src=x onerror=alert(1)>&head=9.9&at=x&off=__proto__&cut=<b>")
    expect(page.get_by_label("Your text")).to_have_value("<img src=x onerror=alert(1)>")
    assert page.locator("#stage img").count() == 0


def test_a_server_that_forbids_workers_is_told_and_the_sentences_stay(site, watched):
    page = watched.page
    page.goto(forbidding_workers(site).as_uri())
    page.get_by_label("Your text").focus()
    expect(page.locator(".tc-status")).to_contain_text("does not let the page start a worker")
    page.get_by_role("button", name="Cut the notes").click()
    expect(page.locator(".tc-say")).to_contain_text("All keys hold the same average note")
    watched.complaints.clear()


@pytest.mark.parametrize("harm", ["missing", "one letter changed"])
def test_a_model_that_is_missing_or_damaged_is_said_to_be(harm, site, tmp_path, watched):
    shutil.copytree(site.parents[1], tmp_path, dirs_exist_ok=True)
    file = tmp_path / "_static" / "play" / "model.js"
    text = file.read_text()
    middle = 3 * len(text) // 4
    other = "B" if text[middle] == "A" else "A"
    file.write_text(text[:middle] + other + text[middle + 1 :])
    if harm == "missing":
        file.unlink()
    watched.page.goto((tmp_path / "book" / site.name).as_uri())
    watched.page.get_by_label("Your text").focus()
    says = re.compile(r"^The file play/model.js is .*damaged; build the book again \(make book\)\.")
    expect(watched.page.locator("[role=status]").first).to_have_text(says)
    watched.complaints.clear()


def test_a_browser_that_cannot_unpack_the_model_is_told_so(site, watched):
    watched.page.add_init_script("delete window.DecompressionStream")
    watched.page.goto(site.as_uri())
    watched.page.get_by_label("Your text").focus()
    expect(watched.page.locator("[role=status]").first).to_contain_text("needs a newer browser")


def test_with_all_doors_open_it_fits_a_phone(page):
    page.set_viewport_size(PHONE)
    page.get_by_role("button", name="Watch it form").click()
    page.locator(".tc-door summary").click()
    page.get_by_role("button", name="Python").click()
    page.get_by_role("button", name="Cut the notes").click()
    fits_a_phone(page)
