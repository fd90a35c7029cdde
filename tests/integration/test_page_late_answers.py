"""An answer that comes late replaces nothing newer, and what was asked for meanwhile is done."""

from __future__ import annotations

import json
import shutil
import urllib.request
from contextlib import suppress

import fabricate
import prepare_files
import pytest
from headless import held, wait_for_request, wait_until, went_to, window
from page_client import served, small_recipe

from reelworks.annexes.learning import routes
from reelworks.data.run.events import EventLog
from reelworks.data.run.folder import RunFolder
from reelworks.training.recipe import dataset, recipe_file

pytestmark = pytest.mark.slow(
    reason="a dozen pages whose answers are held back; the forms' own tests save and read them too"
)

RECIPE = small_recipe("runs/cats", "mine", num_frames=(1, 9), aspect_ratios=())
RECIPE = RECIPE.replace("\n[[bucket]]", '\n[[dataset]]\npath = "other"\n\n[[bucket]]', 1)
BATCH_SIZE = "batch_size = [3, 2]\n"
LIKE_LEARNING = pytest.mark.slow(reason="another part of the page that asks in the same way")
DETAIL = pytest.mark.slow(reason="a detail of one part of the page")
LIKE_SAVE = pytest.mark.slow(reason="it waits as saving does")
MOVED = RECIPE.replace("max_epochs = 1", "max_epochs = 7")


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder, sizes in (("mine", [(64, 64), (64, 96), (48, 64)]), ("other", [(96, 96)])):
        (tmp_path / folder).mkdir()
        for number, size in enumerate(sizes):
            prepare_files.picture(tmp_path / folder / f"{number}.png", size=size)
    prepare_files.clip(tmp_path / "mine/clip.mp4", num_frames=12, size=(64, 64))
    (tmp_path / "cats.toml").write_text(RECIPE, encoding="utf-8")
    recipe = recipe_file.load(tmp_path / "cats.toml")
    dataset.scan_recipe(recipe)
    run = RunFolder(tmp_path / "runs" / "cats")
    run.create()
    run.recipe_file.write_text(recipe_file.dump(recipe), encoding="utf-8")
    fabricate.note_losses(run, [1.0, 3.0, 2.0])
    fabricate.note_losses(run, [1.0, 3.0, 2.0], step=20)
    return tmp_path


@pytest.fixture
def address(opened, root):
    with served(root) as address:
        yield address


def key_of(address, kind):
    with urllib.request.urlopen(address.split("/#")[0] + f"/api/{kind}") as answer:
        return json.loads(answer.read())[0]["key"]


def let_go(shown, requests):
    """Let requests go on that were held back, but those that the page has ended."""
    for request in requests:
        with suppress(Exception):
            request.continue_()
    shown.wait_for_timeout(400)


def text_of(shown):
    return shown.input_value(".form-text")


def press(shown, name):
    shown.get_by_role("button", name=name, exact=True).click()


def changed(shown, address, key, value):
    """Change a key in the form of the recipe; returns the request that tells the page, which is held back."""
    went_to(shown, address, f"#/new/{key_of(address, 'recipes')}", ".form-section")
    requests = held(shown, "**/draft", 1)
    shown.locator(f"#key-{key}").fill(value)
    shown.locator(f"#key-{key}").blur()
    wait_for_request(shown, requests)
    return requests


def remove_another(shown):
    press(shown, "Remove bucket.batch_size")
    return MOVED.replace(BATCH_SIZE, "")


def type_text(shown):
    shown.locator(".form-text").focus()
    shown.keyboard.press("Control+Home")
    shown.keyboard.type("# Typed.\n")
    return f"# Typed.\n{MOVED}"


@pytest.mark.parametrize("then", [remove_another, type_text])
def test_a_change_of_the_form_is_made_whatever_comes_after_it(opened, address, then):
    with window(opened) as shown:
        requests = changed(shown, address, "train-max_epochs", "7")
        expected = then(shown)
        wait_until(shown, f"document.querySelector('.form-text').value === {json.dumps(expected)}")
        let_go(shown, requests)
        assert text_of(shown) == expected
        if then is type_text:  # and goes on where it was
            shown.keyboard.type("# More.\n")
            assert text_of(shown) == expected.replace("# Typed.\n", "# Typed.\n# More.\n")


