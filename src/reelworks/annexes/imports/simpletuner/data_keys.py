"""Translations of the settings of data backends to recipe keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from reelworks.annexes.imports import datasets, sizes
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome
from reelworks.annexes.imports.simpletuner import models
from reelworks.annexes.imports.sizes import Sizes

FRAMES = 125  # of a video backend without num_frames: 5 seconds

_CROPS = {**dict.fromkeys(("center", "centre"), "center"), "random": "random"}


def is_video(settings: FormerSettings, number: int) -> bool:
    """Whether a data backend holds videos."""
    return bool(settings.get(f"data.{number}.dataset_type") == "video")


def option(settings: FormerSettings, number: int, key: str, default: Any = None) -> Any:
    """Return a setting of a data backend, or else the option of the same name for all."""
    own = settings.get(f"data.{number}.{key}")
    return settings.get(key, default) if own is None else own


def megapixels(settings: FormerSettings, number: int, value: Any) -> float:
    """Return a size of a data backend in megapixels, where its resolution is an area."""
    number_ = float(value)
    is_edge = option(settings, number, "resolution_type", "pixel_area") == "pixel_area"
    return number_ * number_ / 1e6 if is_edge else number_


def side_of(settings: FormerSettings, number: int) -> int:
    """Return the side of the square that has as many pixels as its clips, or of a "pixel" resolution the shorter side."""
    value = option(settings, number, "resolution", 1024)
    if isinstance(value, bool) or not float(value) > 0:
        raise ValueError(value)
    if option(settings, number, "resolution_type", "pixel_area") == "pixel":
        return datasets.side_of(value)
    multiple = models.bucket_multiple(settings)
    edge = math.sqrt(megapixels(settings, number, value) * 1e6)
    return datasets.side_of(max(round(int(edge) / multiple), 1) * multiple)


def frames_of(settings: FormerSettings, number: int) -> int:
    """Return the number of frames of a data backend's clips."""
    if not is_video(settings, number):
        return 1
    return models.frames_there(settings, int(settings.get(f"data.{number}.video.num_frames", FRAMES)))


def _resolution(value: Any, draft: ImportDraft) -> Outcome:
    settings, number = draft.settings, draft.numbers[0]
    names = set_buckets(draft)
    remark = f'[[bucket]] resolution = "{names[number]}"; smaller clips are enlarged, as there'
    if len(set(names)) > 1:
        remark += ", and dataset.resolutions, since others have other sizes"
    shorter = option(settings, number, "resolution_type", "pixel_area") == "pixel"
    if shorter and not crops_square(settings, number):
        return Fate.NOT_POSSIBLE, f"{remark}; the shorter side is fixed there, and the area here"
    return Fate.TAKEN, remark


def set_buckets(draft: ImportDraft) -> list[str]:
    """Set the buckets of all data backends, videos apart from pictures, and return the resolution of each."""
    names = [_name(draft, number) for number in range(draft.settings.count("data"))]
    frames = [_lengths(draft, n) if _makes_clips(draft, n) else {1} for n in range(len(names))]
    sizes.write(draft, [Sizes((name,), tuple(sorted(own))) for name, own in zip(names, frames, strict=True)])
    draft.set("buckets.upscale", True, "smaller clips are trained too")
    return names


def _makes_clips(draft: ImportDraft, number: int) -> bool:
    return is_video(draft.settings, number) and not datasets.preset_of(draft).config.pictures_only


def _name(draft: ImportDraft, number: int) -> str:
    """Return the resolution of a data backend, as entries have it."""
    by_lines = option(draft.settings, number, "resolution_type", "pixel_area") == "pixel"
    return f"{side_of(draft.settings, number)}{'p' if by_lines and _makes_clips(draft, number) else 'px'}"


def _lengths(draft: ImportDraft, number: int) -> set[int]:
    settings = draft.settings
    most = frames_of(settings, number)
    if settings.get(f"data.{number}.video.bucket_strategy") == "resolution_frames":
        return set(datasets.ladder(draft, most))
    return {datasets.frames_here(draft, most)}


def crops_square(settings: FormerSettings, number: int) -> bool:
    """Whether a data backend crops its clips to squares."""
    crops = settings.get(f"data.{number}.crop") is True
    return crops and settings.get(f"data.{number}.crop_aspect", "square") == "square"


