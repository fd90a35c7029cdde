"""Account for each picture in an epoch of OneTrainer, by the rules of its source (23df3832) and of mgds (3a6994a)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import PurePosixPath

import numpy as np

from reelworks.annexes.imports import captions, values
from reelworks.annexes.imports.captions import Beside, FormerCaption
from reelworks.annexes.imports.clip import Clip
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.former import FormerEpoch, Use
from reelworks.annexes.imports.onetrainer import concepts, models, objective

_ASPECTS = tuple((1.0, ratio) for ratio in concepts.RATIOS)
_RULES = (
    "pictures take the nearest of 17 aspect ratios by height / width, at the area of the resolution and in multiples of "
    f"{models.MULTIPLE}, however small they are (mgds/pipelineModules/AspectBucketing.py:get_item)",
    "with several resolutions, one is drawn for each picture; counts are then those to be expected "
    "(mgds/pipelineModules/AspectBucketing.py:get_item)",
    "repeats come before buckets are cut, and a part of a repeat takes other pictures in the next epoch "
    "(mgds/pipelineModules/DiskCache.py:__get_input_index)",
    "each bucket is cut to whole batches of batch_size × processes, and the rest is drawn anew in each epoch; a bucket that "
    "is smaller than a batch is never trained (mgds/pipelineModules/AspectBatchSorting.py:__shuffle)",
    "folders in a concept's folder are read with include_subdirectories alone, and NAME-masklabel.png and "
    "NAME-condlabel.png are no pictures of their own (mgds/pipelineModules/CollectPaths.py:start)",
)

_MOST_TAKEN = 1_000_000  # pictures of the epochs that are counted
_MOST_EPOCHS = 1000
_Size = tuple[int, int]  # height and width


def former_epoch(settings: FormerSettings, clips: Sequence[Clip]) -> FormerEpoch | None:
    """Return the use of each picture, and the rules that it follows from; None if the settings are no such ones."""
    try:
        return _epoch(settings, clips)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
        return None


def _epoch(settings: FormerSettings, clips: Sequence[Clip]) -> FormerEpoch | None:
    of_dataset = {number: concept for concept, number in concepts.numbers(settings).items()}
    if not of_dataset:
        return None
    batch = values.whole(settings.get("batch_size", 1)) * _processes(settings)
    reasons = {at: why for at, clip in enumerate(clips) if (why := _left_out(settings, clip, of_dataset))}
    members: dict[int, list[int]] = defaultdict(list)
    for at, clip in enumerate(clips):
        if at not in reasons:
            members[clip.dataset].append(at)
    totals: dict[int, int] = {}
    shares: dict[int, dict[_Size, float]] = {}
    for number, own in members.items():
        amount, is_samples = concepts.balancing_of(settings, of_dataset[number])
        totals[number] = int(amount) if is_samples else math.floor(len(own) * amount)
        buckets = [_sizes(settings, side) for side in _resolutions(settings, of_dataset[number])]
        for at in own:
            found = [_nearest(known, clips[at]) for known in buckets]
            shares[at] = {size: found.count(size) / len(found) for size in found}
    return FormerEpoch(_uses(len(clips), reasons, _epochs(members, totals), shares, batch), _RULES)


def caption(settings: FormerSettings, beside: Beside) -> FormerCaption:
    """Return the captions of a picture: lines of its file or of the concept's, or its name, with their tags shuffled."""
    of_dataset = {number: concept for concept, number in concepts.numbers(settings).items()}
    get = settings.below(f"concepts.{of_dataset[beside.clip.dataset]}.text").get
    source, why = get("prompt_source", "sample"), ""
    if source == "filename":
        texts, why = [PurePosixPath(beside.clip.path).stem], "captions are the names of files"
    elif source == "concept":
        texts, why = _lines(beside.read(str(get("prompt_path", "")))), "captions are the lines of prompt_path"
    else:
        texts = _lines(beside.text(".txt"))
    if get("caps_randomize_enable") is True:
        why = "capitals of tags are drawn"
        texts = [text.lower() for text in texts] if get("caps_randomize_lowercase") is True else texts
    if get("enable_tag_shuffling") is not True:
        return captions.former(texts, why)
    delimiter, kept = str(get("tag_delimiter", ",")), values.whole(get("keep_tags_count", 1), 0)
    tags = [[tag for each in text.split(delimiter) if (tag := each.strip())] for text in texts]
    mixed = (captions.mixed(each[:kept], each[kept:], joint=f"{delimiter} ") for each in tags)
    return FormerCaption(frozenset(mixed), why)


