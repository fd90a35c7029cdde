"""Recipe keys of sound."""

from __future__ import annotations

from typing import Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from reelworks.core.config import Config, Told, Weights
from reelworks.core.errors import UserError, nearest

OWN_SOUND_ENCODER = "pcm"
Mode = Literal["both", "sound", "video"]
_MODES: tuple[Mode, ...] = get_args(Mode)
_TOLERANCE = 1e-6
_LATENTS_PER_SECOND = 25  # of `pcm`, as of published encoders


class SoundConfig(Config):
    """`[sound]`: how the sound of clips is encoded and trained, by a model that has sound.

    Attributes:
        name: Sound encoder: `pcm`, the samples themselves, without weights; or one of a diffusers family.
        weights: Folder or hub id of the release, with `audio_vae` and `vocoder`; `pcm` has none.
        sample_rate: Samples per second of `pcm`, a multiple of 25.
        modes: Share of clips by what is generated: `both` picture and sound, `sound` to the clip's given picture, or
            `video`, the picture to its given sound. What is given stays clean, at timestep 0, and has no loss. `both`
            takes the rest.
        times: `independent` draws a timestep for picture and one for sound, as the release's own trainer does;
            `shared` uses one for both, as when generating.
        timestep_shift: Shift of the sound's timesteps, in training and in samples; default: that of the picture.
        loss_weight: Weight of the sound's loss beside the picture's, which are added.
        follow_frames: Whether sound is given too at the time of condition frames (`objective.mask_ratios`), so that
            both are continued together; otherwise all of it is generated.
        missing: What becomes of videos without sound: `leave_out`, or `silent` to train them with silence.
    """

    name: Told[str] = OWN_SOUND_ENCODER
    weights: Weights[str | None] = Field(default=None, min_length=1)
    sample_rate: int = Field(default=1600, gt=0, multiple_of=_LATENTS_PER_SECOND)
    modes: Told[dict[str, float]] = Field(default_factory=dict)
    times: Literal["independent", "shared"] = "independent"
    timestep_shift: float | None = Field(default=None, gt=0)
    loss_weight: float = Field(default=1.0, gt=0)
    follow_frames: bool = True
    missing: Literal["leave_out", "silent"] = "leave_out"

    @property
    def samples_per_latent(self) -> int:
        """Samples of `pcm` in a latent frame."""
        return self.sample_rate // _LATENTS_PER_SECOND

    def shares(self) -> list[tuple[Mode, float]]:
        """Return the share of clips of each mode."""
        rest = 1 - sum(share for name, share in self.modes.items() if name != "both")
        return [(mode, max(rest, 0.0) if mode == "both" else self.modes.get(mode, 0.0)) for mode in _MODES]

    @field_validator("modes")
    @classmethod
    def _modes_are_shares(cls, modes: dict[str, float]) -> dict[str, float]:
        for name, share in modes.items():
            if name not in _MODES:
                raise UserError(
                    "there is no such mode of training with sound",
                    code="unknown-sound-mode",
                    field=f"sound.modes.{name}",
                    value=share,
                    remedy=nearest(name, _MODES),
                )
        total = sum(modes.values())
        short = "both" in modes and total < 1 - _TOLERANCE
        if short or total > 1 + _TOLERANCE or any(share < 0 for share in modes.values()):
            raise UserError(
                f"the shares must be from 0 to 1 and sum to 1, not {total:g}",
                code="sound-modes-sum",
                field="sound.modes",
                value=modes,
                remedy='leave "both" out (it takes the rest), or let all of them sum to 1',
            )
        return modes

    @model_validator(mode="after")
    def _published_ones_have_weights(self) -> Self:
        own = self.name == OWN_SOUND_ENCODER
        if own != (self.weights is None):
            raise UserError(
                f'"{self.name}" has no weights' if own else "this encoder needs published weights",
                code="encoder-weights-missing",
                field="sound.weights",
                value=self.weights,
                remedy="leave it out, or choose another sound.name" if own else "set it to a folder or a hub id",
            )
        return self
