"""Tell from the header of a file of weights, or the configs of a folder, what it is, before any number is read; torch-free."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from reelworks.core import user_files
from reelworks.models import hub

if TYPE_CHECKING:
    from reelworks.models.adapters.config import BaseStorage

_NF4 = ".quant_state.bitsandbytes__nf4"
_BASES: dict[str, BaseStorage] = {"F8_E4M3": "float8", "I8": "int8"}  # by dtype of most numbers
_TEXT_ENCODERS = ("conditioner.", "cond_stage_model.", "text_encoders.")
# As configs of diffusers and the metadata of other trainers spell it.
_OBJECTIVES = {"epsilon": "epsilon", "v_prediction": "v-prediction", "v": "v-prediction"}


def base_of(source: str) -> BaseStorage | None:
    """Return the value of `lora.base` that keeps the codes of a file; None for plain numbers and for other sources.

    A damaged file is left to its reader, which tells what is wrong.
    """
    path = user_files.existing(source)
    if path is None or not path.is_file():
        return None
    with path.open("rb") as file:
        if file.read(4) == b"GGUF":
            return "gguf"
    _, tensors = _header(path)
    if any(_NF4 in name for name in tensors):
        return "nf4"
    sizes = Counter[str]()
    for dtype, size in tensors.values():
        sizes[dtype] += size
    return next((base for dtype, base in _BASES.items() if 2 * sizes[dtype] > sizes.total()), None)


def objective_of(source: str) -> tuple[str | None, bool]:
    """Return the objective that weights say they were trained with, and whether its last step is pure noise.

    A pipeline's folder says it in its scheduler's config; a file in its metadata, or by tensors with these names, as ComfyUI
    and A1111 read them. The objective is None where nothing is said.
    """
    place = user_files.existing(source)
    if place is None:
        return None, False
    if place.is_dir():
        try:
            config = user_files.read_json(place / "scheduler" / "scheduler_config.json")
            own = _OBJECTIVES.get(config.get("prediction_type", ""))
            return own, own == "v-prediction" and config.get("rescale_betas_zero_snr") is True
        except (OSError, ValueError, AttributeError, TypeError):
            return None, False
    said, tensors = _header(place)
    if "v_pred" in tensors:
        return "v-prediction", "ztsnr" in tensors
    return _OBJECTIVES.get(said.get("modelspec.prediction_type", "")), False


def has_text_encoders(source: str) -> bool:
    """Whether a file holds text encoders beside the network, as checkpoints of Stable Diffusion do."""
    place = user_files.existing(source)
    return place is not None and any(name.startswith(_TEXT_ENCODERS) for name in _header(place)[1])


def is_pipeline(source: str) -> bool:
    """Whether a source holds all parts of a model: a folder that is no network's own, or a repository on the hub."""
    place = user_files.existing(source)
    if place is None or not place.is_dir():
        return place is None and not hub.is_file_of(source)
    if (place / "model_index.json").is_file() or (place / "vae").is_dir():
        return True
    return not any(map(hub.is_file_of, place.iterdir()))


def _header(path: Path) -> tuple[dict[str, str], dict[str, tuple[str, int]]]:
    """Return the metadata of a .safetensors file, and its tensors' dtypes and sizes; neither of other and of damaged files."""
    with suppress(OSError, SafetensorError):
        user_files.require(path)
        if hub.is_file_of(path, hub.SAFETENSORS):
            with safe_open(path, "np") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                tensors = {name: (each.get_dtype(), math.prod(each.get_shape())) for name, each in slices.items()}
                return file.metadata() or {}, tensors
    return {}, {}
