"""Micro-batches: what is to be decoded, and what was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reelworks.core import units
from reelworks.core.arrays import I32, I64, U64, Mask
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.data.loader.part_masks import PartMask
from reelworks.data.media.decode import Request
from reelworks.data.media.framing import CropBox
from reelworks.data.media.sound import SoundRequest
from reelworks.data.schedule import plan as planning


@dataclass(frozen=True, kw_only=True)
class DrawnClips:
    """Clips that are read together; every random choice about them is already drawn.

    Attributes:
        copies: Repeat number of each clip.
        repeat_index: 0 for the first use of a clip, n for its nth repeat that fills a micro-batch, -1 for padding.
        captions, fps: Caption and frames per second of each clip, as the model gets them.
        companions: Decode requests of companions by kind, None for a clip whose dataset has none of the kind. Those of the
            sounds of sources have names of their own (`data.catalog.sources`).
        sounds: Requests for the sound of each clip, None where it is not needed; empty if no sound is read.
        target_is_base: True for a clip whose target is the base model's prediction.
        masks: Parts of each clip that are given to a model that is told them, None where a strategy draws none; empty if
            none are drawn.
        crops: Size of each clip's file and place of its crop; empty if they are not known.
    """

    uids: U64
    copies: I64
    repeat_index: I32
    requests: tuple[Request, ...]
    captions: tuple[str, ...]
    fps: tuple[float, ...]
    companions: Mapping[str, tuple[Request | SoundRequest | None, ...]] = field(default_factory=dict)
    sounds: tuple[SoundRequest | None, ...] = ()
    target_is_base: tuple[bool, ...] = ()
    masks: tuple[PartMask | None, ...] = ()
    crops: tuple[CropBox, ...] = ()

    @property
    def real(self) -> Mask:
        """False where a clip only pads the micro-batch."""
        return np.asarray(self.repeat_index >= 0)

    @property
    def is_first_use(self) -> Mask:
        """True for the first use of a clip, False for repeats and padding."""
        return np.asarray(self.repeat_index == 0)

    @property
    def draw_copies(self) -> I64:
        """Numbers that make the random draws of a clip's copies and repeats differ."""
        return planning.draw_copies(self.copies, self.repeat_index)


_NO_CLIPS = DrawnClips(
    uids=np.zeros(0, np.uint64),
    copies=np.zeros(0, np.int64),
    repeat_index=np.zeros(0, np.int32),
    requests=(),
    captions=(),
    fps=(),
)


@dataclass(frozen=True, kw_only=True)
class MicroBatchRequest(DrawnClips):
    """A micro-batch to be decoded: its clips, which have one bucket, and its place in a step.

    Attributes:
        bucket: Index into the bucket table.
        plan_step: Index of its optimizer step in the plan.
        index: Index of the micro-batch in its step over all ranks; seeds the model's random numbers.
        ends_step: True for the last micro-batch of this rank in the step.
        is_idle: True if the rank runs this micro-batch only to take part in collectives; it has no weight in the loss.
        clips_in_step: Clips that count in the loss of the optimizer step, over all ranks: the planned ones, or in a step of
            the loader those of them that were decoded.
        sequence_degree: Ranks that share the clips.
        held_bytes: Bytes that wait in memory with it besides frames, such as stored latents.
        part, parts: Which of the micro-batches that a sequence group trains side by side this is, and their number.
    """

    epoch: int
    bucket: int
    shape: Shape
    plan_step: int = 0
    index: int = 0
    ends_step: bool = True
    is_idle: bool = False
    clips_in_step: int = 1
    sequence_degree: int = 1
    held_bytes: int = 0
    part: int = 0
    parts: int = 1

    def __repr__(self) -> str:
        at = f"epoch={self.epoch}, plan_step={self.plan_step}, index={self.index}"
        return f"MicroBatchRequest({at}, {units.plural(len(self.uids), 'clip')} of {self.shape})"

    def without_clips(self) -> MicroBatchRequest:
        """Return the place of the micro-batch alone, of which nothing is decoded."""
        return replace(self, **vars(_NO_CLIPS))


