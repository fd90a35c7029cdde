"""Tell of layers of an adapter that learn nothing."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import cast

from reelworks.core.log import logger
from reelworks.data.run import events
from reelworks.models.api import Denoiser
from reelworks.training.observers.observer import Pause, StepObserver, TrainedStep, Training
from reelworks.training.step.adapter_watch import AdapterWatch, IdleLayers


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
