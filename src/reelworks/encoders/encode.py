"""Encode clips and captions ahead of training into a store, alone or beside other processes.

The work is cut into chunks that depend on the data alone. A process claims a chunk, looks which of its values are
missing, decodes ahead while it encodes, commits, and releases the chunk; a chunk that another process has is looked at
again when all others are done. Captions come first, so that only one of the encoders is in memory at a time.
"""

from __future__ import annotations

import math
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from reelworks.core import digests, units
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.core.shape import Shape
from reelworks.data import loader
from reelworks.data.loader import MicroBatch, MicroBatchRequest
from reelworks.encoders import request_key, values
from reelworks.encoders.claims import Claims
from reelworks.encoders.encoders import LiveEncoder
from reelworks.encoders.reachable import Chunk
from reelworks.encoders.request_key import TEXT, Wanted
from reelworks.encoders.stored_batches import StoredLatents, latent_dtype
from reelworks.encoders.values import CLIP
from reelworks.media.config import PREFETCH_BYTES
from reelworks.media.decode_pool import DecodePool

_CAPTIONS = 64  # of a chunk
_BEHIND = 8  # batches that may wait to be written
_SPARE = 1.02
_PACKED_HEAD = 48  # bytes before an embedding's mask


@dataclass(frozen=True)
class Forecast:
    """The values that are missing in a store.

    Attributes:
        clips: Clips of which something is missing, each variant counted.
        captions: Captions without an embedding.
        bytes: Disk space of the missing values; embeddings are counted with all their tokens.
        known: Clips of which everything is stored.
    """

    clips: int
    captions: int
    bytes: int
    known: int

    def to_text(self) -> str:
        """Return a sentence for people."""
        if not self.clips and not self.captions:
            return f"{units.plural(self.known, 'clip')}: everything is stored"
        each = self.bytes / max(self.clips, 1)
        return (
            f"to encode: {units.plural(self.clips, 'clip')} and {units.plural(self.captions, 'caption')}, at most "
            f"{units.size(self.bytes)} ({units.size(each)} a clip); {units.plural(self.known, 'clip')} are stored"
        )


