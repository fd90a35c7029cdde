"""Encode micro-batches from the store in place of their files; clips that are missing there are decoded.

What is missing is encoded when the trainer needs it, as without a store, and then stored. A clip of which everything is
stored is not opened at all. Loss masks are small and always decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.buckets.table import BucketTable
from reelworks.data.distributed.mesh import World
from reelworks.data.loader import prefetch, upload
from reelworks.data.loader.dataset import Dataset
from reelworks.data.loader.micro_batch import MicroBatch, MicroBatchRequest, valid_clips
from reelworks.data.media import decode, decode_pool
from reelworks.data.media.decode import Request
from reelworks.data.media.decode_pool import DecodePool
from reelworks.data.media.reading import MediaError
from reelworks.data.media.sound import SoundRequest
from reelworks.models.api import TextEmbedding
from reelworks.training.encoding import conditioning, request_key, values
from reelworks.training.encoding.batch_encoder import BatchEncoder, LiveBatchEncoder
from reelworks.training.encoding.conditioning import CLIP
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.encoding.request_key import EMPTY, TEXT, TEXTS, Keys, Wanted
from reelworks.training.encoding.store import DamagedEntry, EncodedStore

_READERS = 2  # each with a micro-batch that is in no budget yet
_MASK = "loss_mask"
StoredTensors = dict[str, Tensor]


@dataclass(frozen=True)
class StoredLatents:
    """A store and the keys of a dataset's clips in it."""

    store: EncodedStore
    keys: Keys

    @property
    def data(self) -> Dataset:
        """The dataset of the clips."""
        return self.keys.data

    def find(self, wanted: Mapping[str, Wanted]) -> StoredTensors:
        """Read the values of a clip that are stored, without embeddings of captions."""
        found = {name: self.get(each) for name, each in wanted.items() if name not in TEXTS}
        return {name: value for name, value in found.items() if value is not None}

    def get(self, wanted: Wanted) -> Tensor | None:
        """Read a value; None if it is not stored, or damaged."""
        try:
            return self.store.read(wanted.key)
        except KeyError:
            return None
        except DamagedEntry as damage:
            logger.warning("a stored tensor is damaged and is encoded again: %s", damage)
            self.store.forget(wanted.key)
            return None

    def keep(self, wanted: Wanted, value: Tensor) -> None:
        """Store a value that was missing; a full disk is no reason to end a training."""
        try:
            self.store.put(wanted, value)
        except UserError as error:
            logger.warning("a latent cannot be stored (%s); going on without", error.problem)

    def close(self) -> None:
        """Write what was put last."""
        try:
            self.store.commit()
        except UserError as error:
            logger.warning("latents cannot be stored (%s)", error.problem)

    def kinds_to_read(self, wanted: Mapping[str, Wanted], found: StoredTensors) -> list[str]:
        """Return the kinds of frames that the missing values of a clip are computed from."""
        seen = tuple(self.keys.seen(wanted))
        missing = [
            name for name in wanted if name not in found and not (name in TEXTS and wanted[name].key in self.store)
        ]
        return sorted({kind for name in missing for kind in values.frames_for(name, seen, self.keys.ids.parts)})


@dataclass(frozen=True)
class StoredBatch(MicroBatch):
    """A micro-batch whose latents were stored, of which `frames` hold nothing.

    Attributes:
        wanted: Keys of each clip's values by name.
        found: Stored values of each clip by name.
        decoded: `[1, T, H, W, 3]` frames of each clip by kind, of which the other values are computed.
        heard: `[1, S, channels]` samples of each clip whose sound was not stored.
        broken: Clips of which a file could not be decoded, padding included.
    """

    wanted: Sequence[Mapping[str, Wanted]] = ()
    found: Sequence[StoredTensors] = ()
    decoded: Sequence[Mapping[str, Tensor]] = ()
    heard: Mapping[int, Tensor] = field(default_factory=dict)
    broken: frozenset[int] = frozenset()


