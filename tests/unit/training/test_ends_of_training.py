"""Why a training ends: it is done, a signal came to some rank, or clips cannot be read for a reason that is not theirs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_recipe
import torch
from refused import refused

from reelworks.core.errors import UserError
from reelworks.data.distributed.mesh import World
from reelworks.data.media.patience import StorageAway
from reelworks.data.run.events import EventLog
from reelworks.data.schedule.cursor import Cursor
from reelworks.training.loop import stages, training_loop
from reelworks.training.loop.config import TrainConfig
from reelworks.training.loop.stop_signals import StopRequest, StopSignals
from reelworks.training.loop.training_loop import Trainer
from reelworks.training.recipe import recipe_file
from reelworks.training.step.nonfinite import NonFiniteCause, NonFiniteSource
from reelworks.training.step.step_sums import StepFlags

ALONE, LAST = World(0, 1, torch.device("cpu")), 3
NO_CLIP = StorageAway("gives no clip", code="storage-away", remedy="restore it")
NO_ROOM = UserError("cannot be written", code="file-unwritable", remedy="free space")


class Steps(Trainer):
    """A loop over three steps, during one of which a signal comes to another rank, or which is stuck behind some steps."""

    def __init__(self, *, signal_in: int = 0, stuck_after: int = LAST, stuck: UserError | None = None) -> None:
        self._signal_in, self._stuck_after, self._error, self.saved = signal_in, stuck_after, stuck, list[int]()
        nothing: Any = SimpleNamespace(read=lambda *_: (), requests_from=None, encode=None, decodes=lambda _: False)
        self._encoder = self._examples = nothing
        self._source = SimpleNamespace(requests_from=lambda _: ())
        self._recipe = SimpleNamespace(
            data=SimpleNamespace(num_workers=0, decode_timeout=60.0, prefetch_budget_bytes=1),
            encode=SimpleNamespace(store=False, ahead=False),
            parallel=SimpleNamespace(step_seconds=60.0),
        )
        self.data, self._world = SimpleNamespace(table=None), ALONE
        self._log = SimpleNamespace(records=SimpleNamespace(end=lambda _: None))
        self._checkpoints = SimpleNamespace(save_last=lambda at, _, is_over: self.saved.append(at.global_step))
        self._stuck = None

    def run(self) -> tuple[int, str]:
        """Return where and why it ends."""
        stage: Any = SimpleNamespace(ends_run=lambda step: True)
        begin: Any = SimpleNamespace(global_step=0, at_end=False)
        end, reason = self.train(begin, stage, StopRequest(StopSignals(), self._world))
        return end.global_step, reason

    def _catch_up(self, *_: Any) -> bool:
        return True

    def _is_done(self, position: Any) -> bool:
        return position.global_step == LAST

    def _take_step(self, position: Any, batches: Any) -> Any:
        if position.global_step == self._stuck_after:
            self._stuck = self._error
            return position, None
        step = position.global_step + 1
        flags = StepFlags(stop=step == self._signal_in, save=False, writing=False)
        return SimpleNamespace(global_step=step, at_end=False), flags

    def _after_step(self, *_: Any) -> None:
        pass

    _begin_segment = _end = _after_step


@pytest.fixture(autouse=True)
def reads_nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_loop, "EncodePrefetcher", lambda *_, **__: None)


@pytest.mark.parametrize(("step", "reason"), [(1, "signal"), (2, "signal"), (LAST, "finished")])
def test_a_signal_ends_a_training_after_its_step_and_in_the_last_one_it_is_done(step: int, reason: str) -> None:
    """Nothing is left then that the same command could go on with."""
    assert Steps(signal_in=step).run() == (step, reason)


def test_of_what_is_no_clips_fault_a_storage_alone_ends_a_training_in_order(caplog: pytest.LogCaptureFixture) -> None:
    """With a warning. What somebody must mend on this machine would come again; as would all where nothing was trained."""
    trained = Steps(stuck_after=2, stuck=NO_CLIP)
    assert (trained.run(), trained.saved) == ((2, "storage"), [2])
    assert [(one.levelname, one.message) for one in caplog.records] == [("WARNING", str(NO_CLIP))]
    with refused("storage-away"):
        Steps(stuck_after=0, stuck=NO_CLIP).run()
    for steps in (0, 2):
        ended = Steps(stuck_after=steps, stuck=NO_ROOM)
        with refused("file-unwritable"):
            ended.run()
        assert ended.saved == [steps] * bool(steps)


@pytest.mark.parametrize(
    ("reason", "ended", "goes_on"),
    [("stage", "", "high"), ("signal", "", "low"), (None, "", "low"), (None, "low", "high")],
)
def test_a_stage_that_was_left_in_order_is_over_and_another_is_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str | None, ended: str, goes_on: str
) -> None:
    """After its last step, a signal or a kill may have left no time for what comes then."""
    tables: Any = [{"name": "low", "steps": LAST}, {"name": "high", "steps": 2}]
    recipe = recipe_file.parse(tiny_recipe.least(output=str(tmp_path), stage=tables, train={"learning_rate": 1e-4}))
    counts: Any = dict.fromkeys(("data_restarts", "epoch", "segment", "plan_step", "planned", "trained"), 0)
    counts |= dict.fromkeys(("catalog_version", "failed", "skipped", "repeated"), 0)
    cursor = Cursor(catalog="", spec="", plan="", next_step="", global_step=LAST, stage_name="low", **counts)
    monkeypatch.setattr(stages, "_cursor", lambda *_: cursor)
    log = EventLog(tmp_path / "events.jsonl")
    log.write("start", step=0, resumed_from=None, stage={"name": "low", "step": 0})
    if reason is not None:
        log.write("stop", step=LAST, reason=reason)
    found = stages.find(recipe, LAST, ALONE, ended)
    assert (found.start.name, found.begins) == (goes_on, goes_on == "high")


@pytest.mark.parametrize(
    ("train", "stage", "ends_run", "stopped", "says"),
    [
        ({"max_steps": 3}, "", True, False, "nothing left to train at step 3; raise train.max_steps"),
        ({"max_steps": 3, "max_clips": 2}, "", True, False, "raise train.max_steps and train.max_clips"),
        ({"max_steps": 3}, "", True, True, "nothing left to train at step 3: no progress; raise it to train on"),
        (
            {"max_steps": 3},
            "low",
            True,
            False,
            "stage low is at its end: raise that or train.max_steps, or add a stage",
        ),
        ({"max_steps": 3}, "low", False, False, "stage low is at its end; what came after its last save is made up"),
    ],
)
def test_why_a_start_trains_nothing_is_told(
    caplog: pytest.LogCaptureFixture, train: dict[str, int], stage: str, ends_run: bool, stopped: bool, says: str
) -> None:
    loop: Any = Steps()
    loop._stage = SimpleNamespace(ends_run=lambda step: ends_run)
    loop._early = NoProgress() if stopped else SimpleNamespace(is_over=False)
    loop._recipe = SimpleNamespace(train=TrainConfig(**train))
    plan = SimpleNamespace(num_steps=5)
    position = SimpleNamespace(
        plan=plan, stage=SimpleNamespace(name=stage), global_step=3, epoch=0, at_end=False, clips=2
    )
    with caplog.at_level("INFO"):
        loop._tell_that_nothing_is_left(SimpleNamespace(position=position, step=3, is_new=False))
    (told,) = caplog.messages
    assert told.endswith(says)


class NoProgress:
    is_over = True

    def __str__(self) -> str:
        return "no progress"


@pytest.mark.parametrize(
    ("policy", "what", "finite", "ends_at", "field"),
    [
        ("stop", "activation", "tff", 2, "train.learning_rate"),
        ("stop", "weight", "f", 1, "model.weights"),
        ("skip", "activation", "ftfftfff", 8, "train.learning_rate"),
        ("skip", None, "fff", 3, "train.learning_rate"),
        ("skip", "activation", "fftffttff", None, None),
    ],
)
def test_steps_that_are_not_finite_end_a_training_if_so_many_follow_one_another(
    policy: Any, what: Any, finite: str, ends_at: int | None, field: str | None
) -> None:
    """The first of them where it is to stop; weights that are not finite are told as such."""
    loop: Any = Steps()
    loop._consecutive_non_finite = 0
    loop._recipe = SimpleNamespace(train=TrainConfig(max_steps=99, non_finite=policy, max_non_finite=3))
    cause = NonFiniteCause(None if what is None else NonFiniteSource(what, "blocks.0"), ())
    results = [SimpleNamespace(finite=is_finite == "t", blame=cause) for is_finite in finite]
    for step, result in enumerate(results[: None if ends_at is None else ends_at - 1], 1):
        loop._require_finite(step, result)
    if ends_at is not None:
        says = f"step {ends_at} had" if policy == "stop" else f"3 consecutive steps, the last being {ends_at}, had"
        with refused("non-finite", field, says=says):
            loop._require_finite(ends_at, results[-1])
