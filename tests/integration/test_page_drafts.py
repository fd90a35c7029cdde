"""What is typed on a page and not saved stays until it is saved or discarded, and is never saved over what another tab saved."""

from __future__ import annotations

import json
import urllib.request

import prepare_files
import pytest
from headless import held, wait_for_request, wait_until, went_to, window
from page_client import served, small_recipe

from reelworks.training.recipe import dataset, recipe_file

RECIPE = small_recipe("run", "mine", num_frames=(1, 9), aspect_ratios=())
TYPED = "main input:is([type=text], [type=number]):not([readonly]):not(:disabled), main textarea:not([readonly])"
LIKE_TEXT = pytest.mark.slow(reason="another field of a form shows most")
VALUES = (
    f"[...document.querySelectorAll('{TYPED}')].filter(one => one.checkVisibility())"
    ".map(one => [one.id || one.dataset.field || one.getAttribute('aria-label'), one.value])"
)


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        prepare_files.picture(tmp_path / f"mine/picture-{number}.png", size=(64, 64))
    prepare_files.clip(tmp_path / "mine/clip.mp4", num_frames=12, size=(64, 64))
    (tmp_path / "cats.toml").write_text(RECIPE, encoding="utf-8")
    dataset.scan_recipe(recipe_file.load(tmp_path / "cats.toml"))
    return tmp_path


@pytest.fixture
def address(opened, root):
    with served(root) as address:
        yield address


def key_of(address):
    with urllib.request.urlopen(address.split("/#")[0] + "/api/recipes") as answer:
        return json.loads(answer.read())[0]["key"]


def values(shown):
    """Return the values of all fields that people type into, by what names them; of a form as text, its text."""
    return shown.evaluate(VALUES)


def wait_for_values(shown, expected):
    wait_until(shown, f"JSON.stringify({VALUES}) === {json.dumps(json.dumps(expected, separators=(',', ':')))}")


@pytest.mark.parametrize(
    ("route", "waits_for", "field", "typed"),
    [
        ("#/new/{key}", ".form-section", ".form-text", RECIPE.replace("max_epochs = 1", "max_epochs = 7")),
        pytest.param("#/new/{key}", ".form-section", "#key-train-max_epochs", "8", marks=LIKE_TEXT),
        pytest.param("#/plan/{key}", ".meter", '[data-field="batch_sizes.0"]', "1", marks=LIKE_TEXT),
        pytest.param("#/plan/{key}", ".meter", '[data-field="world"]', "2", marks=LIKE_TEXT),
        pytest.param("#/new", ".new-model", '[data-field="--trigger"]', "ohwx cat", marks=LIKE_TEXT),
    ],
)
@pytest.mark.slow
def test_edits_stay_until_they_are_discarded(opened, address, root, route, waits_for, field, typed):
    route = route.format(key=key_of(address))
    with window(opened) as shown:
        went_to(shown, address, route, waits_for)
        before = values(shown)
        shown.locator(field).fill(typed)
        shown.locator(field).blur()
        shown.wait_for_timeout(500)
        edited = values(shown)
        assert edited != before
        shown.evaluate("location.hash = '#/runs'")
        shown.wait_for_selector(waits_for, state="detached")
        shown.evaluate(f"location.hash = '{route}'")
        shown.wait_for_selector("text=Changes that were not saved are here again")
        wait_for_values(shown, edited)
        asked = []
        shown.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.accept()))
        shown.reload()
        shown.wait_for_selector("text=Changes that were not saved are here again")
        assert asked == ["beforeunload"]
        wait_for_values(shown, edited)
        shown.click("text=Discard the changes")
        shown.wait_for_selector("text=Discard the changes", state="detached")
        wait_until(shown, "Object.keys(sessionStorage).length === 0")
        shown.wait_for_selector(waits_for)
        wait_for_values(shown, before)
        asked.clear()
        shown.reload()
        shown.wait_for_selector(waits_for)
        assert asked == []
    assert (root / "cats.toml").read_text(encoding="utf-8") == RECIPE


@pytest.mark.parametrize(
    ("route", "waits_for", "field"),
    [
        ("#/new/{key}", ".form-section", ".form-text"),
        pytest.param("#/plan/{key}", ".meter", '[data-field="batch_sizes.0"]', marks=LIKE_TEXT),
    ],
)
@pytest.mark.slow
def test_a_tab_is_told_of_what_another_saved_and_does_not_undo_it(opened, address, root, route, waits_for, field):
    route = route.format(key=key_of(address))
    is_text = field == ".form-text"
    first, second = (
        [RECIPE.replace("max_epochs = 1", f"max_epochs = {number}") for number in (3, 4)] if is_text else ["1", "2"]
    )
    with window(opened) as here, window(opened, tolerates="400") as there:
        for shown in (here, there):
            went_to(shown, address, route, waits_for)
        here.locator(field).fill(first)
        here.get_by_role("button", name="Save", exact=True).click()
        here.wait_for_selector(".toast:has-text('saved in')")
        # What is not edited there follows; what is edited there is told of, and not saved over the other's.
        wait_until(there, f"document.querySelector('{field}')?.value === {json.dumps(first)}")
        there.locator(field).fill(second)
        (root / "cats.toml").write_text(
            text := (root / "cats.toml").read_text(encoding="utf-8") + "# of an editor\n", encoding="utf-8"
        )
        there.wait_for_selector("text=The file was changed elsewhere")
        there.get_by_role("button", name="Save", exact=True).click()
        there.wait_for_selector(".toast.bad:has-text('save under another name')")
        assert (root / "cats.toml").read_text(encoding="utf-8") == text
        there.evaluate("location.hash = '#/runs'")
        there.wait_for_selector(waits_for, state="detached")
        there.evaluate(f"location.hash = '{route}'")
        there.wait_for_selector("text=The file was changed elsewhere")
        there.click("text=Discard the changes")
        wait_until(there, f"document.querySelector('{field}')?.value === {json.dumps(text if is_text else first)}")


