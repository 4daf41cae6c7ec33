"""The page "Grow one" in a browser, from disk, without network: its gradients are PyTorch's, its model learns induction, and all can use it."""

import json
import re

import numpy as np
import pytest
import torch
from live_page import fits_a_phone, forbidding_workers, make_site, opened
from playwright.sync_api import expect
from torch.nn.functional import cross_entropy

from transformer_circuits.measures import weights
from transformer_circuits.models.architecture import ModelConfig, Transformer
from transformer_circuits.training.evaluation import view_of
from transformer_circuits.training.muon import optimizers_for
from transformer_circuits.training.settings import TrainingConfig

SHAPES = {"2 layers": dict(layers=2, heads=4, d_head=16), "1 layer": dict(layers=1, heads=2, d_head=16)}
ROWS, N_CTX, WIDTH = 64, 32, 64  # the page's; as many tokens as dimensions
RATE, WARMUP = 0.02, 50
SECONDS = 600  # for a training that takes half a minute on a free core


@pytest.fixture(scope="module")
def site(html, tmp_path_factory):
    return make_site(tmp_path_factory.mktemp("site"), "grow", "forward.js")


def step_of(page):
    return int(page.locator("#grow").get_attribute("data-step") or 0)


def trained_to(page, condition):
    """Train until JavaScript of the page's data (`d`) is true, then pause; return the step."""
    page.get_by_role("button", name=re.compile("Train|Continue")).click()
    page.wait_for_function(
        f"() => {{ const d = document.getElementById('grow').dataset; return {condition}; }}", timeout=1000 * SECONDS
    )
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    page.evaluate("() => grow.settled()")
    return step_of(page)


def matrices(model):
    """Return the weights by the names of train.js."""
    found = {"E": model.tok_embed.weight, "U": model.head.weight}
    for layer, block in enumerate(model.layers):
        attention = {"Q": block.attn.q, "K": block.attn.k, "V": block.attn.v, "O": block.attn.o}
        found |= {f"{side}{layer}": linear.weight for side, linear in attention.items()}
    return found


def stored(name, weight):
    """Return a matrix as train.js stores it: W_O with a row for each dimension of a head, all others as PyTorch does."""
    return (weight.T if name.startswith("O") else weight).flatten()


