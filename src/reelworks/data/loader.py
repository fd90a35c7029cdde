"""Read micro-batches ahead in the order of the plan, with a loader that resumes exactly."""

from __future__ import annotations

import base64
import itertools
import math
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.catalog.location import MediaPath
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.core.shape import Shape
from reelworks.data import decode_requests, device_frames, resume, segment_record
from reelworks.data.dataset import Dataset
from reelworks.data.position import DataPosition, next_epoch
from reelworks.media import decode, planes
from reelworks.media.config import PREFETCH_BYTES
from reelworks.media.crop_box import CropBox
from reelworks.media.decode import Frames, Request
from reelworks.media.decode_pool import Decoded, DecodePool, Failure
from reelworks.media.planes import Planes
from reelworks.run.folder import RunFolder
from reelworks.schedule import plan as planning
from reelworks.schedule.cursor import Aliases, Cursor, Excluded
from reelworks.schedule.plan import EpochPlan, PlanSpec, Samples

_CLIPS = "clips"
_NO_COMPANION = 255  # white
# More micro-batches than these bridge no longer stall; they would only take memory.
_MOST_AHEAD = 64
# Requests are prepared while training waits, so the queue grows over several steps.
_MOST_AT_ONCE = 4
_WARN_SECONDS = 60.0
# Decode jobs by kind of companion; the jobs of the clips themselves are under `_CLIPS`.
_Jobs = dict[str, list[Future[Decoded] | None]]


@dataclass(frozen=True)
class MicroBatchRequest:
    """A micro-batch to be decoded; every random choice about its clips is already drawn.

    Attributes:
        row: Row (optimizer step) of the epoch's plan.
        index: Index of the micro-batch in its step over all ranks; seeds the model's random numbers.
        ends_step: True for the last micro-batch of this rank in the row.
        is_idle: True if the rank runs this micro-batch only to take part in collectives; it has no weight in the loss.
        bucket: Index into the bucket table.
        copies: Repeat number of each clip.
        repeat_index: 0 for the first use of a clip, n for its nth repeat that fills a micro-batch, -1 for padding.
        captions, fps: Caption and frames per second of each clip, as the model gets them.
        companions: Decode requests of companions by kind, None for a clip whose dataset has none of the kind.
        target_is_base: True for a clip whose target is the base model's prediction.
        crops: Size of each clip's file and place of its crop; empty if they are not known.
        clips_in_step: Clips that count in the loss of the optimizer step, over all ranks.
    """

    epoch: int
    row: int
    index: int
    ends_step: bool
    is_idle: bool
    bucket: int
    shape: Shape
    uids: NDArray[np.uint64]
    copies: NDArray[np.int64]
    repeat_index: NDArray[np.int32]
    requests: tuple[Request, ...]
    captions: tuple[str, ...]
    fps: tuple[float, ...]
    companions: Mapping[str, tuple[Request | None, ...]] = field(default_factory=dict)
    target_is_base: tuple[bool, ...] = ()
    crops: tuple[CropBox, ...] = ()
    clips_in_step: int = 1

    @property
    def real(self) -> NDArray[np.bool_]:
        """False where a clip only pads the micro-batch."""
        return np.asarray(self.repeat_index >= 0)

    @property
    def is_first_use(self) -> NDArray[np.bool_]:
        """True for the first use of a clip, False for repeats and padding."""
        return np.asarray(self.repeat_index == 0)

    @property
    def draw_copies(self) -> NDArray[np.int64]:
        """Numbers that make the random draws of a clip's copies and repeats differ."""
        return planning.draw_copies(self.copies, self.repeat_index)


@dataclass(frozen=True)
class StreamState:
    """State of reading ahead when a micro-batch was delivered.

    Attributes:
        wait_seconds: Time that training waited for the micro-batch.
        queue_bytes: Decoded frames, or planes of frames, that were waiting behind it.
        decode_p50_seconds, decode_p99_seconds: Median and 99th percentile of the time that each of the last 1000 clips
            took in its decoder; None before the first.
    """

    wait_seconds: float = 0.0
    queue_bytes: int = 0
    decode_p50_seconds: float | None = None
    decode_p99_seconds: float | None = None


