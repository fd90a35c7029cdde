"""`[lora]` of a recipe; torch-free."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from reelworks.core.config import Config
from reelworks.core.errors import UserError

Targets = Literal["default", "blocks"]
BaseStorage = Literal["float32", "bfloat16", "float8", "int8", "nf4"]


class LoraConfig(Config):
    """Train low-rank updates of some layers, and leave all other weights as they are.

    Attributes:
        rank: Rows of the smaller matrix of each pair.
        alpha: The update counts alpha / rank; default: the rank.
        dropout: Share of a layer's inputs that its update does not see in training.
        targets: Layers that are adapted: "default", those of all attentions; "blocks", all linear ones of the model's
            blocks, feed-forward and modulation too; or names of linear layers, whole or their last parts, such as
            ["to_q", "to_v"].
        dora: Train the length of each row of the sum beside its direction (DoRA).
        base: How the frozen weights lie in memory: linear layers of the model's blocks in 8 bits (`float8`, `int8`) or 4
            (`nf4`), or all weights of matrix products in bfloat16; default: in `precision.compute`, which changes no
            result.
        weights: A LoRA of this model to begin with, a `.safetensors` file of any convention; a run that goes on does
            not read it again.
    """

    rank: int = Field(16, ge=1)
    alpha: float | None = Field(None, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: Targets | list[str] = "default"
    dora: bool = False
    base: BaseStorage | None = None
    weights: str | None = Field(None, min_length=1)

    @property
    def exact_alpha(self) -> float:
        """Alpha, the rank where none is given."""
        return float(self.rank) if self.alpha is None else self.alpha

    def require_writable(self, format: str, field: str) -> None:
        """Refuse a convention of files that cannot hold what is trained.

        Args:
            format: Whose convention.
            field: The recipe's key or the option that names it.

        Raises:
            UserError: DoRA anywhere but in diffusers.
        """
        if self.dora and format != "diffusers":
            raise UserError(
                "ComfyUI scales a DoRA by the lengths of the base's rows, not of the sum's, and kohya's scripts have "
                "none: this file would give other pictures than the training",
                code="dora-not-writable",
                field=field,
                value=format,
                remedy='write "diffusers", or train without lora.dora',
            )

    def exact_base(self, compute: str) -> BaseStorage:
        """How the base is stored, as its products are taken where nothing is asked for.

        Raises:
            UserError: It would be lower than those, and nothing widens it for them.
        """
        if self.base == "bfloat16" and compute != "bfloat16":
            raise UserError(
                "the products of float32 that the recipe asks for need weights of float32",
                code="lora-base-too-narrow",
                field="lora.base",
                value=self.base,
                remedy='say precision.compute = "bfloat16", or leave lora.base out',
            )
        return self.base or ("bfloat16" if compute == "bfloat16" else "float32")
