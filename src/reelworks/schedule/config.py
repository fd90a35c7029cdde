"""Recipe keys of the cost of a clip, by which the plan balances ranks."""

from __future__ import annotations

from pydantic import Field, model_validator

from reelworks.core.config import Config


class CostConfig(Config):
    """`[cost]`: training time of one clip; only ratios between buckets matter."""

    measured: str | None = Field(
        None,
        min_length=1,
        description="path of a JSON file with milliseconds per clip by bucket name, as `reelworks report RUN "
        "--costs FILE` writes it; buckets missing from it use the formula, scaled to the measured buckets",
    )
    per_clip_us: float = Field(0.0, ge=0, allow_inf_nan=False, description="microseconds per clip")
    per_token_us: float = Field(1.0, ge=0, allow_inf_nan=False, description="microseconds per latent token")
    per_token_squared_us: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="microseconds per pair of latent tokens, for full attention over long clips",
    )

    @model_validator(mode="after")
    def _costs_something(self) -> CostConfig:
        if not self.per_clip_us + self.per_token_us + self.per_token_squared_us:
            raise ValueError("one of per_clip_us, per_token_us and per_token_squared_us must be above 0")
        return self
