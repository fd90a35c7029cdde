"""Read micro-batches and encode them for training, from files; `stored_batches` does so from a store.

The way of a micro-batch is request → decode → encode → example → loss. A `BatchEncoder` does two of its stages: `read`
decodes requests ahead, and `encode` returns what all that follows is computed from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from reelworks.data.buckets.table import BucketTable
from reelworks.data.catalog.sources import REJECTED
from reelworks.data.distributed.mesh import World
from reelworks.data.loader import prefetch, shared_batches
from reelworks.data.loader.micro_batch import MicroBatch, MicroBatchRequest
from reelworks.data.media.decode_pool import DecodePool
from reelworks.models.api import TextEmbedding
from reelworks.training.encoding import conditioning
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.encoding.request_key import LATENT, SOUND

BatchT = TypeVar("BatchT", bound=MicroBatch)


@dataclass(frozen=True)
class EncodedBatch:
    """Outputs of the encoders for a micro-batch, on the training device.

    Attributes:
        batch: The micro-batch.
        latent: `[B, C, T, H, W]` clean latents.
        text: Embeddings of the captions, of dropped ones as the model wants them.
        conditions: The last inputs of a denoiser by name; see `models.api.given`.
        empty: Embeddings of the empty caption, if targets are guided.
        rejected: `[B, C, T, H, W]` clean latents of the rejected clips, if there are any.
        sound: `[B, F, N, 1, 1]` clean latents of the sound; None if there is none.
    """

    batch: MicroBatch
    latent: Tensor
    text: TextEmbedding
    conditions: Mapping[str, Tensor]
    empty: TextEmbedding | None = None
    rejected: Tensor | None = None
    sound: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """Return all tensors."""
        single = [each for each in (self.rejected, self.sound) if each is not None]
        return [self.latent, *self.text, *self.conditions.values(), *(self.empty or ()), *single]


@dataclass(frozen=True)
class BatchEncoder(ABC, Generic[BatchT]):
    """Read micro-batches and encode them, as an implementation does with the frozen encoders of a model."""

    encoders: FrozenEncoders

    @abstractmethod
    def decodes(self, table: BucketTable) -> bool:
        """Return whether this rank decodes clips of any bucket."""

    @abstractmethod
    def read(self, requests: Iterable[MicroBatchRequest], pool: DecodePool, budget_bytes: int) -> Iterator[BatchT]:
        """Yield the micro-batches of `requests` in their order, as `prefetch.read_ahead` does."""

    def encode(self, batch: BatchT, dropped: Sequence[bool], *, guided: bool = False) -> EncodedBatch:
        """Encode a micro-batch, where `dropped` is True with the empty caption; `guided` embeds that for all, too."""
        text = self._texts(batch, dropped)
        empty = self._texts(batch, [True] * len(dropped)) if guided else None
        batch, encoded = self._values(batch)
        latent = encoded[LATENT]
        joined = conditioning.join(self.encoders, latent, encoded)
        return EncodedBatch(batch, latent, text, joined, empty, encoded.get(REJECTED), encoded.get(SOUND))

    @abstractmethod
    def _values(self, batch: BatchT) -> tuple[BatchT, Mapping[str, Tensor]]:
        """Return the micro-batch, of which more clips may have failed, and what is computed of their frames and sound.

        That is the clips' latents and other values, `[B, ...]` by name. Their captions were embedded before.
        """

    @abstractmethod
    def _texts(self, batch: BatchT, dropped: Sequence[bool]) -> TextEmbedding:
        """Return the embeddings of the captions."""


@dataclass(frozen=True)
class LiveBatchEncoder(BatchEncoder[MicroBatch]):
    """Decode and encode each clip when it is trained. Of the ranks that share it, one decodes for all."""

    world: World

    def decodes(self, table: BucketTable) -> bool:
        """Return whether this rank decodes clips of any bucket."""
        return any(self.world.leads(bucket.sequence_degree) for bucket in table.buckets)

    def read(self, requests: Iterable[MicroBatchRequest], pool: DecodePool, budget_bytes: int) -> Iterator[MicroBatch]:
        """Yield the micro-batches of `requests` in their order, which are decoded ahead. Collective in a group."""
        return shared_batches.over_group(requests, lambda own: prefetch.read_ahead(own, pool, budget_bytes), self.world)

    def _values(self, batch: MicroBatch) -> tuple[MicroBatch, dict[str, Tensor]]:
        encoders, shape = self.encoders, batch.request.shape
        encoded = {LATENT: encoders.latents(batch.frames)}
        if REJECTED in batch.companions:
            encoded[REJECTED] = encoders.latents(batch.companions[REJECTED])
        if encoders.sound is not None:
            assert batch.sound is not None, "a recipe with sound reads it"
            encoded[SOUND] = encoders.sound.latents(batch.sound, encoders.device)
        companions = conditioning.with_drawn_masks(batch.companions, batch.request.masks, shape)
        return batch, encoded | conditioning.condition_values(encoders, companions, batch.frames, shape.num_frames)

    def _texts(self, batch: MicroBatch, dropped: Sequence[bool]) -> TextEmbedding:
        num_frames = batch.request.shape.num_frames
        seen = conditioning.seen_by_texts(self.encoders, batch.companions, batch.frames, num_frames)
        return self.encoders.texts(batch.captions, dropped, seen)