@dataclass(frozen=True)
class StoredBatchEncoder(BatchEncoder[StoredBatch]):
    """Read clips from a store, and encode and store what is missing there. Each rank of a sequence group reads its own."""

    source: StoredLatents

    def decodes(self, table: BucketTable) -> bool:
        """Return whether this rank decodes clips, which each does whose values are missing."""
        return True

    def read(self, requests: Iterable[MicroBatchRequest], pool: DecodePool, budget_bytes: int) -> Iterator[StoredBatch]:
        """Yield the micro-batches of `requests` in their order; two threads read the store ahead."""
        with ThreadPoolExecutor(_READERS, thread_name_prefix="stored") as readers:
            items = _in_order(requests, lambda each: readers.submit(_Item, each, self.source))
            waiting: deque[_Item] = deque()
            with suppress(GeneratorExit):
                for batch in prefetch.read_ahead(_remaining(items, waiting), pool, budget_bytes):
                    yield waiting.popleft().complete(batch)

    def _values(self, batch: StoredBatch) -> tuple[StoredBatch, dict[str, Tensor]]:
        failures = dict(batch.failures)
        for i in range(len(batch.wanted)):
            self._complete(batch, i, failures)
        is_valid, real_failures = valid_clips(batch.request, failures)
        batch = replace(batch, is_valid=is_valid, failures=real_failures)
        # The first clip has the names of all: clips of a micro-batch have the same companions.
        names = [name for name in batch.wanted[0] if name not in TEXTS]
        stacked = {name: torch.stack([found[name] for found in batch.found]) for name in names}
        return batch, {name: upload.to_device(value, self.encoders.device).float() for name, value in stacked.items()}

    def _texts(self, batch: StoredBatch, dropped: Sequence[bool]) -> TextEmbedding:
        drops = self.encoders.conditioning.empty_caption == "encoded"
        rows, refused = [], self.source.store.refused
        for i, drop in enumerate(dropped):
            wanted = batch.wanted[i][EMPTY if drop and drops else TEXT]
            try:
                if wanted.key not in refused:
                    row = self.encoders.embedded.get(wanted.key, partial(self._embed, batch, i, wanted))
                # It is refused by now, or was before: `_complete` lets the clip fail.
                rows.append(values.blank_text(self.encoders) if wanted.key in refused else row)
            except MediaError as error:  # what stands in is not cached, as the next use may read the file
                if i not in batch.broken:
                    logger.warning(
                        f"{batch.wanted[i][TEXT].label}: a caption is embedded without its pictures: {error}"
                    )
                    rows.append(values.unpack(values.pack(self.encoders.text_encoder.encode([wanted.label]))))
                else:  # it is not trained
                    rows.append(values.blank_text(self.encoders))
        return TextEmbedding(
            *(upload.to_device(torch.cat(parts), self.encoders.device) for parts in zip(*rows, strict=True))
        )

    def _embed(self, batch: StoredBatch, i: int, wanted: Wanted) -> TextEmbedding:
        packed = self.source.get(wanted)
        if packed is None:
            seen = values.frames_for(TEXT, tuple(self.source.keys.seen(batch.wanted[i])))
            if seen and i in batch.broken:
                raise MediaError("a file of the clip could not be decoded")
            frames = {}  # which are decoded now if a stored embedding is found to be damaged
            for kind in seen:
                if kind in batch.decoded[i]:
                    frames[kind] = batch.decoded[i][kind].cpu()
                    continue
                request = _request(batch.request, i, kind)
                assert request is not None, "the clip has this source"
                frames[kind] = torch.from_numpy(decode_pool.load(request)[None])
            clip, num_frames = frames.pop(CLIP, torch.empty(0)), batch.request.shape.num_frames
            shown = conditioning.seen_by_texts(self.encoders, frames, clip, num_frames) if seen else []
            packed = values.pack(self.encoders.text_encoder.encode([wanted.label], shown))
            if not seen or request_key.unchanged(self.source.data, batch.request, i, seen):
                self.source.keep(wanted, packed)
        return values.unpack(packed)

    def _complete(self, batch: StoredBatch, i: int, failures: dict[int, str]) -> None:
        """Compute the values that are missing of a clip, and store them unless its file failed or has changed.

        A clip with a value that is not finite, that of its caption too, is added to `failures`.
        """
        request, found, keys = batch.request, batch.found[i], self.source.keys
        for name in batch.wanted[i]:
            if name in TEXTS or name in found:
                continue
            if i in batch.broken:  # its loss is left out, so that no encoder is loaded for it
                of_kind = _request(request, i, name)
                shape = request.shape if of_kind is None else of_kind.shape
                found[name] = torch.zeros(values.value_shape(self.encoders, name, shape))
                continue
            kinds = values.frames_for(name, parts=keys.ids.parts)
            frames: Mapping[str, Tensor] = {kind: batch.decoded[i][kind] for kind in kinds}
            if name == request_key.CONTROL:
                frames = conditioning.with_drawn_masks(frames, request.masks[i : i + 1], request.shape)
            value = values.encode(self.encoders, name, frames, batch.heard.get(i))[0].cpu()
            found[name] = value = value.to(latent_dtype(keys, name))
            if request_key.unchanged(self.source.data, request, i, kinds):
                self.source.keep(batch.wanted[i][name], value)
            if batch.wanted[i][name].key in self.source.store.refused:
                found[name] = torch.zeros_like(value)
        for wanted in batch.wanted[i].values():
            if (refused := self.source.store.refused.get(wanted.key)) is not None:
                failures.setdefault(i, refused)


def choose(encoders: FrozenEncoders, world: World, stored: StoredLatents | None) -> BatchEncoder[Any]:
    """Return the encoder of micro-batches that reads from a store, or the live one without a store."""
    return LiveBatchEncoder(encoders, world) if stored is None else StoredBatchEncoder(encoders, stored)


def latent_dtype(keys: Keys, name: str) -> torch.dtype:
    """Return the dtype in which a value is stored; embeddings of images stay float32."""
    dtype: torch.dtype = getattr(torch, keys.ids.latent_dtype)
    return torch.float32 if name == request_key.IMAGE else dtype


