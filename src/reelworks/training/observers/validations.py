"""Validate when it is due, give the loss to the checkpoint, and end training early where it does not fall any more."""

from __future__ import annotations

import time
from dataclasses import asdict

from reelworks.core import log, units
from reelworks.core.log import logger
from reelworks.data.loader.failures import MOST_NAMED
from reelworks.data.media.patience import StorageAway
from reelworks.training.observers.early_stop import EarlyStop
from reelworks.training.observers.observer import Pause, StepObserver, Training
from reelworks.training.observers.validation import Validation, Validator
from reelworks.training.step import progress

_LOSS = "validation/loss"


class Validations(StepObserver):
    """Measure the averaged weights on held-out clips: before the first step, when it is due, and at the end."""

    def __init__(self, training: Training, early: EarlyStop) -> None:
        self._training, self._early = training, early
        data, model = training.data, training.model
        self._unread: set[int] = set()  # clips that the validation before could not read
        self._every = data.recipe.validation.every_steps
        self._validator = Validator(
            model.boundary,
            training.encoder,
            training.world,
            training.source,
            data.held_out(),
            data.recipe,
            sequence=model.sequence,
        )

    def make_up(self, now: Pause) -> None:
        """Validate at a step whose checkpoint lacks the loss, if it is due, and add it."""
        if progress.is_due(self._every, now.step):
            self._complete(now)

    def begin(self, now: Pause) -> None:
        """Validate the untrained weights, for comparison, or the last ones if a kill came between their save and the end."""
        if now.is_over():
            self._complete(now)
        elif now.is_new:
            self._validate(now)

    def metrics(self, now: Pause) -> dict[str, float]:
        """Validate if it is due, or training ends."""
        return self._validate(now) if now.is_over() or progress.is_due(self._every, now.step) else {}

    def _complete(self, now: Pause) -> None:
        checkpoints = self._training.checkpoints
        if not checkpoints.has_metrics(now.step, [_LOSS]) and (metrics := self._validate(now)):
            checkpoints.record_metrics(now.step, metrics)

    def _validate(self, now: Pause) -> dict[str, float]:
        if not len(self._validator.held_out) or self._training.stops():
            return {}
        began = time.monotonic()
        with log.stage("validating"), self._training.model.state.averaged():
            try:
                result = self._validator.run(now.pool, self._training.stops)
            except StorageAway as error:  # the next step saves and ends, and the next start makes it up
                logger.warning(f"step {now.step}  no validation: {error.problem}")
                return {}
        if result is None or not self._tell_unread(now.step, result):
            return {}
        step, seconds, early = now.step, time.monotonic() - began, self._early
        was_over, series = early.is_over, len(early.series)
        is_comparable = early.add(step, result.loss, result.measured_on, unread=len(result.unread))
        by_bucket = {name: of_bucket.loss for name, of_bucket in result.by_bucket.items()}
        losses = {"loss": result.loss, "loss_by_time": result.loss_by_time, "loss_by_bucket": by_bucket}
        adapted = self._training.data.recipe.has_training_adapter
        with_adapter = {"with_training_adapter": True} if adapted else {}
        about = {"unread": len(result.unread), "measured_on": result.measured_on, "is_comparable": is_comparable}
        of_clips = {"clips": result.clips, **about, "seconds": seconds}
        self._training.log.event("validation", step=step, **losses, **of_clips, **with_adapter)
        curves = {f"validation_by_bucket/{name}": loss for name, loss in by_bucket.items()}
        self._training.log.curves(step, {"validation/loss": result.loss, **curves})
        note = ", with lora.training_adapter" if adapted else ""
        logger.info(f"step {step}  validation loss {result.loss:.4f} on {units.plural(result.clips, 'clip')}{note}")
        if not is_comparable:
            logger.warning(f"step {step}  this loss is not compared: neither patience nor keep_best takes it")
            return {}
        if 0 < series < len(early.series):
            logger.info("validation is measured on other clips, timesteps or settings than before: a new series begins")
        if early.is_over and not was_over:
            best = {"best": early.present.best, "best_step": early.present.best_step}
            self._training.log.event("early_stop", step=step, patience=early.config.patience, **best)
            logger.info("training ends: %s", early)
        self._training.checkpoints.measured_on[_LOSS] = result.measured_on
        return {_LOSS: result.loss}

    def _tell_unread(self, step: int, result: Validation) -> bool:
        """Tell the clips that could not be decoded, those of the validation before not again; returns whether any could."""
        new = [clip for clip in result.unread if clip.uid not in self._unread]
        self._unread = {clip.uid for clip in result.unread}
        for clip in new:
            self._training.log.event("failure", step=step, held_out=True, **asdict(clip))
        for clip in new[:MOST_NAMED]:
            logger.info("a held-out clip could not be decoded: %s: %s", clip.path, clip.reason)
        if result.unread:
            total = len(result.unread) + result.clips
            logger.warning(
                f"step {step}  validation could not read {len(result.unread)} of {units.plural(total, 'clip')}"
            )
        return bool(result.clips)
