"""Recipe keys of the dtype contract."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from reelworks.core.config import Config


class PrecisionConfig(Config):
    """`[precision]`: times and sizes are never below float32, whatever stands here."""

    compute: Literal["bfloat16", "float32"] = Field("bfloat16", description="matrix products and latents")
    reduction: Literal["bfloat16", "float32"] = Field("float32", description="gradients summed over ranks")