def _lines(text: str | None) -> list[str]:
    return [line.strip() for line in (text or "").split("\n") if line.strip()] or [""]


def _epochs(members: dict[int, list[int]], totals: dict[int, int]) -> list[Counter[int]]:
    """Return how often each picture is taken in the first epochs, after which the same pictures follow again."""
    periods = [len(own) // math.gcd(totals[number], len(own)) for number, own in members.items()]
    most = max(_MOST_TAKEN // max(sum(map(len, members.values())), 1), 1)
    return [_taken(members, totals, epoch) for epoch in range(min(math.lcm(*periods), most, _MOST_EPOCHS))]


def _taken(members: dict[int, list[int]], totals: dict[int, int], epoch: int) -> Counter[int]:
    uses: Counter[int] = Counter()
    for number, own in members.items():
        passes, rest = divmod(totals[number], len(own))
        first = epoch * totals[number] % len(own)
        uses.update(dict.fromkeys(own, passes) if passes else ())
        uses.update((own + own)[first : first + rest])
    return uses


def _processes(settings: FormerSettings) -> int:
    if settings.get("multi_gpu") is not True:
        return 1
    return max(len([each for each in str(settings.get("device_indexes", "")).split(",") if each.strip()]), 1)


def _left_out(settings: FormerSettings, clip: Clip, of_dataset: dict[int, int]) -> str:
    concept = of_dataset.get(clip.dataset)
    if concept is None:
        return "the concept is not trained"
    if concepts.is_below(settings, concept, clip.path):
        return "it is in a folder of the concept's folder"
    if PurePosixPath(clip.path).stem.endswith(concepts.BESIDE):
        return "it is a mask or a condition of another picture"
    if not clip.is_image or not concepts.is_picture(clip.path):
        return "it is no picture of a kind that the trainer reads"
    return ""


def _resolutions(settings: FormerSettings, concept: int) -> list[_Size | int]:
    """Return the sides, or the one fixed size, to which pictures of a concept are brought."""
    text = concepts.resolution_of(settings, concept)
    sizes = objective.sides_of(text)
    if "x" in text and "," not in text:
        return [sizes[0]]
    return [height for height, _ in sizes]


def _sizes(settings: FormerSettings, side: _Size | int) -> Sequence[_Size]:
    """Return the sizes of the buckets at a resolution, in the order in which the first of equally near ones is taken."""
    if isinstance(side, tuple):
        return [(_rounded(side[0]), _rounded(side[1]))]
    if settings.get("aspect_ratio_bucketing", True) is not True:
        return [(side, side)]
    wanted = [(h / math.sqrt(h * w) * side, w / math.sqrt(h * w) * side) for h, w in _ASPECTS]
    wanted += [(w, h) for h, w in wanted]
    return list({(_rounded(h), _rounded(w)) for h, w in wanted})


def _rounded(value: float) -> int:
    return round(value / models.MULTIPLE) * models.MULTIPLE


def _nearest(sizes: Sequence[_Size], clip: Clip) -> _Size:
    aspects = np.array([height / width for height, width in sizes])
    return sizes[int(np.argmin(abs(aspects - clip.height / clip.width)))]


def _uses(
    clips: int,
    reasons: dict[int, str],
    epochs: Sequence[Counter[int]],
    shares: dict[int, dict[_Size, float]],
    batch: int,
) -> list[Use]:
    """Return the mean use of each picture in some epochs."""
    times: dict[int, float] = defaultdict(float)
    for uses in epochs:
        counts: dict[_Size, float] = defaultdict(float)
        for at, number in uses.items():
            for size, share in shares[at].items():
                counts[size] += number * share
        kept = {size: math.floor(round(count, 6) / batch) * batch / count for size, count in counts.items()}
        for at, number in uses.items():
            times[at] += number * sum(share * kept[size] for size, share in shares[at].items())
    result = []
    for at in range(clips):
        if at in reasons:
            result.append(Use(0, reasons[at]))
            continue
        mean = round(times[at] / len(epochs), 6)
        height, width = next(iter(shares[at]))
        count = round(counts[height, width], 3)
        about = f"its bucket {width}×{height} has {count:g} picture{'s' * (count != 1)}"
        rest = f"{about} in batches of {batch}: {count % batch:g} of them are left out in each epoch, drawn anew"
        taken = sum(uses[at] for uses in epochs) / len(epochs)
        if not mean:
            result.append(
                Use(0, f"{about}, fewer than a batch of {batch}" if taken else "the concept's balancing is 0")
            )
        else:
            result.append(Use(mean, rest if mean < min(taken, 1) else ""))
    return result
