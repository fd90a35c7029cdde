"""Densities of timesteps of flow matching: the trainers' names and numbers, and those of [objective].

The trainers draw a number u, and take the timestep 1000 · u, shifted by r·u / (1 + (r − 1)·u) where there is a shift.
With `sigma`, u is an index into a list of timesteps that begins with the noisiest.
"""

from __future__ import annotations

import math
import re
from typing import Any

from reelworks.annexes.imports import densities, tables
from reelworks.annexes.imports.datasets import shift_by_size
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome
from reelworks.annexes.imports.values import is_on, number_of
from reelworks.core.toml_none import WORD as NONE

BY_SIZE: dict[str, list[float]] = tables.table("kohya", "names")["shifts_by_size"]
_MIXTURES = {"qinglong_flux": "flux_shift", "qinglong_qwen": "qwen_shift"}
_WEIGHTS = {"sigma_sqrt": "sigma-sqrt", "cosmap": "cosmap"}


def largest_area(draft: ImportDraft) -> int:
    """Return the pixels of the largest [[bucket]] of the draft; those of a square of 1024 without one."""
    texts = (str(draft.get(f"bucket.{number}.resolution", "")) for number in range(draft.count("bucket")))
    sides = ([int(side) for side in re.findall(r"\d+", text)] for text in texts)
    return max((each[0] * each[-1] for each in sides if each), default=0) or 1024**2


def sampling(value: Any, draft: ImportDraft, *, default_shift: float, shifts_sigma: bool = True) -> Outcome:
    """Convert a density with the numbers that belong to it.

    `shifts_sigma` tells whether the list of timesteps is shifted into which `sigma` draws an index.
    """
    name, get = str(value), draft.settings.get
    scale = number_of(get("sigmoid_scale", 1.0))
    if name == "sigma":
        shift = number_of(get("discrete_flow_shift", default_shift)) if shifts_sigma else None
        return Fate.TAKEN, by_scheme(str(get("weighting_scheme", "none")), draft, shift)
    if name == "uniform":
        return Fate.TAKEN, _set(draft, "uniform", None)
    if name == "sigmoid":
        return Fate.TAKEN, _set(draft, "logit-normal", None, std=scale)
    if name == "shift":
        return Fate.TAKEN, _set(draft, "logit-normal", number_of(get("discrete_flow_shift", default_shift)), std=scale)
    if name == "logsnr":
        mean, std = number_of(get("logit_mean", 0.0)), number_of(get("logit_std", 1.0))
        return Fate.TAKEN, _set(draft, "logit-normal", None, -mean / 2, std / 2)
    by_size = _MIXTURES.get(name, name)
    if by_size not in BY_SIZE:
        return Fate.NOT_POSSIBLE, f"this density is not there; {_set(draft, 'logit-normal', None)} replaces it"
    area = largest_area(draft)
    scale = {"ideogram4_shift": 1.5, "nextdit_shift": 1.0}.get(name, scale)
    density = "uniform" if name == "nextdit_shift" else "logit-normal"
    remark = _set(draft, density, round(shift_by_size(BY_SIZE[by_size], area), 4), std=scale)
    if name in _MIXTURES:
        return Fate.NOT_POSSIBLE, f"a mixture of densities is not there; {remark}, its largest part, replaces it"
    return Fate.TAKEN, f"{remark}, that of {math.isqrt(area)} × {math.isqrt(area)} pixels; there it falls with the size"


def by_scheme(scheme: str, draft: ImportDraft, shift: float | None, sign: int = -1) -> str:
    """Set the density of a `weighting_scheme`, whose number u means the timestep 1 - u, or u if `sign` is 1."""
    get = draft.settings.get
    if scheme == "logit_normal":
        mean, std = number_of(get("logit_mean", 0.0)), number_of(get("logit_std", 1.0))
        return _set(draft, "logit-normal", shift, sign * mean, std)
    if scheme == "mode":
        return _set(draft, "mode", shift, scale=number_of(get("mode_scale", 1.29)))
    return _set(draft, "uniform", shift)


def _set(
    draft: ImportDraft, name: str, shift: float | None, mean: float = 0.0, std: float = 1.0, scale: float | None = None
) -> str:
    numbers = {"logit_mean": mean} if mean else {}
    numbers |= {"logit_std": std} if std != 1 else {}
    numbers |= {"mode_scale": scale} if scale is not None else {}
    remark, _ = densities.draw(draft, name, **numbers)
    is_plain = shift is None or shift == 1 or shift <= 0
    return f"{remark}, {draft.set('objective.timestep_shift', NONE if is_plain else shift)}"


def weighting(value: Any, draft: ImportDraft, *, weighs: bool = True) -> Outcome:
    """Convert the weight of a timestep's loss; densities that share this name are part of `timestep_sampling`."""
    if value not in _WEIGHTS:
        return Fate.DEFAULT, "all timesteps have one weight"
    if not weighs:
        return Fate.NO_MEANING, "this kind of prediction has no weights"
    return Fate.TAKEN, draft.set("objective.loss_weighting", _WEIGHTS[value])


def bound(value: Any, draft: ImportDraft, *, default_sampling: str) -> Outcome:
    """Convert both bounds of timesteps; those of `sigma` count from the noisiest one, before the shift."""
    get = draft.settings.get
    low, high = number_of(get("min_timestep") or 0), number_of(get("max_timestep") or 1000)
    if not 0 <= low < high <= 1000:
        return Fate.NOT_POSSIBLE, "these are no bounds from 0 to 1000"
    if (low, high) == (0, 1000):
        return Fate.DEFAULT, "all timesteps"
    if get("timestep_sampling", default_sampling) == "sigma":
        shift = draft.get("objective.timestep_shift")
        ratio = 1.0 if shift in (None, NONE) else number_of(shift)
        shares = ((1000 - each) / 1000 for each in (high, low))
        low, high = (round(1000 * ratio * share / (1 + (ratio - 1) * share), 3) for share in shares)
        remark = draft.set("objective.timestep_range", [low, high])
        return Fate.TAKEN, f"{remark}: these bounds count from the noisiest timestep there"
    remark = draft.set("objective.timestep_range", [low, high])
    if is_on(get("preserve_distribution_shape")):
        return Fate.TAKEN, remark
    return Fate.TAKEN, f"{remark}; there the whole density is squeezed into them"
