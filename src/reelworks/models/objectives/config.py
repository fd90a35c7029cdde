"""The `[objective]` table of a recipe."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from reelworks.core import toml
from reelworks.core.config import PublicConfig, Told
from reelworks.core.errors import UserError, nearest
from reelworks.data.loader import frame_masks

NUM_TIMESTEPS = 1000

_KEYS = toml.beside(__file__, "config_keys.toml")
_RECTIFIED_FLOW_KEYS: list[str] = _KEYS["rectified_flow"]
_FLOW_WEIGHTINGS = ("sigma-sqrt", "cosmap", "bell")
_LOSS_KEYS = ("loss", "loss_weighting")
_NOISE_KEYS = ("noise_offset", "multires_noise_iterations", "input_perturbation")  # which others belong to
_DIFFUSION_NOISE_KEYS = ("adaptive_noise_scale", "multires_noise_iterations")
# Keys that belong to values of another key, or to any of it but 0.
_BELONGS_TO: dict[str, tuple[str, list[str]]] = _KEYS["belongs_to"]
# Keys that only a recipe uses: they are about the noise and the conditions that a training draws.
OF_RECIPES = {"mask_ratios", "caption_dropout", "crop_conditioning", "target_guidance_scale", "dpo_beta", *_NOISE_KEYS}
OF_RECIPES |= {key for key, (other, _) in _BELONGS_TO.items() if other in _NOISE_KEYS}


def require_steps(objective: str, num_steps: int, field: str = "num_inference_steps") -> None:
    """Refuse a number of steps that the sampler of an objective does not have; that of a flow has any."""
    fewest, usual = (2, "50 to 250") if objective == "iddpm" else (1, "20 to 50")
    if objective != "rectified-flow" and not fewest <= num_steps <= NUM_TIMESTEPS:
        raise UserError(
            f"the number of steps is not in [{fewest}, {NUM_TIMESTEPS}]",
            code="steps-out-of-range",
            field=field,
            value=num_steps,
            remedy=f"use {usual}, as is usual",
        )


class ObjectiveConfig(PublicConfig):
    """Objective, and distributions of timesteps, conditioning masks and empty captions.

    Attributes:
        name: `rectified-flow`; `iddpm`: Open-Sora 1.1's 1000 diffusion steps with a learned variance; `epsilon` or
            `v-prediction`: Stable Diffusion's 1000 diffusion steps, with a network that predicts the noise or v.
            All but the first have no density, shift and range of timesteps and no `prediction`.
        timestep_sampling: Density of the timesteps before the shift. `mode` is that of Stable Diffusion 3, `beta` the
            beta distribution.
        logit_mean: Mean of the normal variable whose sigmoid is a logit-normal timestep; above 0 trains more at high
            noise, below 0 less. Open-Sora's `loc`.
        logit_std: Standard deviation of that variable. Open-Sora's `scale`.
        mode_scale: Strength of the density `mode`: above 0 trains medium noise more, below 0 both ends.
        beta_alpha: First parameter of the density `beta`; above `beta_beta` trains more at high noise.
        beta_beta: Second parameter of the density `beta`.
        timestep_shift: "auto" moves timesteps towards noise for large and long clips, "opensora-2.0" does so by the
            rule of that release, which grows more slowly with the size, "none" leaves them unchanged, a number is a fixed ratio r in t' = r·t / (1 + (r − 1)·t).
        timestep_range: Lowest and highest timestep to train, after the shift; the density between them does not
            change. The ranges of Wan 2.2's experts follow from `model.experts`.
        opensora_frame_quantization: Measure a clip's length as Open-Sora 1.2 did, `(num_frames // 17) · 5`. It is
            0 for 2 to 16 frames, which then train at timestep 0 only.
        mask_ratios: Share of clips by conditioning strategy; `identity` (no condition) takes the rest. Besides strategies
            of frames, models that take a `mask` (VACE) know those of areas, `inpaint` and `outpaint`.
        prediction: Meaning of the network's output: the velocity, or the clean sample, from which the velocity is
            computed. A narrow network over large patches cannot reproduce the noise in a velocity, but can predict
            the sample.
        zero_terminal_snr: Make the last of the 1000 steps pure noise, for very dark and very bright pictures, in training
            and generation. Only for `v-prediction`. Generate with programs that know it (diffusers'
            `rescale_betas_zero_snr` with `timestep_spacing = "trailing"`).
        loss: Distance of prediction and target: squared error, or one that large errors enter with their size only,
            half the square up to `huber_delta` (`huber`), or that divided by `huber_delta` (`smooth-l1`).
        huber_delta: Error from which on the distance grows linearly.
        huber_schedule: `exponential` lets that error fall from 1 at timestep 0 to `huber_delta` at timestep 1000.
        loss_weighting: Weight of a clip's loss by its timestep. `min-snr` and `debiased` are for all predictions;
            `sigma-sqrt`, `cosmap` and `bell` for rectified flow. The validation loss has no weights.
        snr_gamma: Signal-to-noise ratio above which `min-snr` gives all timesteps the same weight.
        noise_offset: Strength of a normal variable per channel that is added to the noise of a whole clip, so that its mean
            brightness is learnt; 0.03 to 0.1 is usual. Validation and generation use plain noise.
        noise_offset_random_strength: Draw the strength of each clip between 0 and `noise_offset`.
        noise_offset_probability: Share of clips whose noise has an offset.
        adaptive_noise_scale: Adds so many times the size of each channel's mean in the latents to `noise_offset`; a sum below
            0 counts as 0.
        multires_noise_iterations: Largest number of further noises that are added, the first as fine as the latents, and
            each later one coarser; the sum is scaled to a standard deviation of 1. 6 to 10 is usual, and 0 none.
        multires_noise_discount: Factor between the strengths of one noise and the next.
        input_perturbation: Strength of further noise that the network sees and is not to predict; 0.1 is usual.
        caption_dropout: Share of clips trained with the empty caption, which guidance needs.
        crop_conditioning: What a network that takes crops (SDXL) is told of each picture. `file`: the size of its
            file, and where in it the crop lies, as its published weights expect; `none`: the size of its bucket,
            without a crop.
        target_guidance_scale: Guidance scale s of the targets, for a LoRA on a base that guidance was distilled into.
            The target v of a clip becomes u + s·(v − u) with the base's prediction u for the empty caption, which takes
            one more forward pass; 3 to 4 is usual. Left out, targets are plain, and training undoes the guidance.
        dpo_beta: Strength of preferences, with `dataset.rejected`: the larger, the nearer the LoRA stays to the base.
    """

    name: Literal["rectified-flow", "iddpm", "epsilon", "v-prediction"] = "rectified-flow"
    timestep_sampling: Literal["logit-normal", "uniform", "mode", "beta"] = "logit-normal"
    logit_mean: float = Field(default=0.0, ge=-10, le=10)
    logit_std: float = Field(default=1.0, gt=0, le=10)
    mode_scale: float = Field(default=1.29, ge=-1, le=1.75)
    beta_alpha: float = Field(default=2.0, ge=0.5, le=50)
    beta_beta: float = Field(default=2.0, ge=0.5, le=50)
    timestep_shift: float | Literal["auto", "opensora-2.0", "none"] = "auto"
    timestep_range: list[float] = Field(default=[0.0, 1000.0], min_length=2, max_length=2)
    opensora_frame_quantization: bool = False
    mask_ratios: Told[dict[str, float]] = Field(default_factory=dict)
    prediction: Literal["velocity", "sample"] = "velocity"
    zero_terminal_snr: bool = False
    loss: Literal["mse", "huber", "smooth-l1"] = "mse"
    huber_delta: float = Field(default=0.1, gt=0, le=10)
    huber_schedule: Literal["constant", "exponential"] = "constant"
    loss_weighting: Literal["none", "min-snr", "debiased", "sigma-sqrt", "cosmap", "bell"] = "none"
    snr_gamma: float = Field(default=5.0, gt=0)
    noise_offset: float = Field(default=0.0, ge=0, le=1)
    noise_offset_random_strength: bool = False
    noise_offset_probability: float = Field(default=1.0, gt=0, le=1)
    adaptive_noise_scale: float = Field(default=0.0, ge=-10, le=10)
    multires_noise_iterations: int = Field(default=0, ge=0, le=100)
    multires_noise_discount: float = Field(default=0.3, gt=0, le=1)
    input_perturbation: float = Field(default=0.0, ge=0, le=1)
    caption_dropout: float = Field(default=0.1, ge=0, le=1)
    crop_conditioning: Literal["file", "none"] = "file"
    target_guidance_scale: float | None = Field(default=None, gt=1)
    dpo_beta: float = Field(default=2000.0, gt=0)

    def timesteps(self, places: Iterable[int], parts: int) -> list[float]:
        """Return the timesteps at some of the ends of so many equal parts of the range that is trained."""
        first, last = self.timestep_range
        return [first + (last - first) * i / parts for i in places]

    @field_validator("timestep_shift")
    @classmethod
    def _shift_is_positive(cls, value: float | str) -> float | str:
        if isinstance(value, str) or value > 0:
            return value
        raise UserError(
            "a fixed shift must be a ratio above 0",
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
            "this is not a range within [0, 1000]",
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
            if name not in (known := (*frame_masks.STRATEGIES, *frame_masks.AREAS)):
                raise UserError(
                    "there is no such mask strategy",
                    code="unknown-mask-strategy",
                    field=key,
                    value=ratio,
                    remedy=nearest(name, known),
                )
            if not 0 <= ratio <= 1:
                raise UserError(
                    "the ratio is not between 0 and 1",
                    code="mask-ratio-invalid",
                    field=key,
                    value=ratio,
                    remedy="write the share of the clips, a number between 0 and 1",
                )
        total = sum(ratios.values())
        falls_short = "identity" in ratios and total < 1 - frame_masks.TOLERANCE
        if total > 1 + frame_masks.TOLERANCE or falls_short:
            raise UserError(
                f"the ratios sum to {total:g}, not to 1",
                code="mask-ratios-sum",
                field="objective.mask_ratios",
                value=ratios,
                remedy='leave "identity" out (it takes the rest) and keep the sum of the others at or below 1',
            )
        return ratios

    @model_validator(mode="after")
    def _keys_belong_to_the_objective(self) -> Self:
        for key in () if self.name == "rectified-flow" else _RECTIFIED_FLOW_KEYS:
            if self._is_set(key):
                raise UserError(
                    f"this key belongs to rectified flow and has no meaning for {self.name}",
                    code="key-of-another-objective",
                    field=f"objective.{key}",
                    value=getattr(self, key),
                    remedy='leave it out, or set objective.name = "rectified-flow"',
                )
        return self

    @model_validator(mode="after")
    def _keys_belong_to_the_chosen_values(self) -> Self:
        for key, (chooser, choices) in _BELONGS_TO.items():
            chosen = getattr(self, chooser)
            if self._is_set(key) and (chosen not in choices if choices else not chosen):
                names = "= " + " or ".join(f'"{choice}"' for choice in choices) if choices else "above 0"
                raise UserError(
                    f"it has no effect with {chooser} = {json.dumps(chosen)}",
                    code="key-without-effect",
                    field=f"objective.{key}",
                    value=getattr(self, key),
                    remedy=f"leave it out, or set objective.{chooser} {names}",
                )
        return self

    def _is_set(self, key: str) -> bool:
        return bool(getattr(self, key) != type(self).model_fields[key].default)

    @model_validator(mode="after")
    def _fits_the_objective(self) -> Self:
        if self.name == "iddpm" and self.target_guidance_scale is not None:
            raise UserError(
                "IDDPM's networks were not distilled, and their variance has no guidance",
                code="guided-target-invalid",
                field="objective.target_guidance_scale",
                value=self.target_guidance_scale,
                remedy="leave it out",
            )
        if self.zero_terminal_snr and self.name != "v-prediction":
            raise UserError(
                "from pure noise, a network that predicts the noise learns nothing of the data"
                if self.name == "epsilon"
                else f"{self.name} has a noise schedule of its own",
                code="zero-snr-without-v",
                field="objective.zero_terminal_snr",
                value=True,
                remedy='leave it out, or set objective.name = "v-prediction" for weights that predict v',
            )
        for key in _LOSS_KEYS if self.name == "iddpm" else ():
            if self._is_set(key):
                raise UserError(
                    "IDDPM's loss is a squared error and a bound on the likelihood, which belong together",
                    code="loss-of-another-objective",
                    field=f"objective.{key}",
                    value=getattr(self, key),
                    remedy='leave it out, or set objective.name to another objective, such as "v-prediction"',
                )
        plain = {"iddpm": _NOISE_KEYS, "rectified-flow": _DIFFUSION_NOISE_KEYS}.get(self.name, ())
        for key in filter(self._is_set, plain):
            raise UserError(
                f"{self.name} is trained with noise that has no such part",
                code="noise-of-another-objective",
                field=f"objective.{key}",
                value=getattr(self, key),
                remedy='leave it out; it is for objective.name = "epsilon" and "v-prediction"',
            )
        if self.name != "rectified-flow" and self.loss_weighting in _FLOW_WEIGHTINGS:
            raise UserError(
                f"this weight is defined for rectified flow, and not for {self.name}",
                code="loss-of-another-objective",
                field="objective.loss_weighting",
                value=self.loss_weighting,
                remedy='set it to "min-snr", "debiased" or "none"',
            )
        return self

    def other_output(self, other: ObjectiveConfig) -> str | None:
        """Return a key by which a network's output means something else than with another objective; None if it means the same."""
        return next((key for key in ("name", "prediction") if getattr(self, key) != getattr(other, key)), None)

    def for_validation(self) -> Self:
        """Return the objective with squared errors without weights, and plain noise, so that runs with others can be compared."""
        plain = {"loss": "mse", "loss_weighting": "none", "target_guidance_scale": None}
        return self.model_copy(update=plain | dict.fromkeys(_NOISE_KEYS, 0))