@dataclass(frozen=True)
class MicroBatch:
    """A decoded micro-batch.

    Attributes:
        frames: `[B, T, H, W, 3]` uint8, on the device that converts, or else on the CPU; zeros where a clip failed.
        is_valid: `[B]` True where a clip counts in the loss: decoded, no padding, and not idle.
        failures: Index in the micro-batch and reason of each failed clip, padding left out.
        companions: `[B, T, H, W, 3]` uint8 by kind; white where a clip has none.
        stream: How far decoding was ahead when it was delivered.
    """

    work: MicroBatchRequest
    frames: Tensor
    is_valid: Tensor
    failures: tuple[tuple[int, str], ...]
    companions: Mapping[str, Tensor] = field(default_factory=dict)
    stream: StreamState = field(default=StreamState(), compare=False)

    @property
    def is_idle(self) -> bool:
        """True if the rank runs this micro-batch only to take part in collectives; all weights are 0."""
        return self.work.is_idle

    @property
    def captions(self) -> tuple[str, ...]:
        """Caption of each clip, as the model gets it."""
        return self.work.captions

    @property
    def fps(self) -> tuple[float, ...]:
        """Frames per second of each clip, as the model gets them."""
        return self.work.fps

    @property
    def loss_weight(self) -> Tensor:
        """`[B]` float32: 1 / clips of the step, and 0 where a clip does not count.

        The weighted losses, summed over the micro-batches of all ranks, are the mean over the step's clips.
        """
        return self.is_valid.float() / max(self.work.clips_in_step, 1)

    @property
    def failed(self) -> int:
        """Number of clips that could not be decoded; repeats are not counted again."""
        return sum(bool(self.work.is_first_use[index]) for index, _ in self.failures)


class _Pending:
    """A micro-batch that is being decoded, each clip straight to its place.

    If a device converts, a clip's place is large enough for its planes; memory that is not written to is not taken.
    """

    def __init__(self, work: MicroBatchRequest, pool: DecodePool, device: torch.device | None) -> None:
        self.work, self._device = work, device
        size = _frames_size(work)
        limits = [0 if device is None else planes.most_bytes(request) for request in work.requests]
        own = size if device is None else (len(work.requests), max([math.prod(size[1:]), *limits]))
        self._frames = {kind: pool.array(own if kind == _CLIPS else size) for kind in (_CLIPS, *work.companions)}
        self._jobs: _Jobs = {kind: [] for kind in self._frames}
        for index, (request, limit) in enumerate(zip(work.requests, limits, strict=True)):
            self._jobs[_CLIPS].append(pool.submit(request, self._frames[_CLIPS].slot(index), planes_bytes=limit))
            for kind, requests in work.companions.items():
                companion = requests[index]
                slot = self._frames[kind].slot(index)
                self._jobs[kind].append(None if companion is None else pool.submit(companion, slot))

    @property
    def decoded_bytes(self) -> int:
        """Bytes of the clips that are done."""
        done = (job for jobs in self._jobs.values() for job in jobs if job is not None and job.done())
        return sum(_nbytes(job.result()) for job in done if not job.cancelled() and job.exception() is None)

    def cancel(self) -> None:
        """Drop the clips that are still queued."""
        for job in itertools.chain(*self._jobs.values()):
            if job is not None:
                job.cancel()

    def collect(self) -> tuple[dict[str, Tensor], dict[int, str]]:
        """Wait for the clips, and return the frames by kind, and the reason of each clip that failed."""
        failures: dict[int, str] = {}
        clips: list[Frames | Planes | None] = []
        for kind, jobs in self._jobs.items():
            frames = self._frames[kind].array
            for index, job in enumerate(jobs):
                result = None if job is None else _result(job, self.work.requests[index].path)
                reason = "" if result is None else self._reason(kind, index, result)
                if reason:
                    failures.setdefault(index, reason)
                if kind == _CLIPS:
                    clips.append(None if reason or isinstance(result, Failure) else result)
                elif reason or result is None:
                    frames[index] = _NO_COMPANION  # a worker may have died while writing
            self._frames[kind].close_file()
        collected = {kind: torch.from_numpy(memory.array) for kind, memory in self._frames.items()}
        if self._device is not None:
            return {**collected, _CLIPS: device_frames.to_device(clips, self.work.shape, self._device)}, failures
        for index, clip in enumerate(clips):
            if clip is None:
                collected[_CLIPS][index] = 0
        return collected, failures

    def _reason(self, kind: str, index: int, result: Decoded) -> str:
        if kind == "loss_mask" and isinstance(result, np.ndarray) and not decode.counts(result):
            result = Failure(decode.EMPTY)  # the clip would have no loss
        if not isinstance(result, Failure):
            return ""
        if kind == _CLIPS:
            return result.reason
        companion = self.work.companions[kind][index]
        assert companion is not None  # it was submitted
        return f"{kind} {companion.path}: {result.reason}"


