"""How a LoRA is written: whose names its tensors get, and in which files."""

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

BASE = "base.json"  # in a checkpoint, what its LoRA was trained on


class LoraFile(NamedTuple):
    """How a LoRA is written.

    Attributes:
        format: Whose names its tensors get.
        alpha: Of its training.
        model: Name of its base.
        part: Folder of the base in a pipeline of diffusers.
        base: The weights of the base; where it is None, the checkpoint tells.
        experts: Where two networks were trained, what their names begin with; each has a file.
    """

    format: LoraFormat
    alpha: float
    model: str
    part: str
    base: Base | None = None
    experts: tuple[str, ...] = ()

    def files(self, target: Path) -> list[Path]:
        """The files that are written for a target: itself, or one for each expert."""
        return [target.with_stem(f"{target.stem}-{name}") for name in self.experts] or [target]


def lora_file_of(recipe: Path, format: LoraFormat, base: Base | None = None) -> LoraFile | None:
    """Say how the weights of a resolved recipe are written if they are a LoRA; None for whole weights.

    Raises:
        UserError: The convention cannot hold it.
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
    """Read the base that the LoRA in a checkpoint was trained on; None of whole weights."""
    return Base.from_json(load.read_extra(path, BASE)) if load.has_extra(path, BASE) else None
