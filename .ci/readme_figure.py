"""The picture of README and of the front page without scripts: the stage as the built page draws it.

`make book`, then `python .ci/readme_figure.py`.
"""

import io
import sys

from PIL import Image
from playwright.sync_api import sync_playwright
from stamp import ROOT

sys.path.insert(0, str(ROOT / "tests" / "book"))
import browser  # noqa: E402

with sync_playwright() as playwright, playwright.chromium.launch(executable_path=browser.find()) as chrome:
    page = chrome.new_page(viewport={"width": 1300, "height": 900}, device_scale_factor=2, reduced_motion="reduce")
    page.goto((ROOT / "_build" / "html" / "book" / "intro.html").as_uri())
    scene = page.locator(".tc-stage .tc-scene")
    scene.get_by_text("%").first.wait_for()
    picture = Image.open(io.BytesIO(scene.screenshot())).convert("RGB")
few = picture.quantize(96, dither=Image.Dither.NONE)  # a quarter of the size
few.save(ROOT / "book" / "_static" / "follow_a_name.png", optimize=True)
