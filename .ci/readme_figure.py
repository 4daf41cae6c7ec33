"""Draw the picture of the README, and of the front page without scripts: the stage as `make book` made it."""

import browser
from playwright.sync_api import sync_playwright
from stamp import ROOT

program = browser.find()
with sync_playwright() as playwright, playwright.chromium.launch(executable_path=program) as chrome:
    page = chrome.new_page(viewport={"width": 1300, "height": 900}, device_scale_factor=2, reduced_motion="reduce")
    page.goto((ROOT / "_build" / "html" / "book" / "intro.html").as_uri())
    scene = page.locator(".tc-stage .tc-scene")
    scene.get_by_text("%").first.wait_for()
    scene.screenshot(path=ROOT / "book" / "_static" / "follow_a_name.png")
