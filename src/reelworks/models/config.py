"""What a recipe says about models, and what follows from it without torch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import Field

from reelworks.core.config import Config
from reelworks.core.errors import UserError, nearest
from reelworks.core.shape import Geometry
from reelworks.models.stdit3.config import PRESETS, STDiT3Config, check

AUTOENCODERS = ("pixel",)
TEXT_ENCODERS = ("hashed",)


class ModelConfig(Config):
    """The denoiser.

    Attributes:
        name: A preset, such as `stdit3-xl`.
        weights: Folder, `.safetensors` or `.pt` file, or hub id to start from; None starts from scratch.
        gradient_checkpointing: Keep only block inputs for the backward pass and compute the rest twice.
        hidden_size: Width in place of the preset's.
        depth: Pairs of spatial and temporal blocks in place of the preset's.
        num_heads: Attention heads in place of the preset's.
        license: Licence of the weights, such as "apache-2.0"; stands in the header of what is exported.
    """

    name: str = "stdit3-xl"
    weights: str | None = None
    gradient_checkpointing: bool = False
    hidden_size: int | None = Field(default=None, gt=0)
    depth: int | None = Field(default=None, gt=0)
    num_heads: int | None = Field(default=None, gt=0)
    license: str | None = Field(default=None, min_length=1)


class AutoencoderConfig(Config):
    """Pixels to latents; latents are `(pixel - mean) / std` of pixels in [-1, 1].

    Attributes:
        name: `pixel`, the lossless space-to-depth.
        stride: Pixels per latent element, in height and in width.
        mean: Subtracted from pixels.
        std: Divides what is left, so that latents have about unit variance.
    """

    name: str = "pixel"
    stride: int = Field(default=8, gt=0)
    mean: float = 0.0
    std: float = Field(default=0.5, gt=0)


class TextConfig(Config):
    """Captions to embeddings.

    Attributes:
        name: `hashed`, fixed word vectors.
        dim: Width of an embedding.
        max_length: Tokens kept of a caption.
    """

    name: str = "hashed"
    dim: int = Field(default=64, gt=0)
    max_length: int = Field(default=16, gt=0)


def require_known(field: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that is not in `known`.

    Raises:
        UserError: Names the known ones.
    """
    if name not in known:
        raise UserError(
            f"unknown name; known: {', '.join(known)}", field=field, value=name, remedy=nearest(name, known)
        )


def latent_channels(autoencoder: AutoencoderConfig) -> int:
    """Channels of the latents that an autoencoder makes."""
    require_known("autoencoder.name", autoencoder.name, AUTOENCODERS)
    return 3 * autoencoder.stride**2


def geometry(model: ModelConfig, autoencoder: AutoencoderConfig) -> Geometry:
    """Say what the autoencoder and the denoiser together do to a shape.

    Raises:
        UserError: If a name is unknown.
    """
    require_known("model.name", model.name, PRESETS)
    require_known("autoencoder.name", autoencoder.name, AUTOENCODERS)
    stride = (1, autoencoder.stride, autoencoder.stride)
    return Geometry(stride=stride, patch=PRESETS[model.name].patch_size, frame_rule=(1, 0))


def resolve_denoiser(
    model: ModelConfig, *, autoencoder: AutoencoderConfig, text: TextConfig, pred_sigma: bool
) -> STDiT3Config:
    """Turn a preset and its overrides into the sizes of one network.

    Widths that the neighbours fix (latent channels, caption width and length) come from them.

    Raises:
        UserError: If a name is unknown or the sizes do not fit together.
    """
    require_known("model.name", model.name, PRESETS)
    require_known("text.name", text.name, TEXT_ENCODERS)
    sizes: dict[str, Any] = {
        "in_channels": latent_channels(autoencoder),
        "caption_channels": text.dim,
        "model_max_length": text.max_length,
        "pred_sigma": pred_sigma,
    }
    overrides = {"hidden_size": model.hidden_size, "depth": model.depth, "num_heads": model.num_heads}
    sizes |= {name: value for name, value in overrides.items() if value is not None}
    return check(PRESETS[model.name].model_copy(update=sizes))
