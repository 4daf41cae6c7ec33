"""The page "Watch it learn" in a browser, from disk, without network: its last moment is the shipped model, and all can use it.

The film is made here: from weights between a random start and those of a shipped model, so that its last frame is that model.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

from transformer_circuits import paths
from transformer_circuits.build import Book
from transformer_circuits.circuits import heads
from transformer_circuits.data import held_out_windows
from transformer_circuits.measures import prediction, weights
from transformer_circuits.measures.repeats import repeated_random_tokens
from transformer_circuits.models.architecture import Transformer
from transformer_circuits.models.registry import list_models, load_model, training_film
from transformer_circuits.models.shards import FILM, MANIFEST, read_manifest, read_model
from transformer_circuits.pages import watch
from transformer_circuits.training.evaluation import Evaluation
from transformer_circuits.training.film import Film, texts

NAME, MOMENTS, WINDOWS, ROWS = "small-2l", 10, 4, 4
ROUNDED = 2 / 255  # what is stored as a byte, or shown as a whole percentage


def make_film(folder, name):
    """Give the copy of a model in `folder` a log and a film of MOMENTS moments."""
    trained, manifest = read_model(folder / name)
    config = trained.config
    windows = held_out_windows(WINDOWS, config.n_ctx, config.d_vocab)
    held_out = SimpleNamespace(
        rows=windows.__getitem__, count=WINDOWS, n_ctx=config.n_ctx, tokens=windows.flatten().numpy()
    )
    measuring = SimpleNamespace(evaluate_windows=WINDOWS, few_windows=WINDOWS, repeats=ROWS, seed=0)
    evaluate = Evaluation(held_out, config.d_vocab, measuring, torch.device("cpu"))
    film = Film(folder / "frames", texts(paths.DATA, np.array([]), config), config)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        begin = Transformer(config).state_dict()
    rows = []
    for step, share in enumerate(np.linspace(0, 1, MOMENTS)):
        model = Transformer(config)
        model.load_state_dict(
            {key: begin[key].lerp(end, float(share)) for key, end in trained.state_dict().items()}
        )
        rows.append({"step": step, "tokens": int(1e5 * 2**step) * (step > 0), **evaluate(model.eval())})
        film.record(step, rows[-1]["tokens"], model, rows[-1])
    (folder / name / "training.jsonl").write_text(
        "\n".join(map(json.dumps, [manifest["training"]["run"], *rows]))
    )
    content = film.joined(range(MOMENTS))
    (folder / name / FILM).write_bytes(content)
    manifest["film"] = {"sha256": hashlib.sha256(content).hexdigest()}
    (folder / name / MANIFEST).write_text(json.dumps(manifest))


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A folder of models in place of weights/: two, of which one has a film."""
    folder = tmp_path_factory.mktemp("weights")
    for name in (NAME, NAME.replace("2l", "1l")):
        shutil.copytree(paths.WEIGHTS / name, folder / name, ignore=shutil.ignore_patterns(FILM))
        manifest = json.loads((folder / name / MANIFEST).read_text())
        manifest.pop("film", None)
        (folder / name / MANIFEST).write_text(json.dumps(manifest))
    with torch.no_grad():
        make_film(folder, NAME)
    return folder


