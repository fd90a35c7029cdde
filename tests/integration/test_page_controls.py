"""Buttons, keys and questions of the page in a real browser do what they say."""

from __future__ import annotations

import json
import urllib.request

import fabricate
import prepare_files
import pytest
from headless import wait_until, went_to, window
from page_client import small_recipe

from reelworks.training.recipe import dataset, recipe_file

RECIPE = small_recipe("run", "mine", num_frames=(1, 9), aspect_ratios=())
ALONE = RECIPE.replace('"run"', '"alone"')
SHARED = ALONE.replace("[1, 9]", "[1, 9]\nsequence_degree = [1, 2]") + "[parallel]\nsequence_degree = 2\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("controls")
    for number in range(5):
        prepare_files.picture(root / f"mine/picture-{number}.png", size=(64, 64))
    prepare_files.clip(root / "mine/clip.mp4", num_frames=3, size=(64, 64))
    recipe = RECIPE.replace("version = 1\n", 'version = 1\nexclude_file = "left-out.txt"\n')
    (root / "left-out.txt").touch()
    for name, text in (("cats", recipe), ("alone", ALONE), ("shared", SHARED)):
        (root / f"{name}.toml").write_text(text, encoding="utf-8")
    for name in ("first", "second"):
        fabricate.make(root / "runs" / name, steps=40, every=20, crash_at=30)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        yield root


def key_of_recipe(address, name):
    with urllib.request.urlopen(address.split("/#")[0] + "/api/recipes") as answer:
        return next(one["key"] for one in json.loads(answer.read()) if one["name"] == name)


def press(shown, name, within="main"):
    shown.locator(within).get_by_role("button", name=name, exact=True).click()


@pytest.mark.slow(reason="a scan and a check of memory, each in a process of its own")
def test_a_recipe_is_scanned_checked_and_saved_under_another_name(opened, address, root):
    with window(opened, tolerates="400") as shown:
        went_to(shown, address, f"#/plan/{key_of_recipe(address, 'cats')}", ".empty button")
        press(shown, "Scan the footage")
        shown.wait_for_selector(".plan-map .plan-count")
        press(shown, "Show some of them")
        shown.locator("summary").first.click()
        assert "clip.mp4" in shown.text_content("ul.files")
        press(shown, "Check memory and time")
        shown.wait_for_selector(".plan-memory + .bar + .legend")
        card = shown.locator("section.card", has=shown.locator(".plan-memory"))
        assert card.locator("tbody tr").count() == 1
        assert "An epoch would take about" in card.text_content()
        size = shown.locator('[data-field="batch_sizes.0"]')
        size.fill("1")
        for overwrites in (False, True):
            press(shown, "Save as recipe …")
            shown.locator("dialog input").fill("dogs")
            press(shown, "Save", "dialog")
            if overwrites:
                press(shown, "Overwrite", "dialog:has-text('Overwrite')")
            shown.wait_for_selector("h1:text-is('dogs')")
            shown.wait_for_selector(".meter")
            assert size.input_value() == "1"
            assert "batch_size = [1, 2]" in (root / "dogs.toml").read_text(encoding="utf-8")
            if not overwrites:
                went_to(shown, address, f"#/plan/{key_of_recipe(address, 'cats')}", ".meter")
                size.fill("1")


@pytest.mark.slow
def test_gpus_that_share_a_clip_are_told_where_there_are_several(opened, address, root):
    dataset.scan_recipe(recipe_file.load(root / "alone.toml"))
    with window(opened) as shown:
        for name, told in (("shared", ["1 GPU per clip", "2 GPUs per clip"]), ("alone", [])):
            went_to(shown, address, f"#/plan/{key_of_recipe(address, name)}", ".meter")
            assert shown.locator(".plan-map small").all_text_contents() == told


