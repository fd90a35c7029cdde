"""What a training tells of its steps: spikes, steps that are skipped, validations and clips that these cannot read."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from reelworks.data.distributed.mesh import World
from reelworks.data.loader.failures import FailedClip
from reelworks.data.loader.position import Counts
from reelworks.data.run import records
from reelworks.data.run.folder import RunFolder
from reelworks.data.run.records import Outcome, RecordedFailure
from reelworks.training.loop.config import TrainConfig, ValidationConfig
from reelworks.training.observers import validations
from reelworks.training.observers.early_stop import EarlyStop
from reelworks.training.observers.observer import Training
from reelworks.training.observers.run_logger import RunLogger
from reelworks.training.observers.segment_records import RecordKeeper
from reelworks.training.observers.step_reports import SpikeReports
from reelworks.training.observers.validation import HeldOutLoss, Validation
from reelworks.training.step.spikes import Spike, SpikeClip, SpikeGroup

ALONE = World(0, 1, torch.device("cpu"))


class Log:
    """Keeps events, and values of curves, by step."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.drawn: list[tuple[int, dict[str, float]]] = []

    def event(self, kind: str, **values: Any) -> None:
        self.events.append((kind, values))

    def curves(self, step: int, values: dict[str, float]) -> None:
        self.drawn.append((step, values))

    def of(self, kind: str, *keys: str) -> list[Any]:
        found = (tuple(values.get(key) for key in keys) for name, values in self.events if name == kind)
        return [one[0] if len(keys) == 1 else one for one in found]


def test_each_spike_is_an_event_and_a_warning_with_its_remedy_comes_now_and_then(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """At most every fifty steps, and not of steps that are skipped anyway."""
    log, recipe = Log(), SimpleNamespace(train=TrainConfig(max_steps=200, skip_steps=[[3, 4]]))
    data = SimpleNamespace(recipe=recipe, stage=SimpleNamespace(name=""))
    reports = SpikeReports(Training(RunFolder(tmp_path), ALONE, data, None, None, None, log, None))  # type: ignore[arg-type]
    spike = Spike("loss", SpikeGroup("64px ×1", "guided"), 2.5, 0.5, 1.0, (SpikeClip(7, "a.mp4", 2.5),))
    for number, applied in ((10, True), (59, True), (60, True), (61, False), (130, False), (131, True)):
        result = SimpleNamespace(spike=spike, applied=applied)
        reports.after_step(SimpleNamespace(number=number, result=result))  # type: ignore[arg-type]
    reports.after_step(SimpleNamespace(number=200, result=SimpleNamespace(spike=None, applied=True)))  # type: ignore[arg-type]
    of_value = ("loss", "64px ×1", "guided", 2.5, 0.5, 1.0, [{"uid": 7, "path": "a.mp4", "loss": 2.5}])
    found = log.of("spike", "step", "skipped", "what", "bucket", "clip_kind", "value", "usual", "limit", "clips")
    steps = ((10, False), (59, False), (60, False), (61, True), (130, True), (131, False))
    assert found == [(*one, *of_value) for one in steps]
    assert [text.partition(":")[0] for text in caplog.messages] == ["step 10", "step 60", "step 131"]
    assert all("--set 'train.skip_steps=[[3, 4], [10, 10]]'" in text for text in caplog.messages[:1])


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (
            0,
            ["steps 3 to 6 are skipped: left out", "step 8 is skipped: a spike", "steps 9 to 10 are skipped: left out"],
        ),
        (
            3,
            ["steps 4 to 6 are skipped: left out", "step 8 is skipped: a spike", "steps 9 to 10 are skipped: left out"],
        ),
    ],
)
def test_steps_that_the_recipe_skips_are_told_together(
    caplog: pytest.LogCaptureFixture, first: int, told: list[str]
) -> None:
    """From the first one that a start comes to, and only as far as the training goes."""
    log: Any = RunLogger.__new__(RunLogger)
    train = TrainConfig(max_steps=10, skip_steps=[[3, 4], [5, 6], [9, 20]])
    log._data, log._first_step = SimpleNamespace(recipe=SimpleNamespace(train=train)), first
    with caplog.at_level("INFO"):
        for number in range(first + 1, 11):
            why = "left out" if train.skips(number) else "a spike"
            result = SimpleNamespace(skipped_by_recipe=train.skips(number), why_not=why)
            if train.skips(number) or number == 8:
                log._log_skipped(SimpleNamespace(number=number, result=result))
    assert caplog.messages == told


def clip(uid: int, repeat_index: int = 0) -> FailedClip:
    return FailedClip(uid, 0, repeat_index, f"{uid}.mp4", "cut")