def _folder(value: Any, draft: ImportDraft) -> Outcome:
    number, settings = draft.numbers[0], draft.settings
    kind = settings.get(f"data.{number}.type", "local")
    if isinstance(value, str) and value.strip():
        bucket = settings.get(f"data.{number}.aws_bucket_name")
        if kind == "aws" and isinstance(bucket, str):
            value = f"s3://{bucket}/{value.strip('/')}"
        return Fate.TAKEN, datasets.place(draft, number, value)
    if kind == "huggingface":
        return Fate.DEFAULT, "dataset_name"
    return Fate.TO_FILL_IN, f"a folder is needed: {draft.get(f'dataset.{number}.path')} stands in its place"


def _hub(value: Any, draft: ImportDraft) -> Outcome:
    """Name a folder for a dataset of the hub, whose pictures lie in tables there."""
    folder = str(value).rpartition("/")[2] or "clips"
    remark = datasets.place(draft, draft.numbers[0], folder)
    return (
        Fate.TO_FILL_IN,
        f"write its pictures to a folder: reelworks unpack hf://datasets/{value} -o {folder}; {remark}",
    )


def _identity(value: Any, draft: ImportDraft) -> Outcome:
    """Name the dataset as its backend, if its path does not come with a name that another one has."""
    number, settings = draft.numbers[0], draft.settings
    if not isinstance(value, str) or not value.strip() or settings.each("data", "id").count(value) > 1:
        return Fate.NO_MEANING, f"dataset.{number}.name"
    return Fate.TAKEN, draft.set(f"dataset.{number}.name", value)


def _captions(value: Any, draft: ImportDraft) -> Outcome:
    """Convert where captions come from: text files, one prompt for all, or what is not read here."""
    number, settings = draft.numbers[0], draft.settings
    strategy = option(settings, number, "caption_strategy", "filename")
    prompt = option(settings, number, "instance_prompt")
    prompt = prompt if isinstance(prompt, str) else ""
    if strategy == "instanceprompt" or option(settings, number, "only_instance_prompt") is True:
        draft.set(f"dataset.{number}.missing_caption", "")
        remark = draft.set(f"dataset.{number}.caption", datasets.as_text(prompt) or "{text}")
        return Fate.TAKEN, f"{remark} for all clips"
    if option(settings, number, "prepend_instance_prompt") is True and prompt:
        draft.set(f"dataset.{number}.caption", f"{datasets.as_text(prompt)} {{text}}")
    if strategy == "textfile":
        if option(settings, number, "disable_multiline_split") is True:
            return Fate.DEFAULT, "captions are read from text files beside the clips"
        return Fate.TAKEN, f"{draft.set(f'dataset.{number}.captions', 'lines')}: each line of a text file is a caption"
    sources = {"filename": "names of files", "parquet": "tables", "csv": "tables", "huggingface": "tables of the hub"}
    remark = f"captions are not read from {sources.get(strategy, 'there')}"
    return (
        Fate.TO_FILL_IN,
        f"{remark}, and clips without a text file are left out: write text files beside them, or a list (.csv, .parquet) with "
        "the columns path and text",
    )


def _limits(value: Any, draft: ImportDraft) -> Outcome:
    """Set the filter of a dataset from its smallest size, its aspect ratios and its frames."""
    number, settings = draft.numbers[0], draft.settings
    terms = list(_terms(settings, number))
    if not terms:
        draft.remove(f"dataset.{number}.filter")
        return Fate.DEFAULT, "no limit"
    return Fate.TAKEN, draft.set(f"dataset.{number}.filter", " and ".join(terms))


def _terms(settings: FormerSettings, number: int) -> Iterator[str]:
    least = option(settings, number, "minimum_image_size")
    if is_given(least):
        edge = int(least)
        if option(settings, number, "resolution_type", "pixel_area") != "pixel":
            pixels = round(megapixels(settings, number, least) * 1e6)
            edge = int(math.sqrt(pixels)) if crops_square(settings, number) else 0
            yield f"width * height >= {pixels}"
        if edge:
            yield f"width >= {edge} and height >= {edge}"
    for key, sign in (("minimum_aspect_ratio", ">="), ("maximum_aspect_ratio", "<=")):
        if is_given(ratio := settings.get(f"data.{number}.{key}")):
            yield f"width {sign} {float(ratio):g} * height"
    if is_video(settings, number):
        frames = settings.get(f"data.{number}.video.num_frames", FRAMES)
        fewest = settings.get(f"data.{number}.video.min_frames", frames)
        yield f"num_frames >= {models.frames_there(settings, int(fewest))}"
        if is_given(most := settings.get(f"data.{number}.video.max_frames")):
            yield f"num_frames <= {models.longest_there(settings, int(most))}"


