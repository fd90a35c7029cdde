"""The `[objective]` table of a recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from reelworks.core.config import Config
from reelworks.core.errors import UserError, nearest
from reelworks.objective import masks


class ObjectiveConfig(Config):
    """How timesteps, conditioning masks and empty captions are drawn.

    Attributes:
        timestep_sampling: Density of the timesteps before the shift.
        timestep_shift: "auto" moves timesteps towards noise for large and long clips, "none" leaves them,
            a number is a fixed ratio r in t' = r·t / (1 + (r − 1)·t).
        compat: Measure a clip's length as Open-Sora 1.2 did, `(num_frames // 17) · 5`. It is 0 for 2 to 16
            frames, which then train at timestep 0 only.
        mask_ratios: Share of clips by conditioning strategy; `identity` (no condition) takes the rest.
        prediction: What the network's output means: the velocity, or the clean sample, from which the
            velocity follows. A narrow network over large patches cannot pass the noise through that a
            velocity contains; it can still name the sample.
        caption_dropout: Share of clips shown with the empty caption, which guidance needs.
    """

    timestep_sampling: Literal["logit-normal", "uniform"] = "logit-normal"
    timestep_shift: float | Literal["auto", "none"] = "auto"
    compat: bool = False
    mask_ratios: dict[str, float] = Field(default_factory=dict)
    prediction: Literal["velocity", "sample"] = "velocity"
    caption_dropout: float = Field(default=0.1, ge=0, le=1)

    @field_validator("timestep_shift")
    @classmethod
    def _shift_is_positive(cls, value: float | str) -> float | str:
        if isinstance(value, str) or value > 0:
            return value
        raise UserError(
            "a fixed shift is a ratio above 0",
            field="objective.timestep_shift",
            value=value,
            remedy='write 1.0 or "none" for no shift, more than 1 for more noise, or "auto"',
        )

    @field_validator("mask_ratios")
    @classmethod
    def _ratios_are_shares(cls, ratios: dict[str, float]) -> dict[str, float]:
        for name, ratio in ratios.items():
            key = f"objective.mask_ratios.{name}"
            if name not in masks.STRATEGIES:
                known = nearest(name, masks.STRATEGIES)
                raise UserError("there is no such mask strategy", field=key, value=ratio, remedy=known)
            if not 0 <= ratio <= 1:
                remedy = "write a share of the clips between 0 and 1"
                raise UserError("a ratio lies between 0 and 1", field=key, value=ratio, remedy=remedy)
        _check_total(ratios)
        return ratios


def _check_total(ratios: dict[str, float]) -> None:
    total = sum(ratios.values())
    exceeds = total > 1 + masks.TOLERANCE
    falls_short = "identity" in ratios and total < 1 - masks.TOLERANCE
    if exceeds or falls_short:
        raise UserError(
            f"the ratios sum to {total:g}, not to 1",
            field="objective.mask_ratios",
            value=ratios,
            remedy='leave "identity" out (it takes the rest) and keep the sum of the others at or below 1',
        )
