"""Read the micro-batches of the plan, with a loader that resumes exactly."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from reelworks.core import arguments, files
from reelworks.core.arguments import checked, whole
from reelworks.core.errors import UserError
from reelworks.core.words import tells_arguments
from reelworks.data.loader import left_out, loader_state, ranks, resume, segment_record
from reelworks.data.loader.dataset import Dataset
from reelworks.data.loader.loader_state import LoaderState
from reelworks.data.loader.micro_batch import MicroBatch
from reelworks.data.loader.position import next_epoch
from reelworks.data.loader.prefetch import read_ahead
from reelworks.data.loader.step import Step
from reelworks.data.loader.step_reader import StepReader
from reelworks.data.loader.step_source import StepSource
from reelworks.data.loader.upload import upload
from reelworks.data.media.config import PREFETCH_BYTES, DataConfig
from reelworks.data.media.decode import FrameReader
from reelworks.data.media.decode_pool import DecodePool
from reelworks.data.media.patience import AWAY_SECONDS
from reelworks.data.run.folder import RunFolder

Transform = Callable[[MicroBatch], MicroBatch]


class Loader(IterableDataset[Step]):
    """Steps of decoded micro-batches for one rank, with an exact resume.

    Iterating yields the remaining steps of the epoch; iterating again yields the next epoch. All ranks get the same
    number of steps, and of micro-batches in each. `state_dict` may be taken at any time, is the same on every rank, and
    loads with another number of ranks: each clip of the epoch is still trained exactly once.

    A step is given out when all of its clips are decoded, on all ranks, so that the weights of its losses sum to 1 over
    those that could be. This rank's micro-batches of one step lie in memory at once, and `prefetch_bytes` of frames
    behind them. A step in which no clip could be decoded is passed over, and the next one is given out.

    A step counts as trained once its micro-batches were iterated to the end. A state that is taken earlier, after an
    exception or Ctrl-C in the loop over them, or after a `break`, begins with that step again. A step that is not iterated
    to its end before the next one is requested is passed over, and its clips count as skipped.

    A loader has one iteration at a time: a new one ends the one before. Pickled, copied or forked, it takes its settings
    and its position along, and starts decoders of its own. Around it, `torch.utils.data.DataLoader(loader,
    batch_size=None)` works without workers.

    Args:
        dataset: The dataset to read.
        micro_batches_per_step: Micro-batches of an optimizer step, over all ranks; None for those of the state that is
            loaded, and one on each rank without one.
        rank: This rank; None takes it from torch.distributed or the environment (RANK), else 0.
        world_size: Number of ranks; None takes it from torch.distributed or the environment (WORLD_SIZE), else 1.
        num_workers: Spawned processes that decode, with two threads each; 0 decodes in threads of this process.
        prefetch_bytes: Frames that are decoded ahead of the step, in bytes; at least one micro-batch is.
        decode_timeout: Seconds after which a process that still decodes the same clip is ended; the clip has failed.
        device: Device on which all tensors of a micro-batch lie. On CUDA they are copied from pinned memory in a stream of
            its own, while earlier ones are trained. None leaves them on the CPU.
        record_to: Folder of records of the trained clips, of this loader alone and the same on all ranks. With it a resume is
            exact even if the data or the buckets changed in between.
        max_decode_failures: Share of an epoch's clips, from 0 to 1; if more than these cannot be decoded, loading stops.
        all_reduce: Sums a CPU tensor of integers over the ranks, in place; it is called once a step. None uses
            torch.distributed if its process group has these ranks. Otherwise a rank does not know which clips of other
            ranks failed, and warns when one of its own does: the weights of that step sum to less than 1.
        transform: Function of each `MicroBatch` that returns it changed, as `dataclasses.replace(micro_batch, frames=...)`.
            It runs in this process when the step is read, in the order of the plan. A resume is exact if its random
            numbers depend on the micro-batch alone, as those of `numpy.random.default_rng([m.request.epoch, *m.uids])`.
        decoder: Function of a video's local path and the numbers of frames in it, which returns them as uint8 RGB
            `[T, H, W, 3]`, upright and in SDR; they are resized and cropped here. None decodes with PyAV. With
            `num_workers`, or if the loader is pickled, it must be picklable: defined at the top of a module that can be imported,
            not in a notebook.

    Raises:
        UserError: The rank is not below the number of ranks, or no clip fits a bucket. While iterating: too many clips
            could not be decoded, or their storage gave none for ten minutes, or this process can start none of `num_workers`;
            the loader then stands before the step.

    Examples:
        >>> import reelworks as rw
        >>> from reelworks.testing import sample_dataset
        >>> loader = rw.Loader(sample_dataset(), micro_batches_per_step=2)
        >>> clips = sum(int(m.is_valid.sum()) for step in loader for m in step)
        >>> clips, loader.epoch, loader.state_dict()["cursor"]["plan_step"] == len(loader)
        (12, 0, True)
    """

    __contains__ = None  # `in` raises TypeError, where it would pass over all steps of the epoch

    @checked(
        dataset=arguments.a(Dataset),
        micro_batches_per_step=arguments.optional(arguments.whole(1)),
        rank=arguments.optional(arguments.whole(0)),
        world_size=arguments.optional(arguments.whole(1)),
        num_workers=arguments.whole(0),
        prefetch_bytes=arguments.whole(0),
        decode_timeout=arguments.number(above=0),
        device=arguments.optional(arguments.DEVICE),
        record_to=arguments.optional(arguments.PATH),
        max_decode_failures=arguments.number(0, 1),
        all_reduce=arguments.optional(arguments.FUNCTION),
        transform=arguments.optional(arguments.FUNCTION),
        decoder=arguments.optional(arguments.FUNCTION),
    )
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
        max_decode_failures: float = DataConfig().max_decode_failures,
        all_reduce: ranks.AllReduce | None = None,
        transform: Transform | None = None,
        decoder: FrameReader | None = None,
    ) -> None:
        _require_decoder(decoder, num_workers)
        self.dataset = dataset
        self._given_place = rank, world_size
        self.rank, self.world_size = ranks.place_of(rank, world_size)
        self._wanted_per_step = micro_batches_per_step
        self.micro_batches_per_step, same_bucket_run = ranks.shape_of_step(micro_batches_per_step, self.world_size)
        self._workers, self._timeout, self._prefetch = num_workers, decode_timeout, prefetch_bytes
        self._device = None if device is None else torch.device(device)
        self._run = None if record_to is None else RunFolder(Path(record_to).absolute())
        self._recorded = ""  # digest of the plan of the last record
        self._pool: DecodePool | None = None
        self._transform, self._decoder, self._all_reduce = transform, decoder, all_reduce
        self._has_told_of_left_out = False
        self.changes: list[str] = []
        first, _ = next_epoch(dataset, dataset.plan_spec(self.micro_batches_per_step, same_bucket_run), None)
        self._reader = StepReader(dataset, first, self.world_size, max_decode_failures, self._run)

    @property
    def epoch(self) -> int:
        """Number of the current epoch, or of the last one done; from 0."""
        return self._reader.position.epoch

    @property
    def step(self) -> int:
        """Optimizer steps done so far."""
        return self._reader.position.global_step

    def __len__(self) -> int:
        """Return the optimizer steps of the epoch, or of its rest if the data changed in the middle of it."""
        return self._reader.position.plan.num_steps

    @tells_arguments
    def __iter__(self) -> Iterator[Step]:
        self._require_own_place()
        begun, mine = self._reader.begin()
        if self.rank == 0 and not self._has_told_of_left_out:
            left_out.warn(self.dataset, begun.epoch)
        self._has_told_of_left_out = True
        self._record()
        if self._pool is None or not self._pool.may_be_used:
            self.close()
            self._pool = DecodePool(self._workers, self._timeout, patience_seconds=AWAY_SECONDS)
            self._pool.close_after(self)
        source = StepSource(self.dataset, self.rank, self.world_size, max_epochs=begun.epoch + 1, decoder=self._decoder)
        all_reduce = self._all_reduce or ranks.sum_of_process_group(self.rank, self.world_size)
        stream = read_ahead(source.requests_from(begun), self._pool, self._prefetch)
        if self._device is not None:
            stream = upload(stream, self._device)
        yield from self._reader.steps(mine, map(self._finished, stream), self._pool, all_reduce)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data as plain, serializable values, the same on every rank."""
        position = self._reader.position
        state = LoaderState(
            position.to_cursor(self.dataset),
            position.spec.micro_batches_per_step,
            position.spec.same_bucket_run,
            position.excluded,
            position.aliases,
        )
        return state.to_plain()

    @tells_arguments
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; `changes` then lists the differences from the data of that state.

        Raises:
            UserError: It is no state of a loader, or the data or the settings changed within an epoch and there is no
                record of the trained clips.
        """
        loaded = LoaderState.from_plain(state)
        per_step = self._wanted_per_step or loaded.micro_batches_per_step
        run = loaded.same_bucket_run
        spec = self.dataset.plan_spec(per_step, run if per_step % run == 0 else 1)
        cursor, clips = loaded.cursor, (loaded.excluded, loaded.aliases)
        same = (cursor.catalog, cursor.spec) == (self.dataset.digest, spec.digest())
        if same or self._run is not None:
            try:
                restored = resume.resume(self.dataset, spec, self._run or RunFolder(Path()), cursor, *clips)
            except UserError as error:
                if error.code != "record-missing":
                    raise
                raise loader_state.data_changed(self.dataset, spec, cursor, error) from None
        elif (unbegun := resume.without_record(self.dataset, spec, cursor)) is not None:
            restored = unbegun
        else:
            raise loader_state.data_changed(self.dataset, spec, cursor, None)
        self._reader.position, self.changes = restored
        self.micro_batches_per_step = per_step
        if not same:
            # A state may be taken before the first step of the new plan, and the data change again.
            self._record()

    @checked(epoch=whole(0))
    def restart(self, epoch: int = 0) -> None:
        """Begin the data again at the first step of an epoch, by default the first; `step` counts on.

        As `reset` of torchdata's nodes does. `loader.restart(loader.epoch)` begins the current epoch again. The
        records of what was trained before stay.

        Raises:
            UserError: The epoch is no whole number of at least 0.
        """
        now = self._reader.position
        former = replace(now, epoch=epoch - 1, data_restarts=now.data_restarts + 1)
        (self._reader.position, _), self.changes = next_epoch(self.dataset, now.spec, former), []

    def close(self) -> None:
        """End the decoding processes; the loader can still be used afterwards and starts them again."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __repr__(self) -> str:
        at = f"epoch {self.epoch}, step {self.step}, rank {self.rank} of {self.world_size}"
        return f"Loader({self.dataset!r}, {self.micro_batches_per_step} micro-batches per step, {at})"

    def _finished(self, micro_batch: MicroBatch) -> MicroBatch:
        """Return a micro-batch with access to the catalog, and transformed."""
        micro_batch = replace(micro_batch, _rows=self.dataset.metadata)
        valid = micro_batch.is_valid
        version = valid.is_inference() or valid._version  # to compare numbers would wait for the device
        made = micro_batch if self._transform is None else self._transform(micro_batch)
        if (
            isinstance(made, MicroBatch)
            and made.request is micro_batch.request
            and getattr(made.frames, "shape", ())[:1] == micro_batch.frames.shape[:1]
            and version == (valid.is_inference() or valid._version)
            and (made.is_valid is valid or torch.equal(made.is_valid.cpu(), valid.cpu()))
        ):
            return made
        raise UserError(
            f"it returned a {type(made).__name__} that is not the micro-batch with changed frames alone",
            code="transform-result-invalid",
            field="transform",
            value=getattr(self._transform, "__name__", self._transform),
            remedy="return dataclasses.replace(micro_batch, frames=...), with the same clips in the same order",
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return settings and position, without decoders; a shallow copy has a position of its own, too."""
        return vars(self) | {"_pool": None, "_reader": copy.copy(self._reader)}

    def _require_own_place(self) -> None:
        """Refuse to read for another process than the one that trains."""
        if get_worker_info() is not None:
            raise RuntimeError(
                "a Loader cannot be read in the workers of a DataLoader: its position would be that of a worker. Give "
                "the DataLoader num_workers=0, and the Loader num_workers of its own, which decode"
            )
        now = ranks.place_of(*self._given_place)
        if now != (self.rank, self.world_size):
            raise UserError(
                f"the loader was made for rank {self.rank} of {self.world_size}, and this is rank {now[0]} of {now[1]}",
                code="rank-changed",
                field="rank",
                value=self.rank,
                remedy="make the loader after init_process_group, in the process that uses it, or give rank and world_size",
            )

    def _record(self) -> None:
        if self._run is None or self.rank:
            return
        position = self._reader.position
        plan = f"{position.key} {position.plan.digest()}"
        if self._recorded != plan and not segment_record.is_recorded(self._run, self.dataset, position):
            with files.writing("record_to", self._run.path):
                segment_record.begin(self._run, self.dataset, position, "")
        self._recorded = plan


def _require_decoder(decoder: FrameReader | None, num_workers: int) -> None:
    if decoder is not None and num_workers:
        try:
            pickle.dumps(decoder)
        except Exception as error:  # anything may be raised by what is pickled
            raise UserError(
                f"it cannot be sent to the processes that decode: {error}",
                code="decoder-not-picklable",
                field="decoder",
                value=getattr(decoder, "__name__", decoder),
                remedy="define it at the top of a module, or set num_workers=0",
            ) from None
