"""`[lora]` of a recipe; torch-free."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from reelworks.core.config import Config


class LoraConfig(Config):
    """Train low-rank updates of some layers, and leave all other weights as they are.

    Attributes:
        rank: Rows of the smaller matrix of each pair.
        alpha: The update counts alpha / rank; default: the rank.
        dropout: Share of a layer's inputs that its update does not see in training.
        targets: Layers that are adapted: "default", those of all attentions, or names of linear layers, whole or
            their last parts, such as ["to_q", "to_v"].
        dora: Train the length of each row of the sum beside its direction (DoRA).
        weights: A LoRA of this model to begin with, a `.safetensors` file of any convention.
    """

    rank: int = Field(16, ge=1)
    alpha: float | None = Field(None, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: Literal["default"] | list[str] = "default"
    dora: bool = False
    weights: str | None = Field(None, min_length=1)

    @property
    def exact_alpha(self) -> float:
        """Alpha, the rank where none is given."""
        return float(self.rank) if self.alpha is None else self.alpha
