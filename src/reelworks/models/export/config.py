"""`[exports]` of a recipe: which weights to export; torch-free."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from reelworks.core.config import Config, open_set
from reelworks.models.adapters.conventions import CONVENTIONS, LoraFormat

Weights = Literal["ema", "model"]
Dtype = Literal["bfloat16", "float16", "float32"]


class ExportsConfig(Config):
    """Weights for inference, written to `exports/` as .safetensors along with checkpoints; no run can resume from them.

    Attributes:
        weights: Which weights to write: the average ("ema") or the trained weights ("model"); None writes none.
        dtype: Data type of the written weights; tensors that are not floating point keep theirs.
        formats: Key conventions to write a LoRA in, one file each: "diffusers", "comfyui", "kohya".
        every_n_saves: Write weights with every n-th save, and with the last of the training.
        keep_last: How many exports stay; None keeps all. "auto" keeps all of a LoRA, which are small, as long as a tenth
            of the disk is free, and three of full weights. Other files in the folder are never touched.
    """

    weights: Weights | None = None
    dtype: Dtype = "bfloat16"
    formats: list[Annotated[LoraFormat, open_set(CONVENTIONS)]] = Field(default=["diffusers"], min_length=1)
    every_n_saves: int = Field(default=1, ge=1)
    keep_last: Annotated[int, Field(ge=1)] | Literal["auto"] | None = "auto"
