"""Drills of other programs' readers: what their own code adds to the weights for our adapter files is what was trained."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import json
import logging
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import diffusers
import peft
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from reelworks.core.errors import UserError
from reelworks.data.checkpoint.config import LoraFormat
from reelworks.models import registry
from reelworks.models.adapters import inject
from reelworks.models.adapters.config import AdapterName, LoraConfig
from reelworks.models.export.lora import LoraFile
from reelworks.testing import contract

_NOT_TAKEN = "nothing of the file is taken"
_TOLERANCE = 1e-6  # of the norm of a layer's merged weights
# Those of diffusers with one network; of two experts, each has a file of its own.
_FAMILIES = [
    name
    for name in contract.FAMILIES
    if hasattr(diffusers, registry.PRESETS[name].config.network.name) and not registry.PRESETS[name].switch_timestep
]
# Their pipelines can be built of the network alone; those of others need all components, or are modular.
_PIPELINES = [
    name for name in _FAMILIES if not name.startswith(("flux3", "hunyuan-video-1.5", "minimax-h3", "qwen-image-2.1"))
]
# Their layers have the same names in the release, which LyCORIS looks up as they are.
_SAME_NAMES = [name for name in _FAMILIES if name.startswith("qwen-image") and "2.1" not in name]
Weights = Mapping[str, Tensor]


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


def written(chance: random.Random, name: str, config: LoraConfig, format: LoraFormat, path: Path) -> Weights:
    """Write the file of a random adapter and return the weights that it was trained to."""
    denoiser = contract.build(name)
    inject.inject(denoiser, config, seed=0)
    generator = torch.Generator().manual_seed(chance.randrange(2**32))
    with torch.no_grad():
        for value in inject.weights(denoiser.module).values():
            value.add_(torch.randn(value.shape, generator=generator), alpha=0.3)
    part = registry.PRESETS[name].config.network.part
    file = LoraFile(format, config.adapter, name, part).content(inject.weights(denoiser.module))
    save_file({key: value.contiguous() for key, value in file.tensors.items()}, path, file.header)
    return inject.merge(denoiser.module)


def through_adapter(module: Any, path: Path, part: str) -> None:
    """Load with `load_lora_adapter`: a folder and a name, or the path of the file."""
    module.load_lora_adapter(str(path.parent), weight_name=path.name, prefix=part)


def through_path(module: Any, path: Path, part: str) -> None:
    """Load with `load_lora_adapter` and the path of the file, of which it does not read the header."""
    module.load_lora_adapter(str(path), prefix=part)


def through_pipeline(name: str, module: nn.Module, path: Path, part: str) -> None:
    """Load with `load_lora_weights` of the family's pipeline, which has no other component."""
    preset = registry.PRESETS[name]
    kind = getattr(diffusers, registry.family_of(name).text_encoders[preset.parts.text].pipeline)
    asked = list(inspect.signature(kind.__init__).parameters.values())[1:]
    given = {one.name: None if one.default is inspect.Parameter.empty else one.default for one in asked}
    kind(**given | {part: module}).load_lora_weights(str(path.parent), weight_name=path.name)


def through_peft(module: nn.Module, path: Path, part: str) -> None:
    """Load with peft alone, by the settings of the header."""
    with safe_open(path, "pt") as file:
        tensors = {key.removeprefix(f"{part}."): file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        header = json.loads(file.metadata()["lora_adapter_metadata"])
    settings = {key.removeprefix(f"{part}."): value for key, value in header.items()}
    kinds = {"LOHA": peft.LoHaConfig, "LOKR": peft.LoKrConfig, "OFT": peft.OFTConfig, "LORA": peft.LoraConfig}
    peft.inject_adapter_in_model(kinds[settings.pop("peft_type", "LORA")](**settings), module)
    if unexpected := peft.set_peft_model_state_dict(module, tensors).unexpected_keys:
        raise ValueError(f"unexpected: {unexpected[:3]}")


def through_lycoris(module: nn.Module, path: Path) -> None:
    """Merge with LyCORIS's own code."""
    wrapper: Any = importlib.import_module("lycoris.wrapper")
    wrapper.LycorisNetwork.LORA_PREFIX = "lora_unet"
    network, _ = wrapper.create_lycoris_from_weights(1.0, str(path), module)
    network.merge_to(1.0)


@torch.no_grad()
def merged(module: nn.Module) -> Weights:
    """Return the weights of a network into which another program loaded a file."""
    for child in list(module.modules()):
        if isinstance(child, BaseTunerLayer):
            child.merge()
    return {key.replace(".base_layer.", "."): value for key, value in module.state_dict().items()}


def wrong(found: Weights, wanted: Weights, base: Weights) -> str | None:
    """Return the first layer whose weights are others than what was trained."""
    changed = [key for key, value in wanted.items() if not torch.equal(value, base[key])]
    if all(torch.equal(found[key], base[key]) for key in changed):
        return _NOT_TAKEN
    far = [key for key, value in wanted.items() if (found[key] - value).norm() > _TOLERANCE * value.norm()]
    return f"{len(far)} of {len(changed)} layers are others, such as {far[0]}" if far else None


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
    is_told = problem is not None and problem.startswith(_NOT_TAKEN)
    return [] if problem is None or (is_told and format != "diffusers") else [f"{name}, {format}, {config}: {problem}"]


def misread(reader: Callable[[str, nn.Module, Path, str], None], name: str, path: Path, wanted: Weights) -> str | None:
    """Return what is wrong with the weights of a network into which a reader loaded a file."""
    module = contract.build(name).module
    base = {key: value.clone() for key, value in module.state_dict().items()}
    try:
        reader(name, module, path, registry.PRESETS[name].config.network.part)
    except Exception as error:
        return f"{_NOT_TAKEN}: {type(error).__name__}: {error}"
    return wrong(merged(module), wanted, base)


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
