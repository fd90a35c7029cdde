"""Tell clips apart by what they are trained towards: losses of two kinds differ in size, and are not compared."""

from __future__ import annotations

import itertools
from collections.abc import Collection

import torch
from torch import Tensor

from reelworks.data.loader.upload import to_device
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.training.step.examples import Example

_GENERATED = ("", "sound only", "picture only")  # of clips with sound, both or one of them
_TARGETS = ("", "guided", "preserved")  # the clip itself, with the base's guidance, or the base's output
KINDS = tuple(", ".join(filter(None, names)) for names in itertools.product(_GENERATED, _TARGETS))


def of_clips(example: Example) -> Tensor:
    """Return the index in `KINDS` of each clip, `[B]` integers on its device."""
    i, preserved = example.inputs, example.batch.request.target_is_base
    kind_B = torch.zeros_like(i.drop_text, dtype=torch.long)
    if example.objective.target_guidance_scale is not None:
        kind_B = kind_B + ~i.drop_text  # without a caption, guidance changes nothing
    if any(preserved):
        kind_B = torch.where(to_device(torch.tensor(preserved), kind_B.device), 2, kind_B)
    if i.sound is not None:
        generated_B = torch.where(i.sound.mask.any(dim=1), 0, 2)
        kind_B = kind_B + len(_TARGETS) * torch.where(i.frame_mask.any(dim=1), generated_B, 1)
    return kind_B


def name(kinds: Collection[int], objective: ObjectiveConfig, recipe: ObjectiveConfig) -> str:
    """Return kinds of a step's clips in words, with the timesteps of its expert; empty for plain clips at all timesteps."""
    low, high = objective.timestep_range
    expert = "" if objective.timestep_range == recipe.timestep_range else f"timesteps {low:g} to {high:g}"
    names = [KINDS[kind] or "plain" * (len(kinds) > 1) for kind in sorted(kinds)]
    return ", ".join(filter(None, [expert, " and ".join(names)]))
