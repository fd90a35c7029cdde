"""Parts of a recipe that all trainers fill alike: names of datasets, sizes that the model takes, and what it is given."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, ImportedKey, Outcome
from reelworks.annexes.imports.values import text
from reelworks.core.shape import Geometry
from reelworks.data.catalog.scan import caption_names
from reelworks.models import components, registry
from reelworks.models.config import AutoencoderConfig, ModelConfig
from reelworks.models.family import Conditioning, Preset

PICTURE_NEEDED = "previews need a picture: set samples.prompts with samples.source or samples.reference"
_LONGEST_SIDE = 16_384  # pixels, of the largest [[bucket]]


def place(draft: ImportDraft, number: int, path: str) -> str:
    """Set the folder of a dataset, and a name of its own, by which its clips are known; return the assignment as text."""
    own = re.split(r"[/\\]", path.rstrip("/\\"))[-1] or "clips"
    remark = draft.set(f"dataset.{number}.path", path)
    set_name(draft, number, own)
    return remark


def path(value: Any, draft: ImportDraft) -> Outcome:
    """Take the folder of the dataset with the setting's own number."""
    return Fate.TAKEN, place(draft, draft.numbers[0], text(value))


def caption_extension(value: Any, draft: ImportDraft) -> Outcome:
    """Accept the endings of caption files that are read here."""
    if f".{str(value).lstrip('.')}" in caption_names.SUFFIXES:
        return Fate.DEFAULT, "caption files end in .txt or .caption; the first that is there is read"
    return Fate.TO_FILL_IN, "caption files end in .txt or .caption: rename them"


def output(value: Any, draft: ImportDraft) -> Outcome:
    """Take the folder of outputs, in which the run has the recipe's name."""
    return Fate.TAKEN, draft.set("output", f"{text(value).rstrip('/')}/{draft.request.path.stem}")


def set_name(draft: ImportDraft, number: int, name: str) -> None:
    """Set the name of a dataset, with a number behind it if another one has the name."""
    taken = {draft.get(f"dataset.{other}.name") for other in range(draft.count("dataset")) if other != number}
    names = (name, *(f"{name}-{i}" for i in range(2, len(taken) + 3)))
    draft.set(f"dataset.{number}.name", next(each for each in names if each not in taken), "identifies its clips")


def preset_of(draft: ImportDraft) -> Preset:
    """Return the preset of the draft's model."""
    return registry.PRESETS[draft.get("model.name")]


def is_model(draft: ImportDraft, starts: Sequence[str]) -> bool:
    """Return whether the name of the draft's model begins in one of some ways."""
    return str(draft.get("model.name", "")).startswith(tuple(starts))


def pictures_only(draft: ImportDraft) -> bool:
    """Return whether the draft's model takes no clips."""
    return preset_of(draft).config.pictures_only


def conditioning_of(draft: ImportDraft) -> Conditioning:
    """Return what the draft's model can be given beside a caption."""
    return preset_of(draft).config.conditioning


def takes_no(draft: ImportDraft, what: str) -> Outcome:
    """Return that the draft's model takes no pictures of a kind, without which the clips are trained."""
    return Fate.NOT_POSSIBLE, f"{draft.get('model.name')} takes no {what} here: the clips are trained without them"


def set_companions(draft: ImportDraft, number: int, folders: Sequence[str], what: str) -> Outcome:
    """Give folders of pictures beside the clips of a dataset to the model as what it takes: sources of edits, or a control."""
    takes = conditioning_of(draft).companions.takes
    if "source" in takes:
        return Fate.TAKEN, draft.set(f"dataset.{number}.source", [*folders] if len(folders) > 1 else folders[0])
    if "control" in takes and len(folders) > 1:
        return Fate.TO_FILL_IN, f"the model takes one control: set dataset.{number}.control to one of these folders"
    if "control" in takes:
        return Fate.TAKEN, draft.set(f"dataset.{number}.control", folders[0])
    return takes_no(draft, what)


