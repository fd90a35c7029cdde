"""An epoch of sd-scripts, picture by picture, by its source of February 2026 (commit 48d368fa)."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from reelworks.annexes.imports import captions
from reelworks.annexes.imports.captions import Beside, Caption, FormerCaption
from reelworks.annexes.imports.clip import Clip
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.former import FormerEpoch, Use
from reelworks.annexes.imports.kohya import areas, sizes
from reelworks.annexes.imports.kohya.areas import AspectBuckets, Size
from reelworks.annexes.imports.kohya.levels import FormerDataset
from reelworks.annexes.imports.kohya.values import is_on, whole_of
from reelworks.annexes.imports.sd_scripts import folders
from reelworks.annexes.imports.sd_scripts.folders import is_picture, usable

_FACE_PARTS = 5
_MOST_CHOICES = 256
_VIDEO = "videos are not read"
_BELOW = "folders in a folder are not searched"
_FORMAT = "this kind of file is not read"
_ZERO = "a side is shorter than bucket_reso_steps: training stops at it"
_SPARE = "regularisation pictures beyond the number of the others are not used"
_HELD_OUT = "held out for validation"
_BALANCED = "regularisation pictures are repeated until they are as many as the others"
_RULES = (
    "a bucket of fewer pictures than a batch is one smaller batch: none is left out (library/train_util.py:make_buckets)",
    "pictures of any size get the size nearest in shape, and are enlarged or cropped to it "
    "(library/train_util.py:BucketManager.select_bucket)",
    "only .png, .jpg, .jpeg, .webp and .bmp in the folder itself are read (library/train_util.py:glob_images)",
    "regularisation pictures are taken in order until there are as many as others, and else repeated "
    "(library/train_util.py:DreamBoothDataset.__init__)",
)


def resolutions(area: Size, least: int, most: int, step: int) -> tuple[Size, ...]:
    """Return the sizes of an area whose sides are multiples of a step within bounds, as `make_bucket_resolutions` does."""
    pixels = area[0] * area[1]
    square = int(math.sqrt(pixels) // step) * step
    found = {(square, square)}
    for width in range(least, most + 1, step):
        height = min(most, pixels // width // step * step)
        if height >= least:
            found |= {(width, height), (height, width)}
    return tuple(sorted(found))


def buckets_of(settings: FormerSettings, dataset: FormerDataset) -> AspectBuckets:
    """Return the sizes of a dataset."""
    found = dataset.find(settings, "resolution")
    area = (sizes.resolution_of(found.value) if found else None) or (1024, 1024)
    if not is_on(dataset.get(settings, "enable_bucket", False)):
        return areas.one_size(area)
    step = max(int(dataset.get(settings, "bucket_reso_steps", 64)), 1)
    if is_on(dataset.get(settings, "bucket_no_upscale", False)):
        return AspectBuckets((area,), step, area[0] * area[1], keeps_small=True, keeps_shape=True)
    least = int(dataset.get(settings, "min_bucket_reso", 256)) // step * step
    most = -(-int(dataset.get(settings, "max_bucket_reso", 1024)) // step) * step
    chosen = resolutions(area, max(least, step), min(most, 65536), step)
    return AspectBuckets(chosen, step, area[0] * area[1], prefers_exact=True)


def epoch(settings: FormerSettings, clips: Sequence[Clip]) -> FormerEpoch:
    """Return the use of each clip, and the number of batches of an epoch."""
    datasets = usable(settings).used
    uses: list[Use] = [Use(1.0)] * len(clips)
    chosen: dict[int, Size] = {}
    owned = areas.by_dataset(clips)
    for number, dataset in enumerate(datasets):
        own = owned[number]
        is_list = any(dataset.find(settings, name) is not None for name in ("metadata_file", "in_json"))
        buckets = buckets_of(settings, dataset)
        got = areas.choose_all(buckets, [(clips[i].width, clips[i].height) for i in own])
        times = _repeats(settings, dataset)
        for i, size in zip(own, got, strict=True):
            reason = _unread(clips[i], is_list=is_list) or ("" if size is not None else _ZERO)
            uses[i] = Use(0.0, reason) if reason else Use(times)
            if size is not None:
                chosen[i] = size
    groups: dict[int, list[int]] = defaultdict(list)
    for number, dataset in enumerate(datasets):
        groups[dataset.group].append(number)
        _hold_out(settings, dataset, owned[number], clips, uses)
    for numbers in groups.values():
        _balance(settings, {number: datasets[number] for number in numbers}, owned, clips, uses)
    return FormerEpoch(uses, (_count(settings, datasets, clips, uses, chosen), *_RULES))


def caption(settings: FormerSettings, beside: Beside) -> FormerCaption:
    """Return the captions of a picture, as `read_caption` and `process_caption` make them (library/train_util.py)."""
    dataset = usable(settings).used[beside.clip.dataset]
    draws = is_on(dataset.get(settings, "enable_wildcard", False))
    ending = f".{str(dataset.get(settings, 'caption_extension', '.caption')).lstrip('.')}"
    text = beside.text(ending)
    parts = beside.path.rpartition(".")[0].split("_")
    if text is None and len(parts) >= _FACE_PARTS:  # a crop of a face has four numbers behind its name
        text = beside.read("_".join(parts[:-4]) + ending)
    if text == "":
        return captions.stops("the caption file is empty, at which the trainer stops")
    lines = [line.strip() for line in (text or "").split("\n")]
    words = dataset.find(settings, "class_tokens")
    own = lines[:1] if not draws else [line for line in lines if line]
    texts = own if text is not None else [str(words.value) if words else ""]
    why = "" if text is not None or beside.clip.caption is None else f"captions are read from {ending} files alone"
    return _processed(settings, dataset, texts or [""], why, draws=draws)


def _processed(
    settings: FormerSettings, dataset: FormerDataset, lines: list[str], why: str, *, draws: bool
) -> FormerCaption:
    """Put prefix and suffix around all lines, draw one of them and its choices, and shuffle its tags."""
    prefix, suffix = (str(dataset.get(settings, f"caption_{name}", "")) for name in ("prefix", "suffix"))
    if draws and len(lines) > 1 and (prefix or suffix):
        why = why or "the prefix is before the first line alone, and the suffix behind the last"
    lines = [*lines]
    lines[0] = f"{prefix} {lines[0]}" if prefix else lines[0]
    lines[-1] = f"{lines[-1]} {suffix}" if suffix else lines[-1]
    found = [choice for line in lines for choice in _choices(line)] if draws else lines
    if found != lines:
        why = why or "one of the choices in {a|b} is drawn"
    secondary = str(dataset.get(settings, "secondary_separator", ""))
    if not (
        is_on(dataset.get(settings, "shuffle_caption", False)) or dataset.get(settings, "caption_tag_dropout_rate", 0)
    ):
        texts = [text.replace(secondary, ",") if secondary else text for text in found]
        return captions.former(texts, why or ("secondary_separator becomes a comma" if texts != found else ""))
    shuffled = frozenset(_shuffled(settings, dataset, text) for text in found)
    mark = dataset.find(settings, "keep_tokens_separator") is not None
    why = why or ("prefix and suffix are shuffled as tags" if prefix or suffix else "")
    return FormerCaption(shuffled, why or ("keep_tokens_separator tells which tags stay in place" if mark else ""))


def _choices(text: str) -> list[str]:
    """Return what a text with choices in braces may become; the first of each beyond 256."""
    parts = re.split(r"(?<!\{)\{([^{}]+)\}(?!\})", text)
    options = [part.split("|") if number % 2 else [part] for number, part in enumerate(parts)]
    many = math.prod(map(len, options)) > _MOST_CHOICES
    made = [[each[0] for each in options]] if many else itertools.product(*options)
    return ["".join(each).replace("{{", "{").replace("}}", "}") for each in made]


def _shuffled(settings: FormerSettings, dataset: FormerDataset, text: str) -> Caption:
    separator = str(dataset.get(settings, "caption_separator", ","))
    mark = str(dataset.get(settings, "keep_tokens_separator", ""))
    keep = max(int(dataset.get(settings, "keep_tokens", 0)), 0)
    first, _, rest = text.partition(mark) if mark and mark in text else ("", "", text)
    middle, _, last = rest.partition(mark) if mark and mark in text else (rest, "", "")
    head, tags, tail = (
        [tag.strip() for tag in part.split(separator)] if part else [] for part in (first, middle, last)
    )
    if not head and not tail:
        head, tags = tags[:keep], tags[keep:]
    if is_on(dataset.get(settings, "shuffle_caption", False)):
        return captions.mixed(head, [tag for tag in tags if tag], tail)
    return captions.plain(", ".join([*head, *tags, *tail]))


def _repeats(settings: FormerSettings, dataset: FormerDataset) -> float:
    found = dataset.find(settings, "num_repeats")
    try:
        return 1.0 if found is None else float(max(whole_of(found.value), 1))
    except (TypeError, ValueError):
        return 1.0


def _unread(clip: Clip, *, is_list: bool) -> str:
    if not clip.is_image:
        return _VIDEO
    if "/" in clip.path and not is_list:
        return _BELOW
    return "" if is_picture(clip.path) else _FORMAT


def _hold_out(
    settings: FormerSettings, dataset: FormerDataset, owned: Sequence[int], clips: Sequence[Clip], uses: list[Use]
) -> None:
    """Hold out the share of a dataset; without a seed of its own, another part at each start."""
    share = float(dataset.get(settings, "validation_split", 0.0))
    if not 0 < share <= 1 or is_on(dataset.get(settings, "is_reg", False)):
        return
    order = sorted((i for i in owned if uses[i].times), key=lambda i: clips[i].path)
    seed = dataset.find(settings, "validation_seed")
    random.Random(0 if seed is None or not isinstance(seed.value, int) else seed.value).shuffle(order)
    for i in order[math.ceil(len(order) * (1 - share)) :]:
        uses[i] = Use(0.0, _HELD_OUT)


def _balance(
    settings: FormerSettings,
    datasets: Mapping[int, FormerDataset],
    owned: Mapping[int, Sequence[int]],
    clips: Sequence[Clip],
    uses: list[Use],
) -> None:
    """Use regularisation pictures of a dataset until they are as many as the others."""
    regular = [n for n, dataset in datasets.items() if is_on(dataset.get(settings, "is_reg", False))]
    wanted = sum(int(uses[i].times) for n in datasets if n not in regular for i in owned[n])
    order = [i for n in regular for i in sorted(owned[n], key=lambda i: clips[i].path) if uses[i].times]
    if not order:
        return
    own = {i: int(uses[i].times) for i in order}
    used: dict[int, int] = {}
    total = 0
    for i in order:
        if total >= wanted:
            break
        used[i] = own[i]
        total += own[i]
    if total < wanted:
        rounds, rest = divmod(wanted - total, len(order))
        for place, i in enumerate(order):
            used[i] += rounds + (place < rest)
    for i in order:
        times = used.get(i, 0)
        uses[i] = Use(float(times), _SPARE if not times else _BALANCED if times > own[i] else "")


def _count(
    settings: FormerSettings,
    datasets: Sequence[FormerDataset],
    clips: Sequence[Clip],
    uses: Sequence[Use],
    chosen: dict[int, Size],
) -> str:
    """Tell the batches of an epoch on one process, for each of the trainer's datasets by itself."""
    shown: dict[int, dict[Size, float]] = defaultdict(lambda: defaultdict(float))
    for i, size in chosen.items():
        shown[datasets[clips[i].dataset].group][size] += uses[i].times
    steps, used = 0, 0
    for dataset in datasets:
        counts = {size: times for size, times in shown.pop(dataset.group, {}).items() if times}
        steps += areas.batches(counts, sizes.batch_of(dataset.get(settings, "batch_size", 1)))
        used += len(counts)
    return f"an epoch is {steps} batches of {used} sizes on one process (library/train_util.py:make_buckets)"


def count_pictures(
    settings: FormerSettings, datasets: Sequence[FormerDataset], clips: Sequence[Clip]
) -> list[int] | None:
    """Return the number of pictures of each dataset: of the clips that were scanned, or else of the folder's files.

    None if one of the folders is not there.
    """
    is_list = [any(each.find(settings, name) is not None for name in ("metadata_file", "in_json")) for each in datasets]
    read = [clip.dataset for clip in clips if not _unread(clip, is_list=is_list[clip.dataset])]
    if clips:
        return [read.count(number) for number in range(len(datasets))]
    counted = [folders.count_pictures(str(dataset.get(settings, "image_dir", ""))) for dataset in datasets]
    return None if None in counted else [number for number in counted if number is not None]
