"""Tell what is noteworthy in steps: spikes, layers that learn nothing, new graphs, and what makes steps slow."""

from __future__ import annotations

import itertools
import json
import logging
from collections import deque
from dataclasses import asdict, dataclass
from typing import cast

import torch

from reelworks.core import files, launcher, machine, system
from reelworks.core.log import logger
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events
from reelworks.models.api import Denoiser
from reelworks.training.coverage import speed
from reelworks.training.coverage.speed import Speed
from reelworks.training.observers.observer import Pause, StepObserver, TrainedStep, Training
from reelworks.training.step import spikes
from reelworks.training.step.adapter_watch import AdapterWatch, IdleLayers

_MESSAGE_STEPS = 50  # steps between two messages; each spike has an event
_WINDOW = 50  # steps that are judged together
_SHAPES = "compiled_shapes.json"  # in a checkpoint
_FIRST_STEPS = 5  # of a window, which are left out


class SpikeReports(StepObserver):
    """Log the spikes that a training finds, and warn of them now and then."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._last_message: int | None = None

    def after_step(self, step: TrainedStep) -> None:
        """Log the spike of a step, if it is one."""
        spike, number, skipped = step.result.spike, step.number, not step.result.applied
        if spike is None:
            return
        clips = [clip._asdict() for clip in spike.clips]
        values = {
            "bucket": spike.group.bucket,
            "clip_kind": spike.group.kind,
            "value": spike.value,
            "usual": spike.usual,
            "limit": spike.limit,
        }
        self._training.log.event("spike", step=number, what=spike.what, **values, skipped=skipped, clips=clips)
        if skipped or (self._last_message is not None and number < self._last_message + _MESSAGE_STEPS):
            return
        self._last_message = number
        saved = CheckpointFolder(self._training.folder.checkpoints_folder).steps()
        data = self._training.data
        remedy = spikes.remedy(number, saved, data.recipe.train.skip_steps, data.stage.name)
        logger.warning(f"step {number}: {spike}. If training does not recover, {remedy}")


@dataclass(frozen=True)
class IdleLayerReports(StepObserver):
    """Log idle layers that a step finds, and those that are found where checkpoints are saved."""

    training: Training
    watch: AdapterWatch

    @classmethod
    def of_training(cls, training: Training) -> IdleLayerReports:
        """Watch the adapter of a training, of which the run may have told something before."""
        recipe, model, world = training.data.recipe, training.model, training.world
        experts = 2 if recipe.model.experts == "both" else 1
        denoiser = cast(Denoiser, model.boundary.denoiser)
        # Only the main rank tells it.
        past = events.timeline(training.folder.events_file, "idle_layers") if world.is_main else []
        told = {(layer, event["problem"]) for event in past for layer in event["layers"]}
        used = {*denoiser.lora_targets("default"), *denoiser.lora_targets("blocks")}
        trained = model.state.optimizer.trained
        return cls(training, AdapterWatch(trained, world, experts=experts, always_used=used, told=told))

    def after_step(self, step: TrainedStep) -> None:
        """Log what the gradients of a step tell."""
        for idle in step.result.idle:
            self._log(step.number, idle)

    def after_save(self, now: Pause) -> None:
        """Log what the weights tell, after some steps, at each save and at the end."""
        if now.is_over() or self.watch.is_first_due or now.is_saved:
            for idle in self.watch.find_idle(is_end=now.is_over()):
                self._log(now.step, idle)

    def _log(self, step: int, idle: IdleLayers) -> None:
        self.training.log.event("idle_layers", step=step, **asdict(idle), is_note=idle.is_note, message=str(idle))
        if self.training.world.is_main:
            logger.log(logging.INFO if idle.is_note else logging.WARNING, f"step {step}: {idle}")


@dataclass
class CompiledGraphs(StepObserver):
    """Log the graphs that were compiled in a step, and compile the same ones after a resume."""

    training: Training
    _buckets: str = ""  # digest of the buckets of this start

    def begin(self, now: Pause) -> None:
        """Choose the shapes that the checkpoint's run had chosen on this rank, if it had these buckets."""
        self._buckets = now.position.spec.buckets_digest
        training = self.training
        if (content := training.model.state.observed.get(_SHAPES)) is None or now.begins_stage:
            return
        kept = json.loads(content)
        of_rank = dict(enumerate(kept["ranks"])).get(training.world.rank, [])
        if kept["buckets"] == self._buckets:
            for shapes, chosen in zip(training.model.compiled_shapes, of_rank, strict=False):
                shapes.chosen = dict.fromkeys(map(tuple, chosen[: shapes.most]))

    def files(self, step: int) -> dict[str, bytes]:
        """Return the shapes that each rank compiles. Collective."""
        training = self.training
        if not training.data.recipe.train.compile:
            return {}
        ranks = training.world.gather([[*shapes.chosen] for shapes in training.model.compiled_shapes])
        return {_SHAPES: files.to_json({"buckets": self._buckets, "ranks": ranks}).encode()}

    def after_step(self, step: TrainedStep) -> None:
        """Log the news of a step, if there are any."""
        if (news := self.training.model.compiled.news()) is not None:
            self.training.log.event("compiled", step=step.number, **news)


class SlowSteps(StepObserver):
    """Warn of steps that are slow for a reason that a person can change."""

    def __init__(self, training: Training) -> None:
        threads = torch.get_num_threads()
        self._may_spin = threads > 1 and training.world.device.type == "cpu" and not machine.is_wait_policy_chosen()
        self._threads = threads * launcher.number("LOCAL_WORLD_SIZE")
        self._speeds: deque[Speed] | None = deque(maxlen=_WINDOW)

    def after_step(self, step: TrainedStep) -> None:
        """Judge a step by the load of the machine, and a whole window of steps by their speed."""
        if self._may_spin and machine.is_busy(self._threads, share=1.0):
            self._may_spin = False
            logger.warning(
                f"other processes keep this machine busy (load {system.load_average():.1f} on "
                f"{machine.cores()} cores), and threads that spin while they wait make steps many times slower: "
                "stop with Ctrl-C, set OMP_WAIT_POLICY=passive, and give the same command again"
            )
        if self._speeds is None:
            return
        self._speeds.append(step.speed)
        is_whole = step.number % _WINDOW == 0 and len(self._speeds) == _WINDOW
        later = itertools.islice(self._speeds, _FIRST_STEPS, None)  # the first clips are always waited for
        if is_whole and (advice := speed.total(later).advice):
            self._speeds = None
            logger.warning(advice)
