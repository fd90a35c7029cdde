"""Micro-batches whose clips are read from the store in place of their files; clips that are missing there are decoded.

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

import numpy as np
import torch
from torch import Tensor

from reelworks.catalog.companions import REJECTED
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data import prefetch
from reelworks.data.dataset import Dataset
from reelworks.data.micro_batch import MicroBatch, MicroBatchRequest
from reelworks.distributed import transfer
from reelworks.encoders import conditioning, request_key, store, values
from reelworks.encoders.conditioning import CLIP
from reelworks.encoders.encoders import LiveEncoder
from reelworks.encoders.request_key import TEXT, Keys, Wanted
from reelworks.encoders.store import DamagedEntry, EncodedStore
from reelworks.media import decode
from reelworks.media.decode import Request
from reelworks.media.decode_pool import DecodePool
from reelworks.media.sound import SoundRequest
from reelworks.models.api import TextEmbedding

_READERS = 2
_ITEMS_AHEAD = 4
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
        """Read the values of a clip that are stored, without the embedding of its caption."""
        found = {}
        for name, each in wanted.items():
            if name != TEXT and (value := self.get(each)) is not None:
                found[name] = value
        return found

    def get(self, wanted: Wanted) -> Tensor | None:
        """Read a value; None if it is not stored, or damaged."""
        try:
            return self.store.read(wanted.key)
        except KeyError:
            return None
        except DamagedEntry as damage:
            store.log_damage(damage)
            self.store.forget(wanted.key)
            return None

    def keep(self, wanted: Wanted, value: Tensor) -> None:
        """Store a value that was missing; a full disk is no reason to end a training."""
        try:
            self.store.put(wanted, value)
        except UserError as error:
            logger.warning("a latent cannot be stored (%s); going on without", error.problem)
            self.store.drop_pending()

    def close(self) -> None:
        """Write what was put last."""
        try:
            self.store.commit()
        except UserError as error:
            logger.warning("latents cannot be stored (%s)", error.problem)

    def kinds_to_read(self, wanted: Mapping[str, Wanted], found: StoredTensors) -> list[str]:
        """Return the kinds of frames that the missing values of a clip are computed from."""
        seen = values.sources_in(wanted) if self.keys.ids.text_sees_pictures else ()
        missing = [
            name for name in wanted if name not in found and not (name == TEXT and wanted[TEXT].key in self.store)
        ]
        return sorted({kind for name in missing for kind in values.frames_for(name, seen, self.keys.ids.parts)})


@dataclass(frozen=True)
class StoredBatch(MicroBatch):
    """A micro-batch whose latents were stored, of which `frames` hold nothing.

    Attributes:
        source: Store and keys.
        wanted: Keys of each clip's values by name.
        found: Stored values of each clip by name.
        decoded: `[1, T, H, W, 3]` frames of each clip by kind, of which the other values are computed.
        heard: `[1, S, channels]` samples of each clip whose sound was not stored.
        broken: Clips of which a file could not be decoded, padding included.
    """

    source: StoredLatents = None  # type: ignore[assignment]  # fields after defaults need one
    wanted: Sequence[Mapping[str, Wanted]] = ()
    found: Sequence[StoredTensors] = ()
    decoded: Sequence[Mapping[str, Tensor]] = ()
    heard: Mapping[int, Tensor] = field(default_factory=dict)
    broken: frozenset[int] = frozenset()

    def values(self, encoder: LiveEncoder) -> dict[str, Tensor]:
        """Return the clips' latents and conditions by name, `[B, ...]` float32 on the encoder's device."""
        for i in range(len(self.wanted)):
            self._complete(i, encoder)
        names = [name for name in self.wanted[0] if name != TEXT]
        stacked = {name: torch.stack([f[name] for f in self.found]) for name in names}
        return {name: transfer.to_device(value, encoder.device).float() for name, value in stacked.items()}

    def texts(self, encoder: LiveEncoder, dropped: Sequence[bool]) -> TextEmbedding:
        """Return the captions' embeddings as `LiveEncoder.texts` does."""
        drops = encoder.conditioning.empty_caption == "encoded"
        rows = []
        for i, drop in enumerate(dropped):
            caption = "" if drop and drops else self.request.captions[i]
            wanted = self.source.keys.text(caption, self.source.keys.seen(self.wanted[i]))
            rows.append(encoder.embedded.get(wanted.key, partial(self._embed, encoder, wanted, caption, i)))
        return TextEmbedding(
            *(transfer.to_device(torch.cat(parts), encoder.device) for parts in zip(*rows, strict=True))
        )

    def _embed(self, encoder: LiveEncoder, wanted: Wanted, caption: str, i: int) -> TextEmbedding:
        packed, seen = self.source.get(wanted), self.source.keys.seen(self.wanted[i])
        if packed is None and i in self.broken and seen:
            return values.blank_text(encoder)
        if packed is None:
            decoded = self.decoded[i]
            pictures = [decoded[name][:, 0].cpu() for name in values.sources_in(decoded)]
            packed = values.pack(encoder.text_encoder.encode([caption], pictures if seen else ()))
            if not seen or len(pictures) == len(seen):
                self.source.keep(wanted, packed)
        return values.unpack(packed)

    def _complete(self, i: int, encoder: LiveEncoder) -> None:
        """Compute the values that are missing of a clip, and store them unless its file failed or has changed."""
        for name in self.wanted[i]:
            if name == TEXT or name in self.found[i]:
                continue
            if i in self.broken:  # its loss is left out, so that no encoder is loaded for it
                request = _request(self.request, i, name)
                shape = self.request.shape if request is None else request.shape
                self.found[i][name] = values.blank(encoder, name, shape)
                continue
            kinds = values.frames_for(name, parts=self.source.keys.ids.parts)
            frames: Mapping[str, Tensor] = {kind: self.decoded[i][kind] for kind in kinds}
            if name == request_key.CONTROL:
                frames = conditioning.with_drawn_masks(frames, self.request.masks[i : i + 1], self.request.shape)
            value = values.encode(encoder, name, frames, self.heard.get(i))[0].cpu()
            self.found[i][name] = value = value.to(latent_dtype(self.source.keys, name))
            if self._is_as_scanned(i):
                self.source.keep(self.wanted[i][name], value)

    def _is_as_scanned(self, i: int) -> bool:
        row = int(self.source.data.rows.find(self.request.uids[i : i + 1])[0])
        return request_key.unchanged(self.source.data, row, self.request.requests[i].path)