def test_each_clip_that_fails_is_told_and_recorded_as_failed_unless_it_is_a_repeat(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The first use of a repeat is counted by itself."""
    log: Any = RunLogger.__new__(RunLogger)
    told = Log()
    log._run, log._world, log.event = RunFolder(tmp_path), ALONE, told.event
    log._run.create()
    step: Any = SimpleNamespace(number=5, failed=[clip(1), clip(2, 1)], position=SimpleNamespace(epoch=0, plan_step=4))
    with caplog.at_level("INFO"):
        recorded = log._failures(step)
    assert [(one.plan_step, one.uid, one.reason) for one in recorded] == [(4, 1, "cut")]
    assert told.of("failure", "step", "uid", "repeat_index", "path") == [(5, 1, 0, "1.mp4"), (5, 2, 1, "2.mp4")]
    assert caplog.messages == [f"a clip could not be decoded: {uid}.mp4: cut" for uid in (1, 2)]


def test_validations_are_told_compared_and_end_a_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A clip that cannot be read is told once, again after it could be; a validation of none is no validation."""
    recipe: Any = SimpleNamespace(validation=ValidationConfig(every_steps=1, patience=1), has_training_adapter=False)
    losses = [(0.5, 2, ()), (0.4, 1, (1,)), (0.45, 2, ()), (0.3, 1, (1,)), (math.nan, 0, (1, 2)), (0.9, 2, ())]
    results = iter(
        Validation(
            loss,
            {"500": loss},
            clips,
            {"64px": HeldOutLoss(loss, {}, clips)},
            f"a{unread or ''}",
            (*map(clip, unread),),
        )
        for loss, clips, unread in losses
    )
    validator = SimpleNamespace(held_out=[0], run=lambda *_: next(results))
    monkeypatch.setattr(validations, "Validator", lambda *_, **__: validator)
    log, checkpoints = Log(), SimpleNamespace(measured_on={})
    model = SimpleNamespace(boundary=None, sequence=None, state=SimpleNamespace(averaged=nullcontext))
    data = SimpleNamespace(recipe=recipe, held_out=lambda: [0])
    training: Any = Training(None, ALONE, data, model, None, None, log, checkpoints)  # type: ignore[arg-type]
    early = EarlyStop(recipe.validation)
    one = validations.Validations(training, early)
    with caplog.at_level("INFO"):
        found = [one.metrics(SimpleNamespace(step=step, is_over=lambda: False, pool=None)) for step in range(1, 7)]  # type: ignore[arg-type]
    assert log.of("failure", "step", "uid", "held_out") == [(2, 1, True), (4, 1, True), (5, 2, True)]
    assert [text for text in caplog.messages if "could not be decoded" in text] == [
        f"a held-out clip could not be decoded: {uid}.mp4: cut" for uid in (1, 1, 2)
    ]
    warned = [record.message for record in caplog.records if "could not read" in record.message]
    assert warned == [
        "step 2  validation could not read 1 of 2 clips",
        "step 4  validation could not read 1 of 2 clips",
        "step 5  validation could not read 2 of 2 clips",
    ]
    told = log.of("validation", "step", "loss", "clips", "unread", "loss_by_bucket")
    assert told == [
        (n, loss, clips, len(bad), {"64px": loss}) for n, (loss, clips, bad) in enumerate(losses, 1) if clips
    ]
    assert log.drawn == [
        (n, {"validation/loss": loss, "validation_by_bucket/64px": loss})
        for n, (loss, clips, _) in enumerate(losses, 1)
        if clips
    ]
    assert "step 2  validation loss 0.4000 on 1 clip" in caplog.messages
    assert found == [{"validation/loss": 0.5}, {}, {"validation/loss": 0.45}, {}, {}, {"validation/loss": 0.9}]
    assert log.of("validation", "is_comparable") == [True, False, True, False, True]
    assert sum("this loss is not compared" in text for text in caplog.messages) == 2
    assert log.of("early_stop", "step", "best", "best_step", "patience") == [(6, 0.45, 3, 1)]
    assert caplog.messages[-1].startswith("training ends: the validation loss has not fallen below 0.4500, of step 3")
    assert checkpoints.measured_on == {"validation/loss": "a"}


def test_the_end_of_a_segment_is_recorded_with_what_was_skipped_and_what_failed(tmp_path: Path) -> None:
    (run := RunFolder(tmp_path)).create()
    failed = RecordedFailure(plan_step=1, uid=7, copy_index=0, reason="cut")
    keeper = RecordKeeper(run, None, "recipe.toml")  # type: ignore[arg-type]
    for plan_step, applied, failures in ((0, False, []), (1, True, [failed]), (2, False, [])):
        keeper.step(plan_step, applied, failures)
    position: Any = SimpleNamespace(key=(0, 0, 0), plan_step=3, epoch=0)
    records.path(run, position.key).mkdir(parents=True)
    keeper.end(position)
    assert records.read_outcome(run, position.key) == Outcome(steps=3, skipped=[0, 2], failures=[failed])


@pytest.mark.parametrize("is_main", [True, False])
def test_an_epoch_whose_clips_are_not_all_accounted_for_ends_the_training(
    caplog: pytest.LogCaptureFixture, is_main: bool
) -> None:
    """On every rank, once its numbers are recorded; epochs that are alike are told once."""
    log: Any = RunLogger.__new__(RunLogger)
    told, ended = Log(), list[int]()
    records_of_run = SimpleNamespace(end=lambda position: ended.append(position.epoch))
    log._world, log.records, log.event = SimpleNamespace(is_main=is_main), records_of_run, told.event
    log._last_counts = None

    def end(epoch: int, **counts: int) -> None:
        log.epoch_ends(SimpleNamespace(epoch=epoch, global_step=9, counts=Counts(**counts)))

    with caplog.at_level("INFO"):
        end(0, planned=4, trained=4)
        end(1, planned=4, trained=4)
        end(2, planned=4, trained=1, failed=1, skipped=2, repeated=3)
        for lost in ({"trained": 3}, {"trained": 4, "failed": 1}, {"trained": 2, "skipped": 1}):
            with pytest.raises(AssertionError, match="clips of epoch 3 were lost"):
                end(3, planned=4, **lost)
    assert caplog.messages[:2] == [
        "epoch 0: 4 planned = 4 trained + 0 failed + 0 skipped",
        "epoch 2: 4 planned = 1 trained + 1 failed + 2 skipped; 3 shown again to fill batches",
    ]
    assert [one[0] for one in told.of("epoch_end", "epoch", "planned")] == [0, 1, 2, 3, 3, 3]
    assert ended == [0, 1, 2, 3, 3, 3] * is_main
