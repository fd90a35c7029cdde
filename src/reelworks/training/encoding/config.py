"""Recipe keys for latents and embeddings that are encoded once and stored."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from reelworks.core.config import Config, Private


class EncodeConfig(Config):
    """`[encode]`: encode clips and captions once, ahead of training, and read the results from a folder.

    Attributes:
        store: Encode what training needs before the first step, and train from the stored latents and embeddings,
            without autoencoder and text encoder in memory; `reelworks encode` does the same ahead of time.
        folder: Folder of stored latents and embeddings, which runs and recipes may share: an entry is found by the
            digest of its complete request and can never be stale; default: the folder `encoded` beside the run.
        ahead: Encode the next micro-batch, or load it from the store, while the device trains: true takes memory for
            encoding beside training, and "auto" does so where latents are stored, which takes next to none.
        variants: Variants stored of each clip, which epochs and repeats use in turn: of its crop and first frame, where
            these are random, of flip, rotation, colours, caption and tags, where the dataset draws them, and of the
            masks of VACE that objective.mask_ratios draws.
        dtype: Dtype of stored latents: float32 keeps them exactly, bfloat16 takes half the disk and keeps three digits.
            Embeddings are always stored exactly, and without padding.
    """

    store: bool = False
    folder: Private[str | None] = Field(default=None, min_length=1)
    ahead: Literal["auto"] | bool = "auto"
    variants: int = Field(default=1, ge=1)
    dtype: Literal["float32", "bfloat16"] = "float32"
