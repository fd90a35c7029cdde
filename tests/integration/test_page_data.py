"""The data page in a real browser: readable by all, by keyboard alone, and texts of captions are texts."""

import prepare_files as made
import pytest
from headless import findings, went_to, window
from page_client import small_recipe

from reelworks.annexes.page.workspace import key_of
from reelworks.training.recipe import dataset, recipe_file

HOSTILE = "<img src=x onerror=alert(1)><b>bold</b>"
CLIPS = 60


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data-page")
    for number in range(CLIPS - 2):
        made.picture(root / "data" / f"{number:03}.png", (64, 64), grey=4 * number)
    made.clip(root / "data" / "moves.mp4", 9, caption=HOSTILE)
    made.clip(root / "data" / "short.mp4", 3)
    (root / "mine.toml").write_text(small_recipe(f"{root}/run", f"{root}/data"), encoding="utf-8")
    dataset.scan_recipe(recipe_file.load(root / "mine.toml"))
    return root


@pytest.mark.slow
def test_clips_are_reached_by_keys_and_everything_is_readable_by_all(opened, address, root):
    key = key_of(root / "mine.toml")
    with window(opened, 480, dark=True) as shown:
        went_to(shown, address, "#/data", "td a")
        assert findings(shown) == []
        went_to(shown, address, f"#/data/{key}", ".tile img")
        assert findings(shown) == []
        assert shown.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        tiles = shown.locator(".tile")
        assert tiles.count() < CLIPS / 2
        shown.focus(".tile[tabindex='0']")
        for name, place in (("ArrowRight", 2), ("ArrowDown", 4), ("End", CLIPS), ("ArrowLeft", CLIPS - 1)):
            shown.keyboard.press(name)
            assert shown.evaluate("document.activeElement.ariaPosInSet") == str(place)
        shown.keyboard.press("Enter")
        shown.wait_for_selector("dialog .read-frames .strip-of-frames img", state="attached")
        assert shown.input_value("dialog textarea") == HOSTILE
        assert findings(shown) == []
        assert shown.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        shown.keyboard.press("Escape")
        shown.wait_for_selector("dialog", state="detached")
        assert shown.evaluate("document.activeElement.ariaPosInSet") == str(CLIPS - 1)
        shown.click("button:text-is('Distributions')")
        shown.wait_for_selector(".sizes")
        assert findings(shown) == []


@pytest.mark.slow
def test_a_limit_is_moved_written_into_the_recipe_and_taken_back(opened, address, root):
    """What it leaves out is seen before it is written, the recipe changes only then, and as it was after Undo."""
    file = root / "mine.toml"
    before = file.read_text(encoding="utf-8")
    with window(opened, 1280) as shown:
        went_to(shown, address, f"#/data/{key_of(file)}", ".tile img")
        shown.click("button:text-is('Limits')")
        shown.wait_for_selector("[data-limit='height:least']")
        slider = shown.locator("[data-limit='duration_seconds:least']")
        slider.focus()
        for _ in range(3):
            shown.keyboard.press("ArrowRight")
        shown.wait_for_selector(".limit-clips figure .frame img")
        assert f"1 of {CLIPS - 1} clips, {CLIPS - 2} left out" in shown.inner_text(
            ".limits-told"
        )  # pictures have no duration
        assert shown.locator(".limit-clips figure").first.locator(".tile").count() == 6
        assert findings(shown) == []
        assert file.read_text(encoding="utf-8") == before
        shown.click("button:text-is('Write into the recipe')")
        shown.click("dialog button.main")
        shown.wait_for_selector("button:text-is('Undo'):enabled")
        assert "duration_seconds >= " in recipe_file.load(file).dataset[0].filter
        shown.click("button:text-is('Undo')")
        shown.wait_for_selector(".limits-told code:text-is('no filter')")
        assert file.read_text(encoding="utf-8") == before
