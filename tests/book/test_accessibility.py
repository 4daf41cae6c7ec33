"""The pages that people use most, judged by axe, in light and in dark: nothing serious, and on live pages all in landmarks, with headings in order."""

from importlib.resources import files

import pytest

PAGES = (
    "book/intro book/scoreboard book/not_reproduced book/follow book/grow "
    "notebooks/04_skip_trigrams notebooks/05_copying notebooks/07_induction_heads notebooks/a2_low_rank"
).split()
LIVE = ("follow", "grow")
WITH_CODE = "notebooks/05_copying"  # where code is looked at: its colors are the same everywhere, and there is much
RUN = """async ([exclude, only]) => {
  const rules = { "label-content-name-mismatch": { enabled: true } }; // experimental, and right: speech names what is seen
  const options = { resultTypes: ["violations"], preload: false, ...(only ? { runOnly: only } : { rules }) };
  const { violations } = await axe.run({ exclude }, options);
  const always = ["region", "heading-order"], live = document.querySelector("#stage, #grow, .tc-doors");
  return violations.filter((v) => ["serious", "critical"].includes(v.impact) || (live && always.includes(v.id))).map((v) => [v.id, ...v.nodes.map((n) => n.html)]);
}"""


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(html, reused, name):
    page = reused.open(html / f"{name}.html")
    if name.split("/")[-1] in LIVE:
        page.wait_for_selector("[data-ready]")
    page.add_style_tag(content="*, ::before, ::after { transition: none !important }")  # colors change over a moment
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    exclude = [] if name == WITH_CODE else [".highlight"]
    for theme, only in (("light", None), ("dark", ["color-contrast"])):
        page.evaluate("theme => (document.documentElement.dataset.theme = theme)", theme)
        page.evaluate("() => new Promise(requestAnimationFrame)")
        assert page.evaluate(RUN, [exclude, only]) == [], theme
