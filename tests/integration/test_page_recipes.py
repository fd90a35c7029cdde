"""Plans and new recipes of the page in a real browser: readable by all, computed again as controls move, and sent whole."""

from __future__ import annotations

import json
import re
import urllib.request

import prepare_files
import pytest
from headless import findings, require_layout, went_to, window
from page_client import small_recipe

from reelworks.training.recipe import dataset, recipe_file

RECIPE = small_recipe("run", "mine", num_frames=(1, 9), aspect_ratios=())


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("recipes")
    for number in range(5):
        prepare_files.picture(root / f"mine/picture-{number}.png", size=(64, 64))
    prepare_files.clip(root / "mine/clip.mp4", num_frames=12, size=(64, 64))
    (root / "cats.toml").write_text(RECIPE, encoding="utf-8")
    (root / "unscanned.toml").write_text(RECIPE.replace('"run"', '"other"'), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        dataset.scan_recipe(recipe_file.load(root / "cats.toml"))
        yield root


def keys(address):
    with urllib.request.urlopen(address.split("/#")[0] + "/api/recipes") as answer:
        return {one["name"]: one["key"] for one in json.loads(answer.read())}


@pytest.mark.parametrize(
    ("width", "dark"),
    [pytest.param(1280, False, marks=pytest.mark.slow(reason="the other width shows most")), (480, True)],
)
@pytest.mark.slow
def test_plans_and_recipes_are_readable_by_all(opened, address, width, dark):
    with window(opened, width, dark=dark) as shown:
        for route, waits_for in (
            ("#/plan", "table"),
            (f"#/plan/{keys(address)['cats']}", ".meter"),
            (f"#/plan/{keys(address)['unscanned']}", ".empty button"),
            ("#/new", ".new-model"),
            (f"#/new/{keys(address)['cats']}", ".form-section"),
        ):
            went_to(shown, address, route, waits_for)
            assert findings(shown) == [], route
            require_layout(shown)


@pytest.mark.slow
def test_a_moved_control_is_planned_and_can_be_taken_back(opened, address):
    with window(opened) as shown:
        went_to(shown, address, f"#/plan/{keys(address)['cats']}", ".meter")
        steps = shown.locator(".plan-facts .card").first
        assert "was" not in steps.text_content()
        before = steps.text_content()
        shown.locator('[data-field="batch_sizes.0"]').fill("1")
        shown.wait_for_selector(".plan-facts .former")
        assert "was" in steps.text_content()
        assert shown.get_by_role("button", name="Save", exact=True).is_enabled()
        shown.get_by_role("button", name="Reset").click()
        shown.wait_for_selector(".plan-facts .former", state="detached")
        assert steps.text_content() == before


@pytest.mark.slow
def test_form_and_text_follow_each_other(opened, address):
    from playwright.sync_api import expect

    with window(opened) as shown:
        went_to(shown, address, f"#/new/{keys(address)['cats']}", ".form-section")
        shown.locator("#key-train-max_epochs").fill("7")
        shown.locator("#key-train-max_epochs").blur()
        expect(shown.locator(".form-text")).to_have_value(re.compile("max_epochs = 7"))
        shown.locator(".form-text").fill(RECIPE.replace("max_epochs = 1", "max_epochs = 8"))
        expect(shown.locator("#key-train-max_epochs")).to_have_value("8")
        shown.locator(".form-text").fill(RECIPE.replace("max_epochs = 1", "max_epochs = 0"))
        shown.wait_for_selector("#key-train-max_epochs[aria-invalid]")


@pytest.mark.slow
def test_chosen_files_are_sent_and_chosen_as_footage(opened, address, root, tmp_path):
    for name in ("one.png", "two.png"):
        prepare_files.picture(tmp_path / name)
    (tmp_path / "notes.sh").write_text("no footage", encoding="utf-8")
    with window(opened) as shown:
        went_to(shown, address, "#/new", ".new-model")
        shown.locator("#new-files").set_input_files(sorted(map(str, tmp_path.iterdir())))
        shown.wait_for_selector("text=2 pictures, 2 captions")
        (sent,) = (root / "footage").iterdir()
        assert {one.name: one.read_bytes() for one in sent.iterdir()} == {
            one.name: one.read_bytes() for one in tmp_path.iterdir() if one.suffix != ".sh"
        }
        assert shown.locator("input[name=folder]:checked").count() == 1
        shown.locator("input[value=stdit3-tiny]").check()
        assert shown.get_by_role("button", name="Make the recipe").is_enabled()