@dataclass
class Progress:
    """Progress of encoding in this process; `total` also counts what other processes encode."""

    total: int
    done: int = 0
    frames: int = 0
    bytes: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    captions: int = 0
    first: int = 0  # clips of the first batch
    first_at: float = 0.0  # when it was encoded

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end at the speed so far; None before the second batch."""
        measured = self.done - self.first  # without the start of workers and the loading of encoders
        return (time.monotonic() - self.first_at) / measured * (self.total - self.done) if measured else None


class Encoding:
    """The encoding of all values that some chunks of clips lack.

    Args:
        source: The store and the keys.
        encoder: Encoders; those that are loaded at their first use are dropped after it.
        chunks: Clips by chunk, as `reachable.chunks` returns them.
        num_workers, timeout: Processes that decode, and seconds after which one is ended.
        prefetch_bytes: Frames that are decoded ahead.
        frames_device: Device that converts plain videos to RGB; None leaves it to the decoding processes.
        text_width: Bytes of a number in an embedding, for the forecast: 2 for encoders that compute in bfloat16.
        on_progress: Called after each batch.
    """

    def __init__(
        self,
        source: StoredLatents,
        encoder: LiveEncoder,
        chunks: list[Chunk],
        *,
        num_workers: int = 0,
        timeout: float = 120.0,
        prefetch_bytes: int = PREFETCH_BYTES,
        frames_device: torch.device | None = None,
        text_width: int = 4,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self.source, self._encoder, self._chunks = source, encoder, chunks
        self._workers, self._timeout, self._report = num_workers, timeout, on_progress
        self._budget_bytes, self._frames_device = prefetch_bytes, frames_device
        self._text_width = text_width
        self._sees = source.keys.ids.text_sees_pictures
        self._missing: list[Chunk] = []
        self._captions: list[str] = []

    def forecast(self) -> Forecast:
        """Look up all values, and return what is missing."""
        source, clips, known, size = self.source, 0, 0, 0
        captions = {} if self._sees else {"": None} if self._chunks else {}
        self._missing = []
        for chunk in self._chunks:
            lacking, work = 0, chunk.work(source.data)
            wanted_of = source.keys.wanted(work)
            for wanted, caption in zip(wanted_of, work.captions, strict=True):
                missing = [name for name in self._names(wanted) if wanted[name].key not in source.store]
                lacking += bool(missing)
                size += sum(self._bytes(name, work.shape) for name in missing)
                if not self._sees:
                    captions[caption] = None
            clips, known = clips + lacking, known + len(wanted_of) - lacking
            if lacking:
                self._missing.append(chunk)
        self._captions = [text for text in captions if source.keys.text(text).key not in source.store]
        size += len(self._captions) * self._text_bytes()
        return Forecast(clips, len(self._captions), size, known)

    def require_space(self, forecast: Forecast) -> None:
        """Check that the disk has room for what is missing.

        Raises:
            UserError: It does not.
        """
        folder = self.source.store.path
        free = shutil.disk_usage(folder).free
        if forecast.bytes * _SPARE > free:
            raise UserError(
                f"the latents take up to {units.size(forecast.bytes)}, and {units.size(free)} are free",
                code="encoded-no-space",
                field="encode.folder",
                value=str(folder),
                remedy='free disk space, name another folder, set encode.dtype = "bfloat16" or lower encode.variants; '
                "reelworks encode prune RECIPE names entries that no recipe needs",
            )

    def run(self, forecast: Forecast) -> Progress:
        """Encode and store what is missing and no other process encodes; return when everything is done by someone."""
        progress = Progress(total=forecast.clips)
        claims = Claims(self.source.store.path / "claims")
        try:
            self._encode_captions(claims, progress)
            if not self._sees:
                self._drop(self._encoder.text_encoder)
            self._encode_clips(claims, progress)
        finally:
            self.source.store.commit()
            claims.close()
            for encoder in (self._encoder.autoencoder, self._encoder.text_encoder, self._encoder.image_encoder):
                self._drop(encoder)
        return progress

    def _encode_captions(self, claims: Claims, progress: Progress) -> None:
        parts = [self._captions[i : i + _CAPTIONS] for i in range(0, len(self._captions), _CAPTIONS)]
        busy: list[list[str]] = []
        for part in parts:
            if claims.take(digests.digest_json(part)):
                self._encode_texts(part, claims, progress)
            else:
                busy.append(part)
        for part in busy:
            claims.take(digests.digest_json(part), wait=True)
            self._encode_texts(part, claims, progress)

    def _encode_texts(self, part: list[str], claims: Claims, progress: Progress) -> None:
        store, keys = self.source.store, self.source.keys
        store.refresh()
        for text in part:
            if (wanted := keys.text(text)).key not in store:
                self._put({0: wanted}, [values.pack(self._encoder.text_encoder.encode([text]))], progress)
                progress.captions += 1
        store.commit()
        claims.release(digests.digest_json(part))
        self._report(progress)

    def _encode_clips(self, claims: Claims, progress: Progress) -> None:
        pool = DecodePool(self._workers, self._timeout)
        try:
            busy: list[Chunk] = []
            free = (chunk for chunk in self._missing if claims.take(chunk.name) or busy.append(chunk))  # type: ignore[func-returns-value]
            self._stream(free, pool, claims, progress)
            for chunk in busy:  # one by one: who waits must not hold what another one waits for
                claims.take(chunk.name, wait=True)
                self._stream([chunk], pool, claims, progress)
        finally:
            pool.close()

    def _stream(self, chunks: Iterable[Chunk], pool: DecodePool, claims: Claims, progress: Progress) -> None:
        """Encode claimed chunks, and release each when its values are on disk; decoding runs ahead of encoding."""
        ends: dict[int, Chunk] = {}  # by the identity of the last micro-batch of each
        behind: deque[Future[None]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="store") as writer:
            work = self._work(chunks, claims, ends)
            for batch in loader.read_ahead(work, pool, self._budget_bytes, self._frames_device):
                behind.append(self._encode_batch(batch, writer, progress))
                if (chunk := ends.pop(id(batch.work), None)) is not None:
                    behind.append(writer.submit(self._finish, claims, chunk))
                while behind and (len(behind) > _BEHIND or behind[0].done()):
                    behind.popleft().result()
                self._report(progress)
            while behind:
                behind.popleft().result()

    def _work(self, chunks: Iterable[Chunk], claims: Claims, ends: dict[int, Chunk]) -> Iterator[MicroBatchRequest]:
        """Yield micro-batches of the clips that lack something."""
        data, store, keys = self.source.data, self.source.store, self.source.keys
        for chunk in chunks:
            store.refresh()
            wanted_of = keys.wanted(chunk.work(data))
            lacking = [i for i, wanted in enumerate(wanted_of) if self._lacks(wanted)]
            size = max(int(data.table.batch_sizes()[int(chunk.clips.bucket[0])]), 1)
            batches = [chunk.part(data, lacking[at : at + size]) for at in range(0, len(lacking), size)]
            if not batches:
                claims.release(chunk.name)
                continue
            ends[id(batches[-1])] = chunk
            yield from batches

    def _finish(self, claims: Claims, chunk: Chunk) -> None:
        self.source.store.commit()
        claims.release(chunk.name)

    def _encode_batch(self, batch: MicroBatch, writer: ThreadPoolExecutor, progress: Progress) -> Future[None]:
        """Encode the clips of a micro-batch that could be decoded, and hand the values to the writer."""
        work, failed = batch.work, dict(batch.failures)
        wanted_of, rows = self.source.keys.wanted(work), self.source.data.rows.find(work.uids).tolist()
        for i, row in enumerate(rows):
            if i not in failed and not request_key.unchanged(self.source.data, row, work.requests[i].path):
                failed[i] = "the file has changed since it was scanned"
        good = [i for i in range(len(rows)) if i not in failed]
        progress.failures += [(wanted_of[i]["latent"].label, reason) for i, reason in failed.items()]
        encoded = {name: self._values(name, batch, good) for name in self._names(wanted_of[0])} if good else {}
        progress.done += len(rows)
        if not progress.first:
            progress.first, progress.first_at = len(rows), time.monotonic()
        progress.frames += len(good) * work.shape.num_frames

        def store() -> None:
            for name, rows_of in encoded.items():
                self._put({i: wanted_of[i][name] for i in good}, rows_of, progress)

        return writer.submit(store)

    def _values(self, name: str, batch: MicroBatch, good: list[int]) -> Tensor | list[Tensor]:
        """Return a value of each clip of a micro-batch; where decoding failed, of zeros."""
        kind = values.frames_for(name, text_sees_pictures=self._sees)
        assert kind is not None
        frames = batch.frames if kind == CLIP else batch.companions[kind]
        if name != TEXT:
            return values.encode(self._encoder, name, frames).to(latent_dtype(self.source.keys, name))
        captions, encode = batch.work.captions, self._encoder.text_encoder.encode
        embedded = {i: values.pack(encode([captions[i]], frames[i, :1])) for i in good}
        return [embedded.get(i, torch.zeros(0)) for i in range(len(captions))]

    def _put(self, wanted_of: dict[int, Wanted], encoded: Tensor | list[Tensor], progress: Progress) -> None:
        if isinstance(encoded, Tensor):
            encoded = list(encoded.cpu())
        for i, wanted in wanted_of.items():
            if wanted.key not in self.source.store:
                self.source.store.put(wanted, encoded[i])
                progress.bytes += encoded[i].nbytes

    def _lacks(self, wanted: dict[str, Wanted]) -> bool:
        return any(wanted[name].key not in self.source.store for name in self._names(wanted))

    def _names(self, wanted: dict[str, Wanted]) -> list[str]:
        """Return the names of the values that are encoded clip by clip."""
        return [name for name in wanted if name != TEXT or self._sees]

    def _bytes(self, name: str, shape: Shape) -> int:
        if name == TEXT:
            return self._text_bytes()
        size = math.prod(values.value_shape(self._encoder, name, shape))
        return size * latent_dtype(self.source.keys, name).itemsize

    def _text_bytes(self) -> int:
        """Return the bytes of an embedding with all its tokens, for the forecast."""
        text = self._encoder.text_encoder
        width = self._text_width
        return _PACKED_HEAD + text.max_length + width * (text.max_length * text.dim + text.pooled_dim)

    @staticmethod
    def _drop(encoder: object) -> None:
        later = getattr(encoder, "later", None)
        if later is not None:
            later.drop()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def log_failures(progress: Progress) -> None:
    """Name clips that could not be encoded."""
    for label, reason in progress.failures[:10]:
        logger.warning("%s is not encoded: %s", label, reason)
    if len(progress.failures) > 10:
        logger.warning("and %d more", len(progress.failures) - 10)
