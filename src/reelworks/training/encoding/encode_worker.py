"""Encode chunks of clips and parts of captions into a store, beside other processes that do the same.

A worker claims a chunk, looks which of its values are missing, decodes ahead while it encodes, commits, and releases the
chunk. It keeps encoders and decoding processes until it is closed.
"""

from __future__ import annotations

import os
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from reelworks.core import device_memory, digests, files, machine, system
from reelworks.data.loader import prefetch
from reelworks.data.loader.micro_batch import MicroBatch, MicroBatchRequest
from reelworks.data.media.config import DataConfig
from reelworks.data.media.decode_pool import DecodePool
from reelworks.data.media.patience import AWAY_SECONDS
from reelworks.training.encoding import conditioning, request_key, values
from reelworks.training.encoding.conditioning import CLIP
from reelworks.training.encoding.encoders import FrozenEncoders, Lazy
from reelworks.training.encoding.reachable import Chunk
from reelworks.training.encoding.request_key import TEXT, TEXTS, Wanted
from reelworks.training.encoding.stored_batches import StoredLatents, latent_dtype

_BEHIND = 8  # batches that may wait to be written
_NO_PART = "0" * 12  # name by which nothing is claimed
T = TypeVar("T")


@dataclass
class Progress:
    """Progress of encoding in this process; `total` also counts what other processes encode."""

    total: int
    done: int = 0
    frames: int = 0
    bytes: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    captions: int = 0

    def add(self, clips: int, part: Progress) -> None:
        """Count a part of `clips` clips, some of which this command may have encoded in a process that died."""
        self.done += clips
        self.frames += part.frames
        self.bytes += part.bytes
        self.captions += part.captions
        self.failures += [(label, reason) for label, reason in part.failures]


Report = Callable[[Progress], None]