def _nbytes(result: Decoded) -> int:
    if isinstance(result, Failure):
        return 0
    return result.data.nbytes if isinstance(result, Planes) else result.nbytes


def _frames_size(work: MicroBatchRequest) -> tuple[int, ...]:
    return len(work.requests), work.shape.num_frames, work.shape.height, work.shape.width, 3


def _result(job: Future[Decoded], path: MediaPath) -> Decoded:
    while True:
        try:
            return job.result(timeout=_WARN_SECONDS)
        except TimeoutError:
            logger.warning(f"still waiting after {_WARN_SECONDS:g} s for a clip to be decoded: {path}")


class _ReadAhead:
    """Queue of micro-batches that are decoding, in the order in which they are delivered."""

    def __init__(
        self, work: Iterable[MicroBatchRequest], pool: DecodePool, budget_bytes: int, device: torch.device | None
    ) -> None:
        self._source, self._pool, self._budget_bytes, self._device = iter(work), pool, budget_bytes, device
        self._queue: deque[_Pending] = deque()
        self._queued_bytes = 0
        self._error: Exception | None = None
        self._next = self._take()

    def fill(self) -> None:
        """Queue micro-batches while the budget lasts, at least one."""
        for _ in range(_MOST_AT_ONCE):
            work = self._next
            if work is None or len(self._queue) >= _MOST_AHEAD:
                return
            size = self._bytes(work)
            if self._queue and self._queued_bytes + size > self._budget_bytes:
                return
            self._queue.append(_Pending(work, self._pool, self._device))
            self._queued_bytes += size
            self._next = self._take()

    def deliver(self) -> MicroBatch | None:
        """Return the next micro-batch when it is decoded, None after the last.

        Raises:
            Exception: What the source raised, after all that it had given.
        """
        began = time.perf_counter()
        self.fill()
        if not self._queue:
            if self._error is not None:
                raise self._error
            return None
        head = self._queue.popleft()
        self._queued_bytes -= self._bytes(head.work)
        self.fill()  # decoding goes on while this micro-batch is waited for and trained
        frames, failures = head.collect()
        p50, p99 = self._pool.percentiles(50, 99)
        state = StreamState(
            wait_seconds=time.perf_counter() - began,
            queue_bytes=sum(pending.decoded_bytes for pending in self._queue),
            decode_p50_seconds=p50,
            decode_p99_seconds=p99,
        )
        return _micro_batch(head.work, frames, failures, state)

    def _bytes(self, work: MicroBatchRequest) -> int:
        frames = math.prod(_frames_size(work))
        own = frames if self._device is None else sum(map(planes.expected_bytes, work.requests))
        return own + frames * len(work.companions)

    def cancel(self) -> None:
        """Drop what is queued."""
        for pending in self._queue:
            pending.cancel()

    def _take(self) -> MicroBatchRequest | None:
        try:
            return next(self._source, None)
        except Exception as error:  # it concerns later steps; those before it are trained first
            self._error = error
            return None


def read_ahead(
    work: Iterable[MicroBatchRequest],
    pool: DecodePool,
    budget_bytes: int = PREFETCH_BYTES,
    device: torch.device | None = None,
) -> Iterator[MicroBatch]:
    """Yield the micro-batches of `work` in its order, while those behind them are decoded ahead.

    Clips are begun in this order and finished in any. Frames of at most `budget_bytes` are decoded ahead, or one
    micro-batch if it is larger. Reading ahead crosses the end of an epoch if `work` does. An error of `work` is raised
    after all micro-batches before it. With a `device`, plain videos are resized and converted to RGB there, and the
    frames of all clips lie there.
    """
    ahead = _ReadAhead(work, pool, budget_bytes, device)
    try:
        while (micro_batch := ahead.deliver()) is not None:
            yield micro_batch
    finally:
        ahead.cancel()


