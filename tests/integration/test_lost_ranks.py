"""A rank that dies, fails alone or hangs ends all ranks soon, with one message; the run goes on as if nothing was."""

from __future__ import annotations

import os
import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import children
import faults
import killing
import pytest
import torch.distributed as dist
from refused import refused

from reelworks.core.errors import UserError
from reelworks.data.distributed import collectives
from reelworks.data.distributed.mesh import World
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.loop import trainer
from reelworks.training.recipe import recipe_file

TRAIN = {"max_steps": 4, "micro_batches_per_step": 3, "same_bucket_run": 1}
LIMIT_SECONDS = 30


@pytest.fixture
def recipe(tiny):
    def make(output: str, **parallel: Any) -> dict[str, Any]:
        made: dict[str, Any] = tiny(
            output,
            bucket=[{"resolution": "32px", "num_frames": [1, 5], "batch_size": [2, 1]}],
            train=TRAIN,
            validation={"split": 0.0},
            checkpoints={"every_steps": 1},
            parallel=parallel,
        )
        return made

    return make


def losses(run: Path) -> list[float]:
    return [event["loss"] for event in events.timeline(RunFolder(run).events_file, "step")]


def _die_on(recipe: dict[str, Any], rank: int, point: str, call: int) -> None:
    """Train, and on one rank die at a point, after noting the time."""
    if int(os.environ["RANK"]) == rank:
        kill_self = killing.kill_self

        def note_and_die() -> None:
            Path(recipe["output"] + ".died").touch()
            kill_self()

        killing.kill_self = note_and_die
        faults.kill_at(point, call)
    children.train_here(recipe)


def kill(killed: dict[str, Any], rank: int, point: str, call: int, world: int = 3) -> None:
    """Train until a rank is killed, and check what the others do."""
    codes = children.on_ranks(_die_on, killed, rank, point, call, world=world)
    seconds = time.time() - Path(killed["output"] + ".died").stat().st_mtime
    output = children.output(killed)
    assert codes[rank] == killing.SELF_KILLED
    assert seconds < LIMIT_SECONDS
    assert [code for i, code in enumerate(codes) if i != rank] == [1] * (world - 1), output
    assert output.count("error: ") == 1, output
    assert f"error: rank {rank} on " in output
    assert "was lost at step " in output
    assert "Traceback" not in output


def test_a_killed_rank_ends_all_soon_with_one_message(recipe):
    kill(recipe("killed"), 1, "after a forward pass", 3, world=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "point", "call"),
    [
        (0, "before the optimizer steps", 3),
        (2, "after shards are written", 2),
        (0, "before the commit's rename", 2),
        (1, "after the average moved", 1),
    ],
)
def test_a_run_goes_on_to_the_same_end_wherever_a_rank_was_killed(recipe, tmp_path, rank, point, call):
    killed = recipe("killed")
    kill(killed, rank, point, call)
    assert children.train(killed, world=3) == [0] * 3, children.output(killed)
    assert children.train(recipe("calm"), world=3) == [0] * 3
    assert losses(tmp_path / "killed") == losses(tmp_path / "calm")
    assert len(losses(tmp_path / "calm")) == TRAIN["max_steps"]


def _fail_on(recipe: dict[str, Any], rank: int, what: str) -> None:
    """Train, and fail or hang on one rank, within its second step."""
    from reelworks.training.step.losses import PlainLoss

    def fail() -> None:
        if what == "hang":
            time.sleep(100)
        raise ValueError("a weight is missing")

    if int(os.environ["RANK"]) == rank:
        faults.at_call(PlainLoss, "of_clips", 2, fail)
    children.train_here(recipe)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_an_error_of_one_rank_is_told_once(recipe, rank):
    failing = recipe("failing")
    codes = children.on_ranks(_fail_on, failing, rank, "fail", world=3)
    output = children.output(failing)
    assert 0 not in codes
    assert output.count("Traceback") == 1, output
    # The other ranks say it too, unless it is rank 0, whose own message is theirs.
    assert output.count(f"error: rank {rank} on ") == (rank != 0)
    assert output.count("error: ") == (rank != 0)


def _fail_in_previews(recipe: dict[str, Any], ranks: tuple[int, ...]) -> None:
    """Train, and fail on some ranks within a pass of the first previews; the others wait no longer than two seconds."""
    from reelworks.inference import previews
    from reelworks.models.objectives.samplers import flow

    def fail() -> None:
        raise ValueError("a weight is missing")

    previews._LATE_SECONDS = 2.0
    if int(os.environ["RANK"]) in ranks:
        faults.at_call(flow, "with_and_without", 2, fail)
    children.train_here(recipe)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "ranks"), [("replicated", (1,)), ("fsdp", (0, 1)), ("fsdp", (1,))])
def test_previews_that_fail_end_a_training_only_where_others_wait_within_a_pass(recipe, tmp_path, strategy, ranks):
    """It goes on as it would have, once all ranks know of it."""
    calm, failing = recipe("calm", strategy=strategy), recipe("failing", strategy=strategy)
    failing["samples"] = {"prompts": ["a"], "every_steps": 2, "num_frames": 1, "num_inference_steps": 2}
    codes = children.on_ranks(_fail_in_previews, failing, ranks, world=2)
    output = children.output(failing)
    is_awaited = (strategy, ranks) == ("fsdp", (1,))
    if is_awaited:
        assert 0 not in codes, output
        assert output.count("ValueError: a weight is missing") >= 1, output
        assert children.train(failing, world=2) == [0, 0]
    else:
        assert codes == [0, 0], output
        assert output.count("warning: previews could not be generated: Traceback") == 1, output
        assert output.count("ValueError: a weight is missing") == 1, output
    assert children.train(calm, world=2) == [0, 0]
    assert losses(tmp_path / "failing") == losses(tmp_path / "calm")
    made = events.timeline(RunFolder(tmp_path / "failing").events_file, "samples")
    assert [event["step"] for event in made] == ([2, 4] if is_awaited else [4])


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_with_its_clips(recipe):
    hanging = recipe("hanging", step_seconds=8)
    codes = children.on_ranks(_fail_on, hanging, 1, "hang", world=3)
    output = children.output(hanging)
    assert codes == [1, 1, 1], output
    assert output.count("error: ") == 1, output
    assert "rank 1 on " in output
    assert re.search(r"did not go on for \d+ s \(parallel.step_seconds = 8\) at step 2, ", output), output
    assert "in a forward and backward pass (clips: " in output


def _first_lasts(recipe: Any) -> None:
    """Let the first rank do alone what takes longer than collectives may."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=3))
    with collectives.patience():
        assert collectives.on_first(lambda: time.sleep(8) or 7) == 7


@pytest.mark.slow
def test_what_the_first_rank_does_alone_may_last(tiny):
    """As the fetch of a checkpoint from the mirror, in place of a damaged one."""
    assert children.on_ranks(_first_lasts, tiny("run"), world=2) == [0, 0]


def test_where_a_step_fails_the_first_rank_may_last_longer(tiny, monkeypatch):
    """It still copies the last checkpoint to the mirror."""

    def fail(*_: Any) -> None:
        raise UserError("no room", code="file-unwritable", remedy="free space")

    lasting = list[int]()
    monkeypatch.setattr(World, "stay", lambda world: lasting.append(world.rank))
    monkeypatch.setattr(trainer.Trainer, "train", fail)
    with refused("file-unwritable"):
        trainer.train(recipe_file.parse(tiny(train={"max_steps": 1}, validation={"split": 0.0})))
    assert lasting == [0]
