"""Translations of diffusion-pipe's settings of timesteps and loss."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import datasets, densities, values
from reelworks.annexes.imports.diffusion_pipe import data
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome
from reelworks.core.toml_none import WORD as NONE
from reelworks.models import registry

_FLUX_LINE = (256, 0.5, 4096, 1.15)  # utils/common.py


def trains_adapter(draft: ImportDraft) -> bool:
    """Whether the config trains a LoRA or LoKr, and not all weights."""
    return bool(draft.settings.below("adapter"))


def _shift(value: Any, draft: ImportDraft) -> Outcome:
    if value:
        return Fate.TAKEN, draft.set("objective.timestep_shift", values.number(value, 1e-3))
    for key in ("flux_shift", "lumina_shift"):
        if draft.settings.get(f"model.{key}"):
            return Fate.NO_MEANING, f"model.{key} decides"
    return Fate.TAKEN, draft.set("objective.timestep_shift", NONE)


def _flux_shift(value: Any, draft: ImportDraft) -> Outcome:
    sides = sorted({side for each in data.directories(draft.settings) for side in each.sides})
    if not sides:
        return Fate.TO_FILL_IN, "set objective.timestep_shift to that of the size: 1.9 at 512, 3.2 at 1024"
    scale = datasets.geometry_of(draft).stride[1] / 8  # the size there is that of the latents
    return densities.shift_by_size(draft, _FLUX_LINE, [(side / scale) ** 2 for side in sides])


def _bound(value: Any, draft: ImportDraft) -> Outcome:
    bounds = [
        values.number(draft.settings.get(f"model.{key}", at), 0, 1) for key, at in (("min_t", 0.0), ("max_t", 1.0))
    ]
    if draft.get("model.experts") is not None:
        if sorted(bounds) in ([0.0, 1.0], _range_of_expert(draft)):
            return Fate.DEFAULT, f"model.experts = {draft.get('model.experts')!r} trains these"
        return Fate.NOT_POSSIBLE, f"model.experts = {draft.get('model.experts')!r} trains {_range_of_expert(draft)}"
    if bounds[0] >= bounds[1]:
        raise ValueError("no range")
    return Fate.TAKEN, draft.set("objective.timestep_range", [round(1000 * bound, 6) for bound in bounds])


def _range_of_expert(draft: ImportDraft) -> list[float]:
    switch = (registry.PRESETS[draft.get("model.name")].switch_timestep or 0.0) / 1000
    return [switch, 1.0] if draft.get("model.experts") == "high" else [0.0, switch]


def _cfg(value: Any, draft: ImportDraft) -> Outcome:
    scale = values.number(value, 0)
    if scale <= 1:
        return Fate.DEFAULT, "off"
    if not trains_adapter(draft):
        return Fate.NOT_POSSIBLE, "targets are guided only for a LoRA"
    remark = draft.set("objective.target_guidance_scale", scale)
    return Fate.TAKEN, f"{remark}; the part without caption is predicted by the base, and not by the LoRA"
