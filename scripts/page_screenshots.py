"""Take the pictures that README and docs show, of the demo's clips and of the page: python scripts/page_screenshots.py FOLDER

FOLDER is where `reelworks demo` ran; a recipe is needed beside it, such as a copy of recipes/demo.toml.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, ViewportSize, sync_playwright

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SIZE = ViewportSize(width=1240, height=780)


def ask(page: Page, path: str) -> list[dict[str, str]]:
    """Return what the server tells the page."""
    found: list[dict[str, str]] = json.loads(page.evaluate(f"fetch('/api{path}').then(answer => answer.text())"))
    return found


def main() -> None:
    """Copy the sheet of the demo's clips, start the server, visit pages and write their pictures."""
    folder = Path(sys.argv[1])
    shutil.copy(folder / "demo" / "generated" / "sheet.png", IMAGES / "demo.png")
    command = [sys.executable, "-m", "reelworks", "ui", str(folder)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as server,
        sync_playwright() as playwright,
    ):
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        page.goto(address)
        page.wait_for_selector("table")
        run, recipe = ask(page, "/runs")[0]["key"], ask(page, "/recipes")[0]["key"]
        for name, route in (("run", f"run/{run}"), ("data", f"data/{run}"), ("plan", f"plan/{recipe}")):
            page.goto(f"{address.split('#')[0]}#/{route}")
            page.wait_for_timeout(6000)
            page.screenshot(path=IMAGES / f"page-{name}.png")
        browser.close()
        server.terminate()


if __name__ == "__main__":
    main()