def _micro_batch(
    work: MicroBatchRequest, frames: dict[str, Tensor], failures: dict[int, str], stream: StreamState
) -> MicroBatch:
    real = work.real & (not work.is_idle)
    is_valid = real.copy()
    is_valid[list(failures)] = False
    real_failures = tuple((index, reason) for index, reason in sorted(failures.items()) if real[index])
    return MicroBatch(work, frames.pop(_CLIPS), torch.from_numpy(is_valid), real_failures, frames, stream)


@dataclass(frozen=True)
class StepSource:
    """The micro-batches that one rank reads, in the order of the plan.

    Attributes:
        max_steps: Optimizer steps of the run after which it ends, or None.
        max_epochs: Epochs after which it ends, or None.
        skips: Whether a step, by its number from 1, is skipped without reading its clips.
    """

    data: Dataset
    rank: int
    world: int
    max_steps: int | None = None
    max_epochs: int | None = None
    skips: Callable[[int], bool] = lambda step: False

    def rows(self, position: DataPosition) -> Iterator[MicroBatchRequest]:
        """Yield the micro-batches from a position on, across epochs, to the end of training."""
        max_steps, max_epochs = self.max_steps, self.max_epochs
        while max_epochs is None or position.epoch < max_epochs:
            left = position.plan.steps - position.row
            if max_steps is not None:
                left = min(left, max_steps - position.global_step)
            for ahead in range(left):
                if not self.skips(position.global_step + ahead + 1):
                    yield from self.row(position.plan, position.epoch, position.row + ahead)
            done = replace(position, global_step=position.global_step + left)
            last_epoch = max_epochs is not None and position.epoch + 1 >= max_epochs
            if last_epoch or (max_steps is not None and done.global_step >= max_steps):
                return
            position, _ = next_epoch(self.data, position.spec, done)

    def row(self, plan: EpochPlan, epoch: int, row: int) -> Iterator[MicroBatchRequest]:
        """Yield this rank's micro-batches of one step."""
        columns = list(planning.columns(plan.rows[row], self.rank, self.world))
        clips = _clips_of_row(plan, row)
        for index, (micro_batch, is_idle) in enumerate(columns):
            where = plan.places(micro_batch)
            yield self.work(
                Samples(plan.uid[where], plan.copy[where], plan.ordinal[where], plan.bucket[where]),
                epoch=epoch,
                row=row,
                index=index * self.world + self.rank,
                ends_step=index == len(columns) - 1,
                is_idle=is_idle,
                repeat_index=plan.repeat_index[where],
                clips_in_step=clips,
            )

    def work(
        self,
        clips: Samples,
        *,
        epoch: int,
        row: int = 0,
        index: int = 0,
        ends_step: bool = True,
        is_idle: bool = False,
        repeat_index: NDArray[np.int32] | None = None,
        clips_in_step: int | None = None,
        augments: bool = True,
    ) -> MicroBatchRequest:
        """Return the complete request of one micro-batch, whose clips have one bucket.

        Without `augments`, clips are neither flipped, rotated nor recoloured, and have their first caption.
        """
        rows, bucket = np.searchsorted(self.data.rows.ordinal, clips.ordinal), int(clips.bucket[0])
        repeat_index = np.zeros(len(clips), dtype=np.int32) if repeat_index is None else repeat_index
        drawn = planning.draw_copies(clips.copy, repeat_index)
        read = decode_requests.decode_requests(self.data, rows, drawn, bucket, epoch=epoch, augments=augments)
        base = {d.dataset_name for d in self.data.spec.datasets if d.prior_prediction}
        return MicroBatchRequest(
            epoch=epoch,
            row=row,
            index=index,
            ends_step=ends_step,
            is_idle=is_idle,
            bucket=bucket,
            shape=self.data.table.buckets[bucket].shape,
            uids=clips.uid,
            copies=clips.copy,
            repeat_index=repeat_index,
            requests=tuple(read),
            captions=decode_requests.captions_of(self.data, rows, drawn, epoch=epoch, draws=augments),
            fps=tuple(decode_requests.shown_fps(self.data, r) for r in rows.tolist()),
            companions=decode_requests.companion_requests(self.data, rows, read),
            target_is_base=tuple(self.data.rows.dataset[r].as_py() in base for r in rows.tolist()),
            crops=decode_requests.crop_boxes(self.data, rows, read),
            clips_in_step=len(clips) if clips_in_step is None else clips_in_step,
        )


