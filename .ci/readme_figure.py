"""The picture of README, of previews, and of the front page without scripts: the stage as the built page draws it.

`make book`, then `python .ci/readme_figure.py book/_static/follow_a_name.png`.
"""

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "book"))
import browser  # noqa: E402


def main(out: Path, html: Path = ROOT / "_build" / "html") -> None:
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=browser.find()) as chrome:
        page = chrome.new_page(viewport={"width": 1300, "height": 900}, device_scale_factor=2, reduced_motion="reduce")
        page.goto((html / "book" / "intro.html").as_uri())
        scene = page.locator(".tc-stage .tc-scene")
        scene.get_by_text("%").first.wait_for()
        picture = Image.open(io.BytesIO(scene.screenshot()))
    picture.convert("RGB").quantize(96, dither=Image.Dither.NONE).save(out, optimize=True)  # a quarter of the size


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
