"""Weights of datasets, costs from a file, locality: keys of a recipe that shape its plans."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import prepare_files as files
import pytest
from refused import refused

from reelworks.core import system
from reelworks.core.words import of_recipe
from reelworks.data.buckets.assign import Reason
from reelworks.data.run.events import EventLog
from reelworks.data.run.folder import RunFolder
from reelworks.training.plan import epoch_stats
from reelworks.training.recipe import dataset as sources
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.dataset import RecipeData


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shares")
    for dataset, count in (("data", 12), ("few", 4)):
        for i in range(count):
            files.picture(root / dataset / f"part-{i // 4}" / f"{i}.png", grey=10 * i + len(dataset))
    sources.scan_recipe(made(root))
    return root


def made(folder: Path, weight: float = 1.0, repeats: int = 1, **changes: object):
    few = {"path": str(folder / "few"), "repeats": weight * repeats}
    return files.recipe(folder, dataset=[{"path": str(folder / "data")}, few], **changes)


@pytest.mark.parametrize(
    ("weight", "repeats"),
    [(0.25, 1), (1.5, 1), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((2.0, 1), (0.5, 3)))],
)
def test_a_weight_is_the_mean_number_of_showings(folder: Path, weight: float, repeats: int) -> None:
    data = RecipeData.open(made(folder, weight, repeats))
    few = set(data.rows.uid[[name == "few" for name in data.rows.dataset.to_pylist()]].tolist())
    shown = []
    for epoch in range(200):
        entries = data.entries(epoch)
        mine = [uid for uid in entries.uid.tolist() if uid in few]
        times = [mine.count(uid) for uid in few]
        assert set(times) <= {int(weight * repeats), int(np.ceil(weight * repeats))}
        assert len(entries) - len(mine) == 12  # the other dataset is shown whole
        shown.append(np.mean(times))
    assert np.mean(shown) == pytest.approx(weight * repeats, abs=0.06)  # 3 standard deviations of 800 draws
    assert (np.std(shown) == 0) == (weight * repeats % 1 == 0)


def test_a_product_that_is_whole_but_for_rounding_draws_nothing(folder: Path) -> None:
    data = RecipeData.open(made(folder, 1.1, 10))  # 11.000000000000002
    assert (data.assignment(0)[0].reason == Reason.NONE).all()


def test_more_showings_than_memory_has_are_refused(folder: Path) -> None:
    with of_recipe(), refused("too-many-repeats", "dataset.repeats", says="an epoch would use 16 clips") as caught:
        RecipeData.open(made(folder, 1000.0, 10**9)).entries(0)
    assert (caught.value.field, caught.value.value) == ("dataset.repeats", [1.0, 1e12])
    with of_recipe(), refused("too-many-repeats", "dataset.repeats"):
        RecipeData.open(made(folder, 1e10, 10**10)).entries(0)


def test_what_a_weight_leaves_out_of_an_epoch_is_named(folder: Path) -> None:
    data = RecipeData.open(made(folder, 0.25))
    assignment, row = data.assignment(0)
    left = assignment.reason == Reason.NOT_DRAWN
    assert len(data.entries(0)) + int(left.sum()) == 16
    assert {data.rows.dataset[int(i)].as_py() for i in row[left]} == {"few"}


def test_measured_costs_come_from_a_run_and_shape_the_plan(folder: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "former")
    run.create()
    log = EventLog(run.events_file)
    kept = run.keep_recipe(recipe_file.dump(made(folder)))
    log.write("start", step=0, resumed_from=None, world_size=2, micro_batches_per_step=2, device="cpu", recipe=kept)
    name = RecipeData.open(made(folder)).table.buckets[0].name
    steps = [
        (9.0, [name], 2, [3]),  # a warm-up
        (0.3, [name], 2, [3]),
        (2.1, [name], 2, [3]),  # a slow step
        (0.3, [name], 1, [3]),  # while the other rank waits
        *3 * [(0.12, [name], 2, [1])],
        (9.0, [name], 2, [2]),  # the only one of its size
        (0.7, [name], 4, [1, 3]),
        (5.0, [name, "x"], 2, [3]),
    ]
    for step, (seconds, buckets, number, sizes) in enumerate(steps):
        places = {"micro_batches": number, "batch_sizes": sizes}
        log.write("step", step=step + 1, clips=2, repeated=0, seconds=seconds, buckets=buckets, **places)
    measured = epoch_stats.measure_costs(run)
    assert measured[name].milliseconds(3) == pytest.approx(300)
    assert measured[name].milliseconds(1) == pytest.approx(120)
    epoch_stats.write_costs(tmp_path / "costs.json", run, measured)
    data = RecipeData.open(made(folder, cost={"measured": str(tmp_path / "costs.json")}))
    spec = data.plan_spec(2, 1)
    assert (spec.costs_us[0], spec.batch_costs_us[0]) == (90_000, 30_000)
    assert spec.digest() != RecipeData.open(made(folder)).plan_spec(2, 1).digest()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"another run": 3}',
        '{"a": 0}',
        '{"a": -1}',
        '{"a": "1"}',
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": true}',
        '{"a": {"per_clip": 1}}',
        '{"a": {"per_batch": 0, "per_clip": 0}}',
        '{"a": {"per_batch": -1, "per_clip": 2}}',
        '{"a": {"per_batch": 1, "per_clip": 2, "more": 3}}',
        '{"costs_ms": {"a": null}}',
        '{"costs_ms": []}',
    ],
)
def test_a_bad_file_of_costs_is_named(folder: Path, tmp_path: Path, text: str) -> None:
    file = tmp_path / "costs.json"
    file.write_text(text, encoding="utf-8")
    data = RecipeData.open(made(folder, cost={"measured": str(file)}))
    with of_recipe(), refused("cost-table-invalid", "cost.measured") as caught:
        data.plan_spec(1, 1)
    assert (caught.value.field, caught.value.value) == ("cost.measured", str(file))
    assert ("names none of the buckets" in caught.value.problem) == (text in ("{}", '{"another run": 3}'))


def test_a_run_that_tells_no_costs_says_what_to_do(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    with refused("no-measured-cost", "RUN"):
        epoch_stats.measure_costs(run)


def test_locality_reads_a_folder_s_clips_one_after_the_other(folder: Path) -> None:
    near = {"locality": "folder", "shuffle_window": 4}
    recipe = made(folder, bucket=[{"resolution": "48px", "num_frames": 1, "batch_size": 2}], data=near)
    data = RecipeData.open(recipe)
    places = {}
    for uid, path, name in zip(
        data.rows.uid.tolist(), data.rows.path.to_pylist(), data.rows.dataset.to_pylist(), strict=True
    ):
        places[uid] = f"{name}/{Path(path).parent}"
    without = RecipeData.open(made(folder, bucket=recipe.model_dump()["bucket"]))

    def changes(data: RecipeData, epoch: int) -> int:
        """Times that training goes on to a clip of another folder than the last one's."""
        plan = data.plan(data.plan_spec(1, 1), epoch)
        order = [places[uid] for m in plan.steps.ravel() for uid in plan.uid[plan.places(int(m))].tolist()]
        assert len(order) == 16
        return sum(a != b for a, b in itertools.pairwise(order))

    near_changes = np.mean([changes(data, epoch) for epoch in range(20)])
    assert near_changes < 9  # 3 if windows held one folder each; some hold two
    assert np.mean([changes(without, epoch) for epoch in range(20)]) > 11


def test_processes_that_share_a_run_map_one_plan(folder: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    several = [RecipeData.open(made(folder)) for _ in range(3)]
    for data in several:
        data.run = run
    plans = [data.plan(data.plan_spec(1, 1), 2) for data in several]
    assert len({plan.digest() for plan in plans}) == 1
    assert all(isinstance(plan.uid.base, np.memmap) == bool(system.MAPPED) for plan in plans)
    assert [p.name for p in run.plan_folder.glob("plan-*")] == ["plan-000-000002-000"]
    assert json.loads((run.plan_folder / "plan-000-000002-000" / "about.json").read_text(encoding="utf-8"))["made_of"]