def write(shelf, root):
    """Make the page of the models in `shelf` under `root`. Returns its Markdown."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "WEIGHTS", shelf)
        patch.setattr(watch, "WEIGHTS", shelf)
        watch.main([str(root / "watch.md")])
    return (root / "watch.md").read_text()


@pytest.fixture(scope="module")
def site(shelf, tmp_path_factory):
    """A folder with the page as it is made, and what it loads; without the theme around it."""
    root = tmp_path_factory.mktemp("site")
    markup = re.search(r"^```\{raw\} html\n(.*?)\n```$", write(shelf, root), re.DOTALL | re.MULTILINE)[1]
    for name in ("watch.js", "watch.css", "../dom.js"):
        shutil.copy(paths.ROOT / "book" / "_static" / "watch" / name, root / "_static" / "watch" / name)
    (root / "book").mkdir()
    head = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    (root / "book" / "watch.html").write_text(f"{head}<body>{markup}")
    return root


def opened(watched, site, fragment=""):
    watched.page.goto((site / "book" / "watch.html").as_uri() + fragment)
    watched.page.wait_for_selector("#watch[data-ready]")
    return watched.page


@pytest.fixture
def page(watched, site):
    said = []
    watched.page.on("console", lambda message: said.append(message.text))
    yield opened(watched, site)
    assert watched.complaints == [] and watched.requests == [] and said == []


@pytest.fixture(scope="module")
def two():
    return load_model(NAME, device="cpu").requires_grad_(False)


def moment(page):
    return int(page.locator("#watch").get_attribute("data-at"))


def choose(page, layer, head):
    page.get_by_role("radio", name=re.compile(rf"Head {layer}\.{head}\b")).click()


def numbers(text):
    return [float(x.replace("−", "-")) for x in re.findall(r"[−\d.]*\d", text)]


# ---- what is shown ---------------------------------------------------------------------------------------------------------


def test_the_last_moment_shows_the_patterns_and_predictions_of_the_shipped_model(page, two):
    for k, text in enumerate(texts(paths.DATA, np.array([]), two.original_model.config)):
        page.get_by_role("button", name=watch.TEXTS[k]).click()
        tokens = torch.from_numpy(text.astype(np.int64))[None]
        patterns = heads.patterns(two, tokens)[:, 0]
        chance, best = two(tokens)[0].softmax(-1).topk(5)
        for layer, head, place in ((0, 4, 5), (1, 0, len(text) - 1), (1, 3, 12)):
            choose(page, layer, head)
            page.locator(f"#watch-token-{place}").click()
            shown = page.evaluate(
                "[...document.querySelectorAll('.watch-token')].map(t => +t.style.getPropertyValue('--a'))"
            )
            assert np.abs(np.array(shown) - patterns[layer, head, place].numpy()).max() < ROUNDED
            words = page.locator(".watch-next code").all_text_contents()
            likely = [watch.show_token(two.tokenizer.decode([token])) for token in best[place].tolist()]
            bars = page.evaluate(
                "[...document.querySelectorAll('.watch-next rect')].map(r => r.getAttribute('width') / 100)"
            )
            assert words[0] == likely[0] and np.abs(np.array(bars) - chance[place].numpy()).max() < ROUNDED


def test_the_last_moment_shows_the_scores_and_circuits_of_the_shipped_model(page, two):
    windows = held_out_windows(WINDOWS, two.cfg.n_ctx, two.cfg.d_vocab)
    repeated = repeated_random_tokens(two.cfg.d_vocab, two.cfg.n_ctx, rows=ROWS)
    eigenvalues = (two.W_E @ two.OV @ two.W_U).eigenvalues
    expected = torch.stack([
        heads.previous_token_scores(two, windows[:, :-1]), heads.start_token_scores(two, windows[:, :-1]),
        heads.induction_scores(two, repeated), weights.positivity(eigenvalues)])  # fmt: skip
    for layer, head in ((0, 1), (0, 4), (1, 0)):
        choose(page, layer, head)
        name, *shown = numbers(page.locator(".watch-about").text_content())
        assert name == float(f"{layer}.{head}")
        assert np.allclose(np.array(shown) / [100, 100, 100, 1], expected[:, layer, head], atol=0.006)
        dots = page.evaluate(
            "[...document.querySelectorAll('.watch-plane circle:not(.watch-unit)')].map(c => +c.getAttribute('cx'))"
        )
        real = (eigenvalues[layer, head] / eigenvalues[layer, head].abs().max()).real
        assert np.abs(np.sort(dots) - real.sort().values.numpy()).max() < 0.01
    losses = prediction.losses(two, windows)
    loss, in_context, induction = (
        numbers(text)[0] for text in page.locator(".watch-curve b").all_text_contents()
    )
    assert abs(loss - losses.mean()) < 0.01 and abs(in_context - prediction.in_context_score(losses)) < 0.01
    assert abs(induction / 100 - expected[2].max()) < 0.006


def test_lines_are_as_wide_as_composition_ratios_and_heads_have_their_roles(page, two):
    circuits = ((m.A, m.B) for m in (two.OV[0], two.QK[1], two.OV[1]))
    ratios = weights.composition_ratios(*(weights.Product(*pair) for pair in circuits))
    for side, name in enumerate(("queries", "keys", "values")):
        page.get_by_role("button", name=name).click()
        widths = page.evaluate(
            "[...document.querySelectorAll('.watch-lines line')].map(l => parseFloat(l.style.strokeWidth))"
        )
        excess = (ratios[side] - 1).clamp(min=0).flatten().numpy()
        scale = max(widths) / excess.max()
        assert np.abs(widths - scale * excess).max() < 0.2, "lines of less than 0.15 pixels are left out"
    choose(page, 1, 0)
    expect(page.locator(".watch-about")).to_contain_text("Head 1.0: induction head")


@pytest.mark.parametrize("name", [name for name in list_models() if training_film(name) is not None])
def test_the_films_of_shipped_models_end_with_the_shipped_weights(name):
    film, model = training_film(name), load_model(name, device="cpu").requires_grad_(False)
    for k in range(2):
        found = heads.patterns(model, torch.from_numpy(film[f"text_{k}"].astype(np.int64))[None])[:, 0]
        for layer in range(model.cfg.n_layers):
            for head in range(model.cfg.n_heads):
                assert (
                    np.abs(watch.pattern(film, k, -1, layer, head) - found[layer, head].numpy()).max() < 0.03
                )
    settings, config = read_manifest(paths.WEIGHTS / name)["training"]["run"]["training"], model.cfg
    windows = held_out_windows(settings["evaluate_windows"], config.n_ctx, config.d_vocab)[
        : settings["few_windows"], :-1
    ]
    repeated = repeated_random_tokens(
        config.d_vocab, config.n_ctx, settings["repeats"], seed=settings["seed"]
    )
    for score, found in {
        "previous_token": heads.previous_token_scores(model, windows),
        "rest": heads.start_token_scores(model, windows),
        "induction": heads.induction_scores(model, repeated),
        "positivity": weights.positivity((model.W_E @ model.OV @ model.W_U).eigenvalues),
    }.items():
        assert np.abs(film[score][-1] - found.numpy()).max() < 0.02, score
    if model.cfg.n_layers == 2:
        circuits = ((m.A, m.B) for m in (model.OV[0], model.QK[1], model.OV[1]))
        ratios = weights.composition_ratios(*(weights.Product(*pair) for pair in circuits))
        assert np.abs(film["composition"][-1] - ratios.numpy()).max() < 0.02


# ---- how it is used --------------------------------------------------------------------------------------------------------


def test_the_keyboard_goes_through_time_heads_and_tokens(page):
    slider = page.get_by_role("slider", name="Tokens seen")
    slider.focus()
    assert moment(page) == MOMENTS - 1
    for key, there in (
        ("Home", 0),
        ("ArrowRight", 1),
        ("ArrowUp", 2),
        ("PageUp", 7),
        ("ArrowLeft", 6),
        ("End", MOMENTS - 1),
    ):
        page.keyboard.press(key)
        assert moment(page) == there
    expect(slider).to_have_attribute("aria-valuetext", re.compile("M tokens seen"))
    page.get_by_role("radio", checked=True).focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("radio", checked=True)).to_have_attribute("aria-label", re.compile(r"Head 0\.0"))
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", checked=True)).to_be_focused()
    page.get_by_role("listbox").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".watch-token[aria-selected=true]")).to_have_attribute("data-i", "1")


def test_every_panel_changes_with_the_moment_and_marks_go_there(page):
    def drawn():
        parts = (".watch-now", ".watch-about", ".watch-curve b >> nth=0", ".watch-next", ".watch-scale")
        return [page.locator(part).text_content() for part in parts]

    last = drawn()
    page.locator(".watch-marks button").first.click()
    assert moment(page) < MOMENTS - 1
    assert all(before != now for before, now in zip(last, drawn(), strict=True))
    assert page.locator(".watch-true").count() < page.locator(".watch-finding").count()
    box = page.locator(".watch-slider").bounding_box()
    page.mouse.click(box["x"] + 2, box["y"] + box["height"] / 2)
    assert moment(page) == 0


def test_the_film_plays_to_its_end_and_rests_if_motion_is_unwanted(page):
    page.get_by_role("button", name="Play").click()
    page.wait_for_function(f"document.getElementById('watch').dataset.at == {MOMENTS - 1}")
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Pause").click()
    page.emulate_media(reduced_motion="reduce")
    moving = "[...document.querySelectorAll('.watch *')].filter(e => parseFloat(getComputedStyle(e).transitionDuration) > 0).length"
    assert page.evaluate(moving) == 0


def test_a_link_brings_back_the_moment_and_the_head(page, watched, site):
    page.get_by_role("slider").focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    choose(page, 0, 2)
    page.get_by_role("button", name="Link to this moment").click()
    address, there = page.url, moment(page)
    assert re.search(r"#t=[\d.]+M&head=0\.2", address)
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("#watch[data-ready]")
    assert moment(page) == there
    expect(page.get_by_role("radio", checked=True)).to_have_attribute("aria-label", re.compile(r"Head 0\.2"))
    page.evaluate("location.hash = '#t=0&head=9.9&text=7&at=x'")  # what does not exist is left out
    page.wait_for_function("document.getElementById('watch').dataset.at == 0")
    expect(page.get_by_role("radio", checked=True)).to_have_count(1)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_a_phone_nothing_is_wider_than_the_screen(page, theme):
    page.set_viewport_size({"width": 400, "height": 800})
    page.evaluate("theme => document.documentElement.dataset.theme = theme", theme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    small = page.evaluate(
        "[...document.querySelectorAll('.watch-app button, .watch-app input')].filter(b => b.offsetHeight < 22).map(b => b.outerHTML)"
    )
    assert small == [], "too small for a finger"


def test_without_scripts_there_are_six_pictures(site, browser):
    context = browser.new_context(
        java_script_enabled=False, offline=True, viewport={"width": 400, "height": 800}
    )
    page = context.new_page()
    page.goto((site / "book" / "watch.html").as_uri())
    expect(page.locator("noscript img")).to_be_visible()
    assert page.evaluate("document.querySelector('noscript img').naturalWidth") > 1000
    context.close()


def test_how_long_it_takes(page):
    """Prints the times; machines differ too much to assert any."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy():
        return next(
            m["value"]
            for m in session.send("Performance.getMetrics")["metrics"]
            if m["name"] == "TaskDuration"
        )

    page.get_by_role("slider").focus()
    page.keyboard.press("Home")
    began = busy()
    for _ in range(MOMENTS - 1):
        page.keyboard.press("ArrowRight")
        page.evaluate("() => new Promise(requestAnimationFrame)")
    each = 1000 * (busy() - began) / (MOMENTS - 1)
    print(
        f"load to first picture {page.locator('#watch').get_attribute('data-load')} ms; a step {each:.0f} ms of processor time"
    )