@pytest.mark.slow
def test_an_answer_about_a_text_that_was_discarded_changes_nothing(opened, address):
    route, edited = f"#/new/{key_of(address)}", RECIPE.replace("max_epochs = 1", "max_epochs = 7")
    with window(opened) as shown:
        went_to(shown, address, route, ".form-section")
        shown.locator(".form-text").fill(edited)
        shown.locator(".form-text").blur()
        shown.evaluate("location.hash = '#/runs'")
        shown.wait_for_selector(".form-section", state="detached")
        requests = held(shown, "**/draft")
        shown.evaluate(f"location.hash = '{route}'")
        wait_for_request(shown, requests)
        shown.click("text=Discard the changes")
        wait_until(shown, f"document.querySelector('.form-text').value === {json.dumps(RECIPE)}")
        for request in requests:
            request.continue_()
        shown.wait_for_timeout(500)
        assert shown.locator(".form-text").input_value() == RECIPE
        assert shown.evaluate("Object.keys(sessionStorage).length") == 0


@pytest.mark.parametrize(
    ("route", "waits_for", "field", "saved", "typed"),
    [
        (
            "#/new/{key}",
            ".form-section",
            ".form-text",
            *(RECIPE.replace("max_epochs = 1", f"max_epochs = {number}") for number in (3, 4)),
        ),
        pytest.param("#/plan/{key}", ".meter", '[data-field="batch_sizes.0"]', "2", "1", marks=LIKE_TEXT),
        pytest.param(
            "#/data/{key}", ".tile img", "dialog textarea", "a grey square", "a grey square of grass", marks=LIKE_TEXT
        ),
    ],
)
@pytest.mark.slow
def test_what_is_typed_while_it_is_saved_is_not_saved_and_stays(
    opened, address, root, route, waits_for, field, saved, typed
):
    with window(opened) as shown:
        went_to(shown, address, route.format(key=key_of(address)), waits_for)
        if "dialog" in field:
            shown.locator(".tile").first.click()
        box = shown.locator(field)
        box.fill(saved)
        requests = held(shown, "**/caption" if "dialog" in field else "**/save")
        save = shown.locator("button.main:has-text('Save'):visible").last
        save.click()
        wait_for_request(shown, requests)
        box.fill(typed)
        requests.pop().continue_()
        shown.wait_for_selector(".toast")
        shown.wait_for_timeout(500)
        assert box.input_value() == typed
        save.click()
        wait_for_request(shown, requests)
        requests.pop().continue_()
        wait_until(shown, "Object.keys(sessionStorage).length === 0")
    written = (root / "cats.toml").read_text(encoding="utf-8")
    if field == ".form-text":
        assert written == typed
    elif "dialog" in field:
        assert (root / "mine/clip.txt").read_text(encoding="utf-8").strip() == typed
    else:
        assert "batch_size = [1, 2]" in written


@pytest.mark.slow
def test_what_is_moved_and_saved_of_a_stage_is_shown_of_that_stage(opened, address, root):
    stages = "\n".join(
        f'[[stage]]\nname = "{name}"\nepochs = 1\nbucket = [{{ resolution = "48px", num_frames = [1, 9], batch_size = {sizes} }}]'
        for name, sizes in (("first", [3, 2]), ("second", [5, 4]))
    )
    (root / "cats.toml").write_text(RECIPE.replace("max_epochs = 1\n", "") + stages, encoding="utf-8")
    with window(opened) as shown:
        went_to(shown, address, f"#/plan/{key_of(address)}", ".meter")
        shown.locator(".plan-head select").select_option("second")
        size = '[data-field="batch_sizes.0"]'
        wait_until(shown, f"document.querySelector('{size}')?.value === '5'")
        shown.locator(size).fill("6")
        shown.wait_for_timeout(300)
        shown.on("dialog", lambda dialog: dialog.accept())
        shown.reload()
        shown.wait_for_selector("text=Changes that were not saved are here again")
        assert shown.input_value(".plan-head select") == "1"
        assert shown.input_value(size) == "6"
        shown.get_by_role("button", name="Save", exact=True).click()
        shown.wait_for_selector(".toast:has-text('saved in')")
        shown.wait_for_selector(".plan-head button.main[aria-busy]", state="detached")
        assert shown.locator(".plan-head button.main").is_disabled()
        assert shown.locator(size).input_value() == "6"
    saved = recipe_file.load(root / "cats.toml")
    assert [recipe_file.of_stage(saved, i).bucket[0].batch_size for i in range(2)] == [[3, 2], [6, 4]]


@LIKE_TEXT
def test_a_caption_that_was_not_saved_is_there_when_its_clip_is_opened_again(opened, address):
    with window(opened) as shown:
        went_to(shown, address, f"#/data/{key_of(address)}", ".tile img")
        shown.locator(".tile").first.click()
        shown.locator("dialog textarea").fill("a grey square")
        shown.evaluate("location.hash = '#/runs'")
        shown.wait_for_selector("dialog", state="detached")
        shown.evaluate("history.back()")
        shown.wait_for_selector(".tile img")
        shown.locator(".tile").first.click()
        shown.wait_for_selector("text=Changes that were not saved are here again")
        assert shown.input_value("dialog textarea") == "a grey square"
