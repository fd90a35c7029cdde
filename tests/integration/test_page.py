"""The page in a real browser: right, readable by all, and as it happens."""

import json
import shutil
import time

import fabricate
import pytest
from headless import findings, require_layout, wait_until, went_to, window
from page_client import served

from reelworks.core import files
from reelworks.data.run import lock
from reelworks.data.run.folder import RunFolder
from reelworks.reports import html
from reelworks.testing import sample_folder
from reelworks.training.recipe import dataset, recipe_file

DRAWN = "Math.max(...[...document.querySelectorAll('.plot')].flatMap(p => (p.data || []).map(t => t.x.at(-1) || 0)))"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    fabricate.measure_alike(fabricate.make(root / "runs" / "first", steps=60, every=20, crash_at=30))
    fabricate.make(root / "runs" / "second", steps=40, every=20, crash_at=30)
    return root


def keys(shown):
    return {run["name"]: run["key"] for run in json.loads(shown.evaluate("fetch('/api/runs').then(a => a.text())"))}


@pytest.mark.parametrize(
    ("width", "dark"),
    [pytest.param(1280, False, marks=pytest.mark.slow(reason="the other width shows most")), (480, True)],
)
@pytest.mark.slow
def test_every_part_of_a_run_is_readable_by_all(opened, address, width, dark):
    with window(opened, width, dark=dark) as shown:
        went_to(shown, address, "#/runs", "table")
        run = keys(shown)
        for route, waits_for in (
            ("#/runs", "table"),
            (f"#/run/{run['first']}", ".plot .main-svg"),
            (f"#/run/{run['first']}/previews", "figure"),
            (f"#/run/{run['first']}/measured", "figcaption"),
            (f"#/run/{run['second']}/measured", ".empty"),
            (f"#/run/{run['first']}/clips", ".bar"),
            (f"#/run/{run['first']}/recipe", "pre"),
            (f"#/compare/{run['first']},{run['second']}", ".plot .main-svg"),
        ):
            went_to(shown, address, route, waits_for)
            assert findings(shown) == [], route
            require_layout(shown)


@pytest.mark.slow
def test_reports_have_no_holes_and_cut_nothing(opened, root):
    """Wide and narrow, and again after the window was made narrower."""
    with window(opened, 1280) as shown:
        shown.goto(html.write(RunFolder(root / "runs" / "first")).as_uri())
        shown.wait_for_selector(".plot .main-svg")
        require_layout(shown)
        shown.set_viewport_size({"width": 480, "height": 900})
        require_layout(shown)


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """A folder with a few clips, and a recipe for them whose catalog is there."""
    root = tmp_path_factory.mktemp("sample")
    shutil.copytree(sample_folder(), root / "footage")
    recipe = root / "small.toml"
    recipe.write_text(
        f'version = 1\noutput = "{root}/run"\n[[dataset]]\npath = "{root}/footage"\n[[bucket]]\nresolution = "64px"\n'
        'num_frames = [1, 5]\nbatch_size = [4, 2]\n[model]\nname = "stdit3-tiny"\n[train]\nmax_steps = 10\n',
        encoding="utf-8",
    )
    dataset.scan_recipe(recipe_file.load(recipe))
    return root


@pytest.mark.parametrize(
    ("width", "dark"),
    [(1280, True), pytest.param(480, False, marks=pytest.mark.slow(reason="the other width shows most"))],
)
@pytest.mark.slow
def test_data_plan_and_recipes_are_readable_by_all(opened, sample, width, dark):
    with served(sample) as address, window(opened, width, dark=dark) as shown:
        went_to(shown, address, "#/runs", "table")
        (recipe,) = json.loads(shown.evaluate("fetch('/api/recipes').then(a => a.text())"))
        for route, waits_for in (
            ("#/data", "main a"),
            (f"#/data/{recipe['key']}", "main img"),
            ("#/plan", "main a"),
            (f"#/plan/{recipe['key']}", "text=Shares of the training"),
            ("#/new", "text=Trigger word"),
            (f"#/new/{recipe['key']}", "main textarea, main pre"),
        ):
            went_to(shown, address, route, waits_for)
            shown.wait_for_timeout(300)
            assert findings(shown) == [], route
            require_layout(shown)


