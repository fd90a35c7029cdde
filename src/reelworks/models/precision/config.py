"""Recipe keys of the dtype contract, and the values that are refused."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from reelworks.core.config import Config
from reelworks.core.errors import UserError

_HALF = ("float16", "fp16", "half", "16-mixed")
_SHORT = {"bf16": "bfloat16", "bf16-mixed": "bfloat16", "fp32": "float32", "float": "float32", "tf32": "float32"}
_QUANTIZED = ("float8", "fp8", "int8", "int4", "nf4", "fp4")
# Keys of other trainers. Their choice is fixed here, so they are refused with the reason.
_FIXED = {
    "storage": "parameters are stored in float32, and the optimizer updates them in place; narrower master weights "
    "lose small updates, since they are not rounded stochastically",
    "master": "master weights are float32; narrower ones lose small updates, since they are not rounded stochastically",
    "time": "times and sizes are float32 throughout: bfloat16 turns timestep 999 into 1000",
    "autoencoder": "an autoencoder runs in the dtype that autoencoder.dtype names: float32, or bfloat16; those of video and "
    "Stable Diffusion exceed the range of float16 and return infinities",
    "text": "a text encoder runs in the dtype that it declares",
}
_LIKE_STORAGE = ("weights", "weight_dtype", "dtype", "model", "base")


class PrecisionConfig(Config):
    """`[precision]`: dtypes of a training; times and sizes are always at least float32."""

    compute: Literal["bfloat16", "float32"] = Field(
        default="bfloat16", description="dtype of matrix products and latents"
    )
    reduction: Literal["bfloat16", "float32"] = Field(
        default="float32", description="dtype in which gradients are summed over ranks"
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_cannot_train(cls, values: Any) -> Any:
        for key, value in values.items() if isinstance(values, dict) else ():
            _refuse(key, value)
        return values


def _refuse(key: str, value: Any) -> None:
    field, word = f"precision.{key}", str(value).lower()
    fixed = _FIXED.get("storage" if key in _LIKE_STORAGE else key)
    if fixed is None and key not in PrecisionConfig.model_fields:
        return
    if word.startswith(_QUANTIZED) and key not in ("autoencoder", "text", "time"):
        raise UserError(
            "formats of 8 bits and less can hold frozen weights, but not trained ones: nearly every update would be "
            "smaller than the step to the next number",
            code="dtype-not-trainable",
            field=field,
            value=value,
            remedy='set precision.compute to "bfloat16"; under a LoRA, lora.base may be "float8", "int8" or "nf4"',
        )
    if fixed is not None:
        raise UserError(
            fixed, code="dtype-fixed", field=field, value=value, remedy="remove the key; see docs/reference/dtypes.md"
        )
    if word in _HALF:
        raise UserError(
            "float16 needs a loss scaler, which is not supported: small gradients would become 0 and large ones "
            "infinite; bfloat16 has the range of float32",
            code="dtype-not-trainable",
            field=field,
            value=value,
            remedy='set "bfloat16", or "float32" if the device does not support it',
        )
    if word in _SHORT:
        raise UserError(
            "unknown name of a dtype", code="unknown-name", field=field, value=value, remedy=f'write "{_SHORT[word]}"'
        )
