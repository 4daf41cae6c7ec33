"""One look for every figure, from palette.toml: matplotlib's style, the pages' CSS variables, and an SVG that follows
a page's theme."""

import html
import re
import tomllib
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from IPython import get_ipython
from matplotlib.colors import get_named_colors_mapping
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib_inline.backend_inline import set_matplotlib_formats

PALETTE = tomllib.loads(Path(__file__).with_name("palette.toml").read_text(encoding="utf-8"))
COLORS = {name: light for name, (light, _) in PALETTE["colors"].items()}
LABEL, WORDS, WIDTH = (PALETTE["sizes"][name] for name in ("label", "words", "width"))
LINE = re.compile(r'transform="translate\((\S+) (\S+)\)">([^<]*)</text>')  # of a text that has several
get_named_colors_mapping().update(COLORS)  # so that a plot says color="first"

SIZED = "font.size figure.labelsize axes.labelsize axes.titlesize xtick.labelsize ytick.labelsize legend.fontsize"
STYLE = (
    PALETTE["style"]
    | dict.fromkeys(SIZED.split(), LABEL)
    | {
        "figure.titlesize": WORDS,
        "figure.figsize": (WIDTH, 3.2),
        # C0 is the second layer, C1 the first, C2 what is negative.
        "axes.prop_cycle": matplotlib.cycler(color=["second", "first", "negative", "other", "ink"]),
    }
)


def use_style() -> None:
    """Use the book's style from here on. In a notebook figures become SVG: sharp at any width, and small."""
    plt.style.use(STYLE)
    if get_ipython():
        set_matplotlib_formats("svg")


def variable(color: str) -> str:
    """Return a color of a figure, "#0072b2", as the variable of a page; one that the palette does not have stays."""
    names = {light: name for name, light in COLORS.items()}
    return f"var(--tc-{names[color].replace('_', '-')}, {color})" if color in names else color


def _anchored(lines: re.Match[str]) -> str:
    """Return the lines of one text with the anchor that matplotlib leaves out: words have other widths on a page."""
    weight, size = ("bold" if "font-weight: 700" in lines[0] else "normal"), re.search(r"size: ([\d.]+)", lines[0])[1]
    look, starts, ends = FontProperties(weight=weight, size=float(size)), [], []
    for x, _, words in LINE.findall(lines[0]):
        width, _, _ = text_to_path.get_text_width_height_descent(html.unescape(words), look, ismath=False)
        starts.append(float(x))
        ends.append(float(x) + width)
    places = {"start": starts, "middle": np.add(starts, ends) / 2, "end": ends}
    anchor = min(places, key=lambda name: np.ptp(places[name]))
    return LINE.sub(rf'text-anchor="{anchor}" x="{np.mean(places[anchor]):.2f}" y="\2">\3</text>', lines[0])


def themed(svg: str, alt: str, prefix: str) -> str:
    """Return a figure as SVG to stand in a page, whose theme and font it takes. `prefix`: of its ids, which are
    those that it refers to itself."""
    svg = re.sub(r"<(metadata|style).*?</\1>|<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(#|href="#)([\w-]+)', svg))
    svg = re.sub(r' id="([\w-]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(rf"(<text [^>]*{LINE.pattern}\s*){{2,}}", _anchored, svg)
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda m: variable(m[0]), svg)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--pst-font-family-base, sans-serif)", svg)
    svg = re.sub(r"'DejaVu Sans Mono'[^;\"]*", "var(--pst-font-family-monospace, monospace)", svg)
    # A hundredth of a point cannot be seen: outside of text, digits after it go.
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), re.sub(r" *\n *", " ", svg))
    svg = re.sub(r"M (\S+) (\S+) L (\S+) \2 L \3 (\S+) L \1 \4 z ?", r"M\1 \2H\3V\4H\1z", svg)  # rectangles
    head, body = svg.split(">", 1)
    svg = re.sub(r' (width|height)="[^"]*"', "", head) + f">{body}"  # a page says how wide it is
    return svg.replace("<svg", f'<svg class="tc-picture" role="img" aria-label="{html.escape(alt)}"', 1)
