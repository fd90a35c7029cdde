"""Embeddings of captions that were embedded before, in CPU memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

from reelworks.models.api import TextEmbedding

_MOST_BYTES = 2_000_000_000  # 480 captions of 512 tokens, 4096 wide
_ENTRY_BYTES = 2_000  # of Python's objects around an embedding


class CaptionCache:
    """Embeddings by the exact caption; those that were not asked for longest go first.

    Args:
        most_bytes: Of all that are kept.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._kept: OrderedDict[str, TextEmbedding] = OrderedDict()

    def get(self, caption: str, embed: Callable[[], TextEmbedding]) -> TextEmbedding:
        """Return the embedding of a caption in CPU memory, made now if it is not there."""
        if (found := self._kept.get(caption)) is not None:
            self._kept.move_to_end(caption)
            return _map(found, _float32)
        made = _map(embed(), Tensor.cpu)
        kept = _map(made, _narrow)
        self._kept[caption] = kept
        self._bytes += _size(kept)
        while self._bytes > self._most_bytes:
            self._bytes -= _size(self._kept.popitem(last=False)[1])
        return made


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