class Step:
    """An optimizer step: an iterable of this rank's micro-batches, to be iterated once, before the next step.

    Attributes:
        number: Number of the step in the run, from 1.
        clips: Clips that count in the step's loss, over all ranks.
    """

    def __init__(self, number: int, epoch: int, clips: int, micro_batches: Iterator[MicroBatch]) -> None:
        self.number, self.epoch, self.clips = number, epoch, clips
        self._micro_batches = micro_batches
        self._passed = False

    def __iter__(self) -> Iterator[MicroBatch]:
        if self._passed:
            raise RuntimeError(
                f"the micro-batches of step {self.number} were dropped when the next step was requested; "
                "iterate each step before requesting the next"
            )
        return self._micro_batches

    def drop_rest(self) -> None:
        """Drop the micro-batches that were not iterated."""
        self._passed = True
        deque(self._micro_batches, maxlen=0)


class Loader:
    """Steps of decoded micro-batches for one rank, with an exact resume.

    Iterating yields the remaining steps of the epoch; iterating again yields the next epoch. All ranks get the same
    number of steps, and of micro-batches in each. `state_dict` may be taken between any two steps, is the same on
    every rank, and loads with another number of ranks: each clip of the epoch is still trained exactly once.

    Args:
        dataset: The dataset to read.
        micro_batches_per_step: Micro-batches of an optimizer step, over all ranks; None for one on each rank.
        rank: This rank; None takes it from torch.distributed or the environment (RANK), else 0.
        world_size: Number of ranks; None takes it from torch.distributed or the environment (WORLD_SIZE), else 1.
        num_workers: Spawned processes that decode, with two threads each; 0 decodes in threads of this process.
        prefetch_bytes: Frames that are decoded ahead, in bytes; at least one micro-batch is.
        decode_timeout: Seconds after which a process that still decodes the same clip is ended; the clip has failed.
        device: Device where plain videos are resized and converted to RGB, and where all frames then lie; None leaves
            both to the decoders.
        record_to: Folder of records of the trained clips, the same on all ranks. With it a resume is exact even if
            the data or the buckets changed in between.

    Raises:
        UserError: The rank is not below the number of ranks, or no clip fits a bucket.

    Examples:
        >>> import reelworks as rw
        >>> from reelworks.testing import sample_dataset
        >>> loader = rw.Loader(sample_dataset(), micro_batches_per_step=2)
        >>> clips = sum(int(m.is_valid.sum()) for step in loader for m in step)
        >>> clips, loader.epoch, loader.state_dict()["cursor"]["row"] == len(loader)
        (12, 0, True)
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        micro_batches_per_step: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        num_workers: int = 0,
        prefetch_bytes: int = PREFETCH_BYTES,
        decode_timeout: float = 120.0,
        device: torch.device | str | None = None,
        record_to: str | Path | None = None,
    ) -> None:
        self.dataset = dataset
        self.rank, self.world_size = place_of(rank, world_size)
        self.micro_batches_per_step = micro_batches_per_step or self.world_size
        self._workers, self._timeout, self._prefetch = num_workers, decode_timeout, prefetch_bytes
        self._device = None if device is None else torch.device(device)
        self._run = None if record_to is None else RunFolder(Path(record_to))
        self._recorded: tuple[int, int, int] | None = None
        self._pool: DecodePool | None = None
        self.changes: list[str] = []
        self._spec = self._spec_of(self.world_size)
        self._position, _ = next_epoch(dataset, self._spec, None)

    @property
    def epoch(self) -> int:
        """Number of the current epoch, or of the last one done; from 0."""
        return self._position.epoch

    @property
    def step(self) -> int:
        """Optimizer steps yielded so far."""
        return self._position.global_step

    def __len__(self) -> int:
        """Return the optimizer steps of the epoch, or of its rest if the data changed in the middle of it."""
        return self._position.plan.steps

    def __iter__(self) -> Iterator[Step]:
        if self._position.at_end:
            self._position, _ = next_epoch(self.dataset, self._spec, self._position)
        begun = self._position
        self._record(begun)
        if self._pool is None:
            self._pool = DecodePool(self._workers, self._timeout)
            weakref.finalize(self, self._pool.close)
        feed = StepSource(self.dataset, self.rank, self.world_size, max_epochs=begun.epoch + 1)
        stream = read_ahead(feed.rows(begun), self._pool, self._prefetch, self._device)
        for row in range(begun.row, begun.plan.steps):
            now = self._position
            clips, first = _clips_of_row(begun.plan, row), begun.plan.planned_in(row)
            counts = now.counts.add(first, 0, 0, clips - first)
            self._position = replace(now, row=row + 1, global_step=now.global_step + 1, counts=counts)
            step = Step(self._position.global_step, now.epoch, clips, one_step(stream))
            yield step
            step.drop_rest()
            if self._position.row != row + 1 or self._position.plan is not begun.plan:
                return  # the caller loaded a state in the meantime

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data as plain, serializable values, the same on every rank."""
        position = self._position
        return {
            "cursor": position.to_cursor(self.dataset).to_json(),
            "same_bucket_run": self._spec.same_bucket_run,
            "excluded": base64.b64encode(position.excluded.to_bytes()).decode(),
            "aliases": base64.b64encode(position.aliases.to_bytes()).decode(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; `changes` then lists the differences from the data of that state.

        Raises:
            UserError: The data or the settings changed, and there is no record of the trained clips.
        """
        cursor = Cursor(**state["cursor"])
        spec = self._spec_of(state["same_bucket_run"])
        if self._run is None and (cursor.catalog, cursor.spec) != (self.dataset.digest, spec.digest()):
            raise UserError(
                "the data, the buckets or micro_batches_per_step changed since the state was taken, and there is no "
                "record of the clips that were trained",
                code="data-changed",
                field="record_to",
                remedy="undo the change, or write records from the first step on: Loader(..., record_to=FOLDER)",
            )
        excluded = Excluded.from_bytes(base64.b64decode(state["excluded"]))
        aliases = Aliases.from_bytes(base64.b64decode(state["aliases"]))
        run = self._run or RunFolder(Path())
        self._position, self.changes = resume.resume(self.dataset, spec, run, cursor, excluded, aliases)
        self._spec = spec

    def close(self) -> None:
        """End the decoding processes; the loader can still be used afterwards and starts them again."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _spec_of(self, same_bucket_run: int) -> PlanSpec:
        per_step = self.micro_batches_per_step
        return self.dataset.plan_spec(per_step, same_bucket_run if per_step % same_bucket_run == 0 else 1)

    def _record(self, position: DataPosition) -> None:
        if self._run is not None and self.rank == 0 and self._recorded != position.key:
            segment_record.begin(self._run, self.dataset, position, "")
        self._recorded = position.key


def batches_of_row(plan: EpochPlan, row: int) -> list[tuple[int, int]]:
    """Return the bucket of each micro-batch of a row, over all ranks, and the number of its clips that count."""
    places = [plan.places(micro_batch) for micro_batch in plan.micro_batches(row).tolist()]
    return [(int(plan.bucket[p.start]), int((plan.repeat_index[p] >= 0).sum())) for p in places]


def _clips_of_row(plan: EpochPlan, row: int) -> int:
    return sum(clips for _, clips in batches_of_row(plan, row))


def one_step(stream: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
    """Yield the micro-batches of the next step, and leave those behind it in the stream."""
    for micro_batch in stream:
        yield micro_batch
        if micro_batch.work.ends_step:
            return


def place_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and number of ranks: the arguments, else from torch.distributed, the environment, or 0 and 1."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        known = torch.distributed.get_rank(), torch.distributed.get_world_size()
    else:
        known = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    rank, world_size = (
        default if value is None else value for value, default in zip((rank, world_size), known, strict=True)
    )
    if not 0 <= rank < world_size:
        raise UserError(
            f"the rank is not below the number of ranks, {world_size}",
            code="rank-outside-world",
            field="rank",
            value=rank,
            remedy=f"set a rank from 0 to {world_size - 1}, or omit rank and world_size",
        )
    return rank, world_size
