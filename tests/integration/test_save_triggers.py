"""When a run saves: steps, minutes, epochs, the best, a file; beside training or not; and what a full disk does."""

from __future__ import annotations

import errno
import functools
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import children
import faults
import numpy as np
import pytest
from safetensors.numpy import load, load_file

from reelworks.annexes.learning.losses import FILE
from reelworks.annexes.learning.rounds import ClipLossRounds
from reelworks.data.checkpoint import verify
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.inference.previews import Previews
from reelworks.training.observers.validation import Validator
from reelworks.training.step.state import TrainState

CLIPS, PASSES = 4, 6  # of a validation, and of a network for two previews


def saved(run: Path) -> list[int]:
    return [e["step"] for e in events.read(RunFolder(run).events_file, "checkpoint")]


def unsaved(run: Path) -> list[int]:
    return [e["step"] for e in events.read(RunFolder(run).events_file, "unsaved")]


def tensors(run: Path, step: int) -> dict[str, str]:
    """Digests of what a checkpoint holds."""
    info = CheckpointFolder(run / "checkpoints").info(step)
    return {f.path: f.digest for f in info.manifest.files if f.path.endswith(".safetensors")}


@pytest.mark.parametrize("world", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_saves_beside_training_hold_what_saves_that_it_waits_for_do(tiny, tmp_path, world):
    for name, asynchronous in (("waits", False), ("beside", True)):
        recipe = tiny(
            name,
            checkpoints={"every_steps": 2, "keep_last": 9, "asynchronous": asynchronous},
            train={"max_steps": 5},
            validation={"split": 0.0},
        )
        assert children.train(recipe, world=world) == [0] * world
    waits, beside = saved(tmp_path / "waits"), saved(tmp_path / "beside")
    assert waits == [2, 4, 5]
    assert beside[-1] == 5
    assert set(beside) <= set(waits)
    assert len(beside) > 1
    for step in beside:
        assert tensors(tmp_path / "beside", step) == tensors(tmp_path / "waits", step)


def _slow_disk(recipe: dict) -> None:
    """The shards of step 1 are not on the disk before step 4 is done."""
    from reelworks.core import storage
    from reelworks.training.loop.request import TrainRequest
    from reelworks.training.loop.trainer import run
    from reelworks.training.recipe import recipe_file

    log = RunFolder(Path(recipe["output"]))

    def wait(call: str, path: Path) -> None:
        if call == "fsync" and path.suffix == ".safetensors" and "step-000000001-" in str(path):
            while sum(1 for _ in events.read(log.events_file, "step")) < 4:
                time.sleep(0.01)

    with storage.guarded(wait):
        os._exit(run(recipe_file.parse(recipe), TrainRequest()))


# Part of what a pause does, which of its calls gets a signal, and the step before it.
PAUSES = {
    "validation": (Validator, "_losses", CLIPS + 1, 2),
    "step": (TrainState, "update_ema", 1, 2),
    "untrained": (Validator, "_losses", 1, 0),
    "last": (Validator, "_losses", 2 * CLIPS + 1, 3),
    "previews": (Previews, "_before_pass", 3, 2),
    "last previews": (Previews, "_before_pass", PASSES + 2, 3),
    "clip losses": (ClipLossRounds, "_losses", 1, 2),
}


def _asked_to_leave(recipe: dict, place: str) -> None:
    """Get a signal in a part, on the last rank; end this process at once where another such part follows."""
    owner, name, call, _ = PAUSES[place]
    rank, world = (int(os.environ.get(key, default)) for key, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    if owner is Validator:
        call = (call - 1) // world + 1  # they share the clips
    if rank + 1 == world:
        faults.at_call(owner, name, call, faults.ask_to_leave)
    if place != "step":
        faults.at_call(owner, name, call + 1, lambda: os._exit(9))
    children.train_here(recipe)


def _made(run: RunFolder) -> tuple[object, ...]:
    """What a run has measured and shown, and the files of its last checkpoint."""
    told = events.timeline(run.events_file, "validation", "clip_losses")
    last = CheckpointFolder(run.checkpoints_folder).list()[-1]
    shown = sorted(file.relative_to(run.path) for file in run.samples_folder.rglob("*.*"))
    return (
        sorted((e["kind"], e["step"], e.get("loss"), e["clips"]) for e in told),
        shown,
        tensors(run.path, last.step),
        verify.read_extra(last.path, FILE),
        last.metrics,
    )


@pytest.fixture(scope="module")
def pauses(tiny_in: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Make recipes that measure and show much between few steps."""
    values = {
        "train": {"max_steps": 3, "threads": 1, "clip_losses": 8, "clip_losses_every": 2},
        "validation": {"every_steps": 2, "split": 0.5, "max_clips": CLIPS},
        "checkpoints": {"every_steps": 50},
        "samples": {"prompts": ["a", "b"], "every_steps": 2, "num_inference_steps": PASSES // 2},
    }
    return partial(tiny_in, tmp_path_factory.mktemp("pauses"), **values)


@pytest.fixture(scope="module")
def calm(pauses: Callable[..., Any]) -> Callable[[int], tuple[object, ...]]:
    """Return what is made by so many ranks without a signal."""

    @functools.cache
    def of_ranks(world: int) -> tuple[object, ...]:
        recipe = pauses(f"calm-{world}")
        assert children.train(recipe, world=world) == [0] * world, children.output(recipe)
        return _made(RunFolder(Path(recipe["output"])))

    return of_ranks


@pytest.mark.parametrize(
    ("place", "world"),
    [*((place, 1) for place in PAUSES), ("validation", 2), ("previews", 2), ("clip losses", 2)],
)
@pytest.mark.quick_cases(1)
def test_a_signal_cuts_pauses_short_and_the_next_start_makes_up_what_is_missing(
    pauses: Callable[..., Any], calm: Any, place: str, world: int
) -> None:
    """Whoever sent it kills the process soon: no part of a pause follows it, and no step; then all is as without a signal."""
    recipe = pauses(f"{place}-{world}".replace(" ", "-"))
    run = RunFolder(Path(recipe["output"]))
    step = PAUSES[place][3]
    assert children.on_ranks(_asked_to_leave, recipe, place, world=world) == [75] * world, children.output(recipe)
    (stop,) = events.read(run.events_file, "stop")
    assert (stop["step"], stop["reason"]) == (step, "signal")
    assert CheckpointFolder(run.checkpoints_folder).steps() == [step] * bool(step)
    if place == "step":
        assert [e["step"] for e in events.read(run.events_file, "validation")] == [0]
    assert children.train(recipe, world=world) == [0] * world, children.output(recipe)
    assert _made(run) == calm(world)


@pytest.mark.slow
def test_a_save_that_is_due_while_one_is_written_is_left_out_and_told(tiny, tmp_path):
    recipe = tiny(checkpoints={"every_steps": 1, "keep_last": 20, "asynchronous": True}, train={"max_steps": 9})
    assert children.in_child(_slow_disk, recipe) == 0
    run = RunFolder(tmp_path / "run")
    left_out = [(e["step"], e["reason"]) for e in events.read(run.events_file, "unsaved")]
    assert left_out[:3] == [(step, "step 1 is still being written") for step in (2, 3, 4)]
    assert sorted({*saved(tmp_path / "run"), *(step for step, _ in left_out)}) == list(range(1, 10))
    assert 9 in saved(tmp_path / "run")
    assert "step 2 is not saved: step 1 is still being written" in children.output(recipe)


def _full_disk(recipe: dict, *steps: int) -> None:
    """The disk is full for the checkpoints of some steps."""
    from reelworks.core import storage
    from reelworks.training.loop import checkpointing
    from reelworks.training.loop.request import TrainRequest
    from reelworks.training.loop.trainer import run
    from reelworks.training.recipe import recipe_file

    checkpointing._RETRY_SECONDS = 0.0

    def full(call: str, path: Path) -> None:
        if call == "write" and any(f"checkpoints/.tmp-step-{step:09d}" in str(path) for step in steps):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with storage.guarded(full):
        os._exit(run(recipe_file.parse(recipe), TrainRequest()))


@pytest.mark.parametrize("asynchronous", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.slow
def test_on_a_full_disk_training_goes_on_and_saves_as_soon_as_it_can(tiny, tmp_path, asynchronous):
    recipe = tiny(checkpoints={"every_steps": 2, "keep_last": 9, "asynchronous": asynchronous}, train={"max_steps": 8})
    assert children.in_child(_full_disk, recipe, 2) == 0
    steps = saved(tmp_path / "run")
    assert steps[0] == 3 or (asynchronous and steps[0] > 2)
    assert steps[-1] == 8
    assert "warning" in children.output(recipe)
    assert not list((tmp_path / "run" / "checkpoints").glob(".tmp-*"))


@pytest.mark.slow
def test_a_full_disk_at_the_end_is_the_run_s_failure(tiny, tmp_path):
    recipe = tiny(checkpoints={"every_steps": 2, "keep_last": 9}, train={"max_steps": 4})
    assert children.in_child(_full_disk, recipe, 4) != 0
    assert saved(tmp_path / "run") == [2]
    assert "No space left on device" in children.output(recipe)
    assert unsaved(tmp_path / "run") == [4]


@pytest.mark.slow
def test_on_a_disk_that_is_full_at_the_end_the_weights_are_saved_before_the_error(tiny, tmp_path):
    """In the dtype of `exports`, which is told to have no effect where nothing writes weights."""
    recipe = tiny(
        checkpoints={"every_steps": 2, "keep_last": 9, "on_full": "weights-only"},
        train={"max_steps": 4},
        exports={"dtype": "float32"},
    )
    assert children.in_child(_full_disk, recipe, 4) != 0
    assert saved(tmp_path / "run") == [2]
    weights = load_file(tmp_path / "run" / "exports" / "step-000000004-ema.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {np.dtype("float32")}
    output = children.output(recipe)
    assert "No space left on device" in output
    assert "exports.dtype has no effect" not in output


@pytest.mark.slow
def test_on_full_stop_ends_the_run(tiny, tmp_path):
    recipe = tiny(checkpoints={"every_steps": 2, "keep_last": 9, "on_full": "stop"}, train={"max_steps": 8})
    assert children.in_child(_full_disk, recipe, 4) != 0
    assert max(e["step"] for e in events.read(RunFolder(tmp_path / "run").events_file, "step")) == 4
    assert unsaved(tmp_path / "run") == [4]


@pytest.mark.slow
def test_a_file_asks_for_a_save(tiny, tmp_path):
    recipe = tiny(checkpoints={"every_steps": None, "keep_last": 9}, train={"max_steps": 5})
    del recipe["checkpoints"]["every_steps"]
    recipe["checkpoints"]["every_steps"] = 1000
    run = RunFolder(tmp_path / "run")
    assert children.in_child(_with_save_file, recipe) == 0
    assert len(saved(run.path)) == 2
    assert saved(run.path)[-1] == 5
    assert not run.save_file.exists()


def _with_save_file(recipe: dict) -> None:
    from reelworks.training.step.state import TrainState

    faults.at_call(TrainState, "update_ema", 1, RunFolder(Path(recipe["output"])).save_file.touch)
    children.train_here(recipe)


def _asked(recipe: dict, until_step: int, *, full: bool) -> None:
    """A person asks before the first step, and again once a save has begun; the disk is slow, or full, at first."""
    from reelworks.core import storage
    from reelworks.training.loop.request import TrainRequest
    from reelworks.training.loop.trainer import run
    from reelworks.training.recipe import recipe_file

    folder = RunFolder(Path(recipe["output"]))
    folder.path.mkdir()
    folder.save_file.touch()

    def hinder(call: str, path: Path) -> None:
        if call == "write" and path.suffix == ".safetensors":
            folder.save_file.touch()
            while not full and sum(1 for _ in events.read(folder.events_file, "step")) < until_step:
                time.sleep(0.01)
            if full and sum(1 for _ in events.read(folder.events_file, "step")) < until_step:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with storage.guarded(hinder):
        os._exit(run(recipe_file.parse(recipe), TrainRequest()))


@pytest.mark.slow
def test_a_request_waits_for_the_save_in_flight_in_silence(tiny, tmp_path):
    recipe = tiny(checkpoints={"every_steps": 1000, "keep_last": 9, "asynchronous": True}, train={"max_steps": 9})
    assert children.in_child(partial(_asked, until_step=6, full=False), recipe) == 0
    run = RunFolder(tmp_path / "run")
    assert len(saved(run.path)) > 1
    assert not unsaved(run.path)
    assert not run.save_file.exists()


def test_a_request_on_a_full_disk_is_tried_again_after_a_pause_only(tiny, tmp_path):
    recipe = tiny(checkpoints={"every_steps": 1000, "asynchronous": False}, train={"max_steps": 8})
    assert children.in_child(partial(_asked, until_step=6, full=True), recipe) == 0
    run = RunFolder(tmp_path / "run")
    assert unsaved(run.path) == [1]
    assert saved(run.path) == [8]


def test_a_folder_asks_for_nothing(tiny, tmp_path):
    """Only a file is a request; what somebody keeps under that name stays."""
    recipe = tiny(checkpoints={"every_steps": 1000}, train={"max_steps": 2})
    (tmp_path / "run" / "save").mkdir(parents=True)
    assert children.train(recipe) == [0]
    assert saved(tmp_path / "run") == [2]
    assert (tmp_path / "run" / "save").is_dir()


@pytest.mark.slow
def test_minutes_epochs_and_the_best_ask_for_a_save(tiny, tmp_path):
    base = {"every_steps": 1000, "keep_last": 99}
    by_time = tiny("time", checkpoints={**base, "every_minutes": 1e-6}, train={"max_steps": 3})
    by_epoch = tiny("epoch", checkpoints={**base, "at_epoch_end": True}, train={"max_epochs": 3})
    by_epoch["train"].pop("max_steps")
    by_best = tiny(
        "best",
        checkpoints={**base, "at_best": True},
        validation={"every_steps": 1},
        train={"max_steps": 6, "learning_rate": 1e-2},
    )
    for recipe in (by_time, by_epoch, by_best):
        assert children.train(recipe) == [0]
    assert saved(tmp_path / "time") == [1, 2, 3]
    ends = [e["step"] for e in events.read(RunFolder(tmp_path / "epoch").events_file, "epoch_end")]
    assert saved(tmp_path / "epoch") == ends
    losses = [(e["step"], e["loss"]) for e in events.read(RunFolder(tmp_path / "best").events_file, "validation")]
    best, expected = float("inf"), []
    for step, loss in losses[1:]:  # the first is of untrained weights, which nobody saves
        if loss < best:
            expected, best = [*expected, step], loss
    assert saved(tmp_path / "best") == sorted({*expected, 6})


def test_a_save_that_takes_longer_than_the_grace_is_told(tiny, tmp_path):
    recipe = tiny(checkpoints={"every_steps": 2, "grace_seconds": 1e-6}, train={"max_steps": 2})
    assert children.train(recipe) == [0]
    assert "a signal may wait" in children.output(recipe)
    assert "checkpoints.grace_seconds = 1e-06" in children.output(recipe)


@pytest.mark.slow
def test_weights_for_use_are_of_the_step_that_they_name(tiny, tmp_path):
    """Written at each save, also where training went on meanwhile; kept by their own rule."""
    for name, asynchronous in (("waits", False), ("beside", True)):
        recipe = tiny(
            name,
            checkpoints={"every_steps": 2, "keep_last": 9, "asynchronous": asynchronous},
            exports={"weights": "ema", "dtype": "float32", "keep_last": 3},
            train={"max_steps": 7},
        )
        assert children.train(recipe) == [0]
    waits = {p.name: p.read_bytes() for p in (tmp_path / "waits" / "exports").iterdir()}
    beside = {p.name: p for p in (tmp_path / "beside" / "exports").iterdir()}
    assert sorted(waits) == [f"step-{step:09d}-ema.safetensors" for step in (4, 6, 7)]
    same = set(waits) & set(beside)
    assert same
    for name in same:
        ours = load_file(beside[name])
        theirs = load(waits[name])
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.quick_cases(1)
def test_on_a_full_disk_the_weights_alone_may_be_saved(tiny, tmp_path, asynchronous):
    """Of the step at which the save failed: a save beside training fails some steps after its own."""
    recipe = tiny(
        checkpoints={"every_steps": 3, "keep_last": 9, "on_full": "weights-only", "asynchronous": asynchronous},
        train={"max_steps": 9},
    )
    assert children.in_child(_full_disk, recipe, 3) == 0
    assert saved(tmp_path / "run")[-1] == 9
    (weights,) = (p.name for p in (tmp_path / "run" / "exports").iterdir())
    at = int(weights.removeprefix("step-").removesuffix("-ema.safetensors"))
    assert 3 < at < 9 if asynchronous else at == 3
    assert "only the averaged weights are saved, in" in children.output(recipe)


def test_the_disk_is_tried_out_and_forecast_before_training(tiny, tmp_path):
    recipe = tiny(train={"max_steps": 4})
    assert children.train(recipe) == [0]
    assert "one checkpoint takes" in children.output(recipe)