@dataclass(frozen=True)
class StreamState:
    """State of reading ahead when a micro-batch was delivered.

    Attributes:
        wait_seconds: Time that training waited for the micro-batch.
        queue_bytes: Decoded frames that were waiting behind it.
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
        frames: `[B, T, H, W, 3]` uint8; zeros where a clip failed.
        is_valid: `[B]` True where a clip counts in the loss: decoded, no padding, and not idle.
        failures: Index in the micro-batch and reason of each failed clip, padding left out.
        companions: `[B, T, H, W, 3]` uint8 by kind, sources perhaps in sizes of their own; white where a clip has none. Sounds
            of sources are as `sound` is.
        sound: `[B, S, channels]` int16 samples of sound, zeros where a clip failed; None if no sound is read.
        stream: How far decoding was ahead when it was delivered.
        stops: Why no step may be made of it, if a clip was not read for a reason that is not its own, such as a storage that is away.

    Examples:
        >>> import reelworks as rw
        >>> from reelworks.testing import sample_dataset
        >>> micro_batch = next(iter(next(iter(rw.Loader(sample_dataset())))))
        >>> micro_batch
        MicroBatch(4×1×64×64×3 cpu, 4 of 4 clips valid)
        >>> sorted({clip["kind"] for clip in micro_batch.metadata})
        ['image']
    """

    request: MicroBatchRequest
    frames: Tensor
    is_valid: Tensor
    failures: tuple[tuple[int, str], ...]
    companions: Mapping[str, Tensor] = field(default_factory=dict)
    sound: Tensor | None = None
    stream: StreamState = field(default=StreamState(), compare=False)
    stops: UserError | None = None
    _rows: Callable[[U64], list[dict[str, Any]]] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        shape, idle = "×".join(map(str, self.frames.shape)), ", idle" if self.is_idle else ""
        valid = int(self.is_valid.sum())
        return f"MicroBatch({shape} {self.frames.device.type}, {valid} of {len(self.is_valid)} clips valid{idle})"

    @property
    def paths(self) -> tuple[str, ...]:
        """File of each clip: its path, or its address if it is remote."""
        return tuple(str(request.path) for request in self.request.requests)

    @property
    def uids(self) -> U64:
        """`[B]` identity of each clip, from its dataset and path; the same in every epoch and process."""
        return self.request.uids

    @property
    def metadata(self) -> list[dict[str, Any]]:
        """The catalog's columns of each clip, read from the catalog when they are asked for.

        A dict for each clip: `path` (below `root`), `dataset`, `kind`, `num_frames`, `height`, `width`, `fps`, `caption` as it
        is stored and all other columns by name, and `scores`, a dict of the numbers of its list by name, without missing ones.
        """
        assert self._rows is not None, "the Loader sets it"
        return self._rows(self.request.uids)

    @property
    def is_idle(self) -> bool:
        """True if the rank runs this micro-batch only to take part in collectives; all weights are 0."""
        return self.request.is_idle

    @property
    def captions(self) -> tuple[str, ...]:
        """Caption of each clip, as the model gets it."""
        return self.request.captions

    @property
    def fps(self) -> tuple[float, ...]:
        """Frames per second of each clip, as the model gets them."""
        return self.request.fps

    @property
    def loss_weight(self) -> Tensor:
        """`[B]` float32: 1 / clips of the step, and 0 where a clip does not count.

        The weighted losses, summed over the micro-batches of all ranks, are the mean over the step's clips.
        """
        return self.is_valid.float() / max(self.request.clips_in_step, 1)

    def without_frames(self) -> MicroBatch:
        """Return the account of the micro-batch alone, which keeps no frames in memory."""
        return MicroBatch(self.request, self.frames.new_empty(0), self.is_valid, self.failures, stream=self.stream)

    @property
    def failed(self) -> int:
        """Number of clips that could not be decoded; repeats are not counted again."""
        return sum(bool(self.request.is_first_use[index]) for index, _ in self.failures)


def valid_clips(request: MicroBatchRequest, failures: Mapping[int, str]) -> tuple[Tensor, tuple[tuple[int, str], ...]]:
    """Return `MicroBatch.is_valid` and `MicroBatch.failures` for the reasons of all failed clips, with padding."""
    real = request.real & (not request.is_idle)
    is_valid = real.copy()
    is_valid[list(failures)] = False
    return torch.from_numpy(is_valid), tuple((i, reason) for i, reason in sorted(failures.items()) if real[i])


def one_step(stream: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
    """Yield the micro-batches of the next step, and leave those behind it in the stream, which may not end within a step."""
    while True:
        yield (micro_batch := next(stream))  # a RuntimeError at the end, as after a StopIteration of a transform
        if micro_batch.request.ends_step:
            return