@pytest.mark.slow
def test_a_clip_is_left_out_and_taken_back_and_filters_are_cleared(opened, address, root):
    with window(opened) as shown:
        went_to(shown, address, f"#/data/{key_of_recipe(address, 'cats')}", ".empty button, .tile img")
        if shown.locator(".empty button").count():
            press(shown, "Scan")
        shown.wait_for_selector(".tile img")
        shown.fill("[type=search]", "picture-3")
        shown.wait_for_selector(".told:has-text('1 of 6 clips')")
        shown.click(".tile")
        press(shown, "Leave out", "dialog")
        shown.wait_for_selector("dialog button:text-is('Take back')")
        assert "picture-3.png" in (root / "left-out.txt").read_text(encoding="utf-8")
        press(shown, "Take back", "dialog")
        shown.wait_for_selector("dialog button:text-is('Leave out')")
        press(shown, "close", "dialog")
        press(shown, "Clear", ".told")
        shown.wait_for_selector(".told:has-text('6 clips')")
        assert shown.input_value("[type=search]") == ""


@pytest.mark.slow
def test_keys_of_a_recipe_are_found_set_added_and_removed(opened, address):
    from playwright.sync_api import expect

    with window(opened) as shown:
        went_to(shown, address, f"#/new/{key_of_recipe(address, 'cats')}", ".form-section")
        text = shown.locator(".form-text")
        shown.get_by_label("Search keys of the recipe").fill("max_steps")
        shown.locator(".form-unset", has_text="max_steps").get_by_role("button", name="Set").first.click()
        wait_until(shown, "document.querySelector('.form-text').value.includes('max_steps')")
        shown.get_by_role("button", name="Remove train.max_steps").click()
        wait_until(shown, "!document.querySelector('.form-text').value.includes('max_steps')")
        shown.get_by_label("Search keys of the recipe").fill("")
        press(shown, "Add [[bucket]]")
        wait_until(shown, "document.querySelector('.form-text').value.includes('512px')")
        shown.locator("fieldset", has_text="[[bucket]] 2").get_by_role("button", name="Remove", exact=True).click()
        wait_until(shown, "!document.querySelector('.form-text').value.includes('512px')")
        expect(text).not_to_have_value("")


@pytest.mark.slow
def test_runs_are_chosen_and_compared_and_keys_lead_to_pages(opened, address):
    with window(opened) as shown:
        went_to(shown, address, "#/runs", "table")
        shown.get_by_label("choose first to compare").check()
        shown.get_by_label("choose second to compare").check()
        press(shown, "Compare 2 runs")
        shown.wait_for_selector("h1:text-is('first · second'), h1:text-is('second · first')")
        shown.wait_for_selector(".plot .main-svg")
        shown.keyboard.press("?")
        press(shown, "Close", "dialog")
        shown.wait_for_selector("dialog", state="detached")
        for letter, heading in (("d", "Data"), ("p", "Plan"), ("n", "New LoRA"), ("r", "Runs")):
            shown.keyboard.press("g")
            shown.keyboard.press(letter)
            shown.wait_for_selector(f"h1:text-is('{heading}')")


@pytest.mark.slow
def test_previews_are_gone_through_by_keys_and_set_beside_one_another(opened, address):
    with window(opened) as shown:
        went_to(shown, address, "#/runs", "table")
        shown.click("a:text-is('first')")
        shown.wait_for_selector(".plot .main-svg")
        assert shown.locator("span#now").text_content().startswith("step 40")
        shown.click("nav.tabs a:text-is('Previews')")
        shown.wait_for_selector("output:text-is('step 40')")
        shown.keyboard.press("ArrowLeft")
        shown.wait_for_selector("output:text-is('step 20')")
        alone = shown.locator(".clips figure").count()
        shown.select_option("select", "40")
        wait_until(shown, f"document.querySelectorAll('.clips figure').length === {2 * alone}")
        shown.click("nav.tabs a:text-is('Clips')")
        shown.wait_for_selector("h2:text-is('Every clip')")
