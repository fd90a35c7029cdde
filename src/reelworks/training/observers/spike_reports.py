"""Tell of steps whose loss or gradient is far above the usual, with their clips and what can be done about it."""

from __future__ import annotations

from reelworks.core.log import logger
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.training.observers.observer import StepObserver, TrainedStep, Training
from reelworks.training.step import spikes

_MESSAGE_STEPS = 50  # steps between two messages; each spike has an event


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
        values = {"bucket": spike.bucket, "value": spike.value, "usual": spike.usual, "limit": spike.limit}
        self._training.log.event("spike", step=number, what=spike.what, **values, skipped=skipped, clips=clips)
        if skipped or (self._last_message is not None and number < self._last_message + _MESSAGE_STEPS):
            return
        self._last_message = number
        saved = CheckpointFolder(self._training.folder.checkpoints_folder).steps()
        remedy = spikes.remedy(number, saved, self._training.data.recipe.train.skip_steps)
        logger.warning(f"step {number}: {spike}. If training does not recover, {remedy}")
