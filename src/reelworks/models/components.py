"""Derive sizes and shapes from a recipe's model, autoencoder and text encoder; torch-free."""

from __future__ import annotations

import dataclasses
import math

from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry
from reelworks.models import registry
from reelworks.models.config import (
    AutoencoderConfig,
    ModelConfig,
    TextEncoderConfig,
    autoencoder_names,
    require_known,
    text_encoder_names,
)
from reelworks.models.family import ComponentShapes, Conditioning, FamilyConfig, PublishedSound
from reelworks.models.sound.config import OWN_SOUND_ENCODER, SoundConfig

PCA_CHANNELS, PCA_FRAMES = 288, 8  # of `pca`: numbers of a latent element, and frames that it is made of
CHUNK_FRAMES = 17  # that the autoencoder of Open-Sora v1.2 encodes at a time


def family_config(model: ModelConfig) -> FamilyConfig:
    """Return the sizes of a model's preset; an unknown name is refused."""
    registry.require(model.name)
    return registry.PRESETS[model.name].config


def latent_channels(autoencoder: AutoencoderConfig) -> int:
    """Return the channels of an autoencoder's latents."""
    require_known("autoencoder.name", autoencoder.name, autoencoder_names())
    if autoencoder.name in registry.AUTOENCODERS:
        return registry.AUTOENCODERS[autoencoder.name].channels
    return {"pixel": 3 * autoencoder.stride**2, "pca": PCA_CHANNELS}.get(autoencoder.name, 4)


def autoencoder_geometry(config: AutoencoderConfig) -> Geometry:
    """Return strides and frame rules of an autoencoder alone."""
    require_known("autoencoder.name", config.name, autoencoder_names())
    if config.name in registry.AUTOENCODERS:
        known = registry.AUTOENCODERS[config.name]
        return Geometry(known.stride, (1, 1, 1), known.frame_rule, chunk_frames=known.chunk_frames)
    if config.name == "pixel":
        return Geometry(stride=(1, config.stride, config.stride), patch=(1, 1, 1))
    if config.name == "pca":
        return Geometry((PCA_FRAMES, 32, 32), (1, 1, 1), frame_rule=(PCA_FRAMES, 0))
    if config.name == "opensora-1.1":
        return Geometry(stride=(1, 8, 8), patch=(1, 1, 1), drops_rest=True)
    return Geometry(stride=(4, 8, 8), patch=(1, 1, 1), chunk_frames=CHUNK_FRAMES, drops_rest=True)


def geometry(model: ModelConfig, autoencoder: AutoencoderConfig) -> Geometry:
    """Return strides, patches and frame rules of the autoencoder and the denoiser together."""
    config = family_config(model)
    alone = autoencoder_geometry(autoencoder)
    rule = (0, 1) if config.pictures_only else alone.frame_rule
    filled = config.network.passes.filled_tokens
    return dataclasses.replace(alone, patch=config.patch_size, frame_rule=rule, filled_tokens=filled)


def source_multiple(model: ModelConfig, autoencoder: AutoencoderConfig) -> tuple[int, int] | None:
    """Return the multiples of height and width of sources, if they have sizes of their own.

    They do if a model takes several, unless they are frames of the clip.
    """
    wants = conditioning(model)
    own_sizes = wants.companions.most_sources > 1 and not wants.companions.sources_as_frames
    return geometry(model, autoencoder).multiple if own_sizes else None


def source_latent(
    wants: Conditioning, latent: tuple[int, int, int], stride: tuple[int, int, int]
) -> tuple[int, int, int]:
    """Return the sizes of the largest latents of a source beside a clip of these ones, for estimates.

    A source is a clip, or a picture which may have a size of its own, whose sides are even as networks want them.
    """
    if wants.companions.picture_side is None:
        return latent
    scale = wants.companions.picture_side / min(latent[1] * stride[1], latent[2] * stride[2])
    height, width = (2 * round(size * scale / 2) for size in latent[1:])
    return max(latent, (1, height, width), key=math.prod)


def whole_patches(model: ModelConfig) -> bool:
    """Whether latent sizes must be multiples of the patch, since the network does not pad them."""
    return not family_config(model).network.passes.pads_patches


def conditioning(model: ModelConfig) -> Conditioning:
    """Return how a denoiser is conditioned on captions and frames."""
    return family_config(model).conditioning


def other_latents(model: ModelConfig, autoencoder: AutoencoderConfig) -> str | None:
    """Return the denoiser's published autoencoder if the chosen one has other latents of as many channels."""
    parts = registry.PRESETS[model.name].parts
    if autoencoder.name in ("pixel", parts.autoencoder, *parts.same_latents):
        return None
    weights = None if parts.autoencoder == "pixel" else "-"
    channels = latent_channels(AutoencoderConfig(name=parts.autoencoder, weights=weights))
    return parts.autoencoder if latent_channels(autoencoder) == channels else None


def sound_facts(sound: SoundConfig) -> PublishedSound:
    """Return what latents a sound encoder makes."""
    require_known("sound.name", sound.name, (OWN_SOUND_ENCODER, *registry.SOUND_ENCODERS))
    if sound.name in registry.SOUND_ENCODERS:
        return registry.SOUND_ENCODERS[sound.name]
    per_latent = sound.samples_per_latent
    return PublishedSound(sound.sample_rate, 1, per_latent, features=per_latent)


def resolve_denoiser(
    model: ModelConfig,
    *,
    autoencoder: AutoencoderConfig,
    text: TextEncoderConfig,
    learns_variance: bool,
    sound: SoundConfig | None = None,
) -> FamilyConfig:
    """Return the sizes of a preset with the recipe's overrides, and those that its components fix; refuse a misfit."""
    preset = family_config(model)
    require_known("text_encoder.name", text.name, text_encoder_names())
    overrides = {"hidden_size": model.hidden_size, "depth": model.depth, "num_heads": model.num_heads}
    sizes = {name: value for name, value in overrides.items() if value is not None}
    for name in sizes.keys() - set(registry.family_of(model.name).recipe_sizes):
        raise UserError(
            "the sizes of this model are fixed by its preset",
            code="sizes-are-fixed",
            field=f"model.{name}",
            remedy="leave it out, or choose another preset",
        )
    features = None if sound is None else sound_facts(sound).features
    _, *stride = autoencoder_geometry(autoencoder).stride
    components = ComponentShapes(
        latent_channels(autoencoder),
        text.dim,
        text.pooled_dim,
        text.max_length,
        learns_variance,
        (stride[0], stride[1]),
        features,
    )
    return preset.model_copy(update=sizes).fit(components)
