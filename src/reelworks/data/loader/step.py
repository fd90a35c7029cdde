"""An optimizer step of the loader: its decoded micro-batches, and the account of its clips."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from reelworks.core.errors import UserError
from reelworks.data.loader.failures import FailedClip
from reelworks.data.loader.micro_batch import MicroBatch
from reelworks.data.loader.position import Counts


@dataclass(frozen=True)
class StepClips:
    """Numbers of a step's clips over all ranks.

    Attributes:
        planned: Clips that count in the loss if none fails, with the repeats that fill micro-batches.
        first_uses: Clips among them that are no repeat, which the epoch's account counts.
        failed, failed_first_uses: Clips among both that could not be decoded.
    """

    planned: int
    first_uses: int
    failed: int = 0
    failed_first_uses: int = 0

    @property
    def valid(self) -> int:
        """Clips that count in the loss."""
        return self.planned - self.failed

    def add_to(self, counts: Counts, *, trained: bool) -> Counts:
        """Return the epoch's counts after the step, whose clips were trained or else skipped."""
        left = self.first_uses - self.failed_first_uses
        if not trained:
            return counts.add(0, self.failed_first_uses, left, 0)
        return counts.add(left, self.failed_first_uses, 0, self.valid - left)


class Step:
    """An optimizer step: an iterable of this rank's micro-batches, to be iterated once, before the next step.

    The step counts as trained when it was iterated to its end: a state that is taken before, in the body of its loop, is
    that before the step.

    Attributes:
        number: Number of the step in the run, from 1.
        epoch: Number of the epoch, from 0.
        planned: Clips that were to count in the step's loss, over all ranks.
        valid: Clips that count, over all ranks: the planned ones without those that could not be decoded.
        failures: This rank's clips that could not be decoded, each with path, uid and reason.
        has_begun: Whether its micro-batches were asked for.

    Examples:
        >>> import reelworks as rw
        >>> from reelworks.testing import sample_dataset
        >>> step = next(iter(rw.Loader(sample_dataset(), micro_batches_per_step=2)))
        >>> step, round(sum(float(m.loss_weight.sum()) for m in step), 6)
        (Step(1, epoch 0, 6 of 6 clips valid), 1.0)
    """

    __contains__ = None  # `in` raises TypeError, where it would iterate, and count the clips as trained

    def __init__(
        self,
        number: int,
        epoch: int,
        clips: StepClips,
        failures: tuple[FailedClip, ...],
        micro_batches: deque[MicroBatch],
        on_end: Callable[[], None],
    ) -> None:
        self.number, self.epoch = number, epoch
        self.planned, self.valid, self.failures = clips.planned, clips.valid, failures
        self._micro_batches, self._on_end = micro_batches, on_end
        self.has_begun = False
        self._closed = ""

    def __repr__(self) -> str:
        return f"Step({self.number}, epoch {self.epoch}, {self.valid} of {self.planned} clips valid)"

    def __iter__(self) -> Iterator[MicroBatch]:
        if closed := self._closed or ("are being iterated already" if self.has_begun else ""):
            raise UserError(
                f"its micro-batches {closed}",
                code="step-is-over",
                field="step",
                value=self.number,
                remedy="iterate each step once, before the next one; to use its micro-batches twice, keep list(step)",
            )
        self.has_begun = True
        return self._iterate()

    def _iterate(self) -> Iterator[MicroBatch]:
        while self._micro_batches:
            yield self._micro_batches.popleft()  # whose memory is the caller's from here on
        if not self._closed:
            self._closed = "were iterated already"
            self._on_end()

    def drop_rest(self) -> None:
        """Drop the micro-batches that were not iterated."""
        self._closed = self._closed or "were dropped when another step was requested"
        self._micro_batches.clear()