def needs_picture(draft: ImportDraft) -> bool:
    """Return whether the draft's model is given a picture with each prompt of a preview."""
    wants = conditioning_of(draft)
    return bool(wants.companions.needs) or wants.needs_first_frame


def offload(draft: ImportDraft, *, is_quantised: bool) -> Outcome:
    """Keep the blocks in CPU memory, where those of a quantised base cannot be."""
    if is_quantised:
        remark = 'a quantised base stays on the GPU: parallel.offload moves one with lora.base = "bfloat16"'
        return Fate.NOT_POSSIBLE, remark
    return Fate.TAKEN, f"{draft.set('parallel.offload', True)}, which keeps all blocks in CPU memory"


def geometry_of(draft: ImportDraft) -> Geometry:
    """Return the constraints of the draft's model on sizes."""
    name = draft.get("autoencoder.name", preset_of(draft).parts.autoencoder)
    weights = draft.get("autoencoder.weights") or (None if name == "pixel" else "-")  # on which it does not depend
    autoencoder = AutoencoderConfig(name=name, weights=weights)
    return components.geometry(ModelConfig(name=draft.get("model.name")), autoencoder)


def frames_here(draft: ImportDraft, wanted: int) -> int:
    """Return the number of frames that the model takes which is nearest to a wanted one."""
    return 1 if wanted <= 1 else geometry_of(draft).nearest_frames(wanted)


def ladder(draft: ImportDraft, most: int) -> list[int]:
    """Return numbers of frames for clips of any length: the least that the model takes, and doublings up to `most`."""
    counts = [frames_here(draft, most)]
    while counts[-1] > 2 and (half := frames_here(draft, counts[-1] // 2)) not in (1, counts[-1]):
        counts.append(half)
    return sorted(counts)


def side_of(value: Any) -> int:
    """Return the side of a resolution; raises `ValueError` for what is none."""
    side = int(value)
    if isinstance(value, bool) or not 1 <= side <= _LONGEST_SIDE:
        raise ValueError(value)
    return side


def needed(draft: ImportDraft) -> Iterator[ImportedKey]:
    """Put a placeholder where the model needs pictures beside the clips and a dataset has none; yield a line for each.

    Sound is given one rate of frames where no setting names one.
    """
    if draft.get("model.name") is None:
        return
    if conditioning_of(draft).sound and draft.get("data.fps") is None:
        draft.begin("")
        draft.set("data.fps", "model", "clips with sound need one rate")
    kinds = conditioning_of(draft).companions.needs
    for number in range(draft.count("dataset")):
        for kind in kinds:
            if draft.get(f"dataset.{number}.{kind}") is not None:
                continue
            path, origin = draft.get(f"dataset.{number}.path"), draft.origin_of(f"dataset.{number}.path")
            draft.begin("")
            placeholder = draft.set(f"dataset.{number}.{kind}", f"{kind}s", "to fill in")
            remark = f"{path} ({origin or 'its folder'}) has none, and the model is given one with each clip: replace {placeholder}"
            yield ImportedKey(f"dataset.{number}.{kind}", None, Fate.TO_FILL_IN, f"{remark}, or leave the dataset out")


def shift_by_size(line: Sequence[float], area_px: float) -> float:
    """Return the shift of timesteps of a size, which grows with its tokens of 16 × 16 pixels.

    `line` has the tokens of two sizes, each with the logarithm of its shift; or the side of squares that have none, from which
    shifts grow in proportion.
    """
    if len(line) == 1:
        return math.sqrt(area_px) / line[0]
    few, low, many, high = line
    return math.exp(low + (high - low) * (area_px / 16**2 - few) / (many - few))


def as_text(value: str) -> str:
    """Return a text for `dataset.caption`, in which braces name columns."""
    return value.replace("{", "{{").replace("}", "}}")


def set_preview_side(draft: ImportDraft, key: str, pixels: Any) -> str:
    """Set `samples.height` or `samples.width` to a size that the model takes."""
    multiple = geometry_of(draft).multiple[key == "samples.width"]
    return draft.set(key, max(int(pixels) // multiple, 1) * multiple)
