"""Leave out of recipes, headers and previews what identifies files, machines and people.

A recipe names folders, lists, addresses, projects and accounts. A text of it is published only if its key is listed here
as harmless; neutral words and defaults take the place of all others, also of keys that are added later.
"""

from __future__ import annotations

import json
import shutil
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import av
from PIL import Image
from pydantic import BaseModel

from reelworks.models import hub
from reelworks.models.adapters import files as lora_files
from reelworks.models.base_model import Base
from reelworks.training.recipe.recipe import Recipe

C = TypeVar("C", bound=BaseModel)

# Texts that say how was trained, and on what words.
KEPT = frozenset(
    (
        *(
            "dataset.caption",
            "dataset.missing_caption",
            "dataset.tag_separator",
            "dataset.trigger",
            "samples.prompts",
            "samples.model",
        ),
        *(
            "bucket.resolution",
            "dataset.resolutions",
            "buckets.aspect_ratios",
            "buckets.opensora",
            "data.prefetch_bytes",
        ),
        *("model.name", "model.license", "autoencoder.name", "text_encoder.name", "sound.name", "sound.modes"),
        *("lora.targets", "objective.mask_ratios", "coverage.max_disk"),
        *("checkpoints.keep_best.metric", "checkpoints.keep_within", "checkpoints.max_disk", "checkpoints.min_free"),
    )
)
# Places of weights, which are published if they are hub ids of what was downloaded.
WEIGHTS = frozenset(
    (
        *("model.weights", "model.image_encoder", "lora.weights", "lora.training_adapter", "autoencoder.weights"),
        *("text_encoder.weights", "sound.weights", "samples.weights"),
    )
)
# Places that a recipe needs to be complete: a neutral word takes theirs.
NAMED = frozenset(
    (
        *("output", "dataset.path", "dataset.control", "dataset.source", "dataset.mask", "dataset.loss_mask"),
        *("dataset.rejected", "buckets.tuned", "samples.reference", "samples.last_frame", "samples.control"),
        *("samples.source", "samples.inpaint", "samples.mask"),
    )
)
# Tables about the machine, which get their defaults.
_OWN_TABLES = frozenset(("checkpoints.mirror", "logging"))
_SUFFIXES = frozenset((".safetensors", ".gguf"))  # which say how weights are read


def recipe(recipe: Recipe, on_hub: Mapping[str, str]) -> Recipe:
    """Return a recipe that trains alike, without what identifies places and people.

    `on_hub` has the hub ids with commits of weights that were downloaded, by recipe key.
    """
    return _neutral(recipe, "", on_hub, "")


def _neutral(config: C, prefix: str, on_hub: Mapping[str, str], number: str) -> C:
    update: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        key, value = f"{prefix}{name}", getattr(config, name)
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if key in _OWN_TABLES:
            update[name] = default
        elif isinstance(value, BaseModel):
            update[name] = _neutral(value, f"{key}.", on_hub, "")
        elif isinstance(value, list) and any(isinstance(one, BaseModel) for one in value):
            numbers = [f"-{i}" if len(value) > 1 else "" for i in range(1, len(value) + 1)]
            update[name] = [_neutral(one, f"{key}.", on_hub, n) for one, n in zip(value, numbers, strict=True)]
        elif key not in KEPT and holds_text(field.annotation):
            update[name] = default if value is None else _replaced(key, value, default, on_hub, number)
    return config.model_copy(update=update)


def _replaced(key: str, value: Any, default: Any, on_hub: Mapping[str, str], number: str) -> Any:
    word = f"your-{key.rpartition('.')[2].replace('_', '-')}{number}"
    if key in WEIGHTS:
        return hub_id(key, value, on_hub) or word + (s if (s := Path(value).suffix) in _SUFFIXES else "")
    if key not in NAMED:
        return default
    return [f"{word}-{i}" for i in range(1, len(value) + 1)] if isinstance(value, list) else word


def hub_id(key: str, value: str | None, on_hub: Mapping[str, str]) -> str | None:
    """Return the hub id, with its commit, of the weights that a recipe key names; None if they are not on the hub."""
    pinned, asked = on_hub.get(key), None if value is None else hub.parse(value)
    return pinned if pinned and asked and pinned.startswith(f"{asked.repository}@") else None


def holds_text(annotation: Any) -> bool:
    """Return whether values of an annotation may be, or contain, any text, and not only one of a few words."""
    if annotation in (str, Any):
        return True
    if typing.get_origin(annotation) is typing.Literal:
        return False
    return any(map(holds_text, typing.get_args(annotation)))


def rewrite_header(file: Path, base: str | None) -> None:
    """Name the base in a LoRA file by its hub id, or by its model alone, where the header has a path of this machine."""
    with file.open("rb") as source:
        length = int.from_bytes(source.read(8), "little")
        header = json.loads(source.read(length))
        metadata: dict[str, str] = header.get("__metadata__", {})
        if lora_files.BASE not in metadata:
            return
        named = Base.from_json(metadata[lora_files.BASE])._replace(weights=base)
        metadata |= {lora_files.BASE: named.to_json(), "ss_sd_model_name": base or named.model}
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # as tensors are aligned
        rewritten = file.with_name(f".{file.name}.tmp")
        with rewritten.open("xb") as target:
            target.write(len(text).to_bytes(8, "little") + text)
            shutil.copyfileobj(source, target)
    rewritten.replace(file)


def copy_preview(source: Path, target: Path) -> None:
    """Copy a picture or clip with its pixels and sound alone: no EXIF, no text, no tags.

    Raises:
        OSError, ValueError: It cannot be read.
    """
    if source.suffix == ".png":
        with Image.open(source) as image:
            pixels = image.convert("RGB")
        Image.frombytes(pixels.mode, pixels.size, pixels.tobytes()).save(target, "PNG")
        return
    options = {"movflags": "+faststart"} if source.suffix == ".mp4" else {}  # as it was written
    with av.open(str(source)) as read, av.open(str(target), "w", options=options) as written:
        streams = {s.index: written.add_stream_from_template(s) for s in read.streams if s.type in ("video", "audio")}
        for packet in read.demux(*(read.streams[i] for i in streams)):
            if packet.dts is not None:
                packet.stream = streams[packet.stream.index]
                written.mux(packet)
