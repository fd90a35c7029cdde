"""Leave out of recipes, headers and previews what identifies files, machines and people.

Each recipe key says beside its type what of it is published (`core.config.Publish`). Texts of keys that do not are not.
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

from reelworks.core import files
from reelworks.core.config import Publish
from reelworks.models import hub
from reelworks.models.adapters import files as lora_files
from reelworks.models.base_model import Base
from reelworks.training.recipe.recipe import Recipe

C = TypeVar("C", bound=BaseModel)

_SUFFIXES = frozenset((".safetensors", ".gguf"))  # which say how weights are read


def recipe(recipe: Recipe, on_hub: Mapping[str, str]) -> Recipe:
    """Return a recipe that trains alike, without what identifies places and people.

    `on_hub` has the hub ids with commits of weights that were downloaded, by recipe key.
    """
    return _neutral(recipe, "", on_hub, "")


def _neutral(config: C, prefix: str, on_hub: Mapping[str, str], number: str) -> C:
    update: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        key, value, publish = f"{prefix}{name}", getattr(config, name), Publish.decision_on(field)
        word = f"your-{name.replace('_', '-')}{number}"
        if publish is Publish.AS_IS:
            continue
        if publish in (Publish.WEIGHTS, Publish.WORD) and value is not None:
            if publish is Publish.WEIGHTS:
                suffix = Path(value).suffix
                update[name] = hub_id(key, value, on_hub) or word + (suffix if suffix in _SUFFIXES else "")
            else:
                several = isinstance(value, list)
                update[name] = [f"{word}-{i}" for i in range(1, len(value) + 1)] if several else word
        elif publish is None and isinstance(value, BaseModel):
            update[name] = _neutral(value, f"{key}.", on_hub, "")
        elif publish is None and isinstance(value, list) and any(isinstance(one, BaseModel) for one in value):
            numbers = [f"-{i}" if len(value) > 1 else "" for i in range(1, len(value) + 1)]
            update[name] = [_neutral(one, f"{key}.", on_hub, n) for one, n in zip(value, numbers, strict=True)]
        elif publish is not None or holds_text(field.annotation):
            update[name] = None if field.is_required() else field.get_default(call_default_factory=True)
    return config.model_copy(update=update)


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
        with files.replacing(file) as rewritten, rewritten.open("xb") as target:
            target.write(len(text).to_bytes(8, "little") + text)
            shutil.copyfileobj(source, target)


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
