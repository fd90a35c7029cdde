"""The page's plan: what it shows is what `reelworks plan` prints for the recipe that saving it writes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.makers import page_client, prepare_files

from reelworks.annexes.page.jobs import PageJob
from reelworks.annexes.page.plan_sessions import PlanSessions
from reelworks.annexes.page.workspace import Workspace, key_of
from reelworks.core import results
from reelworks.training.plan import plan_forecast
from reelworks.training.recipe import dataset, recipe_file

RECIPE = """# Cats and dogs.
version = 1
output = "run"

[[dataset]]
path = "footage"   # all of it

[[bucket]]
resolution = "48px"
num_frames = [1, 9]
batch_size = [3, 2]   # fits the card

[[bucket]]
resolution = "24px"  # the small ones
num_frames = 5
batch_size = 4
keep_prob = 0.5

[buckets]
aspect_ratios = ["4:3", "1:1"]

[model]
name = "stdit3-tiny"

[train]
max_epochs = 1
"""
MOVES: dict[str, dict[str, Any]] = {
    "none": {},
    "batch sizes": {"batch_sizes": [1, 5, 2]},
    "probabilities": {"keep_probs": [1.0, 0.25, 1.0]},
    "incomplete batches": {"incomplete_batch": "pad"},
    "steps": {"gradient_accumulation_steps": 3},
    "GPUs": {"world": 4, "incomplete_batch": "merge"},
}


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with footage, its catalog, and the recipe."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "footage").mkdir()
    for number in range(7):
        prepare_files.picture(folder / f"footage/picture-{number}.png", caption=None if number == 3 else "a cat")
    for number in range(6):
        prepare_files.clip(folder / f"footage/clip-{number}.mp4", num_frames=3 + 3 * number)
    (folder / "footage/broken.mp4").write_bytes(b"no video")
    (folder / "cats.toml").write_text(RECIPE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        dataset.scan_recipe(recipe_file.load(Path("cats.toml")))
    return folder


@pytest.fixture
def page(scanned: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """The page of the folder, whose recipe is as it was."""
    monkeypatch.chdir(scanned)
    for path in scanned.glob("*.toml"):
        path.unlink()
    (scanned / "cats.toml").write_text(RECIPE, encoding="utf-8")
    with page_client.page(scanned) as client:
        yield client


def row(page: TestClient, name: str) -> dict[str, Any]:
    for _ in range(100):  # new files are seen after two seconds
        for found in page.get("/api/plan").json():
            if found["name"] == name:
                return dict(found)
        time.sleep(0.1)
    raise AssertionError(name)


def key(page: TestClient, name: str = "cats") -> str:
    return str(row(page, name)["key"])


def outline(page: TestClient, key: str, controls: Any, part: str = "outline") -> Any:
    return page.get(f"/api/plan/{key}/{part}", params={"controls": json.dumps(controls)})


def test_what_a_page_no_longer_waits_for_is_not_computed(tmp_path: Path) -> None:
    async def is_disconnected() -> bool:
        return True

    computed: list[int] = []
    request: Any = SimpleNamespace(is_disconnected=is_disconnected)
    sessions = PlanSessions(Workspace([tmp_path]), opened=SimpleNamespace())  # type: ignore[arg-type]
    assert asyncio.run(sessions.answer(request, lambda: computed.append(1))).status_code == 499
    assert not computed


@pytest.mark.parametrize("move", MOVES.values(), ids=list(MOVES))
@pytest.mark.quick_cases(3)
def test_plan_is_the_forecast_of_the_recipe_that_saving_writes(
    page: TestClient, scanned: Path, move: dict[str, Any]
) -> None:
    about = page.get(f"/api/plan/{key(page)}").json()
    controls = about["controls"] | move
    shown = outline(page, key(page), controls).json()
    advised = outline(page, key(page), controls, "advice").json()
    told = page.post(f"/api/plan/{key(page)}/save", json={"controls": controls, "digest": about["digest"]})
    assert told.status_code == 200
    written = results.as_json(plan_forecast.forecast(recipe_file.load(scanned / "cats.toml"), controls["world"]))
    assert shown.keys() <= written.keys()
    assert len(shown) > 15
    assert shown == json.loads(json.dumps({name: written[name] for name in shown}))
    assert advised == json.loads(json.dumps({name: written[name] for name in advised}))


def test_moves_one_after_another_are_planned_as_if_each_were_the_first(page: TestClient) -> None:
    controls = page.get(f"/api/plan/{key(page)}").json()["controls"]
    moves = [controls | move for move in MOVES.values()]
    there = [outline(page, key(page), move).json() for move in moves]
    back = [outline(page, key(page), move).json() for move in reversed(moves)]
    assert there == back[::-1]
    assert len({json.dumps(one) for one in there}) == len(moves)


def test_buckets_of_the_map_are_those_of_the_plan(page: TestClient) -> None:
    about = page.get(f"/api/plan/{key(page)}").json()
    plan = outline(page, key(page), about["controls"]).json()
    names = [bucket["name"] for bucket in about["buckets"]]
    assert sorted([*(bucket["name"] for bucket in plan["buckets"]), *plan["empty_buckets"]]) == sorted(names)
    assert sorted(entry["place"] for entry in about["entries"]) == [0, 1, 2]
    named = outline(page, key(page), about["controls"], "reasons").json()
    assert {reason: len(files) for reason, files in named.items()} == {
        r: one["clips"] for r, one in plan["left_out"].items()
    }


def test_the_map_has_the_gpus_that_share_a_clip(page: TestClient, scanned: Path) -> None:
    text = RECIPE.replace("num_frames = [1, 9]", "num_frames = [1, 9]\nsequence_degree = [1, 2]")
    (scanned / "cats.toml").write_text(text + "[parallel]\nsequence_degree = 2\n", encoding="utf-8")
    about = page.get(f"/api/plan/{key(page)}").json()
    told = {bucket["name"]: bucket["sequence_degree"] for bucket in about["buckets"]}
    assert {name.split()[-1]: degree for name, degree in told.items()} == {"×1": 1, "×9": 2, "×5": 2}
    for bucket in outline(page, key(page), about["controls"]).json()["buckets"]:
        assert told[bucket["name"]] == bucket["sequence_degree"]


STAGES = """
[[stage]]
name = "first"
steps = 4

