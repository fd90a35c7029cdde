"""Training ends after so many validations without a lower loss, and a resume counts on from the run's events."""

from __future__ import annotations

import math

import pytest
import torch
from refused import refused
from typer.testing import CliRunner

from reelworks.commands.main import app
from reelworks.core import files
from reelworks.data.distributed.mesh import World
from reelworks.training.loop.config import ValidationConfig
from reelworks.training.observers.early_stop import EarlyStop

ONE = World(0, 1, torch.device("cpu"))


@pytest.mark.parametrize(
    ("losses", "min_delta", "ends_after"),
    [
        ([3.0, 2.0, 2.5, 2.1], 0.0, 3),
        ([3.0, 2.9, 2.8, 2.7], 0.25, 2),
        ([3.0, 2.9, 2.7, 2.6, 2.5], 0.15, None),
        ([3.0, math.nan, 2.0, math.nan, math.nan], 0.0, 4),
        ([1.0, 1.0, 1.0], 0.0, 2),
    ],
)
def test_it_ends_after_the_patience(losses, min_delta, ends_after):
    early = EarlyStop(ValidationConfig(every_steps=1, patience=2, min_delta=min_delta))
    over = []
    for step, loss in enumerate(losses):
        early.add(step, loss)
        over.append(early.is_over)
    assert next((i for i, is_over in enumerate(over) if is_over), None) == ends_after


def test_without_patience_it_never_ends():
    early = EarlyStop(ValidationConfig())
    for step in range(100):
        early.add(step, 1.0)
    assert not early.is_over


def test_a_resume_counts_the_validations_up_to_its_step(tmp_path):
    file = tmp_path / "events.jsonl"
    for step, loss in [(0, 3.0), (10, 1.0), (20, None), (30, 1.5), (40, 0.5)]:
        files.append_json_line(file, {"v": 1, "kind": "validation", "step": step, "loss": loss})
    early = EarlyStop.resume(ValidationConfig(every_steps=10, patience=2), file, 30, ONE)
    assert (early.present.best, early.present.best_step, early.is_over) == (1.0, 10, True)
    assert not EarlyStop.resume(ValidationConfig(every_steps=10, patience=3), file, 30, ONE).is_over
    assert not EarlyStop.resume(ValidationConfig(every_steps=10, patience=2), file, 20, ONE).is_over


def test_validations_where_starts_end_off_the_schedule_decide_nothing(tmp_path):
    """A run whose `max_steps` is raised again and again trains as far as one that was never stopped."""
    file, config = tmp_path / "events.jsonl", ValidationConfig(every_steps=6, patience=2)
    losses = {0: 3.0, 6: 2.0, 8: 1.7, 9: 2.0, 12: 1.9}
    for step, loss in losses.items():
        files.append_json_line(file, {"v": 1, "kind": "validation", "step": step, "loss": loss})
    early = EarlyStop.resume(config, file, 12, ONE)
    never_stopped = EarlyStop(config)
    for step in (0, 6, 12):
        never_stopped.add(step, losses[step])
    assert early == never_stopped
    assert (early.present.best_step, early.present.without_progress) == (12, 0)


def test_a_resumed_stage_counts_none_of_the_stage_before(tmp_path):
    """Whose last validation, after the step at which this one begins, was of other clips, or of other sizes of them."""
    file = tmp_path / "events.jsonl"
    for step, loss in [(0, 3.0), (10, 0.5), (20, 2.0), (30, 1.9)]:
        files.append_json_line(file, {"v": 1, "kind": "validation", "step": step, "loss": loss})
    early = EarlyStop.resume(ValidationConfig(every_steps=10, patience=2), file, 30, ONE, first=10)
    assert (early.present.best, early.present.best_step, early.is_over) == (1.9, 30, False)
    early = EarlyStop.resume(ValidationConfig(every_steps=10, patience=2), file, 10, ONE)
    assert (early.present.best, early.present.best_step) == (0.5, 10)


