"""Tell what the release of a recipe's model asks for: what its licence restricts, and where training would undo its distillation."""

from __future__ import annotations

from typing import Any

from reelworks.models import registry
from reelworks.models.components import conditioning
from reelworks.models.family import FamilyConfig
from reelworks.training.recipe.recipe import Recipe


def licence_note(recipe: Recipe) -> str | None:
    """Return what the licence of a recipe's model restricts; None if it restricts nothing that is known here."""
    note = registry.release_of(recipe.model.name).licence_note
    return None if note is None else f"{recipe.model.name}: {note}. Read the licence beside its weights"


def distilled_warning(recipe: Recipe) -> str | None:
    """Return a warning if a LoRA would undo what was distilled into its base; None if something prevents that."""
    lora, name = recipe.lora, recipe.model.name
    if lora is None or lora.training_adapter is not None or recipe.objective.target_guidance_scale is not None:
        return None
    if not registry.release_of(name).distilled:
        return None
    ways = [
        "set lora.training_adapter to an adapter for this model" + (" and leave lora.dora out" if lora.dora else "")
    ]
    if not conditioning(recipe.model).sound and not recipe.learns_preferences:
        ways.append("set objective.target_guidance_scale if guidance alone was distilled into it")
    if bases := _bases(name):
        ways.append(f'train on {" or ".join(bases)} and set samples.model = "{name}"')
    told = ", or ".join(ways)
    return (
        f"{name} is a distilled model, and training undoes the distillation: the LoRA's pictures become blurred. "
        f"{told[0].upper()}{told[1:]} (docs/how-to/train-a-lora.md)"
    )


def _bases(name: str) -> list[str]:
    """Return the published models without distillation whose LoRAs have the same layers as those of a distilled model."""
    preset = registry.PRESETS[name]
    return [
        other
        for other, known in registry.family_of(name).presets.items()
        if known.release is not None
        and not known.release.distilled
        and known.parts == preset.parts
        and _layers(known.config) == _layers(preset.config)
        and known.config.conditioning.companions.takes == preset.config.conditioning.companions.takes
        and known.config.conditioning.sound == preset.config.conditioning.sound
    ]


def _layers(config: FamilyConfig) -> list[Any]:
    """Return the sizes of a network; switches, such as that of an embedded guidance scale, change none of its blocks."""
    sizes = {key: value for key, value in config.model_dump().items() if not isinstance(value, bool)}
    return [config.network.name, sizes]
