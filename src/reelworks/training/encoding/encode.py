"""Encode clips and captions ahead of training into a store, alone or beside other processes.

The work is cut into chunks that depend on the data alone. `EncodeWorker` encodes them: one in this process, which takes
every chunk that no other process has, or many on a cluster. Captions come first, so that only one of the encoders is in
memory at a time.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from reelworks.core import units
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.loader.micro_batch import MicroBatchRequest
from reelworks.data.media.config import DataConfig
from reelworks.data.media.decode import VERSION as DECODER_VERSION
from reelworks.training.encoding import values
from reelworks.training.encoding.encode_worker import EncodeWorker, Progress, Report
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.encoding.reachable import Chunk
from reelworks.training.encoding.request_key import TEXTS, Keys
from reelworks.training.encoding.stored_batches import StoredLatents, latent_dtype

_CAPTIONS = 64  # of a chunk
_SPARE = 1.02
_PACKED_HEAD = 48  # bytes before an embedding's mask


@dataclass(frozen=True)
class EncodingForecast:
    """The values that are missing in a store.

    Attributes:
        clips: Clips of which something is missing, each variant counted.
        captions: Captions without an embedding.
        bytes: Disk space of the missing values; embeddings are counted with all their tokens.
        known: Clips of which everything is stored.
        outdated: Clips of which something is missing that is stored as an earlier version decoded it.
    """

    clips: int
    captions: int
    bytes: int
    known: int
    outdated: int = 0

    def to_text(self) -> str:
        """Return a sentence for people."""
        if not self.clips and not self.captions:
            return f"{units.plural(self.known, 'clip')}: everything is stored"
        each = self.bytes / max(self.clips, 1)
        outdated = (
            f"; {units.plural(self.outdated, 'clip', 'are')} stored as an earlier version of Reelworks decoded them, which is not "
            "used: reelworks encode prune RECIPE deletes it"
        )
        return (
            f"to encode: {units.plural(self.clips, 'clip')} and {units.plural(self.captions, 'caption')}, at most "
            f"{units.size(self.bytes)} ({units.size(each)} a clip); {units.plural(self.known, 'clip', 'are')} "
            f"stored{outdated if self.outdated else ''}"
        )


@dataclass(frozen=True)
class FailedEncoding:
    """A clip that could not be encoded."""

    clip: str
    reason: str


@dataclass(frozen=True)
class EncodingReport:
    """Values that were missing in a store, and those that this command encoded.

    Attributes:
        folder: The store.
        missing_clips: Clips of which something was missing, each variant counted.
        missing_captions: Captions without an embedding.
        forecast_bytes: Disk space of the missing values, at most.
        failed: Clips that cannot be read.
    """

    folder: Path
    missing_clips: int
    missing_captions: int
    forecast_bytes: int
    encoded_clips: int
    encoded_captions: int
    encoded_bytes: int
    failed: list[FailedEncoding]


def report(folder: Path, forecast: EncodingForecast, done: Progress) -> EncodingReport:
    """Sum up what was encoded into a store."""
    failed = [FailedEncoding(label, reason) for label, reason in done.failures]
    encoded = done.done - len(failed), done.captions, done.bytes
    return EncodingReport(folder, forecast.clips, forecast.captions, forecast.bytes, *encoded, failed)


@dataclass
class Encoding:
    """The encoding of all values that some chunks of clips lack.

    Attributes:
        source: The store and the keys.
        encoder: Encoders; those that are loaded at their first use are dropped after it.
        chunks: Clips by chunk, as `reachable.chunks` returns them.
        config: How clips are decoded, and how many of them ahead.
        text_width: Bytes of a number in an embedding, for the forecast: 2 for encoders that compute in bfloat16.
        missing_by_chunk: Clips of which something is missing, by the number of their chunk; known after `forecast`.
        captions: Captions without an embedding in parts of a few dozen; known after `forecast`.
    """

    source: StoredLatents
    encoder: FrozenEncoders
    chunks: list[Chunk]
    config: DataConfig
    text_width: int
    missing_by_chunk: dict[int, int] = field(default_factory=dict)
    captions: list[list[str]] = field(default_factory=list)

    def forecast(self) -> EncodingForecast:
        """Look up all values, and return what is missing."""
        source, known, size, outdated = self.source, 0, 0, 0
        captions = dict[str, str]()
        self.missing_by_chunk = {}
        for number, chunk in enumerate(self.chunks):
            work = chunk.build_request(source.data)
            wanted_of = source.keys.wanted(work)
            pairs = [(wanted, source.keys.by_clip(wanted)) for wanted in wanted_of]
            missing = source.store.missing([wanted[name].key for wanted, of_clip in pairs for name in of_clip])
            lacks = [[name for name in of_clip if wanted[name].key in missing] for wanted, of_clip in pairs]
            bytes_of = {name: self._bytes(name, work) for name in {name for each in lacks for name in each}}
            size += sum(bytes_of[name] for each in lacks for name in each)
            lacking = sum(map(bool, lacks))
            known += len(wanted_of) - lacking
            if lacking:
                self.missing_by_chunk[number] = lacking
                outdated += self._outdated(work, lacks)
            if not source.keys.ids.text_sees_pictures:
                texts = (wanted[name] for wanted in wanted_of for name in TEXTS if name in wanted)
                captions |= {text.label: text.key for text in texts}
        missing = source.store.missing(list(captions.values()))
        new = [text for text, key in captions.items() if key in missing]
        self.captions = [new[i : i + _CAPTIONS] for i in range(0, len(new), _CAPTIONS)]
        size += len(new) * self._text_bytes()
        return EncodingForecast(sum(self.missing_by_chunk.values()), len(new), size, known, outdated)

    def _outdated(self, work: MicroBatchRequest, lacks: Sequence[Sequence[str]]) -> int:
        """Return of how many clips something that they lack is stored as an earlier version decoded it."""
        store, found = self.source.store, set[int]()
        for version in range(1, DECODER_VERSION) if not store.is_empty else ():
            earlier = Keys(self.source.data, self.source.keys.ids, version).wanted(work)
            keys = [[of[name].key for name in names] for of, names in zip(earlier, lacks, strict=True)]
            missing = store.missing([key for each in keys for key in each])
            found |= {i for i, each in enumerate(keys) if not missing.issuperset(each)}
        return len(found)

    def require_space(self, forecast: EncodingForecast) -> None:
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

    def run(self, forecast: EncodingForecast, prompts: Sequence[str], on_progress: Report) -> Progress:
        """Encode and store what is missing and no other process encodes; return when everything is done by someone.

        `encoder` embeds and keeps the prompts besides, while its text encoder is loaded for captions.
        """
        progress = Progress(total=forecast.clips)
        with closing(EncodeWorker(self.source, self.encoder, self.config)) as worker:
            worker.encode_captions(self.captions, progress, on_progress)
            self.encoder.embed_ahead(prompts)  # before the text encoder makes room for the others
            worker.encode_clips([self.chunks[number] for number in self.missing_by_chunk], progress, on_progress)
        return progress

    def _bytes(self, name: str, work: MicroBatchRequest) -> int:
        if name in TEXTS:
            return self._text_bytes()
        shape = next((each.shape for each in work.companions.get(name, ()) if each is not None), work.shape)
        size = math.prod(values.value_shape(self.encoder, name, shape))
        return size * latent_dtype(self.source.keys, name).itemsize

    def _text_bytes(self) -> int:
        """Return the bytes of an embedding with all its tokens, for the forecast."""
        text = self.encoder.text_encoder
        return _PACKED_HEAD + text.max_length + self.text_width * (text.max_length * text.dim + text.pooled_dim)


def log_failures(progress: Progress) -> None:
    """Name clips that could not be encoded."""
    for label, reason in progress.failures[:10]:
        logger.warning("%s is not encoded: %s", label, reason)
    if len(progress.failures) > 10:
        logger.warning("and %d more", len(progress.failures) - 10)
