"""Micro-batches of tiny grey pictures to be read, and what came of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from stream_crash import Deadly

from reelworks.core.shape import Shape
from reelworks.data.loader.micro_batch import MicroBatch, MicroBatchRequest
from reelworks.data.media.decode import Request

SHAPE = Shape(1, 16, 16)
CLIP_BYTES = 16 * 16 * 3
LONG_SECONDS = 60.0  # no clip of these takes so long


def request(path: Path | Deadly) -> Request:
    return Request(path, True, SHAPE)  # type: ignore[arg-type]


def work(plan_step: int, paths: list[Any], real: list[bool] | None = None, is_idle: bool = False) -> MicroBatchRequest:
    n = len(paths)
    return MicroBatchRequest(
        epoch=0,
        plan_step=plan_step,
        index=0,
        ends_step=True,
        is_idle=is_idle,
        bucket=0,
        shape=SHAPE,
        uids=np.arange(n, dtype=np.uint64),
        copies=np.zeros(n, dtype=np.int64),
        repeat_index=np.where(real or [True] * n, 0, -1).astype(np.int32),
        requests=tuple(request(path) for path in paths),
        captions=("",) * n,
        fps=(24.0,) * n,
    )


def greys(batch: MicroBatch) -> list[int]:
    assert batch.frames.dtype == torch.uint8
    assert batch.frames.shape == (len(batch.request.requests), 1, 16, 16, 3)
    assert (batch.frames == batch.frames[:, :1, :1, :1, :1]).all()
    return batch.frames[:, 0, 0, 0, 0].tolist()
