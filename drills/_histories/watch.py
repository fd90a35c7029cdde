"""Notes of a training, written beside it: which clips stood behind each optimizer step that was really taken.

Installed in the process that trains, around the trainer's own functions. Each rank appends to a file of its own,
outside of the run folder and past `core.storage`, so that a fault that is injected there cannot reach it.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faults
import numpy as np

from reelworks.core import storage
from reelworks.data.checkpoint import names
from reelworks.training.loop import checkpointing
from reelworks.training.loop.training_loop import Trainer
from reelworks.training.memory import dry_run
from reelworks.training.observers.run_logger import RunLogger
from reelworks.training.recipe import dataset
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.step.losses import PlainLoss
from reelworks.training.step.optimizers import ShardedOptimizer
from reelworks.training.step.step_sums import StepSums
from reelworks.training.step.train_step import StepResult, TrainStep

Json = dict[str, Any]
# A guard stays for the life of the process.
_FOR_GOOD = ExitStack()


@dataclass
class Watch:
    """What is known while a training runs.

    Attributes:
        file: Where notes go.
        rank: Of this process.
        end: How the start is to end.
        resumed: Step of the checkpoint that was loaded.
        trainer: The one that runs.
        position: The step under way.
        taken: Clips that this rank took of the step so far.
        steps: Steps done.
    """

    file: Path
    rank: int
    end: Json
    resumed: int | None = None
    trainer: Any = None
    position: Any = None
    taken: list[list[Any]] = field(default_factory=list)
    steps: int = 0

    def note(self, what: str, **fields: Any) -> None:
        """Append one line, whatever happens next."""
        line = json.dumps({"what": what, **fields}) + "\n"
        fd = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.write(fd, line.encode())
        os.close(fd)

    def note_share(self) -> None:
        """Note the clips that this rank gives to the step under way, before their gradients count on any rank."""
        self.note("share", step=self.position.global_step + 1, items=self.taken)

    def note_step(self, *, applied: bool) -> None:
        """Note the step under way, which all ranks gave their shares to."""
        at = self.position
        self.steps += 1
        self.note(
            "step",
            step=at.global_step + 1,
            data_restarts=at.data_restarts,
            epoch=at.epoch,
            segment=at.segment,
            plan_step=at.plan_step,
            applied=applied,
        )

    def sees(self, source: Iterator[Any]) -> Iterator[Any]:
        """Pass examples on and note their clips: path, copy, showing, and whether each counts."""
        for example in source:
            batch, work = example.batch, example.batch.request
            if not self.trainer._world.leads(work.sequence_degree):  # another rank of its group notes it
                yield example
                continue
            failed = {place for place, _ in batch.failures}
            for place, request in enumerate(work.requests):
                if not work.is_idle and work.repeat_index[place] >= 0:
                    state = "failed" if place in failed else "counts" if bool(batch.is_valid[place]) else "lost"
                    self.taken.append(
                        [str(request.path), int(work.copies[place]), int(work.repeat_index[place]), state]
                    )
            yield example

    def note_begin(self, position: Any) -> None:
        """Note the live clips with their reasons, and those that the segment plans."""
        data: RecipeData = self.trainer.data
        clips, row, assignment = data.assigned(position.epoch, position.excluded)
        copies = clips.copy
        live = [[_path(data, int(row[i])), int(copies[i]), int(assignment.reason[i])] for i in range(len(row))]
        plan = position.plan
        first = np.flatnonzero(plan.is_first_use)
        rows = data.rows_at(plan.ordinal[first]) if len(first) else first
        planned = [[_path(data, int(r)), int(c)] for r, c in zip(rows, plan.copy[first], strict=True)]
        self.note(
            "begin",
            step=position.global_step,
            data_restarts=position.data_restarts,
            epoch=position.epoch,
            segment=position.segment,
            plan_step=position.plan_step,
            live=live,
            planned=planned,
        )


def _path(data: RecipeData, row: int) -> str:
    return f"{data.rows.root[row].as_py()}/{data.rows.path[row].as_py()}"


def install(orders: Json) -> None:
    """Watch this process, and let it end as its start is to end.

    Args:
        orders: `folder` for notes, `end`, `vanish`: files that go behind the scan's back, and `bare`: leave out what
            a start tries beforehand of the network, which is most of its time and nothing to its clips.
    """
    if orders.get("bare"):
        dry_run.audit_shapes = lambda *_: None
    rank = int(os.environ.get("RANK", "0"))
    watch = Watch(Path(orders["folder"], f"rank-{rank}.jsonl"), rank, orders["end"])
    _wrap_beginnings(watch)
    _wrap_steps(watch)
    _lose_files(orders.get("vanish", []))
    _arm(watch)


def _after(owner: Any, name: str, then: Callable[..., None]) -> None:
    """Call `then` with the result and the arguments of a function once it returned."""
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        then(result, *args, **kwargs)
        return result

    setattr(owner, name, wrapped)


def _before(owner: Any, name: str, first: Callable[..., None]) -> None:
    """Call `first` with the arguments of a function before it runs."""
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        first(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def _wrap_beginnings(watch: Watch) -> None:
    """Note what a start went on from, and where segments begin and epochs end."""

    def restored(_: Any, checkpoint: Path, *_parts: Any, **_options: Any) -> None:
        watch.resumed = names.parse_step(checkpoint.name)

    def told(_: Any, log: Any, kind: str, **fields: Any) -> None:
        if kind == "start":
            watch.note("began", resumed=watch.resumed)

    def begins(trainer: Any, position: Any) -> None:
        watch.trainer = trainer
        if watch.rank == 0:
            watch.note_begin(position)

    def ends(log: Any, position: Any) -> None:
        if watch.rank == 0:
            at = position
            watch.note("ended", step=at.global_step, data_restarts=at.data_restarts, epoch=at.epoch)

    _after(checkpointing, "restore", restored)
    _after(RunLogger, "event", told)
    _before(Trainer, "_begin_segment", begins)
    _before(RunLogger, "epoch_ends", ends)


def _wrap_steps(watch: Watch) -> None:
    """Note each step: one that is applied at once behind the real optimizer step."""

    def step_begins(trainer: Any, position: Any, batches: Any, **_: Any) -> None:
        watch.position, watch.taken = position, []

    def updated(*_: Any) -> None:
        watch.note_step(applied=True)

    def left_out(*_: Any) -> None:
        if watch.rank == 0:  # no rank reads anything of such a step
            watch.taken = _planned_in(watch)
            watch.note_share()
            watch.note_step(applied=False)

    def summed(*_: Any) -> None:
        watch.note_share()

    original = TrainStep.run

    def run(self: TrainStep, examples: Any, **where: Any) -> Any:
        result = original(self, watch.sees(examples), **where)
        if not result.applied:
            watch.note_step(applied=False)
        return result

    _before(Trainer, "_take_step", step_begins)
    _before(StepSums, "over_ranks", summed)
    _after(ShardedOptimizer, "step", updated)
    TrainStep.run = run  # type: ignore[method-assign]
    _after(StepResult, "skipped", left_out)


def _planned_in(watch: Watch) -> list[list[Any]]:
    """Clips of a step that the recipe leaves out."""
    position, data = watch.position, watch.trainer.data
    plan, items = position.plan, []
    for micro_batch in plan.micro_batches(position.plan_step).tolist():
        where = plan.places(micro_batch)
        rows = data.rows_at(plan.ordinal[where])
        for row, copy, repeat_index in zip(rows, plan.copy[where], plan.repeat_index[where], strict=True):
            items.append([_path(data, int(row)), int(copy), int(repeat_index), "counts"])
    return items


def _lose_files(paths: list[str]) -> None:
    """Let files vanish behind the scan, so that they fail when their turn comes."""

    def vanish(*_: Any, **__: Any) -> None:
        for path in paths:
            Path(path).unlink(missing_ok=True)

    if paths:
        _after(dataset, "scan_recipe", vanish)


def _arm(watch: Watch) -> None:
    """Prepare the end of this process."""
    end = watch.end
    if end.get("nan"):
        _spoil(watch, end["nan"])
    if end.get("rank", 0) != watch.rank:
        return
    if end["by"] == "sigterm":
        _after(ShardedOptimizer, "step", lambda *_: _signal_after(watch, end["after"]))
    elif end["by"] == "kill" and "point" in end:
        faults.kill_at(end["point"], end["call"])
    elif end["by"] == "kill" and "seconds" in end:
        timer = threading.Timer(end["seconds"], os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
    elif end["by"] == "kill":
        _FOR_GOOD.enter_context(storage.guarded(_deadly(watch, end)))


def _signal_after(watch: Watch, steps: int) -> None:
    if watch.steps == steps:
        os.kill(os.getpid(), signal.SIGTERM)


def _spoil(watch: Watch, step: int) -> None:
    """Make the loss of one step of this start not a number."""
    original = PlainLoss.of_clips

    def of_clips(self: PlainLoss, *args: Any) -> Any:
        result = original(self, *args)
        return result * float("nan") if watch.steps + 1 == step else result

    PlainLoss.of_clips = of_clips  # type: ignore[assignment, method-assign]


def _deadly(watch: Watch, end: Json) -> storage.Guard:
    """Kill this process at the so many-th storage call of a kind, or in the middle of its write.

    With `since_step`, calls count from the time that this step of the run is under way.
    """
    made = 0

    def guard(kind: str, path: Path) -> int | None:
        nonlocal made
        step = (watch.resumed or 0) if watch.position is None else watch.position.global_step + 1
        if step < end.get("since_step", 0):
            return None
        in_a_save = "checkpoints" in path.parts
        if end["scope"] == ("save" if in_a_save else "other") or end["scope"] == "any":
            made += 1
        if made == end["call"] and kind == "write" and end.get("half"):
            return int(end["half"])
        if made >= end["call"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    return guard