def is_given(value: Any) -> bool:
    """Whether a value is a number above 0, and no other thing that a stranger wrote in its place."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _frames(value: Any, draft: ImportDraft) -> Outcome:
    settings, number = draft.settings, draft.numbers[0]
    _limits(value, draft)
    if datasets.preset_of(draft).config.pictures_only:
        return Fate.NOT_POSSIBLE, f"{draft.get('model.name')} takes pictures only"
    draft.set("data.clip_start", "start", "longer clips begin with their first frame there")
    there, here = frames_of(settings, number), datasets.frames_here(draft, frames_of(settings, number))
    remark = f"[[bucket]] num_frames = {here}"
    if here != there:
        return Fate.NOT_POSSIBLE, f"{datasets.geometry_of(draft).frame_words}: {remark}"
    return Fate.TAKEN, remark if there == value else f"{remark}, to which it is shortened there too"


def _repeats(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, f"{draft.set('dataset.*.repeats', int(value) + 1)}: the first use is not counted there"


def _crop(value: Any, draft: ImportDraft) -> Outcome:
    settings = draft.settings
    shapes = [crops_square(settings, number) for number in range(settings.count("data"))]
    if not any(shapes):
        return Fate.DEFAULT, "clips keep their shape"
    if all(shapes):
        draft.set("buckets.max_crop", 0.95)
        return Fate.TAKEN, draft.set("buckets.aspect_ratios", ["1:1"])
    return Fate.NOT_POSSIBLE, 'clips keep their shapes: buckets.aspect_ratios = ["1:1"] crops those of all datasets'


def _crop_style(value: Any, draft: ImportDraft) -> Outcome:
    if not any(draft.settings.each("data", "crop")):
        return Fate.NO_MEANING, "nothing but the rest beside a bucket is cropped"
    if value in _CROPS:
        return Fate.TAKEN, draft.set("data.crop", _CROPS[value])
    return Fate.NOT_POSSIBLE, f"{draft.set('data.crop', 'top' if value == 'corner' else 'center')} replaces it"


def _crop_shapes(value: Any, draft: ImportDraft) -> Outcome:
    number, settings = draft.numbers[0], draft.settings
    listed = settings.get(f"data.{number}.crop_aspect_buckets")
    ratios: list[Any] = list(listed) if isinstance(listed, list) else []
    ratios = [each.get("aspect") if isinstance(each, Mapping) else each for each in ratios]
    draft.set("buckets.max_crop", 0.95)
    remark = draft.set("buckets.aspect_ratios", [f"{float(ratio):g}:1" for ratio in ratios if is_given(ratio)])
    if settings.get(f"data.{number}.crop_aspect") == "closest":
        return Fate.TAKEN, remark
    return Fate.NOT_POSSIBLE, f"{remark}; each clip has the nearest shape, and none that is drawn"


def _companion(value: Any, draft: ImportDraft) -> Outcome:
    """Give the folders of conditioning backends to the model as what it takes: sources, a control, or masks of the loss."""
    number, settings = draft.numbers[0], draft.settings
    wanted = value if isinstance(value, list) else [value]
    found: dict[str, list[str]] = {"source": [], "control": [], "loss_mask": []}
    takes = datasets.conditioning_of(draft).companions.takes
    for other in range(settings.count("conditioning")):
        folder = settings.get(f"conditioning.{other}.instance_data_dir")
        if settings.get(f"conditioning.{other}.id") not in wanted or not isinstance(folder, str) or not folder:
            continue
        if settings.get(f"conditioning.{other}.conditioning_type") in ("mask", "segmentation"):
            found["loss_mask"].append(folder)
        else:
            found["source" if "source" in takes else "control"].append(folder)
    if found["control"] and "control" not in takes:
        return datasets.takes_no(draft, "control pictures")
    remarks = [
        draft.set(f"dataset.{number}.{kind}", folders if len(folders) > 1 and kind == "source" else folders[0])
        for kind, folders in found.items()
        if folders
    ]
    if not remarks:
        return Fate.TO_FILL_IN, "no folder of it is known: set dataset.source or control"
    return Fate.TAKEN, ", ".join(remarks)


def _first_frame(value: Any, draft: ImportDraft) -> Outcome:
    share = float(draft.settings.get("ltx_i2v_prob", 0.1)) if models.family(draft.settings).startswith("ltx") else 1.0
    return Fate.TAKEN, draft.set("objective.mask_ratios.image_head", share)
