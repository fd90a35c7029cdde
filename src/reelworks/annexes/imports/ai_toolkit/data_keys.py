"""Translations of the settings of `datasets` to recipe keys."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import datasets, rules, sizes
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome
from reelworks.annexes.imports.sizes import Sizes


def sizes_of(settings: FormerSettings, number: int) -> list[Any]:
    """Return the resolutions of a dataset, each of which ai-toolkit makes a dataset of its own."""
    value = settings.get(f"datasets.{number}.resolution", 512)
    found = value if isinstance(value, list) else [value]
    return [size for place, size in enumerate(found) if size not in found[:place]]


def _uses(draft: ImportDraft, number: int) -> Outcome:
    """Set how often a clip is trained in an epoch at each size: its repeats, times two if it is mirrored too."""
    mirrored = 2 if draft.settings.get(f"datasets.{number}.flip_x") is True else 1
    total = max(int(draft.settings.get(f"datasets.{number}.num_repeats", 1)), 1) * mirrored
    if total == 1:
        return Fate.DEFAULT, "1"
    return Fate.TAKEN, draft.set(f"dataset.{number}.repeats", total)


def _resolution(value: Any, draft: ImportDraft) -> Outcome:
    number = draft.numbers[0]
    _uses(draft, number)
    own = _set_buckets(draft)[number].resolutions
    note = f"[[bucket]] resolution = {', '.join(own)}"
    if draft.get(f"dataset.{number}.resolutions") is not None:
        note += ", and dataset.resolutions: each clip is used once at each"
    return Fate.TAKEN, f"{note}; smaller pictures are enlarged, which ai-toolkit trains at their own size"


def _set_buckets(draft: ImportDraft) -> list[Sizes]:
    """Set a bucket for each resolution and number of frames of the datasets, and return the sizes of each."""
    found = []
    for number in range(draft.settings.count("datasets")):
        sides = sorted({datasets.side_of(size) for size in sizes_of(draft.settings, number)}, reverse=True)
        found.append(Sizes(tuple(f"{side}px" for side in sides), tuple(sorted({1, *_lengths(draft, number)}))))
    sizes.write(draft, found)
    draft.set("buckets.upscale", True, "smaller pictures are trained too")
    return found


def _lengths(draft: ImportDraft, number: int) -> list[int]:
    release = datasets.preset_of(draft).release
    if draft.settings.get(f"datasets.{number}.auto_frame_count") is True and not datasets.pictures_only(draft):
        return datasets.ladder(draft, release.num_frames)  # type: ignore[union-attr]
    return [datasets.frames_here(draft, int(draft.settings.get(f"datasets.{number}.num_frames", 1)))]


def _folder(value: Any, draft: ImportDraft) -> Outcome:
    number = draft.numbers[0]
    if not isinstance(value, str) or not value.strip():
        return Fate.TO_FILL_IN, f"a folder is needed: {draft.get(f'dataset.{number}.path')} stands in its place"
    if value.lower().endswith(".json"):
        datasets.place(draft, number, value.removesuffix(".json"))
        return Fate.NOT_POSSIBLE, "lists in JSON are not read: write one as .jsonl, with the columns path and text"
    return Fate.TAKEN, datasets.place(draft, number, value)


def _default_caption(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set("dataset.*.missing_caption", value if isinstance(value, str) else "")


def _trigger(value: Any, draft: ImportDraft) -> Outcome:
    if not isinstance(value, str) or not value.strip():
        if not draft.numbers or draft.settings.get("trigger_word"):
            return Fate.DEFAULT, "none"
        return Fate.TAKEN, f"{draft.set('dataset.*.trigger', '')}: [trigger] and [name] are taken out"
    own = draft.settings.each("datasets", "trigger_word")
    mine = draft.numbers[:1] or [number for number, word in enumerate(own) if not word]
    for number in mine:
        if draft.settings.get(f"datasets.{number}.is_reg") is not True:
            draft.set(f"dataset.{number}.trigger", value)
    return Fate.TAKEN, "dataset.trigger: in place of [trigger] and [name], and before captions without it"


def _control(value: Any, draft: ImportDraft) -> Outcome:
    """Give the model the control folders of a dataset as what it takes: sources of edits, or a control."""
    number = draft.numbers[0]
    own = draft.settings.get(f"datasets.{number}.control_path")
    numbered = [draft.settings.get(f"datasets.{number}.control_path_{i}") for i in (1, 2, 3)]
    of_one_key = own if isinstance(own, list) else [own]
    folders = [folder for folder in (numbered if any(numbered) else of_one_key) if folder]
    return datasets.set_companions(draft, number, folders, "control pictures") if folders else (Fate.DEFAULT, "none")


def _dropout(value: Any, draft: ImportDraft) -> Outcome:
    """Convert the share of clips without caption, which each dataset has for itself in ai-toolkit."""
    rates = [float(rate) for rate in draft.settings.each("datasets", "caption_dropout_rate", 0.0)]
    remark = draft.set("objective.caption_dropout", rates[0], "datasets.0.caption_dropout_rate")
    if len({*rates}) > 1:
        return Fate.NOT_POSSIBLE, f"all datasets have the same rate here, that of the first: {remark}"
    return Fate.TAKEN, remark


def _num_frames(value: Any, draft: ImportDraft) -> Outcome:
    number, wanted = draft.numbers[0], int(value)
    moves = any(frames != 1 for frames in draft.settings.each("datasets", "num_frames", 1))
    moves |= True in draft.settings.each("datasets", "auto_frame_count")
    if wanted == 1:
        if moves and draft.settings.get(f"datasets.{number}.auto_frame_count") is not True:
            draft.set(f"dataset.{number}.filter", "kind == 'image'")
        return Fate.TAKEN, "pictures alone: [[bucket]] num_frames = 1"
    if datasets.pictures_only(draft):
        return Fate.NOT_POSSIBLE, f"{draft.get('model.name')} takes pictures only"
    draft.set("data.short_clips", "hold", "shorter clips are stretched in ai-toolkit")
    own = datasets.frames_here(draft, wanted)
    note = f"[[bucket]] num_frames = {own}, and 1 for pictures beside the videos"
    if own != wanted:
        return Fate.NOT_POSSIBLE, f"{datasets.geometry_of(draft).frame_words}: {note}"
    if draft.settings.get(f"datasets.{number}.shrink_video_to_frames", True) is not False:
        return rules.exact_or_nearest(note, "these frames follow each other, and are taken from all over a video there")
    return Fate.TAKEN, note


def _rate(value: Any, draft: ImportDraft) -> Outcome:
    number = draft.numbers[0]
    consecutive = draft.settings.get(f"datasets.{number}.shrink_video_to_frames", True) is False
    trims = draft.settings.get(f"datasets.{number}.auto_frame_count") is True
    if not trims and (not consecutive or int(draft.settings.get(f"datasets.{number}.num_frames") or 1) <= 1):
        return Fate.NO_MEANING, "pictures, and frames from all over a video, have no rate"
    remark = draft.set("data.fps", float(value))
    return rules.exact_or_nearest(remark, "" if trims else "each n-th frame is read there, n by the rate of the file")


def _any_flag(own: Any, draft: ImportDraft, key: str, target: str, value: Any) -> Outcome:
    """Set a key that holds for all datasets here if one of them asks for it."""
    if not own:
        return Fate.DEFAULT, "off"
    remark = draft.set(target, value)
    return Fate.TAKEN, remark if all(draft.settings.each("datasets", key)) else f"{remark}, for all datasets"


def _sound(value: Any, draft: ImportDraft) -> Outcome:
    if not datasets.conditioning_of(draft).sound:
        return Fate.NOT_POSSIBLE, f"{draft.get('model.name')} is trained without sound"
    draft.set("sound.missing", "silent", "clips without sound are trained with silence in ai-toolkit")
    return Fate.TAKEN, f'model.name = "{draft.get("model.name")}"'


def _repeats(value: Any, draft: ImportDraft) -> Outcome:
    return _uses(draft, draft.numbers[0])


def _mirrored(value: Any, draft: ImportDraft) -> Outcome:
    _, remark = _uses(draft, draft.numbers[0])
    return Fate.TAKEN, f"{draft.set('dataset.*.flip', 0.5)}, {remark}: a mirrored copy of each is added there"


def _num_workers(value: Any, draft: ImportDraft) -> Outcome:
    if draft.numbers[0] != 0:
        return Fate.NO_MEANING, "that of the first dataset"
    return Fate.TAKEN, draft.set("data.num_workers", value)
