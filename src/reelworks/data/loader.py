"""Micro-batches in the order of the plan, read ahead, and the loader that resumes exactly."""

from __future__ import annotations

import base64
import os
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

from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.data import decode_requests, resume, segment_record
from reelworks.data.dataset import Dataset
from reelworks.data.position import DataPosition, next_epoch
from reelworks.media import masks
from reelworks.media.decode import Frames, Request
from reelworks.media.decode_pool import DecodePool, Failure
from reelworks.run.folder import RunFolder
from reelworks.schedule import plan as planning
from reelworks.schedule import ranks
from reelworks.schedule.cursor import Aliases, Cursor, Excluded
from reelworks.schedule.plan import EpochPlan, PlanSpec

_CLIPS = "clips"
# By kind of companion, those of the clips themselves under `_CLIPS`.
_Jobs = dict[str, list[Future[Frames | Failure] | None]]


@dataclass(frozen=True)
class MicroBatchRequest:
    """One micro-batch to be read, every choice about its clips already drawn.

    Attributes:
        epoch, row: Place in the data.
        index: Place of the micro-batch in its step, for seeds of the model's own randomness.
        last: True for the last micro-batch that this rank has in the row.
        filler: True where the rank only keeps the others company: nothing of it counts.
        bucket: Index into the bucket table.
        uids, copies: Identities, one for each clip.
        showing: 0 where a clip is shown, n where it is shown for the nth time more, -1 where it only pads.
        requests: What to decode.
        captions, fps: As the model is told them.
        companions: What to decode of companions by kind, None for a clip whose dataset has none.
        preserved: True for a clip that teaches what the base says of it, not what it is.
        clips_in_step: Clips that count in the loss of the step, of all ranks.
    """

    epoch: int
    row: int
    index: int
    last: bool
    filler: bool
    bucket: int
    shape: Shape
    uids: NDArray[np.uint64]
    copies: NDArray[np.int64]
    showing: NDArray[np.int32]
    requests: tuple[Request, ...]
    captions: tuple[str, ...]
    fps: tuple[float, ...]
    companions: Mapping[str, tuple[Request | None, ...]] = field(default_factory=dict)
    preserved: tuple[bool, ...] = ()
    clips_in_step: int = 1

    @property
    def real(self) -> NDArray[np.bool_]:
        """False where a clip only pads the micro-batch."""
        real: NDArray[np.bool_] = self.showing >= 0
        return real

    @property
    def first(self) -> NDArray[np.bool_]:
        """True where the clip is not shown once more."""
        first: NDArray[np.bool_] = self.showing == 0
        return first

    @property
    def draw_copies(self) -> NDArray[np.int64]:
        """Numbers that tell the draws about a clip's copies and showings apart."""
        return planning.draw_copies(self.copies, self.showing)


@dataclass(frozen=True)
class MicroBatch:
    """Decoded work.

    Attributes:
        work: What was asked for.
        frames: `[B, T, H, W, 3]` uint8; zeros where a clip failed.
        counts: `[B]` True where a clip counts in the loss: real, decoded, and not of a filler.
        failures: Place in the micro-batch and reason, copies that pad left out.
        companions: `[B, T, H, W, 3]` uint8 by kind; white where a clip has none.
    """

    work: MicroBatchRequest
    frames: Tensor
    counts: Tensor
    failures: tuple[tuple[int, str], ...]
    companions: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        """True where the rank only joins in collectives: all weights are 0."""
        return self.work.filler

    @property
    def captions(self) -> tuple[str, ...]:
        """Caption of each clip, as the model is shown it."""
        return self.work.captions

    @property
    def fps(self) -> tuple[float, ...]:
        """Frames per second of each clip, as the model is told them."""
        return self.work.fps

    @property
    def loss_weight(self) -> Tensor:
        """`[B]` float32: 1 / clips of the step, and 0 where a clip does not count.

        Losses times these weights, summed over the micro-batches of all ranks, are the mean over the step's clips.
        """
        return self.counts.float() / max(self.work.clips_in_step, 1)

    @property
    def failed(self) -> int:
        """Clips that could not be decoded; a second showing is told, but is no clip of its own."""
        return sum(bool(self.work.first[place]) for place, _ in self.failures)


