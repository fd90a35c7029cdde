"""Recipe keys of the denoiser, the autoencoder and the text encoder."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from reelworks.core.config import Config, Told, Weights
from reelworks.core.errors import UserError, nearest
from reelworks.models import registry

Attention = Literal["native", "cudnn", "flash", "flash-3", "flash-4"]
# Autoencoders and text encoders that belong to no family; the first of each has no weights.
OWN_AUTOENCODERS = ("pixel", "pca", "opensora-1.1", "opensora-1.2")
OWN_TEXT_ENCODERS = ("hashed", "t5")
_T5_SIZES = {"dim": 4096, "max_length": 300, "pooled_dim": 0}  # T5-v1.1-XXL, with the caption length of v1.2


class ModelConfig(Config):
    """The denoiser.

    Attributes:
        name: A preset, such as `stdit3-xl`.
        weights: Folder, `.safetensors` or `.pt` file, or hub id to start from, `owner/name` or `owner/name@revision`; None
            starts from scratch.
        experts: Networks to train of a model with two for different timesteps (Wan 2.2's 14B): "high" (high noise),
            "low", or "both", of which each step trains one. Timesteps are drawn accordingly.
        gradient_checkpointing: Store only block inputs for the backward pass and recompute the rest; "selective" also
            stores the results of matrix products and attention, which is faster and takes more memory; "auto" is for each
            bucket the least recomputation with which it fits into the GPU's memory (`train.memory_gb`), or what its entry
            says.
        attention: Kernel of attention: "native" (torch's quickest, by measurement on a GPU), "cudnn", or FlashAttention 2, 3
            or 4 by the packages of its authors ("flash", "flash-3" on Hopper, "flash-4" on Hopper and Blackwell); all but
            "native" need a CUDA GPU and bfloat16.
        hidden_size: Width, overrides the preset's; only for STDiT, as are the next two.
        depth: Number of pairs of spatial and temporal blocks, overrides the preset's.
        num_heads: Number of attention heads, overrides the preset's.
        image_encoder: Folder or hub id of the image encoder that embeds the first frame for an i2v model
            (`wan-2.1-i2v-14b` and `hunyuan-video-1.5-i2v` need that of their release).
        license: Licence of the weights, such as "apache-2.0"; written to the header of exported files.
    """

    name: Told[str] = "stdit3-xl"
    weights: Weights[str | None] = Field(default=None, min_length=1)
    experts: Literal["high", "low", "both"] | None = None
    gradient_checkpointing: bool | Literal["selective", "auto"] = False
    attention: Attention = "native"
    hidden_size: int | None = Field(default=None, gt=0)
    depth: int | None = Field(default=None, gt=0)
    num_heads: int | None = Field(default=None, gt=0)
    image_encoder: Weights[str | None] = Field(default=None, min_length=1)
    license: Told[str | None] = Field(default=None, min_length=1)


class AutoencoderConfig(Config):
    """The autoencoder, which encodes pixels to latents; those of `pixel` are `(pixel - mean) / std`.

    Attributes:
        name: `pixel`, a lossless space-to-depth; `pca`, a small one that `reelworks demo-autoencoder` fits to
            footage, eight frames together; `opensora-1.2`, the causal video autoencoder of Open-Sora 1.2;
            `opensora-1.1`, the autoencoder of Stable Diffusion, frame by frame; or one of a diffusers family.
        weights: Folder, file or hub id of the published weights; `pixel` has none.
        dtype: Dtype of weights and matrix products; latent statistics and outputs are float32. bfloat16 is faster
            and takes half the memory; its latents differ in the third digit.
        stride: Pixels per latent element, in height and in width; only for `pixel`, as are the next two.
        mean: Subtracted from pixels in [-1, 1].
        std: Divides the result, so that latents have about unit variance; also for `video-dc-ae`, 1 by default.
    """

    name: Told[str] = "pixel"
    weights: Weights[str | None] = Field(default=None, min_length=1)
    dtype: Literal["float32", "bfloat16"] = "float32"
    stride: int = Field(default=8, gt=0)
    mean: float = 0.0
    std: float = Field(default=0.5, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _published_std(cls, values: Any) -> Any:
        known = registry.AUTOENCODERS.get(str(values.get("name", ""))) if isinstance(values, dict) else None
        return values if known is None or known.std is None else {"std": known.std} | values

    @field_validator("dtype", mode="before")
    @classmethod
    def _has_range(cls, value: Any) -> Any:
        if str(value).lower() in ("float16", "fp16", "half"):
            raise UserError(
                "values inside autoencoders exceed the range of float16 and become infinite",
                code="dtype-overflows",
                field="autoencoder.dtype",
                value=value,
                remedy='use "bfloat16" or "float32"',
            )
        return value

    @model_validator(mode="after")
    def _published_ones_have_weights(self) -> Self:
        _check_weights("autoencoder", self.name, autoencoder_names(), self.weights)
        if self.name in ("pixel", "pca") and self.dtype != "float32":
            raise UserError(
                f'"{self.name}" is always float32',
                code="dtype-without-use",
                field="autoencoder.dtype",
                value=self.dtype,
                remedy="leave it out",
            )
        return self


class TextEncoderConfig(Config):
    """The text encoder, which embeds captions.

    Attributes:
        name: `hashed`, fixed word vectors; `t5`, the encoder of a T5; or those of a diffusers family.
        weights: Folder or hub id of the T5, tokenizer included, or of the family; `hashed` has none.
        device: `auto`, the model's device; or `cpu`, which leaves the GPU's memory to the model. A caption is
            embedded once per run, while its embedding stays in a cache of 2 GB of CPU memory.
        dim: Width of an embedding; the default is the published encoder's own, also for the next two.
        max_length: Length in tokens to which captions are cut; 300 for `t5`.
        pooled_dim: Width of the pooled caption embedding, 0 if there is none.
    """

    name: Told[str] = "hashed"
    weights: Weights[str | None] = Field(default=None, min_length=1)
    device: Literal["auto", "cpu"] = "auto"
    dim: int = Field(default=64, gt=0)
    max_length: int = Field(default=16, gt=0)
    pooled_dim: int = Field(default=64, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _published_sizes(cls, values: Any) -> Any:
        name = str(values.get("name", "")) if isinstance(values, dict) else ""
        if name == "t5":
            return _T5_SIZES | values
        if name not in registry.TEXT_ENCODERS:  # as "hashed", whose sizes are the field defaults
            return values
        text = registry.TEXT_ENCODERS[name]
        return {"dim": text.dim, "max_length": text.max_length, "pooled_dim": text.pooled_dim} | values

    @model_validator(mode="after")
    def _published_ones_have_weights(self) -> Self:
        _check_weights("text_encoder", self.name, text_encoder_names(), self.weights)
        return self


def autoencoder_names() -> tuple[str, ...]:
    """Return the names that `autoencoder.name` takes."""
    return (*OWN_AUTOENCODERS, *registry.AUTOENCODERS)


def text_encoder_names() -> tuple[str, ...]:
    """Return the names that `text_encoder.name` takes."""
    return (*OWN_TEXT_ENCODERS, *registry.TEXT_ENCODERS)


def _check_weights(table: str, name: str, known: tuple[str, ...], weights: str | None) -> None:
    """Refuse a published encoder without weights, and weights for the first of `known`, which has none."""
    if name in known[1:] and weights is None:
        problem, remedy = "this encoder needs weights", "set it to a folder, a file or a hub id"
    elif name == known[0] and weights is not None:
        problem, remedy = f'"{name}" has no weights', f"leave it out, or choose another {table}.name"
    else:
        return
    raise UserError(problem, code="encoder-weights-missing", field=f"{table}.weights", value=weights, remedy=remedy)


def require_known(field: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that is not in `known`, with a list of these."""
    if name not in known:
        raise UserError(
            f"unknown name; known: {', '.join(known)}",
            code="unknown-name",
            field=field,
            value=name,
            remedy=nearest(name, known),
        )