class EncodeWorker:
    """Encodes into a store; encoders that are loaded at their first use are dropped after it.

    Args:
        source: The store and the keys.
        config: How clips are decoded, and how many of them ahead.
    """

    def __init__(self, source: StoredLatents, encoder: FrozenEncoders, config: DataConfig) -> None:
        self.source, self._encoder, self._config = source, encoder, config
        self._claims = Claims(source.store.path / "claims")
        self._pool: DecodePool | None = None

    def encode_captions(self, parts: Iterable[Sequence[str]], progress: Progress, report: Report) -> None:
        """Embed and store the captions of each part that no other process embeds; return when all are stored."""
        busy: list[Sequence[str]] = []
        for part in self._claims.free(parts, digests.digest_json, busy):
            self._encode_texts(part, progress, report)
        for part in busy:
            self._claims.take(digests.digest_json(part), wait=True)
            self._encode_texts(part, progress, report)

    def encode_clips(self, chunks: Iterable[Chunk], progress: Progress, report: Report) -> None:
        """Encode and store the clips of chunks that no other process encodes; return when all are stored."""
        if not self.source.keys.ids.text_sees_pictures:  # only one of the encoders is in memory at a time
            _drop(self._encoder.text_encoder)
        busy: list[Chunk] = []
        self._stream(self._claims.free(chunks, lambda chunk: chunk.name, busy), progress, report)
        for chunk in busy:  # one by one: who waits must not hold what another one waits for
            self._claims.take(chunk.name, wait=True)
            self._stream([chunk], progress, report)

    def close(self) -> None:
        """Write what was put last, and release claims, processes and encoders."""
        try:
            if self._pool is not None:
                self._pool.close()
            self.source.store.commit()
        finally:
            self._claims.close()
            sound = None if self._encoder.sound is None else self._encoder.sound.encoder
            for encoder in (self._encoder.autoencoder, self._encoder.text_encoder, self._encoder.image_encoder, sound):
                _drop(encoder)

    def _encode_texts(self, part: Sequence[str], progress: Progress, report: Report) -> None:
        store, keys = self.source.store, self.source.keys
        store.refresh()
        for text in part:
            if (wanted := keys.text(text)).key not in store:
                self._put([(wanted, values.pack(self._encoder.text_encoder.encode([text])))], progress)
                progress.captions += 1
        store.commit()
        self._claims.release(digests.digest_json(part))
        report(progress)

    def _stream(self, chunks: Iterable[Chunk], progress: Progress, report: Report) -> None:
        """Encode claimed chunks, and release each when its values are on disk; decoding runs ahead of encoding."""
        if self._pool is None:
            how = self._config.num_workers, self._config.decode_timeout
            self._pool = DecodePool(*how, patience_seconds=AWAY_SECONDS)
        ends: dict[int, Chunk] = {}  # by the identity of the last micro-batch of each
        behind: deque[Future[None]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="store") as writer:
            work = self._work(chunks, ends)
            for batch in prefetch.read_ahead(work, self._pool, self._config.prefetch_budget_bytes):
                if batch.stops is not None:
                    raise batch.stops
                behind.append(self._encode_batch(batch, writer, progress))
                if (chunk := ends.pop(id(batch.request), None)) is not None:
                    behind.append(writer.submit(self._finish, chunk))
                while behind and (len(behind) > _BEHIND or behind[0].done()):
                    behind.popleft().result()
                report(progress)
            while behind:
                behind.popleft().result()

    def _work(self, chunks: Iterable[Chunk], ends: dict[int, Chunk]) -> Iterator[MicroBatchRequest]:
        """Yield micro-batches of the clips that lack something."""
        data, store, keys = self.source.data, self.source.store, self.source.keys
        for chunk in chunks:
            store.refresh()
            wanted_of = keys.wanted(chunk.build_request(data))
            lacking = [
                i
                for i, wanted in enumerate(wanted_of)
                if any(wanted[name].key not in store for name in keys.by_clip(wanted))
            ]
            size = max(int(data.table.batch_sizes()[int(chunk.clips.bucket[0])]), 1)
            batches = [chunk.build_request(data, lacking[at : at + size]) for at in range(0, len(lacking), size)]
            if not batches:
                self._claims.release(chunk.name)
                continue
            ends[id(batches[-1])] = chunk
            yield from batches

    def _finish(self, chunk: Chunk) -> None:
        self.source.store.commit()
        self._claims.release(chunk.name)

    def _encode_batch(self, batch: MicroBatch, writer: ThreadPoolExecutor, progress: Progress) -> Future[None]:
        """Encode the clips of a micro-batch that could be decoded, and hand the values to the writer."""
        work, failed = batch.request, dict(batch.failures)
        wanted_of, clips = self.source.keys.wanted(work), range(len(work.uids))
        for i in clips:
            kinds = (CLIP, *self.source.keys.ids.given)
            if i not in failed and not request_key.unchanged(self.source.data, work, i, kinds):
                failed[i] = "the file has changed since it was scanned"
        good = [i for i in clips if i not in failed]
        progress.failures += [(wanted_of[i]["latent"].label, reason) for i, reason in failed.items()]
        names = self.source.keys.by_clip(wanted_of[0]) if good else []
        encoded = {name: self._values(name, batch, good) for name in names}
        progress.done += len(clips)
        progress.frames += len(good) * work.shape.num_frames

        def store() -> None:
            rows_of = {name: rows.cpu() if isinstance(rows, Tensor) else rows for name, rows in encoded.items()}
            for i in good:
                self._put(((wanted_of[i][name], rows[i]) for name, rows in rows_of.items()), progress)

        return writer.submit(store)

    def _values(self, name: str, batch: MicroBatch, good: list[int]) -> Tensor | dict[int, Tensor]:
        """Return a value of each clip of a micro-batch by its place."""
        if name not in TEXTS:
            kinds = values.frames_for(name, parts=self.source.keys.ids.parts)
            frames: Mapping[str, Tensor] = {k: batch.frames if k == CLIP else batch.companions[k] for k in kinds}
            if name == request_key.CONTROL:
                frames = conditioning.with_drawn_masks(frames, batch.request.masks, batch.request.shape)
            return values.encode(self._encoder, name, frames, batch.sound).to(latent_dtype(self.source.keys, name))
        encode, num_frames = self._encoder.text_encoder.encode, batch.request.shape.num_frames
        captions = batch.request.captions if name == TEXT else [""] * len(batch.request.captions)
        seen = conditioning.seen_by_texts(self._encoder, batch.companions, batch.frames, num_frames)
        return {i: values.pack(encode([captions[i]], [frames[i : i + 1] for frames in seen])) for i in good}

    def _put(self, values_of: Iterable[tuple[Wanted, Tensor]], progress: Progress) -> None:
        """Store the values of a clip or of a caption that no other process has stored since."""
        store = self.source.store
        for wanted, value in values_of:
            if wanted.key in store:
                continue
            store.put(wanted, value)
            if (refused := store.refused.get(wanted.key)) is not None:
                progress.failures.append((wanted.label, refused))
                return
            progress.bytes += value.nbytes


def _drop(encoder: object) -> None:
    if isinstance(encoder, Lazy):
        encoder.drop()
        device_memory.release(machine.default_device())


class Claims:
    """Claims of this process on parts of a job by name, as locks on bytes of a file: one process at a time holds each.

    The system drops the locks of a process that dies, so that no claim outlives its holder. On a file system without locks,
    each process may take every part, in an order of its own: few are encoded twice then, and with equal results.
    """

    def __init__(self, path: Path) -> None:
        with files.writing("encode.folder", path.parent):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | system.BINARY, 0o666)
        self._own_order = ""  # which `take` sets where there are no locks
        if self.take(_NO_PART):
            self.release(_NO_PART)

    def free(self, parts: Iterable[T], name: Callable[[T], str], busy: list[T]) -> Iterator[T]:
        """Claim and yield parts one after another; those that other processes hold are added to `busy`."""
        if self._own_order:
            parts = sorted(parts, key=lambda part: digests.digest_json([self._own_order, name(part)]))
        for part in parts:
            if self.take(name(part)):
                yield part
            else:
                busy.append(part)

    def take(self, name: str, *, wait: bool = False) -> bool:
        """Claim a part, and return whether that succeeded; with `wait`, wait for another process to release it."""
        try:
            system.lock(self._fd, wait=wait, at=_offset(name))
        except BlockingIOError:
            return False
        except system.NoLocks:
            self._own_order = self._own_order or uuid.uuid4().hex
        return True

    def release(self, name: str) -> None:
        """Release a part."""
        if not self._own_order:
            system.unlock(self._fd, at=_offset(name))

    def close(self) -> None:
        """Release all parts."""
        os.close(self._fd)


def _offset(name: str) -> int:
    return int(name[:12], 16)
