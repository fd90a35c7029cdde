"""The `[objective]` table of a recipe."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from reelworks.core.config import Config
from reelworks.core.errors import UserError, nearest
from reelworks.diffusion import frame_masks

_OF_RECTIFIED_FLOW = (
    "timestep_sampling",
    "logit_mean",
    "logit_std",
    "timestep_shift",
    "timestep_range",
    "opensora_frame_quantization",
    "prediction",
)


class ObjectiveConfig(Config):
    """How timesteps, conditioning masks and empty captions are drawn.

    Attributes:
        name: `rectified-flow`; `iddpm`: Open-Sora 1.1's 1000 steps of noise with a learned variance; `epsilon` or
            `v-prediction`: Stable Diffusion's 1000 steps, of which the network predicts the noise or v. All but
            the first know neither density nor shift of timesteps, nor what `prediction` says.
        timestep_sampling: Density of the timesteps before the shift.
        logit_mean, logit_std: Of the normal variable whose sigmoid is a logit-normal timestep; a mean above 0 trains
            more noise, one below 0 less. Open-Sora's `loc` and `scale`.
        timestep_shift: "auto" moves timesteps towards noise for large and long clips, "none" leaves them,
            a number is a fixed ratio r in t' = r·t / (1 + (r − 1)·t).
        timestep_range: Lowest and highest timestep that is trained, after the shift; the density between them stays
            what it is. Those of Wan 2.2's experts follow from `model.experts`.
        opensora_frame_quantization: Measure a clip's length as Open-Sora 1.2 did, `(num_frames // 17) · 5`. It is 0 for 2 to 16
            frames, which then train at timestep 0 only.
        mask_ratios: Share of clips by conditioning strategy; `identity` (no condition) takes the rest.
        prediction: What the network's output means: the velocity, or the clean sample, from which the
            velocity follows. A narrow network over large patches cannot pass the noise through that a
            velocity contains; it can still name the sample.
        caption_dropout: Share of clips shown with the empty caption, which guidance needs.
    """

    name: Literal["rectified-flow", "iddpm", "epsilon", "v-prediction"] = "rectified-flow"
    timestep_sampling: Literal["logit-normal", "uniform"] = "logit-normal"
    logit_mean: float = Field(default=0.0, ge=-10, le=10)
    logit_std: float = Field(default=1.0, gt=0, le=10)
    timestep_shift: float | Literal["auto", "none"] = "auto"
    timestep_range: list[float] = Field(default=[0.0, 1000.0], min_length=2, max_length=2)
    opensora_frame_quantization: bool = False
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
            code="timestep-shift-invalid",
            field="objective.timestep_shift",
            value=value,
            remedy='write 1.0 or "none" for no shift, more than 1 for more noise, or "auto"',
        )

    @field_validator("timestep_range")
    @classmethod
    def _range_has_a_width(cls, value: list[float]) -> list[float]:
        low, high = value
        if 0 <= low < high <= 1000:
            return value
        raise UserError(
            "not a range within [0, 1000]",
            code="timestep-range-invalid",
            field="objective.timestep_range",
            value=value,
            remedy="write the lower timestep first, as in [875, 1000]",
        )

    @field_validator("mask_ratios")
    @classmethod
    def _ratios_are_shares(cls, ratios: dict[str, float]) -> dict[str, float]:
        for name, ratio in ratios.items():
            key = f"objective.mask_ratios.{name}"
            if name not in frame_masks.STRATEGIES:
                known = nearest(name, frame_masks.STRATEGIES)
                raise UserError(
                    "there is no such mask strategy",
                    code="unknown-mask-strategy",
                    field=key,
                    value=ratio,
                    remedy=known,
                )
            if not 0 <= ratio <= 1:
                remedy = "write a share of the clips between 0 and 1"
                raise UserError(
                    "a ratio lies between 0 and 1",
                    code="mask-ratio-invalid",
                    field=key,
                    value=ratio,
                    remedy=remedy,
                )
        _check_total(ratios)
        return ratios

    @model_validator(mode="after")
    def _keys_belong_to_the_objective(self) -> Self:
        for key in () if self.name == "rectified-flow" else _OF_RECTIFIED_FLOW:
            value, default = getattr(self, key), type(self).model_fields[key].default
            if value != default:
                raise UserError(
                    f"this key is of rectified flow, and {self.name} has nothing like it",
                    code="key-of-another-objective",
                    field=f"objective.{key}",
                    value=value,
                    remedy='leave it out, or set objective.name = "rectified-flow"',
                )
        return self


def _check_total(ratios: dict[str, float]) -> None:
    total = sum(ratios.values())
    exceeds = total > 1 + frame_masks.TOLERANCE
    falls_short = "identity" in ratios and total < 1 - frame_masks.TOLERANCE
    if exceeds or falls_short:
        raise UserError(
            f"the ratios sum to {total:g}, not to 1",
            code="mask-ratios-sum",
            field="objective.mask_ratios",
            value=ratios,
            remedy='leave "identity" out (it takes the rest) and keep the sum of the others at or below 1',
        )
