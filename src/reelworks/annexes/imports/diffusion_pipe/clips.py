"""Account for each clip in an epoch of diffusion-pipe, by the rules of its source (8f83dbf).

All of its orders have fixed seeds, and none is drawn again in another epoch: which examples are left over in a bucket
follows from the names of the files alone, and they are never trained.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from reelworks.annexes.imports import captions, values
from reelworks.annexes.imports.captions import Beside, FormerCaption
from reelworks.annexes.imports.clip import Clip
from reelworks.annexes.imports.diffusion_pipe import data, models
from reelworks.annexes.imports.diffusion_pipe.data import Directory
from reelworks.annexes.imports.diffusion_pipe.models import DiffusionPipeModel
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.files import existing
from reelworks.annexes.imports.former import FormerEpoch, Use

_Item = TypeVar("_Item")
_NO_MEDIA = (".txt", ".npz", ".json", ".parquet", ".bak", ".db")
_MOST_EXAMPLES = 3_000_000  # of a bucket whose order is computed; of more, those left over are too few to matter
_RULES = (
    "the files of a directory are read, and not those of its folders "
    "(utils/dataset.py:DirectoryDataset._get_ungrouped_metadata)",
    "files without a caption file are left out unless skip_empty_caption = false "
    "(utils/dataset.py:DirectoryDataset._metadata_map_fn)",
    "a clip takes the nearest aspect ratio in log space and the longest frame bucket that it fills, at the model's frame "
    "rate; a video never takes the bucket of pictures (utils/dataset.py:DirectoryDataset._find_closest_ar_bucket)",
    "each clip is trained at all resolutions, however small it is (utils/dataset.py:ARBucketDataset.cache_latents)",
    "each bucket is cut to whole batches of micro_batch_size_per_gpu × gradient_accumulation_steps × processes / "
    "pipeline_stages; the order has a fixed seed, so that always the same examples are left out "
    "(utils/dataset.py:ConcatenatedBatchedDataset.post_init)",
)


@dataclass(frozen=True)
class _Examples:
    """Examples of a directory in a size bucket, by the numbers of their clips, in the order in which they are used."""

    order: Sequence[int]
    count: int  # with repeats, which begin again at the first

    def clip(self, number: int) -> int:
        return self.order[number % len(self.order)]


def former_epoch(settings: FormerSettings, clips: Sequence[Clip]) -> FormerEpoch | None:
    """Return the use of each clip, and the rules that it follows from; None if the settings give no sizes."""
    model = models.former_model(settings)
    try:
        directories = data.directories(settings)
        batches = [settings.get("micro_batch_size_per_gpu", 1)]
        batches.append(settings.get("image_micro_batch_size_per_gpu", batches[0]))
        step = _step(settings)
        if model is None or not directories or not all(each.sides or each.sizes for each in directories):
            return None
        return _epoch(settings, clips, model, directories, batches, step)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
        return None


def caption(settings: FormerSettings, beside: Beside) -> FormerCaption | None:
    """Return the captions of a file: a prefix, and its text with its tags in a few orders (utils/dataset.py)."""

    def get(name: str, default: Any = None) -> Any:
        return data.of_directory(settings, beside.clip.dataset, name, default)

    prefix, delimiter = str(get("caption_prefix", "")), str(get("cache_shuffle_delimiter", ", "))
    shuffles = get("cache_shuffle_num", 0) or get("shuffle_tags", False)
    listed = beside.read(str(Path(beside.path).with_name("captions.json"))) if beside.path else None
    own = json.loads(listed).get(Path(beside.path).name) if listed is not None else None
    texts = own if isinstance(own, list) else [(beside.text(".txt") or "").strip()]
    why = "captions are those of captions.json" if isinstance(own, list) else ""
    if not shuffles:
        return captions.former([f"{prefix}{text}" for text in texts], why)
    joint = delimiter.strip() or delimiter
    parts = [captions.mixed([], text.split(delimiter), joint=f"{joint} ") for text in texts]
    found = (part._replace(text=captions.plain(prefix + part.text).text) for part in parts)
    return FormerCaption(frozenset(found), why or f"tags are split at {delimiter!r} and shuffled")


def _step(settings: FormerSettings) -> int:
    """Return the micro-batches of a step on all processes that have data of their own."""
    gpus, stages = (values.whole(settings.get(key, 1), 1, 10**6) for key in ("num_gpus", "pipeline_stages"))
    return max(gpus // stages, 1) * values.whole(settings.get("gradient_accumulation_steps", 1))


def _epoch(
    settings: FormerSettings,
    clips: Sequence[Clip],
    model: DiffusionPipeModel,
    directories: Sequence[Directory],
    batches: Sequence[object],
    step: int,
) -> FormerEpoch:
    reasons: dict[int, str] = {}
    buckets: dict[tuple[float, ...], list[_Examples]] = defaultdict(list)
    sizes = Counter[int]()
    for number, directory in enumerate(directories):
        own = [at for at, clip in enumerate(clips) if clip.dataset == number]
        own = [own[at] for at in _files(settings, number, directory, clips, own)]
        groups: dict[tuple[float, ...], list[int]] = defaultdict(list)
        for at in own:
            found = _group(clips[at], model, directory)
            if isinstance(found, str):
                reasons[at] = found
            else:
                groups[found].append(at)
        for group, members in groups.items():
            for bucket in _size_buckets(group, model, directory):
                order = _shuffled(members, str(bucket)) * max(directory.shuffled, 1)
                sizes.update(members)
                buckets[bucket].append(_Examples(order, int(len(order) * directory.repeats)))
    times = Counter[int]()
    for bucket, parts in buckets.items():
        given = batches[1] if bucket[-1] == 1 else batches[0]
        size = step * data.batch_size(given, math.sqrt(bucket[-2] * bucket[-3]))
        name = f"{bucket[-3]:g}×{bucket[-2]:g}" + (f"×{bucket[-1]:g} frames" if bucket[-1] > 1 else "")
        _count(parts, size, name, times, reasons)
    return FormerEpoch([_use(at, times, sizes, reasons, clip, directories) for at, clip in enumerate(clips)], _RULES)


def _use(
    at: int,
    times: Counter[int],
    sizes: Counter[int],
    reasons: dict[int, str],
    clip: Clip,
    directories: Sequence[Directory],
) -> Use:
    if not times[at]:
        return Use(0, reasons.get(at, "the trainer does not read it"))
    several = sizes[at] > 1 and clip.dataset < len(directories)
    return Use(times[at], f"at each of {sizes[at]} resolutions" if several else "")


def _files(
    settings: FormerSettings, number: int, directory: Directory, clips: Sequence[Clip], own: Sequence[int]
) -> Iterator[int]:
    """Yield positions in `own` in the order in which the files are shuffled, which depends on their number."""
    by_name = {clips[at].path: position for position, at in enumerate(own) if "/" not in clips[at].path}
    folder = Path(directory.path)
    names = sorted(by_name)
    if by_name and existing(folder) is not None:
        found = [path for path in sorted(folder.glob("*")) if path.is_file() and path.suffix not in _NO_MEDIA]
        names = [path.name for path in found] if by_name.keys() <= {path.name for path in found} else names
    if values.flag(data.of_directory(settings, number, "shuffle_metadata", True)):
        names = _shuffled(names, str(folder))
    yield from (by_name[name] for name in names if name in by_name)


def _shuffled(items: Sequence[_Item], seed: str) -> list[_Item]:
    """Return items in the order of `datasets.Dataset.shuffle` with the trainer's seed of a text."""
    number = int(hashlib.md5(seed.encode(), usedforsecurity=False).hexdigest(), 16) % 10**9
    return [items[at] for at in np.random.default_rng(number).permutation(len(items))]