[[stage]]
name = "second"   # larger
epochs = 1
[[stage.bucket]]
resolution = "48px"
num_frames = [1, 5]
batch_size = 2
"""


@pytest.mark.parametrize("stage", [0, 1])
def test_each_stage_is_planned_and_saved_by_itself(page: TestClient, scanned: Path, stage: int) -> None:
    file = scanned / "cats.toml"
    file.write_text(RECIPE.replace("max_epochs = 1", "warmup_steps = 1") + STAGES, encoding="utf-8")
    others = recipe_file.each_stage(recipe_file.load(file))
    about = page.get(f"/api/plan/{key(page)}", params={"stage": stage}).json()
    assert (about["stages"], about["controls"]["stage"]) == (["first", "second"], stage)
    moved = {"batch_sizes": [1] * len(about["controls"]["batch_sizes"]), "gradient_accumulation_steps": 2}
    controls = about["controls"] | moved
    shown = outline(page, key(page), controls).json()
    saved = page.post(f"/api/plan/{key(page)}/save", json={"controls": controls, "digest": about["digest"]})
    assert saved.status_code == 200
    after = recipe_file.each_stage(recipe_file.load(file))
    assert after[1 - stage] == others[1 - stage]
    assert shown["steps_per_epoch"] == plan_forecast.forecast(after[stage], 1).steps_per_epoch
    assert "# larger" in file.read_text(encoding="utf-8")


def test_saving_keeps_comments_and_changes_only_what_moved(page: TestClient, scanned: Path) -> None:
    about = page.get(f"/api/plan/{key(page)}").json()
    controls = about["controls"] | {"batch_sizes": [3, 1, 4], "keep_probs": [1.0, 1.0, 0.75]}
    page.post(f"/api/plan/{key(page)}/save", json={"controls": controls, "digest": about["digest"]})
    expected = RECIPE.replace("[3, 2]", "[3, 1]").replace("keep_prob = 0.5", "keep_prob = 0.75")
    assert (scanned / "cats.toml").read_text(encoding="utf-8") == expected


def test_a_recipe_that_changed_meanwhile_is_not_overwritten(page: TestClient, scanned: Path) -> None:
    about = page.get(f"/api/plan/{key(page)}").json()
    changed = RECIPE.replace("max_epochs = 1", "max_epochs = 2")
    (scanned / "cats.toml").write_text(changed, encoding="utf-8")
    told = page.post(f"/api/plan/{key(page)}/save", json={"controls": about["controls"], "digest": about["digest"]})
    assert told.status_code == 400
    assert told.json()["code"] == "file-changed"
    assert (scanned / "cats.toml").read_text(encoding="utf-8") == changed


def test_a_new_recipe_has_its_own_output_and_the_same_catalog(page: TestClient, scanned: Path) -> None:
    about = page.get(f"/api/plan/{key(page)}").json()
    wish = {"controls": about["controls"] | {"incomplete_batch": "pad"}, "digest": about["digest"], "name": "dogs"}
    told = page.post(f"/api/plan/{key(page)}/save", json=wish).json()
    made = recipe_file.load(scanned / "dogs.toml")
    assert (made.output, made.catalog_folder) == ("dogs", "run/catalog")
    assert made.buckets.incomplete_batch == "pad"
    assert "# fits the card" in (scanned / "dogs.toml").read_text(encoding="utf-8")
    assert page.get(f"/api/plan/{told['key']}").json()["scanned"]
    again = page.post(f"/api/plan/{key(page)}/save", json=wish)
    assert again.status_code == 400
    assert again.json()["code"] == "file-exists"
    assert page.post(f"/api/plan/{key(page)}/save", json=wish | {"overwrite": True}).status_code == 200
    assert (scanned / "cats.toml").read_text(encoding="utf-8") == RECIPE


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "x\0y", "a\\b", "CON:", "x" * 200])
def test_names_that_are_paths_are_refused(page: TestClient, scanned: Path, name: str) -> None:
    def files() -> list[Path]:
        return sorted([*scanned.rglob("*.toml"), *scanned.parent.glob("*.toml")])

    about = page.get(f"/api/plan/{key(page)}").json()
    before = files()
    wish = {"controls": about["controls"], "digest": about["digest"], "name": name}
    told = page.post(f"/api/plan/{key(page)}/save", json=wish)
    assert told.status_code == 400
    assert told.json()["code"] == "name-invalid"
    assert files() == before


@pytest.mark.parametrize(
    ("move", "field"),
    [
        ({"batch_sizes": [0, 2, 4]}, "bucket.batch_size"),
        ({"keep_probs": [1.0, 2.0, 0.5]}, "bucket.keep_prob"),
        ({"incomplete_batch": "drop"}, "buckets.incomplete_batch"),
        ({"world": 0}, "world"),
        ({"batch_sizes": [1]}, "controls"),
        ({"keep_probs": [0.0, 0.0, 0.0]}, "bucket"),
    ],
)
def test_positions_that_no_recipe_can_have_are_refused_at_their_field(
    page: TestClient, move: dict[str, Any], field: str
) -> None:
    controls = page.get(f"/api/plan/{key(page)}").json()["controls"]
    told = outline(page, key(page), controls | move)
    assert told.status_code == 400
    assert told.json()["field"] == field
    assert told.json()["remedy"]


def test_entries_that_were_chosen_are_written_when_they_move(page: TestClient, scanned: Path) -> None:
    head, _, _ = RECIPE.partition("[[bucket]]")
    _, _, tail = RECIPE.partition("[model]")
    (scanned / "auto.toml").write_text(
        head.replace("[[dataset]]", 'buckets = "auto"\n[[dataset]]') + "[model]" + tail, encoding="utf-8"
    )
    about = page.get(f"/api/plan/{key(page, 'auto')}").json()
    controls = about["controls"]
    assert about["chosen"]
    assert len(controls["batch_sizes"]) == len(about["entries"])
    unmoved = outline(page, key(page, "auto"), controls | {"incomplete_batch": "pad"}).json()
    assert unmoved["incomplete_batch"] == "pad"
    controls = controls | {"batch_sizes": [1 for _ in controls["batch_sizes"]]}
    shown = outline(page, key(page, "auto"), controls).json()
    page.post(f"/api/plan/{key(page, 'auto')}/save", json={"controls": controls, "digest": about["digest"]})
    made = recipe_file.load(scanned / "auto.toml")
    assert not made.buckets.proposes
    assert shown["buckets"] == results.as_json(plan_forecast.forecast(made, 1))["buckets"]


def test_a_recipe_without_catalog_and_one_of_another_folder(page: TestClient, scanned: Path) -> None:
    (scanned / "far.toml").write_text(
        RECIPE.replace('output = "run"', 'output = "run"\ncatalog = "/etc"'), encoding="utf-8"
    )
    (scanned / "new.toml").write_text(RECIPE.replace('output = "run"', 'output = "elsewhere"'), encoding="utf-8")
    about = page.get(f"/api/plan/{key(page, 'new')}").json()
    assert not about["scanned"]
    assert "controls" not in about
    told = outline(page, key(page, "new"), {})
    assert told.status_code == 400
    assert told.json()["code"] == "no-catalog"
    far = row(page, "far")
    assert "outside" in far["problem"]
    assert page.get(f"/api/plan/{far['key']}").json()["code"] == "outside-of-folders"
    assert page.get("/api/plan/0123456789abcdef").status_code == 404


def test_what_a_run_was_trained_with_stays_as_it_is(page: TestClient, scanned: Path) -> None:
    (scanned / "run/run.json").write_text("{}", encoding="utf-8")
    (scanned / "run/recipe.toml").write_text(
        recipe_file.dump(recipe_file.load(scanned / "cats.toml")), encoding="utf-8"
    )
    try:
        run = key_of(scanned / "run")
        about = page.get(f"/api/plan/{run}").json()
        assert (about["name"], about["is_of_run"], about["scanned"]) == ("run", True, True)
        wish = {"controls": about["controls"] | {"incomplete_batch": "pad"}, "digest": about["digest"]}
        before = (scanned / "run/recipe.toml").read_bytes()
        assert page.post(f"/api/plan/{run}/save", json=wish).json()["code"] == "recipe-of-run"
        assert page.post(f"/api/plan/{run}/save", json=wish | {"name": "again"}).status_code == 200
        assert (scanned / "run/recipe.toml").read_bytes() == before
        assert recipe_file.load(scanned / "again.toml").buckets.incomplete_batch == "pad"
    finally:
        (scanned / "run/run.json").unlink()
        (scanned / "run/recipe.toml").unlink()


@pytest.mark.parametrize(("stage", "name"), [(0, "first"), (1, "second")])
def test_the_stage_that_is_shown_is_checked(
    page: TestClient, scanned: Path, monkeypatch: pytest.MonkeyPatch, stage: int, name: str
) -> None:
    text = RECIPE.replace("max_epochs = 1", "warmup_steps = 1") + STAGES
    (scanned / "cats.toml").write_text(text, encoding="utf-8")
    jobs = page.app.state.context.jobs  # type: ignore[attr-defined]
    monkeypatch.setattr(jobs, "add", lambda *told, **_: PageJob("1", *told[:3], str(told[3]), 0.0, "running"))
    controls = page.get(f"/api/plan/{key(page)}", params={"stage": stage}).json()["controls"]
    job = page.post(f"/api/plan/{key(page)}/check", json={"controls": controls}).json()
    assert f"--set stage={name} " in " ".join(job["arguments"])


def test_each_check_reads_a_recipe_of_its_own_until_it_has_ended(
    page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, running = page.app.state.context.jobs, list[PageJob]()  # type: ignore[attr-defined]

    def add(kind: str, title: str, arguments: tuple[str, ...], cwd: Path, *, subject: str) -> PageJob:
        running.append(PageJob("1", kind, title, arguments, str(cwd), 0.0, "running", subject=subject))
        return running[-1]

    def check(*sizes: int) -> Path:
        controls = page.get(f"/api/plan/{key(page)}").json()["controls"] | {"batch_sizes": sizes}
        job = page.post(f"/api/plan/{key(page)}/check", json={"controls": controls}).json()
        return Path(job["arguments"][1])

    monkeypatch.setattr(jobs, "add", add)
    monkeypatch.setattr(jobs, "list", lambda: tuple(running))
    first, other = check(1, 5, 2), check(2, 5, 2)
    assert check(1, 5, 2) == first != other
    written = [recipe_file.load(path).bucket[0].batch_size for path in (first, other)]
    assert written == [[1, 5], [2, 5]]
    running.clear()
    assert [check(1, 1, 1)] == list(first.parent.iterdir())
