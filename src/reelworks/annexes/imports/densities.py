"""Densities of timesteps of flow matching, with numbers that a recipe takes in their bounds."""

from __future__ import annotations

from collections.abc import Sequence

from reelworks.annexes.imports import datasets, rules
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Outcome
from reelworks.annexes.imports.values import range_of

_BOUNDS = {
    "logit_mean": (-10.0, 10.0),
    "logit_std": (0.01, 10.0),
    "mode_scale": (-1.0, 1.75),
    "beta_alpha": (0.5, 50.0),
    "beta_beta": (0.5, 50.0),
}


def draw(draft: ImportDraft, density: str, **numbers: float) -> tuple[str, bool]:
    """Set a density with its numbers, the nearest that are possible; return the assignments as text, and whether all are exact."""
    remarks, taken = [draft.set("objective.timestep_sampling", density)], dict[str, float]()
    for key, number in numbers.items():
        taken[key] = range_of(*_BOUNDS[key], number)
        remarks.append(draft.set(f"objective.{key}", taken[key]))
    return ", ".join(remarks), taken == numbers


def shift_by_size(draft: ImportDraft, line: Sequence[float], areas_px: Sequence[float]) -> Outcome:
    """Set the shift of the mean area: it depends on the area alone, which is the same for all aspect ratios."""
    shift = datasets.shift_by_size(line, sum(areas_px) / len(areas_px))
    remark = draft.set("objective.timestep_shift", round(shift, 3))
    return rules.exact_or_nearest(remark, "" if len(areas_px) == 1 else "there is one shift, that of the mean area")
