"""Account of what SimpleTuner does with each clip in an epoch, by the rules of its metadata backends and its sampler."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from reelworks.annexes.imports import captions
from reelworks.annexes.imports.captions import Beside, FormerCaption
from reelworks.annexes.imports.clip import Clip
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.former import FormerEpoch, Use
from reelworks.annexes.imports.simpletuner import data_keys, models

_RULES = (
    "helpers/metadata/backends/base.py:meets_resolution_requirements: a clip below minimum_image_size (with an area, its number "
    "of pixels; with a square crop, each side too), min_frames or above max_frames is left out",
    "helpers/models/*/model.py:adjust_video_frames: clips of Wan and LTX are shortened to 8 n + 1 frames before they are compared",
    "helpers/multiaspect/image.py:calculate_new_size_by_pixel_area, calculate_new_size_by_pixel_edge: a clip of any size is "
    "resized to the resolution at its own shape; its bucket is the ratio of the sides, rounded to two digits",
    "helpers/metadata/backends/base.py:_enforce_min_aspect_ratio, _enforce_max_aspect_ratio: buckets beyond them are removed",
    "helpers/metadata/backends/base.py:_prune_small_buckets: with minimum_image_size, a bucket of fewer clips (times repeats + 1) "
    "than a batch is removed, unless disable_bucket_pruning",
    "helpers/metadata/backends/base.py:split_buckets_between_processes: a bucket of fewer clips (times repeats + 1) than batch "
    "size x processes x accumulation ends the run with an error, unless allow_dataset_oversubscription fills it up",
    "helpers/multiaspect/sampler.py:__iter__: the last batch of a bucket is filled with clips of the bucket, drawn anew",
)


class _Batches(NamedTuple):
    """Numbers of clips that a step needs."""

    one: int  # of one process
    all: int  # of all processes and accumulated steps
    copies: int  # repeats + 1


def bucket_of(width: int, height: int, size: float, is_edge: bool, multiple: int, digits: int = 2) -> tuple[int, int]:
    """Return the width and height to which a clip is resized, at its own shape.

    Args:
        size: The shorter side in pixels if `is_edge`, else the area in megapixels.
        digits: Those to which the ratio of the sides is rounded.
    """

    def nearest(length: float) -> int:
        return max(round(length / multiple) * multiple, multiple)

    ratio = round(width / height, digits) or 10.0**-digits
    if is_edge:
        short = int(size)
        return (
            (nearest(short), nearest(int(short / ratio)))
            if width < height
            else (nearest(int(short * ratio)), nearest(short))
        )
    edge = nearest(int(math.sqrt(size * 1e6)))
    return nearest(edge * math.sqrt(ratio)), nearest(edge / math.sqrt(ratio))


def epoch(settings: FormerSettings, clips: Sequence[Clip]) -> FormerEpoch:
    """Return how often SimpleTuner trains each clip in an epoch."""
    uses = [Use(0.0)] * len(clips)
    by_dataset: dict[int, list[int]] = defaultdict(list)
    for number, clip in enumerate(clips):
        reason = _too_small(settings, clip)
        if reason:
            uses[number] = Use(0, reason)
        else:
            by_dataset[clip.dataset].append(number)
    for dataset, numbers in by_dataset.items():
        _use(settings, dataset, numbers, clips, uses)
    return FormerEpoch(uses, _RULES)


def caption(settings: FormerSettings, beside: Beside) -> FormerCaption | None:
    """Return the captions of a clip, as `PromptHandler.magic_prompt` makes them (helpers/prompts.py)."""
    number = beside.clip.dataset
    strategy = data_keys.option(settings, number, "caption_strategy", "filename")
    prompt = data_keys.option(settings, number, "instance_prompt")
    if data_keys.option(settings, number, "only_instance_prompt") is True or strategy == "instanceprompt":
        texts = [str(each).strip() for each in (prompt if isinstance(prompt, list) else [prompt or ""])]
        return captions.former(texts, "one of several instance prompts is drawn" if len(texts) > 1 else "")
    if strategy == "filename":
        texts, why = (
            [beside.clip.path.rpartition("/")[2].rpartition(".")[0].replace("_", " ")],
            "captions are file names",
        )
    elif strategy == "textfile":
        text, why = beside.text(".txt"), ""
        if text is None:
            return captions.stops("a clip without a text file stops the trainer")
        whole = data_keys.option(settings, number, "disable_multiline_split") is True
        texts = [text] if whole else [line for line in text.split("\n") if line] or [""]
    else:
        return None
    if settings.get(f"data.{number}.caption_filter_list"):
        why = "words of caption_filter_list are taken out"
        return FormerCaption(frozenset(captions.plain(f"{text} …") for text in texts), why)
    before = f"{prompt} " if data_keys.option(settings, number, "prepend_instance_prompt") is True and prompt else ""
    if settings.get(f"data.{number}.caption_shuffle.enable") is not True:
        return captions.former([before + text for text in texts], why)
    return FormerCaption(frozenset(_shuffled(settings, number, before, text) for text in texts), why)


def _shuffled(settings: FormerSettings, number: int, before: str, text: str) -> captions.Caption:
    get = settings.below(f"data.{number}.caption_shuffle").get
    mark = {"space": " ", "period": "."}.get(str(get("split_on", "comma")), ",")
    tags = [tag.strip() for tag in text.split(mark) if tag.strip()]
    kept = _whole(get("position_start"), 0)
    if len(tags) - kept < 2:
        return captions.plain(before + text)
    found = captions.mixed(tags[:kept], tags[kept:], joint=" " if mark == " " else f"{mark} ")
    return found._replace(text=captions.plain(before + found.text).text)


def _use(
    settings: FormerSettings, dataset: int, numbers: Sequence[int], clips: Sequence[Clip], uses: list[Use]
) -> None:
    """Set the uses of the clips of one dataset."""
    buckets: dict[float, list[int]] = defaultdict(list)
    for number in numbers:
        buckets[_ratio(settings, dataset, clips[number])].append(number)
    batches = _batches(settings, dataset)
    kept: dict[float, list[int]] = {}
    for ratio, members in buckets.items():
        reason = _removed(settings, dataset, ratio, len(members) * batches.copies, batches)
        if reason:
            for number in members:
                uses[number] = Use(0, reason)
        else:
            kept[ratio] = members
    small = [ratio for ratio, members in kept.items() if len(members) * batches.copies < batches.all]
    fills = settings.get("allow_dataset_oversubscription") is True and batches.copies == 1
    if small and not fills:
        least = len(kept[small[0]]) * batches.copies
        reason = f"the run ends with an error: bucket {small[0]} has {least} clips with repeats, and a step needs {batches.all}"
        for number in (number for members in kept.values() for number in members):
            uses[number] = Use(0, reason)
        return
    share = _share(settings, dataset, len(numbers))
    for ratio, members in kept.items():
        copies = math.ceil(batches.all / len(members)) if ratio in small else batches.copies
        total = len(members) * copies
        extra = -total % (batches.all if ratio in small else batches.one)
        reason = "a bucket of fewer clips than a step is filled up" if ratio in small else ""
        if extra and not reason:
            reason = "the last batch of its bucket is filled with clips that are drawn anew"
        for number in members:
            uses[number] = Use((copies + extra / len(members)) * share, reason)


def _ratio(settings: FormerSettings, dataset: int, clip: Clip) -> float:
    """Return the bucket of a clip: the ratio of its sides after resizing."""
    prefix = f"data.{dataset}"
    if settings.get(f"{prefix}.crop") is True:
        aspect = settings.get(f"{prefix}.crop_aspect", "square")
        if aspect == "square":
            return 1.0
        listed = settings.get(f"{prefix}.crop_aspect_buckets")
        ratios = [float(ratio) for ratio in listed if data_keys.is_given(ratio)] if isinstance(listed, list) else []
        if aspect == "closest" and ratios:
            return min(ratios, key=lambda ratio: abs(ratio - clip.width / clip.height))
    digits = _whole(settings.get("aspect_bucket_rounding"), 2)
    is_edge = data_keys.option(settings, dataset, "resolution_type", "pixel_area") == "pixel"
    value = data_keys.option(settings, dataset, "resolution", 1024)
    value = value if data_keys.is_given(value) else 1024
    size = float(value) if is_edge else data_keys.megapixels(settings, dataset, value)
    width, height = bucket_of(clip.width, clip.height, size, is_edge, models.bucket_multiple(settings), digits)
    return round(width / height, digits)


def _removed(settings: FormerSettings, dataset: int, ratio: float, total: int, batches: _Batches) -> str:
    """Return why a bucket is removed; "" if it is not."""
    least, most = (settings.get(f"data.{dataset}.{end}_aspect_ratio") for end in ("minimum", "maximum"))
    if data_keys.is_given(least) and ratio < least:
        return f"its bucket is below minimum_aspect_ratio, {least:g}"
    if data_keys.is_given(most) and ratio > most:
        return f"its bucket is above maximum_aspect_ratio, {most:g}"
    prunes = data_keys.is_given(data_keys.option(settings, dataset, "minimum_image_size"))
    if prunes and settings.get("disable_bucket_pruning") is not True and total < batches.one:
        return f"its bucket has fewer clips than a batch of {batches.one}"
    return ""


def _too_small(settings: FormerSettings, clip: Clip) -> str:
    """Return why a clip is left out before buckets; "" if it is not."""
    prefix = f"data.{clip.dataset}"
    if clip.is_image and data_keys.is_video(settings, clip.dataset):
        return "the dataset is one of videos"
    if not clip.is_image and not data_keys.is_video(settings, clip.dataset):
        return "the dataset is one of pictures"
    if not clip.is_image:
        frames = models.frames_there(settings, clip.num_frames)
        wanted = _whole(settings.get(f"{prefix}.video.num_frames"), data_keys.FRAMES)
        fewest = models.frames_there(settings, _whole(settings.get(f"{prefix}.video.min_frames"), wanted))
        most = settings.get(f"{prefix}.video.max_frames")
        if frames < fewest:
            return f"it has fewer than {fewest} frames"
        if data_keys.is_given(most) and frames > most:
            return f"it has more than {most} frames"
    least = data_keys.option(settings, clip.dataset, "minimum_image_size")
    if not data_keys.is_given(least):
        return ""
    if data_keys.option(settings, clip.dataset, "resolution_type", "pixel_area") == "pixel":
        return f"a side is shorter than {least:g} pixels" if min(clip.width, clip.height) < least else ""
    pixels = data_keys.megapixels(settings, clip.dataset, least) * 1e6
    if clip.width * clip.height < pixels:
        return f"it has fewer than {pixels:,.0f} pixels"
    if data_keys.crops_square(settings, clip.dataset) and min(clip.width, clip.height) < math.floor(math.sqrt(pixels)):
        return f"a side is shorter than {math.floor(math.sqrt(pixels))} pixels, which a square needs"
    return ""


def _batches(settings: FormerSettings, dataset: int) -> _Batches:
    one = _whole(settings.get(f"data.{dataset}.train_batch_size"), _whole(settings.get("train_batch_size"), 4))
    steps = _whole(settings.get("gradient_accumulation_steps"), 1) * _whole(settings.get("num_processes"), 1)
    repeats = settings.get(f"data.{dataset}.repeats")
    return _Batches(one, one * steps, int(repeats) + 1 if data_keys.is_given(repeats) else 1)


def _share(settings: FormerSettings, dataset: int, clips: int) -> float:
    most = settings.get(f"data.{dataset}.max_num_samples")
    return min(most / clips, 1.0) if data_keys.is_given(most) else 1.0


def _whole(value: Any, otherwise: int) -> int:
    """Return a number of at least 1; another one for what a stranger wrote in its place."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 10**6 else otherwise
