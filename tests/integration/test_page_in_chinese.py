"""The page in a browser that is set to Chinese: its own texts are in Chinese, and those of others as they are."""

import json
from pathlib import Path

import fabricate
import pytest
from headless import findings, require_layout, went_to, window
from page_client import small_recipe
from PIL import Image

import reelworks
from reelworks.training.recipe import dataset, recipe_file

TABLE = json.loads((Path(reelworks.__file__).parent / "annexes" / "page" / "static" / "zh.json").read_text("utf-8"))
# Texts, labels and hints that people see or hear on a page, without the names and descriptions of a recipe's keys.
SHOWN = """() => {
  const found = [document.title.split(" · ").at(-2)];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) if (!walk.currentNode.parentElement.closest(".form-keys")) found.push(walk.currentNode.data);
  for (const one of document.querySelectorAll("[aria-label], [title], [placeholder]"))
    if (!one.closest(".form-keys")) found.push(one.ariaLabel, one.title, one.placeholder);
  return found.filter(Boolean);
}"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Runs that are called as buttons are, and a recipe and footage whose names are texts of the page too."""
    root = tmp_path_factory.mktemp("chinese")
    for name in ("Train", "Compare"):
        fabricate.make(root / "runs" / name, steps=8, every=4, crash_at=6)
    (root / "picture").mkdir()
    for i in range(3):
        Image.new("RGB", (64, 48), (80 * i, 9, 9)).save(root / "picture" / f"{i}.png")
        (root / "picture" / f"{i}.txt").write_text("Data", encoding="utf-8")
    (root / "Plan.toml").write_text(small_recipe(str(root / "runs" / "none"), str(root / "picture")), encoding="utf-8")
    dataset.scan_recipe(recipe_file.load(root / "Plan.toml"))
    return root


def routes(shown):
    """The addresses of all pages, what to wait for, and the texts there that are of others though the table has them."""
    asked = "(path) => fetch(path).then(answer => answer.text())"
    runs = {run["name"]: run["key"] for run in json.loads(shown.evaluate(asked, "/api/runs"))}
    (recipe,) = (one["key"] for one in json.loads(shown.evaluate(asked, "/api/recipes")))
    run = f"#/run/{runs['Train']}"
    yield "#/runs", "td a", {"Train", "Compare"}
    yield f"{run}/overview", ".plot .main-svg", {"Train"}
    yield f"{run}/previews", "figure", {"Train"}
    yield f"{run}/clips", ".bar", {"Train"}
    yield f"{run}/recipe", "pre", {"Train"}
    yield f"#/compare/{runs['Train']},{runs['Compare']}", ".plot .main-svg", {"Train", "Compare"}
    yield "#/data", "td a", {"Plan", "catalog", "waiting"}  # a folder, and what the server is doing
    yield f"#/data/{recipe}", "main img", {"Plan"}
    yield "#/plan", "td a", {"Plan"}
    yield f"#/plan/{recipe}", "td .plan-shapes svg", {"Plan"}
    yield "#/new", "label.new-model", {"picture"}
    yield f"#/new/{recipe}", "main textarea", {"Plan"}


def untranslated(shown):
    return {text for text in shown.evaluate(SHOWN) if text in TABLE}


def test_the_first_page_is_in_chinese_and_names_stay(opened, address):
    with window(opened, locale="zh-CN") as shown:
        went_to(shown, address, "#/runs", "td a")
        assert shown.evaluate("document.documentElement.lang") == "zh-CN"
        assert shown.text_content("h1") == "运行"
        assert shown.locator("nav.top a").all_text_contents() == ["运行", "数据", "计划", "新建"]
        assert shown.locator("tr button").all_text_contents() == ["训练"]
        assert untranslated(shown) == {"Train", "Compare"}, "the names of the runs"


@pytest.mark.slow
def test_every_page_is_in_chinese(opened, address):
    with window(opened, 480, locale="zh-CN") as shown:
        went_to(shown, address, "#/runs", "table")
        for route, waits_for, names in list(routes(shown)):
            went_to(shown, address, route, waits_for)
            shown.wait_for_timeout(500)
            assert untranslated(shown) - names == set(), route
            assert findings(shown) == [], route
            require_layout(shown)


def test_other_browsers_have_english(opened, address):
    with window(opened, locale="de-DE") as shown:
        went_to(shown, address, "#/runs", "td a")
        assert shown.evaluate("document.documentElement.lang") == "en"
        assert shown.text_content("h1") == "Runs"


def test_without_its_table_the_page_is_in_english(opened, address):
    with window(opened, locale="zh", tolerates="404") as shown:
        shown.route("**/zh.json", lambda route: route.fulfill(status=404))
        went_to(shown, address, "#/runs", "td a")
        assert shown.text_content("h1") == "Runs"
