"""Translations of OneTrainer's settings of timesteps, noise and loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reelworks.annexes.imports import densities, rules, values
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.onetrainer import parts
from reelworks.annexes.imports.rules import Fate, Outcome


def _weight_and_bias(draft: ImportDraft) -> tuple[float, float]:
    return values.number(draft.settings.get("noising_weight", 0.0)), values.number(
        draft.settings.get("noising_bias", 0.0)
    )


def _logit_normal(value: Any, draft: ImportDraft) -> Outcome:
    weight, bias = _weight_and_bias(draft)
    return Fate.TAKEN, densities.draw(draft, "logit-normal", logit_mean=bias, logit_std=weight + 1)[0]


def _parabola(value: Any, draft: ImportDraft) -> Outcome:
    """Take the beta distribution of the same spread as 2 − weight · (t − 0.5)², which is beta(2, 2) for 8."""
    weight, bias = _weight_and_bias(draft)
    if bias or not 0 < weight <= 8:
        remark, _ = densities.draw(draft, "logit-normal", logit_mean=0.0, logit_std=1.0)
        return rules.exact_or_nearest(remark, _NEAREST)
    spread = (2 / 12 - weight / 80) / (2 - weight / 12)
    shape = round((1 / (4 * spread) - 1) / 2, 3)
    remark, _ = densities.draw(draft, "beta", beta_alpha=shape, beta_beta=shape)
    return rules.exact_or_nearest(remark, "" if weight == 8 else "it has the same spread, and another form")


def _drawn(value: Any, draft: ImportDraft, density: str, keys: Sequence[str] = ()) -> Outcome:
    """Take a density whose numbers are the weight and the bias."""
    remark, exact = densities.draw(draft, density, **dict(zip(keys, _weight_and_bias(draft), strict=False)))
    return rules.exact_or_nearest(remark, "" if exact else _NEAREST)


def _sigmoid(value: Any, draft: ImportDraft) -> Outcome:
    weight, _ = _weight_and_bias(draft)
    return rules.exact_or_nearest(densities.draw(draft, "uniform")[0], _NEAREST if weight else "")


_NEAREST = "this density is not there, and the nearest replaces it"


def _shift(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get("dynamic_timestep_shifting") is True and parts.model_of(draft).line is not None:
        return Fate.NO_MEANING, "dynamic_timestep_shifting decides"
    return Fate.TAKEN, draft.set("objective.timestep_shift", values.number(value, 1e-3))


def _dynamic(value: Any, draft: ImportDraft) -> Outcome:
    line = parts.model_of(draft).line
    if not draft.is_flow or line is None:
        return Fate.NO_MEANING, "this model has no shift by size"
    sides = sides_of(str(draft.settings.get("resolution", "512")))
    return densities.shift_by_size(draft, line, [height * width for height, width in sides])


def sides_of(resolution: str) -> list[tuple[int, int]]:
    """Return the heights and widths of a setting of resolutions: one size, or the sides of squares."""
    if "x" in resolution and "," not in resolution:
        width, height = resolution.strip().split("x")
        return [(values.whole(height, 1, 10**5), values.whole(width, 1, 10**5))]
    return [(side, side) for side in sorted({values.whole(each, 1, 10**5) for each in resolution.split(",")})]


def _strength(value: Any, draft: ImportDraft) -> Outcome:
    low, high = (
        values.number(draft.settings.get(f"{key}_noising_strength", at), 0, 1)
        for key, at in (("min", 0.0), ("max", 1.0))
    )
    if (low, high) == (0, 1):
        return Fate.DEFAULT, "all timesteps"
    if not draft.is_flow:
        return Fate.NOT_POSSIBLE, "all timesteps of this model are trained"
    remark = draft.set("objective.timestep_range", [round(1000 * low, 6), round(1000 * high, 6)])
    if draft.settings.get("timestep_distribution", "UNIFORM") == "UNIFORM":
        return Fate.TAKEN, remark
    return Fate.NOT_POSSIBLE, f"{remark}: there, the whole density is squeezed into it; here, it is cut"


def _loss(value: Any, draft: ImportDraft) -> Outcome:
    strengths = {key: values.number(draft.settings.get(f"{key}_strength", at)) for key, at in _STRENGTHS.items()}
    used = {key for key, strength in strengths.items() if strength}
    if used == {"mse"}:
        return Fate.DEFAULT, "the loss is the squared error"
    name = "huber" if "huber" in used else "smooth-l1" if used & {"mae", "log_cosh"} else "mse"
    remark = draft.set("objective.loss", name)
    if name == "huber":
        delta = values.number(draft.settings.get("huber_delta", 1.0), 1e-6, 10)
        remark += f", {draft.set('objective.huber_delta', delta)}"
    if used == {"huber"}:
        return Fate.TAKEN, remark
    return Fate.NOT_POSSIBLE, f"one kind of error is possible; the nearest: {remark}"


_STRENGTHS = {"mse": 1.0, "mae": 0.0, "log_cosh": 0.0, "huber": 0.0}


def _min_snr(value: Any, draft: ImportDraft) -> Outcome:
    strength = values.number(draft.settings.get("loss_weight_strength", 5.0), 1e-6)
    remark = draft.set("objective.loss_weighting", "min-snr")
    return Fate.TAKEN, f"{remark}, {draft.set('objective.snr_gamma', strength)}"
