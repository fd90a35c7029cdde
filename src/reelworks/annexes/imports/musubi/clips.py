"""An epoch of musubi-tuner, clip by clip, by its source of June 2026 (commit 30c658c4)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from reelworks.annexes.imports import captions
from reelworks.annexes.imports.captions import Beside, FormerCaption
from reelworks.annexes.imports.clip import Clip
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.former import FormerEpoch, Use
from reelworks.annexes.imports.kohya import areas, sizes
from reelworks.annexes.imports.kohya.areas import AspectBuckets, Size
from reelworks.annexes.imports.kohya.levels import FormerDataset
from reelworks.annexes.imports.kohya.values import is_on, whole_of
from reelworks.annexes.imports.musubi import models, musubi_datasets

_IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".avif")
_VIDEOS = (".mp4", ".webm", ".avi", ".mkv", ".mov", ".flv", ".wmv", ".m4v", ".mpg", ".mpeg")
_STEP_PX = 16
_OTHER_KIND = "a dataset has pictures or videos: the others in its folder are not read"
_BELOW = "folders in a folder are not searched"
_FORMAT = "this kind of file is not read"
_NO_CAPTION = "pictures without a caption file are left out"
_VIDEO_WITHOUT = "a video without a caption file stops the caching of captions"
_SHORT = "fewer frames than the shortest of target_frames"
_ZERO = "a side is shorter than 16 pixels: caching stops at it"
_SAME_NAME = "another file has its name and size: one of the two replaces the other in the cache"
_TIMES = {
    "head": "once at each of target_frames that it has",
    "chunk": "once for each part of target_frames",
    "slide": "once for each window of target_frames",
    "uniform": "frame_sample times",
}
_RULES = (
    "a bucket of fewer clips than a batch is one smaller batch: none is left out (dataset/bucket.py:BucketBatchManager)",
    "clips of any size get the size nearest in shape, and are enlarged or cropped to it "
    "(dataset/bucket.py:BucketSelector.get_bucket_resolution)",
    "lengths are rounded down to 4 n + 1 frames, and a video is cut as frame_extraction says "
    "(dataset/image_video_dataset.py:VideoDataset)",
    "videos are sorted into buckets whatever enable_bucket says; without it, a batch of several sizes stops training "
    "(dataset/image_video_dataset.py:VideoDataset.retrieve_latent_cache_batches)",
    "what is stored is found by the file's name without its ending and its size "
    "(dataset/image_video_dataset.py:BaseDataset.get_latent_cache_path)",
)


def resolutions(area: Size) -> tuple[Size, ...]:
    """Return the sizes of an area, as `BucketSelector` makes them: from half the side of a square to the whole."""
    pixels = area[0] * area[1]
    side = int(math.sqrt(pixels))
    least = side // 2 // _STEP_PX * _STEP_PX
    found: set[Size] = set()
    for width in range(max(least, _STEP_PX), side + _STEP_PX, _STEP_PX):
        height = pixels // width // _STEP_PX * _STEP_PX
        found |= {(width, height), (height, width)}
    return tuple(sorted(found))


def buckets_of(settings: FormerSettings, dataset: FormerDataset, *, videos: bool) -> AspectBuckets:
    """Return the sizes of a dataset."""
    found = dataset.find(settings, "resolution")
    area = (sizes.resolution_of(found.value) if found else None) or (960, 544)
    if not videos and not is_on(dataset.get(settings, "enable_bucket", False)):
        return areas.one_size(area)
    keeps = not videos and is_on(dataset.get(settings, "bucket_no_upscale", False))
    return AspectBuckets(resolutions(area), _STEP_PX, area[0] * area[1], keeps_small=keeps)


def parts(frames: int, lengths: Sequence[int], extraction: str, stride: int, samples: int, most: int) -> list[int]:
    """Return the lengths of the parts of a video of some frames that are trained; one length for each part."""
    if extraction == "full":
        return [(min(frames, most) - 1) // 4 * 4 + 1]
    found: list[int] = []
    for length in (each for each in lengths if each <= frames):
        if extraction == "chunk":
            found += [length] * (frames // length)
        elif extraction == "slide":
            found += [length] * ((frames - length) // stride + 1)
        elif extraction == "uniform" and samples > 1:
            found += [length] * len(set(np.linspace(0, frames - length, samples, dtype=int).tolist()))
        else:
            found.append(length)
    return found


@lru_cache(maxsize=65536)
def frames_at_rate(frames: int, source_fps: float, target_fps: float, end: int | None) -> int:
    """Return the number of frames that are read of a video whose rate is changed by dropping some.

    Frames get whole numbers of the new rate, and the first with each number below `end` is read.
    """
    steps = np.full(frames, target_fps / source_fps)
    numbers = np.concatenate([[0.0], np.cumsum(steps)[:-1]]).astype(np.int64) if frames else np.zeros(0, np.int64)
    kept = numbers[np.concatenate([[True], np.diff(numbers) > 0])] if frames else numbers
    return int((kept < end).sum()) if end is not None else len(kept)


def epoch(settings: FormerSettings, clips: Sequence[Clip]) -> FormerEpoch:
    """Return the use of each clip, and the number of batches of an epoch."""
    uses: list[Use] = [Use(1.0)] * len(clips)
    steps, buckets = 0, 0
    owned = areas.by_dataset(clips)
    for number, dataset in enumerate(musubi_datasets.datasets_of(settings)):
        own = owned[number]
        counts: dict[tuple[int, ...], float] = defaultdict(float)
        videos = musubi_datasets.is_video(settings, dataset)
        _use(settings, dataset, clips, own, uses, counts, videos=videos)
        steps += areas.batches(counts, sizes.batch_of(dataset.get(settings, "batch_size", 1)))
        buckets += len(counts)
    count = f"an epoch is {steps} batches of {buckets} shapes on one process (dataset/bucket.py:BucketBatchManager)"
    return FormerEpoch(uses, (count, *_RULES))


def caption(settings: FormerSettings, beside: Beside) -> FormerCaption:
    """Return the caption of a clip: the whole text of its file, or that of the list (dataset/datasources.py)."""
    dataset = musubi_datasets.datasets_of(settings)[beside.clip.dataset]
    ending = dataset.find(settings, "caption_extension")
    if beside.path and ending is None:
        return captions.stops("without caption_extension no caption is found, and their caching stops")
    text = beside.text(str(ending.value) if ending else "")
    if text is None:
        return captions.stops(_NO_CAPTION if beside.clip.is_image else _VIDEO_WITHOUT)
    return captions.former([text.strip()])


def _use(
    settings: FormerSettings,
    dataset: FormerDataset,
    clips: Sequence[Clip],
    own: Sequence[int],
    uses: list[Use],
    counts: dict[tuple[int, ...], float],
    *,
    videos: bool,
) -> None:
    got = areas.choose_all(
        buckets_of(settings, dataset, videos=videos), [(clips[i].width, clips[i].height) for i in own]
    )
    replaced = _replaced(clips, own)
    is_list = any(dataset.find(settings, name) is not None for name in ("image_jsonl_file", "video_jsonl_file"))
    extraction = str(dataset.get(settings, "frame_extraction", "head"))
    for i, size in zip(own, got, strict=True):
        reason = _unread(clips[i], videos=videos, is_list=is_list) or ("" if size is not None else _ZERO)
        reason = reason or (_SAME_NAME if i in replaced else "")
        lengths = [1] if not videos else [] if reason else _parts_of(settings, dataset, clips[i])
        reason = reason or (_SHORT if not lengths else "")
        if reason or size is None:
            uses[i] = Use(0.0, reason)
            continue
        times = _repeats(settings, dataset)
        uses[i] = Use(times * len(lengths), _TIMES.get(extraction, "") if len(lengths) > 1 else "")
        for length in lengths:
            counts[*size, length] += times


def _repeats(settings: FormerSettings, dataset: FormerDataset) -> float:
    found = dataset.find(settings, "num_repeats")
    try:
        return 1.0 if found is None else float(max(whole_of(found.value), 0))
    except (TypeError, ValueError):
        return 1.0


def _unread(clip: Clip, *, videos: bool, is_list: bool) -> str:
    if clip.is_image == videos:
        return _OTHER_KIND
    if is_list:
        return ""
    if "/" in clip.path:
        return _BELOW
    if not clip.path.lower().endswith(_VIDEOS if videos else _IMAGES):
        return _FORMAT
    return "" if clip.caption is not None else _VIDEO_WITHOUT if videos else _NO_CAPTION


def _replaced(clips: Sequence[Clip], own: Sequence[int]) -> set[int]:
    """Return the clips whose name without its ending, and whose size, a later one has too."""
    last: dict[tuple[str, int, int], int] = {}
    replaced = set[int]()
    for i in sorted(own, key=lambda i: clips[i].path):
        stem = clips[i].path.rpartition("/")[2].rpartition(".")[0]
        key = (stem, clips[i].width, clips[i].height)
        if key in last:
            replaced.add(last[key])
        last[key] = i
    return replaced


def _parts_of(settings: FormerSettings, dataset: FormerDataset, clip: Clip) -> list[int]:
    get, lengths = dataset.get, musubi_datasets.lengths_of(settings, dataset)
    extraction, samples = str(get(settings, "frame_extraction", "head")), int(get(settings, "frame_sample", 1))
    is_head = extraction == "head" or (extraction == "uniform" and samples == 1)
    end, frames = max(lengths) if is_head else None, clip.num_frames
    source, target = get(settings, "source_fps", 0.0), models.frame_rate_of(settings)
    if source > 0 and target is not None:
        frames = frames_at_rate(frames, float(source), target, end)
    elif end is not None:
        frames = min(frames, end)
    if frames < 1:
        return []
    most, stride = int(get(settings, "max_frames", 129)), max(int(get(settings, "frame_stride", 1)), 1)
    return parts(frames, lengths, extraction, stride, max(samples, 1), max(most, 1))