def test_losses_of_other_clips_or_timesteps_are_no_measure(tmp_path):
    """After footage was added, losses may be twice as high, and fall: training goes on, also if it is resumed."""
    file, config, now = tmp_path / "events.jsonl", ValidationConfig(every_steps=5, patience=2), None
    now = EarlyStop(config)
    for step, loss, on in [
        (0, 1.9, "a"),
        (5, 1.0, "a"),
        (10, 2.1, "b"),
        (15, 2.09, "b"),
        (20, 2.08, "b"),
        (25, 2.2, "b"),
    ]:
        of = {"loss": loss, "measured_on": on, "unread": 0}
        files.append_json_line(file, {"v": 1, "kind": "validation", "step": step, **of})
        assert now.add(step, loss, on)
        assert not now.is_over
    assert EarlyStop.resume(config, file, 25, ONE) == now
    assert (now.present.best, now.present.best_step, now.present.without_progress) == (2.08, 20, 1)


def test_a_validation_that_lacks_clips_decides_nothing_unless_they_are_lost_for_good():
    early = EarlyStop(ValidationConfig(every_steps=1, patience=2))
    results = [(1.7, "all", 0), (1.4, "one", 7), (1.6, "all", 0), (1.5, "all", 0), (1.0, "two", 6), (2.0, "two", 6)]
    compared = [early.add(step, loss, on, unread=unread) for step, (loss, on, unread) in enumerate(results)]
    assert compared == [True, False, True, True, False, True]
    assert (early.present.best, early.present.without_progress) == (2.0, 0)


def test_series_that_alternate_go_on_where_they_were():
    """A clip that can be read now and then begins no patience anew."""
    early, steps = EarlyStop(ValidationConfig(every_steps=1, patience=3)), 0
    for on in "aabbaabb":
        early.add(steps, 1.0, on)
        steps += 1
        if early.is_over:
            break
    assert (steps, early.series["b"].without_progress) == (6, 1)


def test_a_step_that_is_validated_again_counts_once():
    """The first result neither stands for the validation before, nor remains."""
    early = EarlyStop(ValidationConfig(every_steps=1, patience=2))
    early.add(0, 2.0, "all")
    assert not early.add(1, 1.0, "all-some", unread=2)
    assert not early.add(1, 1.0, "all-some", unread=2)
    assert early.add(1, 1.9, "all")
    assert early.add(1, 2.5, "all")
    assert early.series == {"all": early.present}
    assert (early.present.best, early.present.without_progress) == (2.0, 1)


@pytest.mark.parametrize(("measure", "is_over"), [("", True), ("all", True), ("other", False), ("first", False)])
def test_a_run_that_patience_ended_trains_on_if_something_else_is_measured_now(tmp_path, measure, is_over):
    """Or what was measured before; clips that cannot be read change nothing."""
    file = tmp_path / "events.jsonl"
    measured = ["first", "first", "all", "all-some", "all-some", "all-some", "all-some"]
    for step, on in enumerate(measured):
        of = {"loss": 1.0, "measured_on": on, "unread": int("-" in on)}
        files.append_json_line(file, {"v": 1, "kind": "validation", "step": step, **of})
    early = EarlyStop.resume(ValidationConfig(every_steps=1, patience=2), file, 6, ONE, measure=measure)
    assert early.is_over == is_over
    early.add(7, 0.5, measure)
    assert not early.is_over


@pytest.mark.parametrize("values", [{"split": 0.0}, {"every_steps": None}])
def test_patience_without_validation_is_refused(values):
    with pytest.raises(ValueError, match=r"validation\.patience = 3"):
        ValidationConfig(patience=3, **values)


def test_a_difference_without_patience_is_refused():
    with pytest.raises(ValueError, match=r"validation\.min_delta"):
        ValidationConfig(min_delta=0.1)


@pytest.mark.parametrize("text", ["10", "20:10", "0:3", "a:b", "1:2:3"])
def test_a_range_to_profile_has_a_first_and_a_last_step(text):
    done = CliRunner().invoke(app, ["train", "no-recipe.toml", "--profile", text])
    with refused("step-range-invalid", "--profile"):
        raise done.exception
