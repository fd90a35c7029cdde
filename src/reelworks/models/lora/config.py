"""The recipe table `[lora]`; torch-free."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from reelworks.core.config import Config
from reelworks.core.errors import UserError

Targets = Literal["default", "blocks"]
BaseStorage = Literal["float32", "bfloat16", "float8", "int8", "nf4"]


class LoraConfig(Config):
    """Train low-rank updates of some layers and leave all other weights unchanged.

    Attributes:
        rank: Rank of the updates.
        alpha: Updates are scaled by alpha / rank; default: the rank.
        dropout: Share of a layer's inputs that is dropped for its update in training.
        targets: Layers to adapt: "default" for those of all attentions; "blocks" for all linear layers of the model's
            blocks, including feed-forward and modulation; or a list of layer names, complete or their last parts, such
            as ["to_q", "to_v"].
        dora: Also train the magnitude of each row of the updated weights (DoRA).
        base: Storage of the frozen weights: linear layers of the model's blocks in 8 bits (`float8`, `int8`) or 4 bits
            (`nf4`), or all weights of matrix products in `bfloat16` or `float32`; default: the dtype of
            `precision.compute`, which changes no result.
        weights: A LoRA of this model to start from, a `.safetensors` file of any convention; not read again when a
            run is resumed.
        training_adapter: A LoRA that undoes what was distilled into the base, a `.safetensors` file of any convention
            or its place on the hub (`owner/name` or `owner/name/file.safetensors`). Training runs with it, unchanged;
            previews, exports, `generate` and `eval` run without it.
    """

    rank: int = Field(16, ge=1)
    alpha: float | None = Field(None, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: Targets | list[str] = "default"
    dora: bool = False
    base: BaseStorage | None = None
    weights: str | None = Field(None, min_length=1)
    training_adapter: str | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _adapter_fits_the_updates(self) -> Self:
        if self.dora and self.training_adapter is not None:
            raise UserError(
                "a DoRA scales the rows of the base, which are others with the adapter than without it",
                code="dora-with-training-adapter",
                field="lora.training_adapter",
                value=self.training_adapter,
                remedy="leave it out, or train without lora.dora",
            )
        return self

    @property
    def exact_alpha(self) -> float:
        """Alpha, with the rank as default."""
        return float(self.rank) if self.alpha is None else self.alpha

    def require_writable(self, format: str, field: str) -> None:
        """Refuse a file convention that cannot hold this LoRA: a DoRA goes into diffusers' alone."""
        if self.dora and format != "diffusers":
            raise UserError(
                "ComfyUI scales a DoRA by the row norms of the base, not of the updated weights, and kohya's scripts "
                "know no DoRA: this file would give other pictures than the training",
                code="dora-not-writable",
                field=field,
                value=format,
                remedy='write "diffusers", or train without lora.dora',
            )

    def exact_base(self, compute: str) -> BaseStorage:
        """Return the storage of the base, by default the dtype of its products; refuse one that nothing would widen."""
        if self.base == "bfloat16" and compute != "bfloat16":
            raise UserError(
                "the recipe computes products in float32, which needs float32 weights",
                code="lora-base-too-narrow",
                field="lora.base",
                value=self.base,
                remedy='set precision.compute = "bfloat16", or leave lora.base out',
            )
        return self.base or ("bfloat16" if compute == "bfloat16" else "float32")
