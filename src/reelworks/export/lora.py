"""Decide how a LoRA is exported: the key convention of its tensors, and the files."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

from reelworks.checkpoint import load
from reelworks.checkpoint.config import LoraFormat
from reelworks.core import toml_none
from reelworks.models import registry
from reelworks.models.expert_pair.config import PARTS
from reelworks.models.lora.base_model import Base
from reelworks.models.lora.config import LoraConfig

BASE = "base.json"  # extra file of a checkpoint that describes the base model of its LoRA


class LoraFile(NamedTuple):
    """Settings of a LoRA's export."""

    format: LoraFormat  # key convention of its tensors
    alpha: float
    model: str  # name of the base model
    part: str  # folder of the base network in a diffusers pipeline
    base: Base | None = None  # identity of the base weights; None if only the checkpoint knows it
    # Prefixes of the tensor names of each expert, if two were trained; each gets its own file.
    experts: tuple[str, ...] = ()

    def files(self, target: Path) -> list[Path]:
        """Return the files that are written for a target: itself, or one for each expert."""
        return [target.with_stem(f"{target.stem}-{name}") for name in self.experts] or [target]


def lora_file_of(recipe: Path, format: LoraFormat, base: Base | None = None) -> LoraFile | None:
    """Return the export settings of a resolved recipe's LoRA; None if it trains full weights.

    Refuses a convention that cannot represent this LoRA.
    """
    values = tomllib.loads(recipe.read_text(encoding="utf-8"))
    if "lora" not in values:
        return None
    config = LoraConfig.model_validate(toml_none.from_toml(values["lora"], LoraConfig))
    config.require_writable(format, "--format")
    name = values["model"]["name"]
    part = registry.PRESETS[name].config.network.part if name in registry.PRESETS else "transformer"
    trained = tuple(PARTS.values()) if values["model"].get("experts") == "both" else ()
    return LoraFile(format, config.exact_alpha, name, part, base, trained)


def lora_base_of(path: Path) -> Base | None:
    """Read the base model of the LoRA in a checkpoint; None if it holds full weights."""
    return Base.from_json(load.read_extra(path, BASE)) if load.has_extra(path, BASE) else None
