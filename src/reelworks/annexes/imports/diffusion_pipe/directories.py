"""Translations of the settings of diffusion-pipe's directories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reelworks.annexes.imports import datasets, rules, values
from reelworks.annexes.imports.diffusion_pipe import data
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome, Rule


def _control(value: Any, draft: ImportDraft) -> Outcome:
    takes = datasets.conditioning_of(draft).takes
    if "source" not in takes:
        return Fate.NOT_POSSIBLE, "this model takes no pictures to edit: choose one that does with --model"
    return Fate.TAKEN, draft.set(f"dataset.{draft.numbers[0]}.source", values.text(value))


def _prefix(value: Any, draft: ImportDraft, number: int) -> str:
    form = value.replace("{", "{{").replace("}", "}}")
    return draft.set(f"dataset.{number}.caption", f"{form}{{text}}") if form else ""


def _shuffle(value: Any, draft: ImportDraft, number: int) -> str:
    """Shuffle tags; their number of orders repeats the clips."""
    return draft.set(f"dataset.{number}.shuffle_tags", True) if value else ""


def _delimiter(value: Any, draft: ImportDraft, number: int) -> str:
    separator = values.text(value)
    if draft.get(f"dataset.{number}.shuffle_tags") is not True:
        return ""
    return draft.set(f"dataset.{number}.tag_separator", separator.strip() or separator)


def _skip(value: Any, draft: ImportDraft, number: int) -> str:
    return "" if values.flag(value) else draft.set(f"dataset.{number}.missing_caption", "")


def _frames(value: Any, draft: ImportDraft) -> Outcome:
    lengths = [draft.settings.get(f"directory.{n}.frame_buckets") for n in range(draft.settings.count("directory"))]
    if draft.key.startswith("directory.") and any(each != value for each in lengths) and len(value) > 2:
        return Fate.NOT_POSSIBLE, "[[bucket]] num_frames: videos take longer lengths of other directories too"
    return Fate.TAKEN, "[[bucket]] num_frames, and dataset.lengths where directories differ"


def _in_buckets(value: Any, draft: ImportDraft) -> Outcome:
    """Tell what becomes of sizes, which all datasets share here; the entries are made of all settings together."""
    if draft.key.startswith("directory.") and draft.settings.count("directory") > 1:
        return Fate.NOT_POSSIBLE, "all datasets share the [[bucket]] entries, which have these sizes too"
    return Fate.TAKEN, "[[bucket]] entries and buckets.aspect_ratios"


def _resolutions(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, "[[bucket]] entries, and dataset.resolutions where there are several"


def _batch(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, "bucket.batch_size"


def _repeats(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, "dataset.repeats"


def _inherited(name: str, set_one: Callable[[Any, ImportDraft, int], str]) -> dict[str, Rule]:
    """Return the rules of a setting of a directory, which all directories without it take from the top of the file."""

    def of_all(value: Any, draft: ImportDraft) -> Outcome:
        numbers = range(draft.settings.count("directory"))
        own = {f"directory.{number}.{name}" for number in numbers} & draft.settings.values.keys()
        found = [set_one(value, draft, n) for n in numbers if f"directory.{n}.{name}" not in own]
        remarks = ", ".join(filter(None, found))
        return (Fate.TAKEN, remarks) if remarks else (Fate.DEFAULT, "as here")

    def of_one(value: Any, draft: ImportDraft) -> Outcome:
        remark = set_one(value, draft, draft.numbers[0])
        return (Fate.TAKEN, remark) if remark else (Fate.DEFAULT, "as here")

    return {name: of_all, f"directory.*.{name}": of_one}


def _both(name: str, rule: Rule) -> dict[str, Rule]:
    return {name: rule, f"directory.*.{name}": rule}


RULES: dict[str, Rule] = {
    **dict.fromkeys(("micro_batch_size_per_gpu", "image_micro_batch_size_per_gpu"), _batch),
    "directory.*.control_path": _control,
    **{key: rule for name in data.SHAPES for key, rule in _both(name, _in_buckets).items()},
    **_both("resolutions", _resolutions),
    **_both("frame_buckets", _frames),
    **_both("num_repeats", _repeats),
    **_inherited("caption_prefix", _prefix),
    **_inherited("shuffle_tags", _shuffle),
    **_inherited("cache_shuffle_num", _shuffle),
    **_inherited("cache_shuffle_delimiter", _delimiter),
    **_inherited("skip_empty_caption", _skip),
    **_both("online_captions", rules.impossible("write captions.json as a list (.jsonl) with columns path and text")),
    **_both("shuffle_metadata", rules.without_meaning("clips are shuffled in each epoch")),
}