def test_texts_of_others_are_texts(opened, address):
    with window(opened) as shown:
        went_to(shown, address, "#/runs", "table")
        went_to(shown, address, f"#/run/{keys(shown)['first']}/previews", "figure")
        captions = shown.locator("figcaption").all_text_contents()
        assert fabricate.HOSTILE in captions
        assert shown.locator("figcaption script").count() == 0


def unfinished(folder):
    """Make a run without the event of its end; returns it with the events that it has."""
    run = fabricate.make(folder, steps=20, every=10, crash_at=15)
    lines = run.events_file.read_text(encoding="utf-8").splitlines()[:-1]
    run.events_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return run, lines


def test_a_new_point_comes_to_the_page_by_itself(opened, address, root):
    run, lines = unfinished(root / "runs" / "live")
    last = next(json.loads(line) for line in reversed(lines) if json.loads(line)["kind"] == "step")
    with window(opened) as shown, lock.hold(run.lock_file):
        went_to(shown, address, "#/runs", "table")
        shown.wait_for_selector("text=live")
        went_to(shown, address, f"#/run/{keys(shown)['live']}", ".plot .main-svg")
        shown.wait_for_selector(".badge:text-is('running')")
        for number in (21, 22):
            files.append_json_line(
                run.events_file, {**last, "step": number, "time": time.time(), "loss": 0.1234 + number}
            )
            wait_until(shown, f"{DRAWN} === {number}")
            shown.wait_for_selector(f"#now:has-text('step {number} ')")


def test_an_address_of_a_page_that_has_ended_takes_no_right_to_change(opened, address):
    """A token replaces one that works only once the server has taken it."""
    script = "document.querySelector('script[type=module]').src.replace('main.js', 'server.js')"
    with window(opened, tolerates="Failed to load resource") as shown:
        shown.goto(address)
        shown.wait_for_selector("table")
        shown.goto(address.split("#")[0] + "#token=of-yesterday")
        shown.wait_for_selector("table")
        for _ in range(2):
            ask = f"async () => (await import({script})).post('/jobs/0/stop').catch(error => error.status)"
            assert shown.evaluate(ask) == 404
        assert not shown.locator("#read-only").is_visible()


def test_without_the_token_nothing_can_be_pressed(opened, address, root):
    unfinished(root / "runs" / "crashed")
    with window(opened) as shown:
        shown.goto(address.split("#")[0])
        shown.wait_for_selector("table")
        assert shown.locator("#read-only").is_visible()
        shown.wait_for_selector("a:text-is('crashed')")
        shown.goto(address.split("#")[0] + f"#/run/{keys(shown)['crashed']}")
        shown.wait_for_selector("button:text-is('Resume')")
        assert shown.locator("button:enabled").count() == 0


def test_an_address_typed_by_hand_leads_somewhere(opened, address):
    """What names nothing shows the list; what names something that is not there says so."""
    with window(opened, tolerates="404") as shown:
        for place, heading in (("jobs", "Runs"), ("run", "Runs"), ("nowhere", "Runs"), ("jobs/%", "no such job")):
            went_to(shown, address, f"#/{place}", f"h1:has-text('{heading}')")


def test_a_server_that_is_gone_is_told_with_what_helps(opened, root):
    with window(opened, tolerates="ERR_CONNECTION_REFUSED") as shown:
        with served(root) as address:
            went_to(shown, address, "#/runs", "table")
        shown.goto(address.split("#")[0] + "#/compare/a,b")
        shown.wait_for_selector("h1:text('does not answer')")
        assert "reelworks ui" in shown.text_content("main")