def read_ahead(work: Iterable[MicroBatchRequest], pool: DecodePool, depth: int) -> Iterator[MicroBatch]:
    """Yield micro-batches in the order of the work, with up to `depth` of them decoding ahead.

    The work may go on over the edge of an epoch; reading ahead then does too.
    """
    queue: deque[tuple[MicroBatchRequest, _Jobs]] = deque()
    source = iter(work)
    while True:
        while len(queue) < depth and (item := next(source, None)) is not None:
            queue.append((item, _submit(item, pool)))
        if not queue:
            return
        item, jobs = queue.popleft()
        yield _collect(item, jobs)


def _submit(work: MicroBatchRequest, pool: DecodePool) -> _Jobs:
    """Queue a micro-batch, each clip with its companions behind it."""
    jobs: _Jobs = {kind: [] for kind in (_CLIPS, *work.companions)}
    for place, request in enumerate(work.requests):
        jobs[_CLIPS].append(pool.submit(request))
        for kind, requests in work.companions.items():
            beside = requests[place]
            jobs[kind].append(None if beside is None else pool.submit(beside))
    return jobs


def _collect(work: MicroBatchRequest, jobs: _Jobs) -> MicroBatch:
    size = (len(work.requests), work.shape.num_frames, work.shape.height, work.shape.width, 3)
    frames = {kind: np.full(size, 0 if kind == _CLIPS else 255, dtype=np.uint8) for kind in jobs}
    failures: dict[int, str] = {}
    for kind, queued in jobs.items():
        for place, job in enumerate(queued):
            if job is None:
                continue
            result = _useful(kind, job.result())
            if not isinstance(result, Failure):
                frames[kind][place] = result
            elif kind == _CLIPS:
                failures[place] = result.reason
            else:
                beside = work.companions[kind][place]
                assert beside is not None  # it was submitted
                failures.setdefault(place, f"{kind} {beside.path}: {result.reason}")
    real = work.real & (not work.filler)
    counts = real.copy()
    counts[list(failures)] = False
    told = tuple((place, reason) for place, reason in sorted(failures.items()) if real[place])
    decoded = {kind: torch.from_numpy(array) for kind, array in frames.items()}
    return MicroBatch(work, decoded.pop(_CLIPS), torch.from_numpy(counts), told, decoded)


def _useful(kind: str, result: Frames | Failure) -> Frames | Failure:
    """Refuse a mask by which the clip would have no loss."""
    if kind == "loss_mask" and not isinstance(result, Failure) and not masks.counts(result):
        return Failure(masks.EMPTY)
    return result