@pytest.mark.parametrize("verb", ["Train", *(pytest.param(verb, marks=LIKE_SAVE) for verb in ("Save", "Save as …"))])
def test_a_recipe_is_saved_and_trained_with_the_last_change_of_its_form(opened, address, root, verb):
    with window(opened) as shown:
        changed(shown, address, "train-max_epochs", "7")
        press(shown, verb)
        if verb == "Train":
            shown.wait_for_selector("dialog button:text-is('Save and train')")
            assert text_of(shown) == MOVED
            return
        if verb != "Save":
            shown.locator("dialog button.main").click()
        shown.wait_for_selector(".toast:has-text('saved')")
    assert (
        (root / ("cats.toml" if verb == "Save" else "cats-2.toml")).read_text(encoding="utf-8").endswith(MOVED[-100:])
    )


@LIKE_SAVE
def test_nothing_is_trained_without_a_change_that_cannot_be_made(opened, address):
    with window(opened) as shown:
        changed(shown, address, "bucket-0-batch_size", "[1,")
        press(shown, "Train")
        shown.wait_for_selector(".toast.bad:has-text('this is no value')")
        shown.wait_for_timeout(300)
        assert not shown.locator(".toast:has-text('queued')").count()


def choose(name, *values):
    return [lambda shown, value=value: shown.get_by_label(name, exact=True).select_option(value) for value in values]


def toggle(shown):
    press(shown, "Distributions")
    shown.wait_for_selector(".bars svg")
    shown.locator('[data-filter="kind:video"]').click()


LATE = {
    "learning": ("#/run/{run}/learning", "**/learning?*sort=loss*", choose("order", "loss", "path"), ".wall"),
    "limits": ("#/data/{key}", "**/columns?dataset=other", choose("dataset", "other", "mine"), ".limits"),
    "distributions": (
        "#/data/{key}",
        "**/distributions?*kind=video*",
        [toggle, lambda shown: shown.locator('[data-filter="kind:video"]').click()],
        ".bars",
    ),
    "generate": (
        "#/run/{run}/checkpoints",
        "**/checkpoints/*/generate",
        [lambda shown, i=i: shown.locator("button:text-is('Generate')").nth(i).click() for i in (0, 1)],
        ".generate h2",
    ),
}


@pytest.mark.parametrize(
    "part", [name if name == "learning" else pytest.param(name, marks=LIKE_LEARNING) for name in LATE]
)
def test_what_was_chosen_last_is_shown(opened, address, part):
    route, pattern, (first, second), place = LATE[part]
    route = route.format(key=key_of(address, "recipes"), run=key_of(address, "runs"))
    with window(opened) as shown:
        went_to(shown, address, route, {"#/d": ".tile img", "#/r": "main .card"}[route[:3]])
        if part == "limits":
            press(shown, "Limits")
            shown.wait_for_selector(".limits svg")
        requests = held(shown, pattern, 1)
        first(shown)
        wait_for_request(shown, requests)
        second(shown)
        shown.wait_for_timeout(700)
        told = shown.inner_html(place)
        let_go(shown, requests)
        assert shown.inner_html(place) == told


@DETAIL
def test_more_clips_are_added_than_one_answer_has(opened, address, root, monkeypatch):
    monkeypatch.setattr(routes, "_MOST_CLIPS", 50)
    run = RunFolder(root / "runs" / "cats")
    fabricate.note_losses(run, [1.0 + number for number in range(130)], step=30)
    with window(opened) as shown:
        went_to(shown, address, f"#/run/{key_of(address, 'runs')}/learning", ".wall figure")
        for before, after in ((60, 120), (120, 130)):
            assert shown.locator(".wall figure").count() == before
            press(shown, f"{130 - before} more")
            wait_until(shown, f"document.querySelectorAll('.wall figure').length === {after}")
        assert shown.locator("button:has-text(' more')").count() == 0
        shown.evaluate("document.querySelector('.wall').classList.add('former')")
        EventLog(run.events_file).write("start", step=30)  # the page is drawn again
        shown.wait_for_selector(".wall:not(.former)")
        assert shown.locator(".wall figure").count() == 130


