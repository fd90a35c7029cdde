"""Concepts of OneTrainer, its data sets, and samples, its previews: what they are in a recipe."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from reelworks.annexes.imports import datasets, sizes, tables, values
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.onetrainer import objective, parts
from reelworks.annexes.imports.rules import Fate, ImportedKey, Outcome, Rule
from reelworks.annexes.imports.sizes import Sizes

PICTURES = (".bmp", ".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".avif")
BESIDE = ("-masklabel", "-condlabel")  # ends of names of masks and conditions
_MOST_FILES = 1_000_000
RATIOS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0)  # and their inverses
_MOST_LINES = 1  # of a file of prompts that becomes the caption of all clips
_MOST_PROMPTS_BYTES = 1 << 20


def numbers(settings: FormerSettings) -> dict[int, int]:
    """Return the dataset of each concept that is trained, by the concept's number."""
    trained = [n for n in range(settings.count("concepts")) if _kind(settings, n) in ("STANDARD", "PRIOR_PREDICTION")]
    return {concept: number for number, concept in enumerate(trained)}


def _kind(settings: FormerSettings, number: int) -> str:
    """Return the type of a concept, or "OFF"."""
    if settings.get(f"concepts.{number}.enabled", True) is False:
        return "OFF"
    old = settings.get(f"concepts.{number}.validation_concept")
    kind = settings.get(f"concepts.{number}.type", "VALIDATION" if old is True else "STANDARD")
    return kind if isinstance(kind, str) else "STANDARD"


def resolution_of(settings: FormerSettings, number: int) -> str:
    """Return the resolutions of a concept as text."""
    if settings.get(f"concepts.{number}.image.enable_resolution_override") is True:
        return str(settings.get(f"concepts.{number}.image.resolution_override", "512"))
    return str(settings.get("resolution", "512"))


def balancing_of(settings: FormerSettings, number: int) -> tuple[float, bool]:
    """Return the repeats of a concept, or its number of samples if the second value is true."""
    old = settings.get(f"concepts.{number}.repeats", 1.0)
    amount = values.number(settings.get(f"concepts.{number}.balancing", old), 0, values.MOST)
    return amount, settings.get(f"concepts.{number}.balancing_strategy") == "SAMPLES"


def _of_concept(value: Any, draft: ImportDraft, rule: Rule) -> Outcome:
    """Use a rule with targets in the concept's `dataset.*`, if it is trained."""
    concept, number = draft.numbers[0], numbers(draft.settings).get(draft.numbers[0])
    if number is None:
        return Fate.NO_MEANING, f"of a concept that is {_kind(draft.settings, concept).lower()}"
    draft.numbers = (number, concept)
    return rule(value, draft)


def _own(draft: ImportDraft, key: str, default: Any = None) -> Any:
    """Return another setting of the concept whose setting is being converted."""
    return draft.settings.get(f"concepts.{draft.numbers[1]}.{key}", default)


def _type(value: Any, draft: ImportDraft) -> Outcome:
    kind, number = _kind(draft.settings, draft.numbers[0]), numbers(draft.settings).get(draft.numbers[0])
    if kind == "VALIDATION":
        return Fate.NOT_POSSIBLE, "clips are held out of the datasets: set validation.split"
    if kind != "PRIOR_PREDICTION" or number is None:
        return Fate.DEFAULT, "trained" if kind != "OFF" else "the concept is off"
    if not parts.trains_adapter(draft):
        return Fate.NOT_POSSIBLE, "only a LoRA has a base to predict with: leave the dataset out, or train a LoRA"
    return Fate.TAKEN, draft.set(f"dataset.{number}.prior_prediction", True)