@dataclass(frozen=True)
class StepSource:
    """The work of one rank, in the order of the plan.

    Attributes:
        data: The dataset.
        rank: This rank.
        world: Ranks in all.
        max_steps: Optimizer steps of the run after which there is no work; None for no such end.
        max_epochs: Epochs after which there is none; None for no such end.
        skips: Tells of a step whether it is left out; its clips are not read then.
    """

    data: Dataset
    rank: int
    world: int
    max_steps: int | None = None
    max_epochs: int | None = None
    skips: Callable[[int], bool] = lambda step: False

    def rows(self, position: DataPosition) -> Iterator[MicroBatchRequest]:
        """Yield the micro-batches from a position on, over the edges of epochs, to the end of training."""
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
        columns = list(ranks.columns(plan.rows[row], self.rank, self.world))
        clips, _ = _clips_of_row(plan, row)
        for place, (micro_batch, filler) in enumerate(columns):
            where = plan.places(micro_batch)
            yield self.work(
                plan.uid[where],
                plan.copy[where],
                plan.ordinal[where],
                int(plan.bucket[where.start]),
                epoch=epoch,
                row=row,
                index=place * self.world + self.rank,
                last=place == len(columns) - 1,
                filler=filler,
                showing=plan.showing[where],
                clips_in_step=clips,
            )

    def _preserved(self, rows: NDArray[np.int64]) -> tuple[bool, ...]:
        names = {d.dataset_name for d in self.data.spec.datasets if d.prior_prediction}
        return tuple(self.data.rows.dataset[row].as_py() in names for row in rows.tolist())

    def work(
        self,
        uids: NDArray[np.uint64],
        copies: NDArray[np.int64],
        ordinals: NDArray[np.int64],
        bucket: int,
        *,
        epoch: int,
        row: int = 0,
        index: int = 0,
        last: bool = True,
        filler: bool = False,
        showing: NDArray[np.int32] | None = None,
        clips_in_step: int | None = None,
    ) -> MicroBatchRequest:
        """Describe one micro-batch completely."""
        rows = np.searchsorted(self.data.rows.ordinal, ordinals)
        showing = np.zeros(len(uids), dtype=np.int32) if showing is None else showing
        drawn = planning.draw_copies(copies, showing)
        read = decode_requests.decode_requests(self.data, rows, drawn, bucket, epoch=epoch)
        return MicroBatchRequest(
            epoch=epoch,
            row=row,
            index=index,
            last=last,
            filler=filler,
            bucket=bucket,
            shape=self.data.table.buckets[bucket].shape,
            uids=uids,
            copies=copies,
            showing=showing,
            requests=tuple(read),
            captions=tuple(decode_requests.caption_of_row(self.data, r) for r in rows.tolist()),
            fps=tuple(decode_requests.shown_fps(self.data, r) for r in rows.tolist()),
            companions=decode_requests.companion_requests(self.data, rows, read),
            preserved=self._preserved(rows),
            clips_in_step=len(uids) if clips_in_step is None else clips_in_step,
        )


class Step:
    """An optimizer step: an iterable of this rank's micro-batches, to be gone through once, before the next step.

    Attributes:
        number: Optimizer steps done when it is, from 1.
        epoch: Epoch that it is of, from 0.
        clips: Clips that count in its loss, of all ranks.
    """

    def __init__(self, number: int, epoch: int, clips: int, micro_batches: Iterator[MicroBatch]) -> None:
        self.number, self.epoch, self.clips = number, epoch, clips
        self._micro_batches = micro_batches
        self._passed = False

    def __iter__(self) -> Iterator[MicroBatch]:
        if self._passed:
            raise RuntimeError(
                f"step {self.number} was passed over: its micro-batches were dropped when the next step was asked for; "
                "go through each step before that"
            )
        return self._micro_batches

    def drop_rest(self) -> None:
        """Go past the micro-batches that were not looked at."""
        self._passed = True
        deque(self._micro_batches, maxlen=0)


