"""What a run recorded of its clips stays true, whatever is edited, lost or removed to make room."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest
from PIL import Image

from reelworks.core import files, results
from reelworks.data.checkpoint import names
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events, records
from reelworks.data.run.folder import RunFolder
from reelworks.training.coverage import clip_history
from reelworks.training.coverage.coverage import Coverage, State
from reelworks.training.loop.replay import replay_step

Make = Callable[..., dict[str, Any]]
PICTURES = 6


def picture(folder: Path, name: str) -> None:
    shade = np.random.default_rng(len(list(folder.iterdir()))).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(shade).save(folder / f"{name}.png")
    (folder / f"{name}.txt").write_text(f"picture {name}", encoding="utf-8")


@pytest.fixture
def made(tiny: Make, tmp_path: Path) -> Make:
    """Make a recipe whose epochs have three steps, of two pictures each."""
    (data := tmp_path / "data").mkdir()
    for i in range(PICTURES):
        picture(data, str(i))

    def make(**changes: Any) -> dict[str, Any]:
        bare = {
            "dataset": [{"path": str(data)}],
            "bucket": [{"resolution": "32px", "num_frames": 1, "batch_size": 2}],
            "buckets": {"aspect_ratios": ["1:1"]},
            "validation": {"split": 0.0},
        }
        return tiny(**bare | changes)

    return make


def logged(run: RunFolder) -> dict[int, set[int]]:
    """Clips that each step trained, as the rank logged them."""
    lines = files.read_json_lines(run.path / "debug" / "steps-rank-00000.jsonl")
    return {line["step"]: {clip["uid"] for clip in line["trained"]} for line in lines}


def covered(told: Coverage) -> dict[int, set[int]]:
    by_step: dict[int, set[int]] = {}
    for epoch in told.epochs:
        for place in np.flatnonzero(epoch.state == State.TRAINED).tolist():
            by_step.setdefault(int(epoch.step[place]), set()).add(int(told.uid[place]))
    return by_step


def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> tuple[str, int]:
    from reelworks.commands import main

    monkeypatch.setattr(sys, "argv", ["reelworks", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        main.main()
    said = capsys.readouterr()
    return said.out + said.err, int(left.value.code or 0)


def needed(run: RunFolder) -> set[int]:
    """Epochs that the checkpoints stand in."""
    store = CheckpointFolder(run.checkpoints_folder)
    return {
        json.loads((store.path(step) / names.CURSOR).read_text(encoding="utf-8"))["epoch"] for step in store.steps()
    }


@pytest.mark.slow
def test_records_make_room_but_for_those_that_a_checkpoint_needs(
    made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Epochs 1 and 3 end up with a checkpoint within them, epoch 4 is under way."""
    recipe = made(train={"max_steps": 13}, checkpoints={"every_steps": 5, "keep_last": 9}, coverage={"max_disk": "1B"})
    assert children.train(recipe, debug=True) == [0]
    run, printed = RunFolder(tmp_path / "run"), children.output(recipe)
    assert needed(run) == {1, 3, 4}
    assert [key[1] for key in records.keys(run)] == [1, 3, 4]
    for epoch in (0, 2):
        assert f"the record of epoch {epoch} is removed to stay within coverage.max_disk = 1" in printed
    assert printed.count("is removed to stay within") == 2

    told = clip_history.cover(run)
    assert told.problems == []
    assert [epoch.pruned is not None for epoch in told.epochs] == [True, False, True, False, False]
    assert [epoch.counts["trained"] for epoch in told.epochs] == [6, 6, 6, 6, 2]
    assert covered(told) == {step: clips for step, clips in logged(run).items() if step not in (1, 2, 3, 7, 8, 9)}
    text, code = typed(monkeypatch, capsys, "coverage", run.path)
    assert code == 0
    lines = text.splitlines()
    assert lines[0].startswith("epoch 0: 6 planned = 6 trained + 0 failed + 0 skipped; its record was removed on ")
    assert lines[1] == "epoch 1: 6 planned = 6 trained + 0 failed + 0 skipped; adds up"

    # Going back to a checkpoint and on with other data needs its record.
    picture(tmp_path / "data", "late")
    recipe["train"]["max_steps"] = 7
    assert children.train(recipe, debug=True, resume="5") == [0]
    told = clip_history.cover(run)
    assert told.epochs[1].adds_up
    assert told.epochs[1].counts == {"trained": PICTURES + 1}
    assert covered(told) == {step: clips for step, clips in logged(run).items() if 3 < step < 8}