def _group(clip: Clip, model: DiffusionPipeModel, directory: Directory) -> tuple[float, ...] | str:
    """Return the aspect ratio or size, and the frames, of the bucket of a clip, or why it has none."""
    if directory.skips_uncaptioned and clip.caption is None:
        return "it has no caption file"
    frames = 1
    if not clip.is_image:
        if model.fps is None:
            return "this model takes pictures only"
        frames = int(clip.num_frames * model.fps / clip.fps) if clip.fps else 0
    is_video = frames > 1
    ratio = math.log(clip.width / clip.height)
    if directory.sizes:
        # The trainer sorts the ratios by value and the sizes by frames, and takes both by the same numbers.
        ratios = sorted({round(width / height, 3) for width, height, _ in directory.sizes})
        ranked = sorted(range(len(ratios)), key=lambda at: abs(ratio - math.log(ratios[at])))
        sizes = (directory.sizes[at] for at in ranked)
        fitting = (size for size in sizes if frames >= size[2] and not (is_video and size[2] == 1))
        return next(fitting, None) or f"it is shorter than any size bucket at {model.fps:g} fps"
    taken = max((each for each in directory.frames if each <= frames), default=0)
    if not taken or (is_video and taken == 1):
        least = min((each for each in directory.frames if each > 1), default=None)
        return (
            "there is no frame bucket for videos"
            if least is None
            else f"it has less than {least} frames at {model.fps:g} fps"
        )
    return min(directory.ratios, key=lambda each: abs(ratio - math.log(each))), taken


def _size_buckets(
    group: tuple[float, ...], model: DiffusionPipeModel, directory: Directory
) -> Iterator[tuple[float, ...]]:
    if directory.sizes:
        yield group
        return
    ratio, frames = group
    for side in directory.sides:
        width = math.sqrt(side**2 * ratio)
        height = side**2 / width
        yield ratio, _rounded(width, model.multiple), _rounded(height, model.multiple), int(frames)


def _rounded(value: float, multiple: int) -> int:
    return int(round(value / multiple) * multiple)


def _count(parts: Sequence[_Examples], size: int, name: str, times: Counter[int], reasons: dict[int, str]) -> None:
    """Count the uses of clips in the whole batches of a bucket, and say why others have none."""
    total = sum(part.count for part in parts)
    trained = total // size * size
    examples = f"{total} example{'s' * (total != 1)}"
    why = f"its bucket {name} has {examples}, fewer than a batch of {size}"
    if trained:
        why = f"it is left over in its bucket {name} of {examples} in batches of {size}, always the same one"
    if total > _MOST_EXAMPLES:
        trained, numbers = total, [(number, part.count) for number, part in enumerate(parts)]
    elif len(parts) == 1:
        numbers = [(0, trained)]
    else:
        order = [number for number, part in enumerate(parts) for _ in range(part.count)]
        random.Random(0).shuffle(order)  # as the trainer draws it
        numbers = list(Counter(order[:trained]).items())
    for number, count in numbers:
        part = parts[number]
        passes, rest = divmod(count, len(part.order))
        if passes:
            times.update({at: passes * repeated for at, repeated in Counter(part.order).items()})
        times.update(part.order[:rest])
    for part in parts:
        reasons.update((at, why) for at in part.order if not times[at])