@DETAIL
def test_an_answer_about_a_clip_is_shown_at_that_clip(opened, address):
    with window(opened) as shown:
        went_to(shown, address, f"#/data/{key_of(address, 'recipes')}", ".tile img")
        names = shown.locator(".tile .name").all_inner_texts()
        shown.locator(".tile").first.click()
        requests = held(shown, "**/leave-out", 1)
        press(shown, "Leave out")
        wait_for_request(shown, requests)
        shown.keyboard.press("ArrowRight")
        shown.wait_for_selector(f"dialog h2:has-text('{names[1]}')")
        let_go(shown, requests)
        assert names[1] in shown.inner_text("dialog h2")
        assert shown.locator(".tile .name").all_inner_texts() == names
        assert [place for place, tile in enumerate(shown.locator(".tile").all()) if tile.locator(".why").count()] == [0]


@DETAIL
def test_a_form_is_filled_in_by_keyboard(opened, address):
    focused = "document.activeElement.dataset.path"
    with window(opened) as shown:
        went_to(shown, address, f"#/new/{key_of(address, 'recipes')}", ".form-section")
        shown.locator("#key-train-max_epochs").fill("7")
        shown.keyboard.press("Tab")
        wait_until(shown, f"document.querySelector('.form-text').value === {json.dumps(MOVED)}")
        shown.wait_for_timeout(200)
        assert shown.evaluate(focused) == "train.max_epochs:clear"
        shown.keyboard.press("Enter")
        wait_until(shown, "!document.querySelector('.form-text').value.includes('max_epochs')")
        shown.wait_for_timeout(200)
        assert shown.evaluate(focused)


@DETAIL
def test_a_generation_is_of_the_step_that_was_chosen_last(opened, address):
    with window(opened) as shown:
        went_to(shown, address, f"#/run/{key_of(address, 'runs')}/checkpoints", "main .card")
        for at, step in ((0, 20), (1, 10)):
            shown.locator("button:text-is('Generate')").nth(at).click()
            shown.wait_for_selector(f"h2:text-is('Generate from step {step}')")
            if at == 0:
                shown.locator(".generate textarea").fill("a cat")
        shown.on("dialog", lambda dialog: dialog.accept())
        shown.reload()
        shown.wait_for_selector("h2:text-is('Generate from step 10')")
        assert shown.input_value(".generate textarea") == "a cat"


@DETAIL
def test_a_run_that_was_deleted_is_not_compared(opened, address, root):
    fabricate.make(root / "runs" / "dogs", steps=30, every=10, crash_at=15)
    fabricate.make(root / "runs" / "mice", steps=30, every=10, crash_at=15)
    with window(opened) as shown:
        went_to(shown, address, "#/runs", "table")
        for name in ("cats", "dogs", "mice"):
            shown.get_by_label(f"choose {name} to compare").check()
        (root / "runs" / "mice").rename(root / "mice-elsewhere")
        (root / "mice-elsewhere" / "run.json").unlink()
        shown.wait_for_selector("button:text-is('Compare 2 runs')")


def test_a_run_that_is_removed_while_it_is_shown_is_told(opened, tmp_path):
    fabricate.make(tmp_path / "run", steps=2)
    with served(tmp_path) as address, window(opened, tolerates="404") as shown:
        went_to(shown, address, "#/runs", "td a")
        shown.click("td a")
        shown.wait_for_selector("h1:text-is('run')")
        shutil.rmtree(tmp_path / "run")
        shown.wait_for_selector("h1:text-is('there is no such run any more')")


def test_a_run_that_is_there_and_cannot_be_followed_is_drawn_once(opened, tmp_path):
    """As behind a proxy that lets all through but streams."""
    fabricate.make(tmp_path / "run", steps=2)
    refusals, asked = [], []
    with served(tmp_path) as address, window(opened, tolerates="502") as shown:
        shown.route("**/follow", lambda route: (refusals.append(route), route.fulfill(status=502)))
        shown.on("request", lambda request: asked.append(request.url) if request.url.endswith("/figures") else None)
        went_to(shown, address, "#/runs", "td a")
        shown.click("td a")
        wait_for_request(shown, refusals)
        shown.wait_for_timeout(1000)
    assert (len(refusals), len(asked)) == (1, 1)
