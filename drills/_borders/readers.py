"""Drills of other programs' readers: what their own code adds to the weights for our adapter files is what was trained."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import diffusers
from diffusers_readers import NOT_TAKEN, misread, through_adapter, through_path, through_peft, through_pipeline, written
from torch import nn

from reelworks.core.errors import UserError
from reelworks.models import registry
from reelworks.models.adapters.config import AdapterName, LoraConfig
from reelworks.models.adapters.conventions import LoraFormat
from reelworks.testing import contract

# Those of diffusers with one network; of two experts, each has a file of its own.
_FAMILIES = [
    name
    for name in contract.FAMILIES
    if hasattr(diffusers, registry.PRESETS[name].config.network.name) and not registry.PRESETS[name].switch_timestep
]
# Their pipelines can be built of the network alone; those of others need all components, or are modular.
_PIPELINES = [
    name
    for name in _FAMILIES
    if not name.startswith(("anima", "flux3", "hunyuan", "ideogram", "minimax-h3", "qwen-image-2.1"))
]
# Their layers have the same names in the release, which LyCORIS looks up as they are.
_SAME_NAMES = [
    name for name in _FAMILIES if name.startswith(("hidream", "kandinsky5", "qwen-image")) and "2.1" not in name
]


def adapter(chance: random.Random, kinds: tuple[AdapterName, ...]) -> LoraConfig:
    """Return an adapter of random settings."""
    kind = chance.choice(kinds)
    targets: Any = chance.choice(["default", "blocks", ["to_q", "to_v"], ["to_k", "to_out.0"]])
    if kind == "oft":
        return LoraConfig(type="oft", block_size=chance.choice([2, 4]), targets=targets)
    rank = chance.choice([1, 2, 3, 8, 99] if kind == "lokr" else [1, 2, 3, 8])
    alpha = chance.choice([rank, rank / 2, 1.0, chance.uniform(0.1, 20)])
    more: dict[str, Any] = {}
    if kind == "lokr":
        more = {"decompose_factor": chance.choice([None, 2, 4]), "decompose_both": chance.random() < 0.5}
    elif kind == "lora":
        more = {"dora": chance.random() < 0.2}
    return LoraConfig(type=kind, rank=rank, alpha=alpha, targets=targets, **more)


def through_lycoris(module: nn.Module, path: Path) -> None:
    """Merge with LyCORIS's own code."""
    wrapper: Any = importlib.import_module("lycoris.wrapper")
    wrapper.LycorisNetwork.LORA_PREFIX = "lora_unet"
    network, _ = wrapper.create_lycoris_from_weights(1.0, str(path), module)
    network.merge_to(1.0)


def tried(
    reader: Callable[[str, nn.Module, Path, str], None],
    kinds: tuple[AdapterName, ...],
    formats: tuple[LoraFormat, ...],
    families: list[str],
    chance: random.Random,
    folder: Path,
) -> list[str]:
    """Write a random adapter file and read it; a reader may refuse conventions of other programs, but not be wrong."""
    name, format, config = chance.choice(families), chance.choice(formats), adapter(chance, kinds)
    network = registry.PRESETS[name].config.network
    try:
        config.require_writable(format, "exports.formats", network)
    except UserError:
        return []
    if reader is through_pipeline and config.dora and name.startswith(("wan-i2v", "wan-flf2v")):
        return []  # to a DoRA without image layers, this pipeline adds some of zeros, whose magnitudes it does not set
    path = folder / "adapter.safetensors"
    problem = misread(reader, name, path, written(chance, name, config, format, path))
    is_told = problem is not None and problem.startswith(NOT_TAKEN)
    return [] if problem is None or (is_told and format != "diffusers") else [f"{name}, {format}, {config}: {problem}"]


def _drill(
    reader: Callable[[str, nn.Module, Path, str], None],
    *kinds: AdapterName,
    formats: tuple[LoraFormat, ...] = ("diffusers",),
    families: list[str] = _FAMILIES,
) -> Callable[[random.Random, Path], list[str]]:
    return functools.partial(tried, reader, kinds, formats, families)


logging.getLogger("diffusers").setLevel(logging.ERROR)  # it warns of the keys of other networks in a pipeline
DRILLS: dict[str, Callable[[random.Random, Path], list[str]]] = {
    "diffusers, load_lora_adapter": _drill(lambda _, *file: through_adapter(*file), "lora", "lokr"),
    "diffusers, load_lora_adapter with a path": _drill(lambda _, *file: through_path(*file), "lora", "lokr"),
    "diffusers, load_lora_weights": _drill(through_pipeline, "lora", formats=get_args(LoraFormat), families=_PIPELINES),
    "peft": _drill(lambda _, *file: through_peft(*file), "lora", "loha", "lokr", "oft"),
}
if importlib.util.find_spec("lycoris"):
    DRILLS["LyCORIS"] = _drill(
        lambda _, module, path, part: through_lycoris(module, path),
        *("lora", "loha", "lokr"),
        formats=("kohya",),
        families=_SAME_NAMES,
    )
