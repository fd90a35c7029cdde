"""A cache of caption embeddings in CPU memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

from reelworks.models.api import TextEmbedding

_MOST_BYTES = 2_000_000_000  # 480 captions of 512 tokens, 4096 wide
_ENTRY_BYTES = 2_000  # Python objects around an embedding


class CaptionCache:
    """A cache of embeddings by exact caption, which evicts the least recently used first.

    Args:
        most_bytes: Limit of the cache's size.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._entries: OrderedDict[str, TextEmbedding] = OrderedDict()

    def get(self, caption: str, embed: Callable[[], TextEmbedding]) -> TextEmbedding:
        """Return the embedding of a caption in CPU memory; embed the caption if it is not cached."""
        if (cached := self._entries.get(caption)) is not None:
            self._entries.move_to_end(caption)
            return _map(cached, _float32)
        embedding = _map(embed(), Tensor.cpu)
        entry = _map(embedding, _narrow)
        self._entries[caption] = entry
        self._bytes += _size(entry)
        while self._bytes > self._most_bytes:
            self._bytes -= _size(self._entries.popitem(last=False)[1])
        return embedding


def _map(embedding: TextEmbedding, change: Callable[[Tensor], Tensor]) -> TextEmbedding:
    return TextEmbedding(*map(change, embedding))


def _narrow(values: Tensor) -> Tensor:
    """Store as bfloat16 if that is lossless, as it is for published encoders."""
    if values.dtype != torch.float32:
        return values
    half = values.bfloat16()
    return half if torch.equal(half.float(), values) else values


def _float32(values: Tensor) -> Tensor:
    return values.float() if values.is_floating_point() else values


def _size(embedding: TextEmbedding) -> int:
    return _ENTRY_BYTES + sum(part.nbytes for part in embedding)