class _Item:
    """A micro-batch on its way: what is stored of it, and the requests that remain to be decoded."""

    def __init__(self, work: MicroBatchRequest, source: StoredLatents) -> None:
        self.request, self.source = work, source
        self.wanted = source.keys.wanted(work)
        self.found = [source.find(wanted) for wanted in self.wanted]
        refused = source.store.refused  # and so these values will be again
        self.failures = {i: refused[w.key] for i, of in enumerate(self.wanted) for w in of.values() if w.key in refused}
        to_read: list[tuple[int, str, Request | SoundRequest]] = []
        for i, (wanted, found) in enumerate(zip(self.wanted, self.found, strict=True)):
            if i in self.failures:
                continue
            kinds = source.kinds_to_read(wanted, found)
            to_read += [(i, kind, request) for kind in kinds if (request := _request(work, i, kind)) is not None]
            if (mask := _request(work, i, _MASK)) is not None:
                to_read.append((i, _MASK, mask))
        # Sources of other sizes, and sounds, come last, and are read as companions.
        self.to_read = sorted(to_read, key=lambda each: each[2].shape != work.shape)
        self._same_size = sum(request.shape == work.shape for *_, request in to_read)

    def remaining(self) -> MicroBatchRequest:
        """Return the micro-batch with the requests that remain as its clips, perhaps none, and as companions of no clip."""
        n, companions = len(self.to_read), dict[str, list[Request | SoundRequest | None]]()
        for at, (_, kind, request) in enumerate(self.to_read[self._same_size :], start=self._same_size):
            companions.setdefault(kind, [None] * n)[at] = request
        clips = [i for i, _, _ in self.to_read]
        sounds = (  # those that are missing, once for each clip
            self.request.sounds[i] if kind == CLIP and request_key.SOUND not in self.found[i] else None
            for i, kind, _ in self.to_read
        )
        return replace(
            self.request,
            uids=self.request.uids[clips],
            copies=self.request.copies[clips],
            repeat_index=np.zeros(n, dtype=np.int32),
            is_idle=False,
            requests=tuple(r for _, _, r in self.to_read[: self._same_size] if isinstance(r, Request)),
            captions=("",) * n,
            fps=(0.0,) * n,
            companions={kind: tuple(requests) for kind, requests in companions.items()},
            sounds=tuple(sounds) if self.request.sounds else (),
            target_is_base=(False,) * n,
            masks=(),
            held_bytes=sum(value.nbytes for found in self.found for value in found.values()),
        )

    def complete(self, read: MicroBatch) -> StoredBatch:
        """Return the micro-batch with what was decoded of it."""
        clips, reasons, failures = len(self.request.requests), dict(read.failures), self.failures.copy()
        decoded: list[dict[str, Tensor]] = [{} for _ in range(clips)]
        heard, companions = dict[int, Tensor](), dict[str, Tensor]()
        if _MASK in self.request.companions:
            companions[_MASK] = read.frames.new_full((clips, *read.frames.shape[1:]), 255)
        for at, (i, kind, request) in enumerate(self.to_read):
            is_companion, reason = at >= self._same_size, reasons.get(at)
            frames = (read.companions[kind] if is_companion else read.frames)[at : at + 1]
            if kind != _MASK:
                decoded[i][kind] = frames
            elif reason is None and not decode.has_white_area(frames[0].numpy()):
                reason = decode.EMPTY  # the clip would have no loss
            elif reason is None:
                companions[_MASK][i] = frames[0]
            if kind == CLIP and read.sound is not None:
                heard[i] = read.sound[at : at + 1]
            if reason is not None:
                is_named = kind == CLIP or is_companion
                failures.setdefault(i, reason if is_named else f"{kind} {request.path}: {reason}")
        is_valid, real_failures = valid_clips(self.request, failures)
        return StoredBatch(
            request=self.request,
            frames=torch.zeros(clips, 0, 0, 0, 3, dtype=torch.uint8),
            is_valid=is_valid,
            failures=real_failures,
            companions=companions,
            stream=read.stream,
            stops=read.stops,
            wanted=self.wanted,
            found=self.found,
            decoded=decoded,
            heard=heard,
            broken=frozenset(failures),
        )


def _request(work: MicroBatchRequest, i: int, kind: str) -> Request | SoundRequest | None:
    if kind == CLIP:
        return work.requests[i]
    return work.companions[kind][i] if kind in work.companions else None


def _in_order(
    work: Iterable[MicroBatchRequest], submit: Callable[[MicroBatchRequest], Future[_Item]]
) -> Iterator[_Item]:
    queue: deque[Future[_Item]] = deque()
    source = iter(work)
    while True:
        while len(queue) < _READERS and (each := next(source, None)) is not None:
            queue.append(submit(each))
        if not queue:
            return
        yield queue.popleft().result()


def _remaining(items: Iterator[_Item], waiting: deque[_Item]) -> Iterator[MicroBatchRequest]:
    for item in items:
        waiting.append(item)
        yield item.remaining()