class Loader:
    """Steps of decoded micro-batches for one rank, with an exact resume.

    Iterating gives the steps that are left of the epoch; iterating again gives the next epoch. All ranks get the
    same number of steps, and of micro-batches in each. `state_dict` may be taken between any two steps, is the same
    on every rank, and loads at another number of ranks: each clip of the epoch is still trained exactly once.

    Args:
        dataset: What is read.
        micro_batches_per_step: Micro-batches of all ranks that make an optimizer step; None takes one for each rank.
        rank: This rank; None asks torch.distributed, then the environment (RANK), and is 0 elsewhere.
        world_size: Ranks; None asks as for the rank (WORLD_SIZE), and is 1 elsewhere.
        num_workers: Spawned processes that decode; 0 decodes in threads of this process.
        prefetch: Micro-batches that are decoded ahead.
        decode_timeout: Seconds after which a process that is still at one clip is ended, and the clip has failed.
        record_to: A folder of records of what was trained. With it a resume is exact also where the data or the
            buckets changed in between; all ranks name the same one.

    Raises:
        UserError: The rank is not one of them, or no clip fits a bucket.

    Examples:
        >>> import reelworks as rw
        >>> from reelworks.testing import sample_dataset
        >>> loader = rw.Loader(sample_dataset(), micro_batches_per_step=2)
        >>> clips = sum(int(m.counts.sum()) for step in loader for m in step)
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
        prefetch: int = 4,
        decode_timeout: float = 120.0,
        record_to: str | Path | None = None,
    ) -> None:
        self.dataset = dataset
        self.rank, self.world_size = place_of(rank, world_size)
        self.micro_batches_per_step = micro_batches_per_step or self.world_size
        self._workers, self._timeout, self._depth = num_workers, decode_timeout, prefetch
        self._run = None if record_to is None else RunFolder(Path(record_to))
        self._recorded: tuple[int, int, int] | None = None
        self._pool: DecodePool | None = None
        self.changes: list[str] = []
        self._spec = self._spec_of(self.world_size)
        self._position, _ = next_epoch(dataset, self._spec, None)

    @property
    def epoch(self) -> int:
        """The epoch under way, or done last; from 0."""
        return self._position.epoch

    @property
    def step(self) -> int:
        """Optimizer steps given out so far."""
        return self._position.global_step

    def __len__(self) -> int:
        """Optimizer steps of the epoch, or of what was left of it when the data changed."""
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
        stream = read_ahead(feed.rows(begun), self._pool, self._depth)
        for row in range(begun.row, begun.plan.steps):
            now = self._position
            clips, first = _clips_of_row(begun.plan, row)
            counts = now.counts.add(first, 0, 0, clips - first)
            self._position = replace(now, row=row + 1, global_step=now.global_step + 1, counts=counts)
            step = Step(self._position.global_step, now.epoch, clips, one_step(stream))
            yield step
            step.drop_rest()
            if self._position.row != row + 1 or self._position.plan is not begun.plan:
                return  # a state was loaded meanwhile

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the data: plain values, the same on every rank, which any serializer keeps."""
        position = self._position
        return {
            "cursor": position.to_cursor(self.dataset).to_json(),
            "same_bucket_run": self._spec.same_bucket_run,
            "excluded": _to_text(position.excluded.to_bytes()),
            "aliases": _to_text(position.aliases.to_bytes()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; `changes` then tells what differs from the data that it was taken with.

        Raises:
            UserError: The data or the settings changed, and there is no record of what was trained.
        """
        cursor = Cursor(**state["cursor"])
        spec = self._spec_of(state["same_bucket_run"])
        if self._run is None and (cursor.catalog, cursor.spec) != (self.dataset.digest, spec.digest()):
            raise UserError(
                "the data, the buckets or micro_batches_per_step changed since the state was taken, and nothing tells "
                "which clips were trained",
                code="data-changed",
                field="record_to",
                remedy="undo the change, or keep a record from the beginning: Loader(..., record_to=FOLDER)",
            )
        excluded = Excluded.from_bytes(_from_text(state["excluded"]))
        aliases = Aliases.from_bytes(_from_text(state["aliases"]))
        run = self._run or RunFolder(Path())
        resumed = resume.resume(self.dataset, spec, run, cursor, excluded, aliases)
        self._position, self.changes = resumed.position, resumed.changes
        self._spec = spec

    def close(self) -> None:
        """End the processes that decode; the loader may be used again."""
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


def _clips_of_row(plan: EpochPlan, row: int) -> tuple[int, int]:
    """Clips that count in the loss of a row, and those of them that are shown for the first time."""
    places = [plan.places(m) for m in plan.rows[row][plan.rows[row] >= 0].tolist()]
    return sum(int(plan.real[p].sum()) for p in places), sum(int(plan.first[p].sum()) for p in places)


def one_step(stream: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
    """Yield the micro-batches of the next step, and leave those behind it in the stream."""
    for micro_batch in stream:
        yield micro_batch
        if micro_batch.work.last:
            return


def _to_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _from_text(text: str) -> bytes:
    return base64.b64decode(text)


def place_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """This rank and the number of ranks: as given, else of torch.distributed, else of the environment, else 0 of 1.

    Raises:
        UserError: The rank is not one of them.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        known = torch.distributed.get_rank(), torch.distributed.get_world_size()
    else:
        known = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    rank, world_size = (
        one if given is None else given for given, one in zip((rank, world_size), known, strict=True)
    )
    if not 0 <= rank < world_size:
        raise UserError(
            f"there are {world_size} ranks",
            code="rank-outside-world",
            field="rank",
            value=rank,
            remedy=f"give a rank from 0 to {world_size - 1}, or leave rank and world_size out",
        )
    return rank, world_size