def latent_dtype(keys: Keys, name: str) -> torch.dtype:
    """Return the dtype in which a value is stored; embeddings of images stay float32."""
    dtype: torch.dtype = getattr(torch, keys.ids.latent_dtype)
    return torch.float32 if name == request_key.IMAGE else dtype


def clip_values(batch: MicroBatch, encoder: LiveEncoder) -> dict[str, Tensor]:
    """Return the latents of a micro-batch, and what its other conditions are made of, live or stored.

    Live, these are the latents of the clips and of the rejected ones.
    """
    if isinstance(batch, StoredBatch):
        return batch.values(encoder)
    frames = {request_key.LATENT: batch.frames}
    if REJECTED in batch.companions:
        frames[REJECTED] = batch.companions[REJECTED]
    encoded = {name: encoder.latents(each) for name, each in frames.items()}
    if encoder.sound is not None:
        assert batch.sound is not None, "a recipe with sound reads it"
        encoded[request_key.SOUND] = encoder.sound.latents(batch.sound, encoder.device)
    return encoded


def conditions(
    batch: MicroBatch, encoder: LiveEncoder, encoded: Mapping[str, Tensor], latent_BCTHW: Tensor
) -> dict[str, Tensor]:
    """Return the conditions of a micro-batch by name; see `models.api.given`."""
    if isinstance(batch, StoredBatch):
        return conditioning.join(encoder, latent_BCTHW, encoded)
    shape = batch.request.shape
    companions = conditioning.with_drawn_masks(batch.companions, batch.request.masks, shape)
    return conditioning.encode_conditioning(encoder, latent_BCTHW, companions, batch.frames, shape.num_frames)


def texts(batch: MicroBatch, encoder: LiveEncoder, dropped: Sequence[bool]) -> TextEmbedding:
    """Return the embeddings of a micro-batch's captions."""
    if isinstance(batch, StoredBatch):
        return batch.texts(encoder, dropped)
    pictures = [batch.companions[name][:, 0] for name in values.sources_in(batch.companions) if name in encoder.given]
    return encoder.texts(batch.captions, dropped, pictures)


