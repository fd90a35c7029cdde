"""Clips that could not be decoded: named, recorded, and refused if they are too many. The trainer and the loader share it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from reelworks.core import files
from reelworks.core.errors import UserError, first_few
from reelworks.core.log import logger
from reelworks.data.loader.micro_batch import MicroBatch
from reelworks.data.run.folder import RunFolder

# So many clips that fail in an epoch are named one by one; each is in the steps and in the records besides.
MOST_NAMED = 20


@dataclass(frozen=True)
class FailedClip:
    """A clip that could not be decoded.

    Attributes:
        uid: Identity of the clip in its catalog.
        copy: Number of the clip's repeat in the epoch.
        repeat_index: 0 for the first use of a clip, n for its nth repeat that fills a micro-batch.
        path: File of the clip.
        reason: Words of the decoder.
    """

    uid: int
    copy: int
    repeat_index: int
    path: str
    reason: str


def failed_clips(batches: Iterable[MicroBatch]) -> tuple[FailedClip, ...]:
    """Return the clips of micro-batches that could not be decoded; padding is left out."""
    return tuple(
        FailedClip(
            uid=int(work.uids[index]),
            copy=int(work.copies[index]),
            repeat_index=int(work.repeat_index[index]),
            path=str(work.requests[index].path),
            reason=reason,
        )
        for batch in batches
        for work in [batch.request]
        for index, reason in batch.failures
    )


def record(run: RunFolder, epoch: int, step: int, clips: Iterable[FailedClip]) -> None:
    """Append failed clips of a step to the epoch's list in the run folder; a full disk is no reason to stop."""
    with suppress(OSError):
        for clip in clips:
            line = {"step": step, "became": "failed", **asdict(clip)}
            files.append_json_line(run.coverage_folder / f"epoch-{epoch:06d}.jsonl", line)


def require_few(
    failed: int, planned: int, limit: float, *, field: str, remedy: str, clips: Sequence[FailedClip] | None = None
) -> None:
    """Refuse to go on if more than a share of an epoch's clips failed; of `clips`, this rank's, the first are named.

    Raises:
        UserError: They are too many.
    """
    if failed <= limit * planned:
        return
    named = "" if clips is None else ", all on other ranks, whose errors name them"
    if clips:
        named = f": {first_few([f'{clip.path} ({clip.reason})' for clip in clips])}"
    raise UserError(
        f"{failed} of the epoch's {planned} clips could not be decoded{named}",
        code="too-many-decode-failures",
        field=field,
        value=limit,
        remedy=remedy,
    )


class FailureWarnings:
    """Warn of each clip that failed, by its path and reason; after the first of an epoch only once of all others."""

    def __init__(self) -> None:
        self._epoch, self._named = -1, 0
        self._has_told_of_unknown = False

    def warn(self, epoch: int, step: int, clips: Iterable[FailedClip]) -> None:
        """Warn of the clips of a step."""
        if epoch != self._epoch:
            self._epoch, self._named = epoch, 0
        for clip in clips:
            self._named += 1
            if self._named <= MOST_NAMED:
                logger.warning("a clip of step %d could not be decoded: %s: %s", step, clip.path, clip.reason)
            elif self._named == MOST_NAMED + 1:
                logger.warning("more clips of epoch %d could not be decoded; Step.failures names them", epoch)

    def warn_of_unknown(self, world_size: int) -> None:
        """Warn once that failed clips of other ranks are not known."""
        if not self._has_told_of_unknown:
            self._has_told_of_unknown = True
            logger.warning(
                "clips failed; those of the other %d ranks are not known, so the weights of such steps sum to less than 1, "
                "and counts are this rank's; initialize torch.distributed, or give the loader all_reduce",
                world_size - 1,
            )
