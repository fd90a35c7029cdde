"""Rules by which the buckets of sd-scripts drop clips, and the captions that they show."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

from reelworks.annexes.imports import captions
from reelworks.annexes.imports.captions import Beside, Caption, FormerCaption
from reelworks.annexes.imports.draft import Clip, FormerSettings
from reelworks.annexes.imports.kohya.levels import FormerDataset
from reelworks.annexes.imports.sd_scripts import folders
from reelworks.annexes.imports.sd_scripts.folders import is_picture, usable
from reelworks.annexes.imports.trainer import FormerBuckets
from reelworks.annexes.imports.values import is_on

_FACE_PARTS = 5
_MOST_CHOICES = 256


def buckets(settings: FormerSettings, dataset: int) -> FormerBuckets:
    """Return the rules of its buckets, whose last batch may be smaller (library/train_util.py)."""
    own = usable(settings).used[dataset]
    keeps_size = all(is_on(own.get(settings, name, False)) for name in ("enable_bucket", "bucket_no_upscale"))
    return FormerBuckets(enlarges=not keeps_size)


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


def count_pictures(
    settings: FormerSettings, datasets: Sequence[FormerDataset], clips: Sequence[Clip]
) -> list[int] | None:
    """Return the number of pictures of each dataset: of the clips that were scanned, or else of the folder's files.

    None if one of the folders is not there.
    """
    is_list = [any(each.find(settings, name) is not None for name in ("metadata_file", "in_json")) for each in datasets]
    read = [
        clip.dataset
        for clip in clips
        if clip.is_image and is_picture(clip.path) and (is_list[clip.dataset] or "/" not in clip.path)
    ]
    if clips:
        return [read.count(number) for number in range(len(datasets))]
    counted = [folders.count_pictures(str(dataset.get(settings, "image_dir", ""))) for dataset in datasets]
    return None if None in counted else [number for number in counted if number is not None]
