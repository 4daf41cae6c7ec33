"""Figures keep to the palette, and can be read: in light and in dark, and on a phone."""

import itertools
import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup

from transformer_circuits.claims import show
from transformer_circuits.figures import plots, tiles
from transformer_circuits.figures.style import COLORS, PALETTE, themed, use_style
from transformer_circuits.paths import ROOT

PHONE = 368  # pixels that an article has on a screen of 400
WORDS = ("soft", "ink", "frame", "negative", "first_text", "second")
THEMES = ("light", "dark")


def css() -> str:
    """Return the palette as CSS variables: `--tc-first` and so on, in the light theme and in the dark one."""
    themes = []
    for place, theme in enumerate((":root", 'html[data-theme="dark"]')):
        values = "".join(f"--tc-{name.replace('_', '-')}: {PALETTE['colors'][name][place]}; " for name in COLORS)
        themes.append(f"{theme} {{ {values}}}\n")
    return f"/* Made from figures/palette.toml. */\n{themes[0]}@media screen {{ {themes[1].strip()} }}\n"


def as_svg(figure, path) -> str:
    figure.savefig(path)
    plt.close(figure)
    return path.read_text(encoding="utf-8")


@pytest.fixture
def drawn(tmp_path, monkeypatch) -> dict[str, str]:
    """One figure of each type, as SVG, by name."""
    monkeypatch.setattr(plt, "rcParams", plt.rcParams.copy())
    use_style()
    attention, tokens = np.tril(np.ones((28, 28))) / np.arange(1, 29)[:, None], [f" t{i}" for i in range(28)]
    scores = {"one layer": np.full((1, 12), 0.1), "two layers": np.linspace(0, 0.8, 24).reshape(2, 12)}
    curves = {"one layer": pd.Series([1, 2], [1, 10]), "two layers": pd.Series([2, 3], [1, 10])}
    one = tiles.Tile("1.2", attention, 0.3, "induction", marked=True)
    axes = {
        "pattern": plots.pattern(attention, tokens, title="A finding", frames=attention > 0.9),
        "heatmap": plots.heatmap(np.diag([1.0, -1]), x=["a", "b"], y=["c", "d"], numbers="{:.1f}"),
        "head dots": plots.head_dots(scores, label="score", mark=0.3, mark_name="threshold"),
        "head dots of a deep model": plots.head_dots({"": np.eye(30)}, label="score", mark=0.5, names=3),
        "rows": plots.rows({"cut": -0.2, "intact": 0.9}, label="right", title="", accent=["cut"]),
        "strips": plots.strips(scores, mark=0.3, title="", label="score"),
        "lines": plots.lines(curves, mark=1.5, log=True),
        "head graph": plots.head_graph(np.eye(4) + 1.5, kinds={(1, 2): "induction"}, title=""),
    }
    found = {name: as_svg(ax.figure, tmp_path / "drawn.svg") for name, ax in axes.items()}
    return found | {"tiles": tiles.tiles({"second layer": [one] * 12}, title="A finding", note="a note").data}


def test_zeros_third_layers_and_worths_from_ten_on_are_drawn():
    plots.heatmap(nothing := np.zeros((3, 2)), numbers="{:.1f}")
    plots.strips({"": nothing}, mark=1, title="", label="")
    plots.pattern(np.eye(3), ["a", "b", "c"], layer=2)
    assert not plots.head_dots({"": nothing + 1}, label="", name_from=1, names=0).texts, "no names are asked for"
    plt.close("all")
    svg = tiles.tiles({"": [tiles.Tile("2.0", nothing @ nothing.T, 0.0)]}, title="", note="").data
    assert ">.000<" in svg and ">10.500<" in tiles.tile(tiles.Tile("0.0", np.eye(2), 10.5), 10.5)


def words(svg: str) -> list[str]:
    return [text.get_text() for text in BeautifulSoup(svg[svg.index("<svg") :], "html.parser").find_all("text")]


def luminance(color: str) -> float:
    parts = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", range(2), ids=THEMES)
def test_words_are_read_on_every_ground(theme):
    colors = {name: both[theme] for name, both in PALETTE["colors"].items()}
    pairs = [*itertools.product(WORDS, ("page", "band"))]
    pairs += [("on_verdict", verdict) for verdict in ("held", "identity", "partly", "failed", "note")]
    low = {pair: contrast(*(colors[name] for name in pair)) for pair in pairs}
    assert {pair: value for pair, value in low.items() if value < 4.5} == {}


def test_the_pages_variables_are_the_palette():
    assert (ROOT / "book" / "_static" / "palette.css").read_text(encoding="utf-8") == css()
    light = {f"var(--tc-{name}, {both[0]})" for name, both in PALETTE["colors"].items()}
    assert {color for _, color in show.LOOKS.values()} <= light, "of lists of claims, also where there is no page"


def test_no_figure_has_a_color_of_its_own_or_text_too_small_for_a_phone(drawn):
    """In an SVG all sizes are in its own units, of which `viewBox` says how many its width has."""
    for name, svg in drawn.items():
        page = themed(svg, name, "p")
        assert words(page) == words(svg), "all words are there, and all digits"
        assert re.findall(r"(?<!, )#[0-9a-f]{6}\b", page) == [], f"{name} has colors that do not follow the theme"
        width = float(re.search(r'viewBox="0 0 ([\d.]+)', page)[1])
        sizes = [float(size) for size in re.findall(r"(?:font-size: |font: (?:bold |700 )?)([\d.]+)px", page)]
        assert sizes and min(sizes) * PHONE / width >= 10, f"{name} has text of {min(sizes) * PHONE / width:.1f} pixels"


def test_one_file_is_light_and_dark(drawn, tmp_path, watched):
    figures = "".join(themed(svg, name, name.replace(" ", "-")) for name, svg in drawn.items())
    style = f"<style>{css()} body {{ background: var(--tc-page) }}</style>"
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset=utf-8>{style}<body>{figures}", encoding="utf-8")
    page = watched.open(tmp_path / "page.html")
    for theme, colors in zip(THEMES, zip(*PALETTE["colors"].values())):
        page.locator("html").evaluate("(e, theme) => (e.dataset.theme = theme)", theme)
        seen = page.locator("svg :is(path, rect, use, text)").evaluate_all(
            "all => all.flatMap(e => [getComputedStyle(e).fill, getComputedStyle(e).stroke]).filter(c => c.startsWith('rgb('))"
        )
        of_palette = {f"rgb({int(c[1:3], 16)}, {int(c[3:5], 16)}, {int(c[5:], 16)})" for c in colors}
        assert set(seen) - {"rgb(0, 0, 0)"} <= of_palette
        named = dict(zip(PALETTE["colors"], colors))
        for name in ("first", "second", "negative", "band", "ink"):
            rgb = "rgb({}, {}, {})".format(*(int(named[name][i : i + 2], 16) for i in (1, 3, 5)))
            assert rgb in seen, f"no {name} in {theme}"
