"""Decide how a LoRA is exported: the key convention of its tensors, and the files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from reelworks.core import toml, toml_none
from reelworks.data.checkpoint import load
from reelworks.models import registry
from reelworks.models.adapters import files
from reelworks.models.adapters.adapter_types.adapter_type import Adapter
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.files import LoraTensors
from reelworks.models.base_model import Base
from reelworks.models.expert_pair.config import PARTS

BASE = "base.json"  # extra file of a checkpoint that describes the base model of its LoRA


class LoraFile(NamedTuple):
    """Settings of a LoRA's export."""

    format: str  # key convention of its tensors
    adapter: Adapter
    model: str  # name of the base model
    part: str  # folder of the base network in a diffusers pipeline
    base: Base | None = None  # identity of the base weights; None if only the checkpoint knows it
    # Prefixes of the tensor names of each expert, if two were trained; each gets its own file.
    experts: tuple[str, ...] = ()

    def files(self, target: Path) -> list[Path]:
        """Return the files that are written for a target: itself, or one for each expert."""
        return [target.with_stem(f"{target.stem}-{name}") for name in self.experts] or [target]

    def content(self, state: Mapping[str, Tensor]) -> LoraTensors:
        """Return the file of one network's tensors."""
        return files.to_file(state, self.format, adapter=self.adapter, part=self.part, model=self.model, base=self.base)


def lora_file_of(recipe: Path, format: str, base: Base | None = None) -> LoraFile | None:
    """Return the export settings of a resolved recipe's LoRA; None if it trains full weights.

    Refuses a convention that cannot represent this LoRA.
    """
    values = toml.parse(recipe.read_text(encoding="utf-8"))
    if "lora" not in values:
        return None
    config = LoraConfig.model_validate(toml_none.from_toml(values["lora"], LoraConfig))
    name = values["model"]["name"]
    preset = registry.PRESETS.get(name)
    config.require_writable(format, "--format", None if preset is None else preset.config.network)
    part = preset.config.network.part if preset is not None else "transformer"
    trained = tuple(PARTS.values()) if values["model"].get("experts") == "both" else ()
    return LoraFile(format, config.adapter, name, part, base, trained)


def lora_base_of(path: Path) -> Base | None:
    """Read the base model of the LoRA in a checkpoint; None if it holds full weights."""
    return Base.from_json(load.read_extra(path, BASE)) if load.has_extra(path, BASE) else None