# ---- what can be missing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["missing", "cut short", "one letter changed"])
def test_a_film_that_is_missing_or_damaged_is_said_to_be(harm, site, tmp_path, watched):
    shutil.copytree(site, tmp_path, dirs_exist_ok=True)
    film = tmp_path / "_static" / "watch" / "films" / f"{NAME}.js"
    text = film.read_text()
    film.unlink()
    middle = 3 * len(text) // 4
    if harm != "missing":
        other = "B" if text[middle] == "A" else "A"
        film.write_text(
            text[:middle] if harm == "cut short" else f"{text[:middle]}{other}{text[middle + 1 :]}"
        )
    watched.page.goto((tmp_path / "book" / "watch.html").as_uri())
    expect(watched.page.locator(".watch-status")).to_have_text(
        re.compile(rf"^The film of {NAME} cannot be shown \(.*\); build the book again \(make book\)\.$")
    )


def test_a_model_without_a_film_or_with_a_damaged_one_is_left_out(shelf, tmp_path, capsys):
    assert f"`{NAME}`" in write(shelf, tmp_path) and "small-1l" not in write(shelf, tmp_path)
    shutil.copytree(shelf, tmp_path / "weights")
    film = tmp_path / "weights" / NAME / FILM
    film.write_bytes(film.read_bytes()[:-9])
    text = write(tmp_path / "weights", tmp_path)
    assert f"The film of `{NAME}` is damaged or missing" in text and "watch.js" not in text
    assert "fetch it again" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "weights" / NAME)
    assert "No model has a film of its training." in write(tmp_path / "weights", tmp_path)


def test_no_other_page_loads_any_of_it(html):
    for name in Book(paths.ROOT).pages():
        loads = "_static/watch/" in (html / f"{name}.html").read_text(encoding="utf-8")
        assert not loads or name == "book/watch", name