class _Item:
    """A micro-batch on its way: what is stored of it, and the requests that remain to be decoded."""

    def __init__(self, work: MicroBatchRequest, source: StoredLatents) -> None:
        self.request, self.source = work, source
        self.wanted = source.keys.wanted(work)
        self.found = [source.find(wanted) for wanted in self.wanted]
        to_read: list[tuple[int, str, Request]] = []
        for i, (wanted, found) in enumerate(zip(self.wanted, self.found, strict=True)):
            kinds = source.kinds_to_read(wanted, found)
            to_read += [(i, kind, request) for kind in kinds if (request := _request(work, i, kind)) is not None]
            if (mask := _request(work, i, _MASK)) is not None:
                to_read.append((i, _MASK, mask))
        # Sources of other sizes come last, and are read as companions.
        self.to_read = sorted(to_read, key=lambda each: each[2].shape != work.shape)
        self._same_size = sum(request.shape == work.shape for *_, request in to_read)

    def remaining(self) -> MicroBatchRequest:
        """Return the micro-batch with the requests that remain as its clips, perhaps none, and as companions of no clip."""
        n, companions = len(self.to_read), dict[str, list[Request | None]]()
        for at, (_, kind, request) in enumerate(self.to_read[self._same_size :], start=self._same_size):
            companions.setdefault(kind, [None] * n)[at] = request
        clips = [i for i, _, _ in self.to_read]
        return replace(
            self.request,
            uids=self.request.uids[clips],
            copies=self.request.copies[clips],
            repeat_index=np.zeros(n, dtype=np.int32),
            is_idle=False,
            requests=tuple(request for _, _, request in self.to_read[: self._same_size]),
            captions=("",) * n,
            fps=(0.0,) * n,
            companions={kind: tuple(requests) for kind, requests in companions.items()},
            sounds=tuple(self._sound(i, kind) for i, kind, _ in self.to_read) if self.request.sounds else (),
            target_is_base=(False,) * n,
            masks=(),
        )

    def _sound(self, i: int, kind: str) -> SoundRequest | None:
        """Return the request for the sound that is missing of a clip, once."""
        return self.request.sounds[i] if kind == CLIP and request_key.SOUND not in self.found[i] else None

    def complete(self, read: MicroBatch) -> StoredBatch:
        """Return the micro-batch with what was decoded of it."""
        work, failures = self.request, dict[int, str]()
        broken = dict(read.failures)
        decoded: list[dict[str, Tensor]] = [{} for _ in work.requests]
        heard = dict[int, Tensor]()
        masks = (
            read.frames.new_full((len(work.requests), *read.frames.shape[1:]), 255)
            if _MASK in work.companions
            else None
        )
        for at, (i, kind, request) in enumerate(self.to_read):
            reason = broken.get(at)
            if at >= self._same_size:
                decoded[i][kind] = read.companions[kind][at : at + 1]
                if reason is not None:
                    failures.setdefault(i, reason)
                continue
            if kind == _MASK and masks is not None:
                if reason is None and not decode.has_white_area(read.frames[at].numpy()):
                    reason = decode.EMPTY  # the clip would have no loss
                if reason is None:
                    masks[i] = read.frames[at]
            else:
                decoded[i][kind] = read.frames[at : at + 1]
            if kind == CLIP and read.sound is not None:
                heard[i] = read.sound[at : at + 1]
            if reason is not None:
                failures.setdefault(i, reason if kind == CLIP else f"{kind} {request.path}: {reason}")
        valid = work.real & (not work.is_idle)
        valid[list(failures)] = False
        real = work.real & (not work.is_idle)
        return StoredBatch(
            request=work,
            frames=torch.zeros(len(work.requests), 0, 0, 0, 3, dtype=torch.uint8),
            is_valid=torch.from_numpy(valid),
            failures=tuple((i, reason) for i, reason in sorted(failures.items()) if real[i]),
            companions={} if masks is None else {_MASK: masks},
            stream=read.stream,
            source=self.source,
            wanted=self.wanted,
            found=self.found,
            decoded=decoded,
            heard=heard,
            broken=frozenset(failures),
        )


def _request(work: MicroBatchRequest, i: int, kind: str) -> Request | None:
    if kind == CLIP:
        return work.requests[i]
    return work.companions[kind][i] if kind in work.companions else None


def read_ahead(
    work: Iterable[MicroBatchRequest], pool: DecodePool, budget_bytes: int, source: StoredLatents | None
) -> Iterator[MicroBatch]:
    """Yield the micro-batches of `work` in its order, as `prefetch.read_ahead` does, from a store if there is one."""
    if source is None:
        yield from prefetch.read_ahead(work, pool, budget_bytes)
        return
    with ThreadPoolExecutor(_READERS, thread_name_prefix="stored") as readers:
        items = _in_order(work, lambda each: readers.submit(_Item, each, source))
        waiting: deque[_Item] = deque()
        with suppress(GeneratorExit):
            for batch in prefetch.read_ahead(_remaining(items, waiting), pool, budget_bytes):
                yield waiting.popleft().complete(batch)


def _in_order(
    work: Iterable[MicroBatchRequest], submit: Callable[[MicroBatchRequest], Future[_Item]]
) -> Iterator[_Item]:
    queue: deque[Future[_Item]] = deque()
    source = iter(work)
    while True:
        while len(queue) < _ITEMS_AHEAD and (each := next(source, None)) is not None:
            queue.append(submit(each))
        if not queue:
            return
        yield queue.popleft().result()


def _remaining(items: Iterator[_Item], waiting: deque[_Item]) -> Iterator[MicroBatchRequest]:
    for item in items:
        waiting.append(item)
        yield item.remaining()