@pytest.mark.slow
def test_a_lost_record_is_told_with_what_events_prove_and_training_goes_on(
    made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = made(train={"max_steps": 4})
    assert children.train(recipe, debug=True) == [0]
    run = RunFolder(tmp_path / "run")
    shutil.rmtree(records.path(run, (0, 0, 0)))
    (records.path(run, (0, 1, 0)) / "places.parquet").write_bytes(b"torn")
    text, code = typed(monkeypatch, capsys, "coverage", run.path)
    assert code == 0
    assert text.splitlines() == [
        "epoch 0: 6 planned; some clips are unknown, since a record is missing",
        "  segment 0 has no record (segment-000-000000-000 does not exist); according to the events it had 3 steps, with 6 "
        "clips trained and 0 failed",
        "epoch 1: 6 planned; some clips are unknown, since a record is missing",
        "  segment 0 has no record (segment-000-000001-000/places.parquet is damaged: its checksum is not the one that "
        "was stored); according to the events it had 1 steps, with 2 clips trained and 0 failed",
    ]
    assert covered(clip_history.cover(run)) == {}

    recipe["train"]["max_steps"] = 7
    assert children.train(recipe, debug=True) == [0]
    first, second, third = clip_history.cover(run).epochs
    assert [(one.steps, one.trained, one.failed) for one in first.lost] == [(3, 6, 0)]
    assert second.adds_up  # the record of the segment under way was written again
    assert third.adds_up
    assert covered(clip_history.cover(run)) == {step: clips for step, clips in logged(run).items() if step > 3}


def _train_on_a_full_disk(recipe: dict[str, Any]) -> None:
    """Train where no record can be written."""
    from reelworks.core import storage
    from reelworks.training.loop.request import TrainRequest
    from reelworks.training.loop.trainer import run
    from reelworks.training.recipe import recipe_file

    def guard(call: str, path: Path) -> None:
        if call == "write" and "coverage" in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device")

    with storage.guarded(guard):
        run(recipe_file.parse(recipe), TrainRequest(debug=True))


@pytest.mark.slow
def test_a_disk_that_takes_no_record_ends_no_training(made: Make, tmp_path: Path) -> None:
    """It is said, events tell what they can, and the next start records its segment."""
    recipe = made(train={"max_steps": 4})
    assert children.in_child(_train_on_a_full_disk, recipe) == 0
    run = RunFolder(tmp_path / "run")
    for epoch in (0, 1):
        assert f"warning: epoch {epoch}, segment 0 has no record ([Errno 28]" in children.output(recipe)
    assert records.keys(run) == []
    told = clip_history.cover(run)
    assert [(one.steps, one.trained) for epoch in told.epochs for one in epoch.lost] == [(3, 6), (1, 2)]
    recipe["train"]["max_steps"] = 5
    assert children.train(recipe, debug=True) == [0]
    first, second = clip_history.cover(run).epochs
    assert (first.available, second.adds_up) == (False, True)
    assert covered(clip_history.cover(run)) == {step: clips for step, clips in logged(run).items() if step > 3}


def test_nothing_that_is_edited_moved_or_deleted_changes_what_was_trained(made: Make, tmp_path: Path) -> None:
    """Neither what coverage tells of each clip nor what replay tells of each step."""
    (bad := tmp_path / "bad.txt").write_text("data/5.png\n", encoding="utf-8")
    recipe = made(
        train={"max_steps": 4}, exclude_file=str(bad), catalog=str(tmp_path / "catalog"), data={"crop": "random"}
    )
    assert children.train(recipe, debug=True) == [0]
    run = RunFolder(tmp_path / "run")
    steps = [event["step"] for event in events.read(run.events_file, "step")]
    assert covered(clip_history.cover(run)) == logged(run)

    def told() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        found = clip_history.cover(run)
        replays = [results.as_json(replay_step(run, step).summary()) for step in steps]
        for clip in (clip for one in replays for batch in one["micro_batches"] for clip in batch["clips"]):
            del clip["since"]  # which tells what became of it later
        return results.as_json(found.report(found.places())), replays

    before = told()
    data = tmp_path / "data"
    bad.write_text("data/0.png\ndata/1.png\n", encoding="utf-8")
    assert told() == before
    (data / "0.txt").write_text("another caption", encoding="utf-8")
    (data / "1.png").unlink()
    picture(data, "late")
    run.keep_recipe(run.recipe_file.read_text(encoding="utf-8").replace("seed = 7", "seed = 8"))
    assert told() == before
    data.rename(tmp_path / "elsewhere")
    children.lose_plans(run.path)
    assert told() == before
    shutil.rmtree(tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "catalog")
    shutil.rmtree(run.plan_folder)
    bad.unlink()
    run.recipe_file.unlink()
    assert told() == before


@pytest.mark.slow
def test_a_run_that_goes_back_behind_what_was_removed_tells_the_epoch_anew(made: Make, tmp_path: Path) -> None:
    """Totals of an epoch that is trained again, after the run went back to before it, are of another branch."""
    recipe = made(train={"max_steps": 13}, checkpoints={"every_steps": 5, "keep_last": 9}, coverage={"max_disk": "1B"})
    assert children.train(recipe, debug=True) == [0]
    run = RunFolder(tmp_path / "run")
    assert records.pruned(run).keys() == {(0, 0), (0, 2)}
    picture(tmp_path / "data", "late")
    recipe["train"]["max_steps"] = 9
    assert children.train(recipe, debug=True, resume="5") == [0]
    told = clip_history.cover(run)
    assert [epoch.pruned is not None for epoch in told.epochs] == [True, False, False]
    assert told.epochs[2].counts == {"trained": 4, "not_yet": 3}
    assert covered(told) == {step: clips for step, clips in logged(run).items() if 3 < step <= 9}


@pytest.mark.slow
def test_a_run_that_begins_from_nothing_again_tells_only_what_it_trained_since(made: Make, tmp_path: Path) -> None:
    """A start ended an epoch and was killed before its first save; so is the next one, which follows the same plan."""
    run, recipe = RunFolder(tmp_path / "run"), made(train={"max_steps": 4}, checkpoints={"every_steps": 9})
    assert children.train(recipe, fault=("after the optimizer stepped", 4)) == [-9]
    assert records.read_outcome(run, (0, 0, 0)) is not None
    assert children.train(recipe, fault=("after the optimizer stepped", 2)) == [-9]
    (epoch,) = clip_history.cover(run).epochs
    assert epoch.adds_up
    assert epoch.counts == {"trained": 2, "not_yet": 4}