@pytest.mark.parametrize(("shape", "cut"), [("2 layers", ""), ("2 layers", "K"), ("2 layers", "Q"), ("1 layer", "")])
def test_loss_gradients_and_updates_are_those_of_pytorch(page, shape, cut):
    torch.manual_seed(1)
    shape = SHAPES[shape]
    model = Transformer(ModelConfig(shape["layers"], WIDTH, shape["heads"], shape["d_head"], WIDTH, N_CTX))
    removed = [shape["heads"] + 1] if shape["layers"] == 2 else [1]
    seen = {}
    for weight in matrices(model).values():
        weight.data.mul_(2)  # farther from uniform attention than a new model
    for l, block in enumerate(model.layers):
        mine = [head % shape["heads"] for head in removed if head // shape["heads"] == l]

        def without(module, inputs, mine=mine):
            z = inputs[0].unflatten(-1, (shape["heads"], shape["d_head"])).clone()
            z[:, :, mine] = 0
            return (z.flatten(-2),)

        block.attn.o.register_forward_pre_hook(without)
    if cut and shape["layers"] == 2:
        first, second = (getattr(block.attn, cut.lower()) for block in model.layers)
        first.register_forward_pre_hook(lambda module, inputs: seen.update(first=inputs))
        second.register_forward_pre_hook(lambda module, inputs: seen["first"])
    optimizers = optimizers_for(model, TrainingConfig(tokens=1, lr=RATE / WARMUP, weight_decay=0.0))
    tokens = torch.randint(WIDTH, (ROWS, N_CTX), generator=torch.Generator().manual_seed(0))
    settings = {"cut": cut, "positions": True, "repeats": "all", "lr": RATE, "seed": 0}
    given = {name: stored(name, weight.detach()).tolist() for name, weight in matrices(model).items()}
    sizes = {**shape, "d_model": WIDTH, "d_vocab": WIDTH, "n_ctx": N_CTX, "rows": ROWS}
    asked = {"shape": sizes, "settings": settings, "weights": given, "ids": tokens.flatten().tolist()}
    # As text: Playwright hands over numbers one by one.
    check = "async given => JSON.stringify(await grow.check(JSON.parse(given)))"
    found = json.loads(page.evaluate(check, json.dumps(asked | {"removed": removed})))
    if shape["layers"] == 2:
        view = view_of(model)
        ratios = weights.composition_ratios(view.OV[0], view.QK[1], view.OV[1]).flatten(1).detach()
        assert np.abs(np.array(found["composition"]) - ratios.numpy()).max() < 1e-4
    loss = cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    assert abs(found["loss"] - loss.item()) < 1e-4
    for name, weight in matrices(model).items():
        wanted = stored(name, weight.grad).numpy()
        assert np.abs(np.array(found["gradients"][name]) - wanted).max() < 1e-4 * np.abs(wanted).max(), name
    for optimizer in optimizers:
        optimizer.step()
    for name, weight in matrices(model).items():
        wanted = stored(name, weight.detach()).numpy()
        assert np.abs(np.array(found["weights"][name]) - wanted).max() < 1e-4 * np.abs(wanted).max(), name


def test_two_layers_learn_what_one_cannot_and_train_on_without_a_head(site, watched):
    """Train to 90%, pause, remove the head with the most attention to the previous token, and resume. With one head a layer: a third less time."""
    page = opened(watched.page, f"{site.as_uri()}#heads=1")
    learned = trained_to(page, "d.right > 0.9")
    assert learned < 1000
    shares = [int(text.rstrip("%")) for text in page.locator(".grow-curve").first.locator("b").all_text_contents()]
    assert shares[0] > 85 and shares[1] < 50, "two layers, then one"
    expect(
        page.get_by_role("radio", name=re.compile("induction head")).first
    ).to_be_checked()  # it follows the best head
    expect(page.locator(".grow-news")).to_contain_text("The jump: from step")
    previous = page.evaluate("() => grow.previous()")
    page.get_by_role("radio", name=f"Head 0.{previous}").click()
    page.get_by_role("button", name=f"Remove head 0.{previous}").click()
    expect(page.locator("#grow")).to_have_attribute("data-removed", str(previous))
    left = float(page.locator("#grow").get_attribute("data-right"))
    assert left < 0.9
    page.wait_for_timeout(500)
    assert step_of(page) == learned, "it is paused"
    assert trained_to(page, f"d.step >= {learned + 10}") > learned
    page.get_by_role("button", name=f"Put head 0.{previous} back").click()
    expect(page.locator("#grow")).to_have_attribute("data-removed", "")


def test_a_link_has_the_settings_and_a_hostile_one_is_ignored(page, site, watched):
    page.locator("details summary").click()
    page.get_by_role("combobox", name="Second layer reads the first with its").select_option("K")
    page.get_by_role("combobox", name="Heads per layer").select_option("2")
    expect(page.get_by_role("radio")).to_have_count(4)
    page.get_by_role("button", name="Link to these settings").click()
    again = opened(watched.page, page.url)
    again.locator("details summary").click()
    expect(again.get_by_role("combobox", name="Second layer reads the first with its")).to_have_value("K")
    expect(again.get_by_role("radio")).to_have_count(4)
    hostile = "layers=9&heads=1e9&seed=<img src=x onerror=alert(1)>&__proto__=2&cut=toString&repeats=valueOf"
    page = opened(watched.page, f"{site.as_uri()}#{hostile}")
    expect(page.get_by_role("radio")).to_have_count(8)
    assert page.locator("#grow img").count() == 0


def test_a_server_that_forbids_workers_is_told(site, watched):
    watched.page.goto(forbidding_workers(site).as_uri())
    expect(watched.page.locator("[role=status]").first).to_contain_text("does not let the page start a worker")
    watched.complaints.clear()


def test_it_fits_a_phone(page):
    fits_a_phone(page)
