"""Fixed word vectors from hashes, without vocabulary, training or download.

Equal words have equal vectors on every platform and in every run; different ones are nearly orthogonal,
so that a denoiser can learn what each word means. Order and grammar are not represented.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.core.hash_rng import hash64
from reelworks.data.distributed.contract import Contract
from reelworks.models.api import TextEmbedding, TextEncoder
from reelworks.models.config import TextEncoderConfig

CONTRACT = Contract(torch.float32, torch.float32, None, None, torch.float32, {})
_WORD = re.compile(r"\w+")
_EMPTY = ""  # the token of a caption without words, different from every word


def split_words(caption: str) -> list[str]:
    """Split a caption into lower-cased words; punctuation is dropped."""
    return _WORD.findall(caption.lower())


@functools.lru_cache(maxsize=1 << 16)
def word_vector(word: str, dim: int) -> NDArray[np.float32]:
    """Return a word's vector `[dim]`, of mean 0 and variance 1 per element, close to normal.

    Each element is the sum of twelve 16-bit uniform integers (variance 1/12 each), cut from three
    hashes. Integer arithmetic makes platforms and libraries agree.
    """
    index = np.arange(3 * dim, dtype=np.uint64).reshape(dim, 3, 1)
    quarters = hash64("hashed-text", word, index) >> np.array([0, 16, 32, 48], dtype=np.uint64)
    total = (quarters & np.uint64(0xFFFF)).sum(axis=(1, 2), dtype=np.int64)
    vector: NDArray[np.float32] = ((total - 6 * 0xFFFF) / 2.0**16).astype(np.float32)
    vector.setflags(write=False)
    return vector


@final
class HashedTextEncoder:
    """A text encoder that turns captions into rows of word vectors, and into a scaled sum of others, `pooled_dim` wide."""

    contract = CONTRACT
    sees_pictures = False

    def __init__(self, config: TextEncoderConfig) -> None:
        self.dim, self.pooled_dim, self.max_length = config.dim, config.pooled_dim, config.max_length
        self._device = torch.device("cpu")

    def encode(self, captions: Sequence[str], pictures: Sequence[Tensor] = ()) -> TextEmbedding:
        """Look up every word; the pooled sum of n words is divided by √n, so that its variance stays 1.

        A caption without words becomes one token of its own: attention under a mask that is all False is NaN.
        """
        text_BLD = np.zeros((len(captions), self.max_length, self.dim), dtype=np.float32)
        mask_BL = np.zeros((len(captions), self.max_length), dtype=np.bool_)
        pooled_BP = np.zeros((len(captions), self.pooled_dim), dtype=np.float32)
        for row, caption in enumerate(captions):
            words = split_words(caption)[: self.max_length] or [_EMPTY]
            mask_BL[row, : len(words)] = True
            for column, word in enumerate(words):
                text_BLD[row, column] = word_vector(word, self.dim)
                pooled_BP[row] += word_vector(word, self.pooled_dim) / np.sqrt(len(words), dtype=np.float32)
        tokens, mask, pooled = (torch.from_numpy(a).to(self._device) for a in (text_BLD, mask_BL, pooled_BP))
        return TextEmbedding(tokens, mask, pooled)

    def unseen(self, caption: str) -> int:
        """Count the words at a caption's end that `max_length` cuts off."""
        return max(len(split_words(caption)) - self.max_length, 0)

    def to(self, device: torch.device) -> TextEncoder:
        """Make `encode` return its embeddings on a device; return this object."""
        self._device = torch.device(device)
        return self
