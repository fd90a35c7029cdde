"""Account of what ai-toolkit does with each clip in an epoch, by the rules of its dataset and buckets."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from reelworks.annexes.imports import captions
from reelworks.annexes.imports.ai_toolkit import data_keys, models
from reelworks.annexes.imports.captions import Beside, FormerCaption
from reelworks.annexes.imports.clip import Clip
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.former import FormerEpoch, Use

_PICTURES = (".jpg", ".jpeg", ".png", ".webp")
_VIDEOS = (".mp4", ".avi", ".mov", ".webm", ".mkv", ".wmv", ".m4v", ".flv")
_RULES = (
    "toolkit/data_loader.py:AiToolkitDataset: a dataset of num_frames = 1 lists pictures alone, others list both; only "
    f"{' '.join((*_PICTURES, *_VIDEOS))} are listed, and no hidden folder",
    "toolkit/config_modules.py:preprocess_dataset_raw_config: each resolution of a dataset is a dataset of its own, so that "
    "an epoch has every clip at every resolution",
    "toolkit/buckets.py:get_bucket_for_image_size: a clip keeps its own size, rounded to multiples, up to the area of the "
    "resolution; none is enlarged, and none is too small",
    "toolkit/dataloader_mixins.py:build_batch_indices: the last batch of a bucket is filled with clips of that batch once more",
)


def bucket_of(width: int, height: int, side: int, multiple: int) -> tuple[int, int]:
    """Return the width and height of the bucket of a clip: its own size in multiples, of at most `side` squared pixels."""
    pixels, most = width * height, side * side
    target = min(pixels, most)
    scale = math.sqrt(target / pixels) / multiple
    sides = [
        (math.floor(length * scale) * multiple, math.ceil(length * scale) * multiple) for length in (width, height)
    ]
    sizes = [(w, h) for w in sides[0] for h in sides[1] if w > 0 and h > 0 and w * h <= most]
    if not sizes:
        return max(multiple, sides[0][0]), max(multiple, sides[1][0])
    return min(sizes, key=lambda size: abs(size[0] * size[1] - target))


def epoch(settings: FormerSettings, clips: Sequence[Clip]) -> FormerEpoch:
    """Return how often ai-toolkit trains each clip in an epoch."""
    batch_size = _whole(settings.get("train.batch_size"), 1)
    multiple = models.bucket_multiple(settings)
    times, extra = [0.0] * len(clips), [0] * len(clips)
    for members, size in _batched(settings, clips, multiple, batch_size):
        for clip in members:
            times[clip] += 1
        rest = len(members) % size
        if rest:
            last = members[-rest:]
            for position in range(size - rest):
                extra[last[position % rest]] += 1
    uses = [
        Use(0, _left_out(settings, clip)) if not times[n] else Use(times[n] + extra[n], _filled(extra[n]))
        for n, clip in enumerate(clips)
    ]
    return FormerEpoch(uses, _RULES)


def caption(settings: FormerSettings, beside: Beside) -> FormerCaption:
    """Return the caption of a clip, as `CaptionProcessingDTOMixin.get_caption` makes it (toolkit/dataloader_mixins.py)."""
    get = settings.below(f"datasets.{beside.clip.dataset}").get
    ending = str(get("caption_ext", get("caption_type", ".txt")))
    text = beside.text(f".{ending.lstrip('.')}") or ""
    tags = (text if text.strip() else get("default_caption") or "").split(",")
    trigger, is_reg = get("trigger_word") or settings.get("trigger_word") or "", get("is_reg") is True
    replaced = [tag.replace("[name]", trigger).replace("[trigger]", trigger) for tag in tags]
    whole = ", ".join(replaced)
    why = "[trigger] and [name] become the trigger word" if replaced != tags else ""
    if trigger.strip() and trigger not in whole and not is_reg:
        replaced[0] = f"{trigger} {replaced[0]}"
        why = why or "the trigger word is put before captions that lack it"
    if get("random_triggers"):
        return FormerCaption(frozenset([captions.plain(", ".join([*replaced, "…"]))]), "random_triggers are put behind")
    if get("shuffle_tokens") is True:
        why = "all tags are shuffled, those of keep_tokens and the trigger word too"
        return FormerCaption(frozenset([captions.mixed([], [tag.strip() for tag in replaced])]), why)
    return captions.former([", ".join(replaced)], why)


def _batched(
    settings: FormerSettings, clips: Sequence[Clip], multiple: int, batch_size: int
) -> Iterator[tuple[list[int], int]]:
    """Yield the clips of each bucket of each of its datasets, once for each repeat, with the batch size."""
    by_dataset: dict[int, list[int]] = defaultdict(list)
    for number, clip in enumerate(clips):
        if not _left_out(settings, clip):
            by_dataset[clip.dataset].append(number)
    for dataset, numbers in by_dataset.items():
        own = _whole(settings.get(f"datasets.{dataset}.batch_size"), batch_size)
        copies = _whole(settings.get(f"datasets.{dataset}.num_repeats"), 1)
        copies *= 2 if settings.get(f"datasets.{dataset}.flip_x") is True else 1
        copies *= 2 if settings.get(f"datasets.{dataset}.flip_y") is True else 1
        for side in data_keys.sizes_of(settings, dataset):
            buckets: dict[tuple[int, ...], list[int]] = defaultdict(list)
            for number in numbers:
                buckets[_bucket(settings, clips[number], _whole(side, 512), multiple)].append(number)
            for members in buckets.values():
                yield members * copies, own


def _bucket(settings: FormerSettings, clip: Clip, side: int, multiple: int) -> tuple[int, ...]:
    if settings.get(f"datasets.{clip.dataset}.square_crop") is True:
        size = (side, side)
    else:
        size = bucket_of(clip.width, clip.height, side, multiple)
    return (*size, int(clip.is_image))


def _left_out(settings: FormerSettings, clip: Clip) -> str:
    name = clip.path.lower()
    if not name.endswith((*_PICTURES, *_VIDEOS)):
        return "files of this type are not listed"
    if any(part.startswith(".") for part in clip.path.split("/")):
        return "hidden files and folders are not listed"
    if clip.path.split("/")[-2:-1] == ["_controls"]:
        return "files in _controls are not listed"
    prefix = f"datasets.{clip.dataset}"
    moves = settings.get(f"{prefix}.auto_frame_count") is True or _whole(settings.get(f"{prefix}.num_frames"), 1) > 1
    return "" if clip.is_image or moves else "the dataset has num_frames = 1, and lists pictures alone"


def _filled(extra: int) -> str:
    return "it fills the last batch of its bucket" if extra else ""


def _whole(value: Any, otherwise: int) -> int:
    """Return a number of at least 1; another one for what a stranger wrote in its place."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 10**6 else otherwise
