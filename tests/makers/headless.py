"""A headless Chromium, if there is one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

PATIENCE_SECONDS = 240  # for elements; on a busy machine a page has been seen to take one minute
SERIOUS = ("serious", "critical")
WHERE = ("chromium", "chromium-browser", "google-chrome")
# A map of buckets scrolls: it has two directions.
_LAYOUT = """() => {
  const found = [], width = box => Math.round(box.getBoundingClientRect().width);
  if (document.documentElement.scrollWidth > innerWidth) found.push(`the page: ${document.documentElement.scrollWidth}`);
  for (const box of document.querySelectorAll(".scroll:not(:has(.plan-map))"))
    if (box.scrollWidth > box.clientWidth) found.push(`a table: ${box.ariaLabel}, ${box.scrollWidth} in ${box.clientWidth}`);
  for (const plot of document.querySelectorAll(".plot:has(.main-svg)"))
    if (Math.abs(width(plot.querySelector(".main-svg")) - plot.clientWidth) > 1) found.push(`a chart: ${plot.ariaLabel}`);
  for (const charts of document.querySelectorAll(".figures")) {
    const rows = new Map();
    for (const card of charts.children) {
      const { top, right } = card.getBoundingClientRect();
      rows.set(Math.round(top), Math.max(right, rows.get(Math.round(top)) || 0));
    }
    for (const right of rows.values()) if (charts.getBoundingClientRect().right - right > 1) found.push("a hole in a row of charts");
  }
  return found;
}"""
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def browser() -> Iterator[Any]:
    """Yield a browser of playwright; skips the test if no Chromium is installed."""
    found = next(filter(None, map(shutil.which, WHERE)), None)
    if found is None:
        pytest.skip("no Chromium is installed; on Debian and Ubuntu: apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=list(QUIET))
        yield opened
        opened.close()


@contextmanager
def window(
    opened: Any, width: int = 1280, *, dark: bool = False, tolerates: str | None = None, locale: str = "en-US"
) -> Iterator[Any]:
    """Yield a page in a window of its own; errors of its scripts fail the test, but those that have a text in them."""
    size = {"width": width, "height": 900}
    context = opened.new_context(viewport=size, color_scheme="dark" if dark else "light", locale=locale)
    context.set_default_timeout(1000 * PATIENCE_SECONDS)
    shown, problems = context.new_page(), []
    shown.on("pageerror", lambda error: problems.append(str(error)))
    shown.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    yield shown
    context.close()
    if tolerates is not None:
        problems = [problem for problem in problems if tolerates not in problem]
    assert not problems, problems


def went_to(shown: Any, address: str, route: str, waits_for: str) -> None:
    """Open a route of the page, as someone who has opened the page before, and wait for an element."""
    shown.goto(address)
    shown.wait_for_selector("h1, h2")
    shown.goto(address.split("#")[0] + route)
    shown.wait_for_selector(waits_for)


def wait_until(shown: Any, condition: str) -> None:
    """Wait for a condition in JavaScript; playwright's own way evaluates texts within the page, whose policy forbids it."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not shown.evaluate(condition):
        assert time.monotonic() < end, condition
        shown.wait_for_timeout(50)


def held(shown: Any, pattern: str, most: int | None = None) -> list[Any]:
    """Hold back the requests that match a pattern, or so many of them, in a list, until a test lets them go on."""
    requests: list[Any] = []
    shown.route(pattern, lambda route: requests.append(route), times=most)
    return requests


def wait_for_request(shown: Any, requests: list[Any]) -> None:
    """Wait until a request is held back."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not requests:
        assert time.monotonic() < end, "no request was made"
        shown.wait_for_timeout(20)


def require_layout(shown: Any) -> None:
    """Fail if something is too wide for its place, the page, a table or a chart, or if a row of charts leaves a hole."""
    end = time.monotonic() + 10  # tables and charts take the width of their place a moment after they have it
    while found := shown.evaluate(_LAYOUT):
        assert time.monotonic() < end, f"{shown.url}: {found}"
        shown.wait_for_timeout(50)


def findings(shown: Any) -> list[tuple[str, list[str]]]:
    """Return what keeps people from reading a page, by axe's serious rules, with the first elements of each."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(shown).response["violations"]
    return [(f["id"], [node["html"][:200] for node in f["nodes"][:3]]) for f in found if f["impact"] in SERIOUS]
