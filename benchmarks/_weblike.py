"""A synthetic catalog like one crawled from the web, and Open-Sora v1.2's stage-1 buckets for it.

No figure made from it is about real data: how many clips are short or small is an assumption.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.core import hash_rng
from reelworks.core.shape import Geometry
from reelworks.data.buckets import table
from reelworks.data.buckets.assign import Clips
from reelworks.data.buckets.config import BucketsConfig
from reelworks.data.buckets.table import BucketTable

# STDiT3 behind the v1.2 autoencoder: a token for 4 frames of 16 × 16 pixels, what is left over padded.
GEOMETRY = Geometry(stride=(4, 1, 1), patch=(1, 16, 16))
SHORT_SIDE_PX = {144: 0.05, 240: 0.10, 360: 0.25, 480: 0.20, 720: 0.25, 1080: 0.15}
HEIGHT_TO_WIDTH = {9 / 16: 0.55, 3 / 4: 0.10, 9 / 21: 0.03, 16 / 9: 0.17, 4 / 3: 0.03, 1.0: 0.12}


def _videos(stay: float, *batch_sizes: int) -> dict[str, list[Any]]:
    """Entries of 51 to 408 frames; the longer ones keep few of the clips that they could take."""
    lengths = {"51": None, "102": 0.33, "204": 0.1, "408": 0.1}
    return {
        frames: [stay if keep is None else [stay, keep], size]
        for (frames, keep), size in zip(lengths.items(), batch_sizes, strict=True)
    }


# Resolution: {frames: [chance, or chances to stay at the resolution and at the length, batch size]}.
STAGE_1: dict[str, dict[str, list[Any]]] = {
    "144p": {"1": [1.0, 475], **_videos(1.0, 51, 27, 13, 6)},
    "256": {"1": [0.4, 297], **_videos(0.5, 20, 10, 5, 2)},
    "240p": {"1": [0.3, 297], **_videos(0.4, 20, 10, 5, 2)},
    "360p": {"1": [0.2, 141], **_videos(0.15, 8, 4, 2, 1)},
    "512": {"1": [0.1, 141]},
    "480p": {"1": [0.1, 89]},
    "720p": {"1": [0.05, 36]},
    "1024": {"1": [0.05, 36]},
    "1080p": {"1": [0.1, 5]},
    "2048": {"1": [0.1, 5]},
}


def clips(n: int, seed: int = 0) -> Clips:
    """Shapes of `n` clips: short side, aspect, a crop of the height for 15 %, pictures for 20 %."""
    rng = np.random.default_rng(seed)
    short = rng.choice(list(SHORT_SIDE_PX), n, p=list(SHORT_SIDE_PX.values())).astype(np.float32)
    shape = rng.choice(list(HEIGHT_TO_WIDTH), n, p=list(HEIGHT_TO_WIDTH.values())).astype(np.float32)
    height = np.where(shape < 1, short, short * shape)
    width = np.where(shape < 1, short / shape, short)
    cropped = rng.random(n, dtype=np.float32) < 0.15
    height[cropped] *= rng.uniform(0.8, 1, int(cropped.sum()))
    is_image = rng.random(n, dtype=np.float32) < 0.2
    frames = np.clip(rng.lognormal(np.log(150), 1.2, n), 2, 2000).astype(np.int64)
    frames[is_image] = 1
    return Clips(
        uid=_uids(n),
        copy=np.zeros(n, dtype=np.int64),
        num_frames=frames,
        height=np.rint(height).astype(np.int64),
        width=np.rint(width).astype(np.int64),
        is_image=is_image,
        excluded=np.zeros(n, dtype=np.int8),
        held_out=np.zeros(n, dtype=np.bool_),
    )


def _uids(n: int) -> NDArray[np.uint64]:
    uid = np.arange(n, dtype=np.uint64)
    for first in range(0, n, 1 << 16):
        uid[first : first + (1 << 16)] = hash_rng.hash64("uid", uid[first : first + (1 << 16)])
    return uid


def buckets() -> BucketTable:
    """Stage 1's table, with its aspect tables, its probabilities and its strict test of lengths."""
    config = {"opensora": STAGE_1, "probability": "opensora-1.2", "opensora_drop_exact_length": True}
    return table.build([], BucketsConfig.model_validate(config), GEOMETRY)