def _variations(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set("encode.variants", max(values.whole(value), draft.get("encode.variants", 1)))


def _balancing(value: Any, draft: ImportDraft) -> Outcome:
    amount, is_samples = balancing_of(draft.settings, draft.numbers[1])
    if not amount:
        return Fate.NOT_POSSIBLE, "no clip of it is trained there: leave the dataset out"
    if not is_samples:
        repeats = int(amount) if amount == int(amount) else amount
        return Fate.TAKEN, draft.set("dataset.*.repeats", repeats)
    found = _count(draft)
    if not found:
        remark = f"set dataset.{draft.numbers[0]}.repeats to {amount:g} divided by the number of pictures"
        return Fate.TO_FILL_IN, remark
    remark = draft.set("dataset.*.repeats", round(int(amount) / found, 6))
    return Fate.TAKEN, f"{remark}, {int(amount)} of {found} pictures"


def is_below(settings: FormerSettings, concept: int, path: str) -> bool:
    """Return whether a file is in a folder of the concept's folder, which is not read."""
    return "/" in path and settings.get(f"concepts.{concept}.include_subdirectories") is not True


def is_picture(path: str) -> bool:
    """Return whether a file is a picture of its own that OneTrainer reads, by its name."""
    name = PurePosixPath(path)
    return name.suffix.lower() in PICTURES and not name.stem.endswith(BESIDE)


def _count(draft: ImportDraft) -> int:
    """Return the number of pictures of a concept: of the clips that were scanned, or else of the folder's files."""
    number, concept = draft.numbers
    if draft.clips:
        paths = [clip.path for clip in draft.clips if clip.dataset == number and clip.is_image]
    else:
        folder, paths = Path(str(_own(draft, "path", ""))), []
        with suppress(OSError, ValueError):
            paths = [path.relative_to(folder).as_posix() for path in itertools.islice(folder.rglob("*"), _MOST_FILES)]
    return sum(is_picture(path) and not is_below(draft.settings, concept, path) for path in paths)


def _crop(value: Any, draft: ImportDraft) -> Outcome:
    crop = "random" if values.flag(value) or draft.get("data.crop") == "random" else "center"
    return Fate.TAKEN, draft.set("data.crop", crop)


def _augmentation(
    value: Any, draft: ImportDraft, strength: str, key: str, factor: float = 1.0, most: float = 1.0
) -> Outcome:
    """Take the strength of a random change."""
    asked = values.number(_own(draft, f"image.{strength}", 0.0), 0) * factor
    if not values.flag(value) or not asked:
        return Fate.DEFAULT, "off"
    taken = values.range_of(0, most, asked)
    remark = draft.set(f"dataset.*.{key}", taken)
    return (Fate.TAKEN, remark) if taken == asked else (Fate.NOT_POSSIBLE, f"the most: {remark}")


def _source(value: Any, draft: ImportDraft) -> Outcome:
    """Take captions of files, a line at a time; those of one file for all only if it has one line."""
    if value == "sample":
        draft.set("dataset.*.missing_caption", "")
        return Fate.TAKEN, draft.set("dataset.*.captions", "lines")
    prompts = [] if value == "filename" else _lines(str(_own(draft, "text.prompt_path", "")))
    if len(prompts) != _MOST_LINES:
        return Fate.NOT_POSSIBLE, (
            "captions are texts beside the files, and pictures without one are left out: make a list (.jsonl) with columns "
            "path and text"
        )
    draft.set("dataset.*.missing_caption", "")
    return Fate.TAKEN, draft.set("dataset.*.caption", datasets.as_text(prompts[0]))


def _lines(path: str) -> list[str]:
    if not path.endswith(".txt"):
        return []
    with suppress(OSError, ValueError), Path(path).open(encoding="utf-8") as file:
        return [line.strip() for line in file.read(_MOST_PROMPTS_BYTES).splitlines() if line.strip()]
    return []


def _tag_dropout(value: Any, draft: ImportDraft) -> Outcome:
    share = values.number(_own(draft, "text.tag_dropout_probability", 0.0), 0, 1)
    if not values.flag(value) or not share:
        return Fate.DEFAULT, "off"
    mode = _own(draft, "text.tag_dropout_mode", "FULL")
    if mode == "RANDOM":
        return Fate.TAKEN, draft.set("dataset.*.tag_dropout", share)
    if mode == "RANDOM WEIGHTED":
        remark = draft.set("dataset.*.tag_dropout", share / 2)
        return Fate.NOT_POSSIBLE, f"all tags have one probability: {remark}, the mean"
    return Fate.NOT_POSSIBLE, "tags are dropped one by one: set dataset.tag_dropout, or objective.caption_dropout"


def _kept(value: Any, draft: ImportDraft) -> Outcome:
    used = _own(draft, "text.enable_tag_shuffling") is True or _own(draft, "text.tag_dropout_enable") is True
    if not used:
        return Fate.NO_MEANING, "tags are left as they are"
    return Fate.TAKEN, draft.set("dataset.*.keep_tags", values.whole(value, 0))


_DEFAULTS: dict[str, Any] = tables.table("onetrainer", "defaults")["concept"]


def _is_shown(draft: ImportDraft) -> bool:
    return draft.settings.get(f"samples.{draft.numbers[0]}.enabled", True) is True


def _prompt(value: Any, draft: ImportDraft) -> Outcome:
    if not _is_shown(draft) or not value:
        return Fate.NO_MEANING, "the sample is off"
    if datasets.needs_picture(draft):
        return Fate.NOT_POSSIBLE, datasets.PICTURE_NEEDED
    draft.set("samples.prompts", [*draft.get("samples.prompts", []), values.text(value)], "samples")
    return Fate.TAKEN, "samples.prompts"


def _of_first(value: Any, draft: ImportDraft, rule: Rule) -> Outcome:
    """Use a rule for the first sample shown, whose settings all previews get; others may only have the same value."""
    if not _is_shown(draft) or not draft.get("samples.prompts"):
        return Fate.NO_MEANING, "the sample is off"
    number, name = draft.numbers[0], draft.key.rpartition(".")[2]
    first = next(n for n in range(number + 1) if draft.settings.get(f"samples.{n}.enabled", True) is True)
    if number == first:
        return rule(value, draft)
    if draft.settings.get(f"samples.{first}.{name}") == value:
        return Fate.DEFAULT, "as that of the first"
    return Fate.NOT_POSSIBLE, "all previews have the settings of the first"


def _side(value: Any, draft: ImportDraft, index: int, key: str) -> Outcome:
    multiple = datasets.geometry_of(draft).multiple[index]
    asked = values.whole(value, 1, 10**5)
    taken = max(round(asked / multiple), 1) * multiple
    remark = draft.set(f"samples.{key}", taken)
    return (Fate.TAKEN, remark) if taken == asked else (Fate.NOT_POSSIBLE, f"the nearest: {remark}")


def defaults(settings: FormerSettings) -> dict[str, Any]:
    """Return the defaults of all concepts that are trained."""
    return {f"concepts.{concept}.{key}": value for concept in numbers(settings) for key, value in _DEFAULTS.items()}


def finish(draft: ImportDraft) -> Iterator[ImportedKey]:
    """Give each dataset its path, its unique name and the limits of what is read there."""
    found = numbers(draft.settings)
    if not found:
        draft.begin("concepts")
        placeholder = draft.set("dataset.0.path", "data", "to fill in")
        remark = (
            f"no concept is trained: give concepts.json too, or --data DIR in place of the placeholder {placeholder}"
        )
        yield ImportedKey("concepts", draft.settings.get("concept_file_name"), Fate.TO_FILL_IN, remark)
    own_names = {concept: draft.settings.get(f"concepts.{concept}.name") for concept in found}
    named = [concept for concept, own in own_names.items() if isinstance(own, str) and own.strip()]
    for concept in named:  # which no other one is to yield to
        draft.set(f"dataset.{found[concept]}.name", "")
    for concept, number in found.items():
        draft.begin(f"concepts.{concept}.path")
        if draft.get(f"dataset.{number}.path") is None:
            datasets.place(draft, number, "data")
            yield ImportedKey(draft.key, None, Fate.TO_FILL_IN, "the concept has no path")
        if concept in named:
            datasets.set_name(draft, number, own_names[concept])
        conditions = ["not contains(path, '-masklabel.')", "not contains(path, '-condlabel.')"]
        if draft.settings.get(f"concepts.{concept}.include_subdirectories") is not True:
            conditions.insert(0, "not contains(path, '/')")
        draft.set(f"dataset.{number}.filter", " and ".join(conditions), "what the trainer does not read as pictures")


def fill_buckets(draft: ImportDraft) -> None:
    """Put the bucket entries into a draft; raises `ValueError` for resolutions that the trainer would not take."""
    texts = [resolution_of(draft.settings, concept) for concept in numbers(draft.settings)]
    texts = texts or [str(draft.settings.get("resolution", "512"))]
    draft.begin("resolution", is_default="resolution" not in draft.settings.values)
    draft.set("buckets.upscale", True, "small pictures are enlarged")
    draft.set("buckets.max_crop", 0.99, "pictures of any shape are cropped to the nearest")
    wide, high = [f"{ratio:g}:1" for ratio in reversed(RATIOS)], [f"1:{ratio:g}" for ratio in RATIOS[1:]]
    ratios = [*wide, *high] if draft.settings.get("aspect_ratio_bucketing", True) is True else ["1:1"]
    draft.set("buckets.aspect_ratios", ratios, "aspect_ratio_bucketing")
    sizes.write(draft, [Sizes(_names(draft, text)) for text in texts], draws=True)


def _names(draft: ImportDraft, text: str) -> tuple[str, ...]:
    """Return the resolutions of a concept as entries have them: one size, or areas, of which each picture draws one."""
    found = sorted(objective.sides_of(text), reverse=True)
    multiple = datasets.geometry_of(draft).multiple
    if "x" in text and len(found) == 1:
        height, width = (max(round(side / each), 1) * each for side, each in zip(found[0], multiple, strict=True))
        return (f"{height}x{width}",)
    return tuple(f"{round((height * width) ** 0.5)}px" for height, width in found)
