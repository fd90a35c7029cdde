"""Compute what is stored of a clip, and pack it: latents, embeddings of captions and of first frames.

Names of values are those of `request_key.Keys.wanted`; frames are `[B, T, H, W, 3]` uint8 by kind, the clips' own
under `CLIP`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from reelworks.core.shape import Shape
from reelworks.data.catalog.sources import SOUNDS, SOURCES
from reelworks.data.checkpoint import safetensors_header
from reelworks.models.api import TextEmbedding
from reelworks.training.encoding import conditioning
from reelworks.training.encoding.conditioning import CLIP
from reelworks.training.encoding.encoders import FrozenEncoders, narrow
from reelworks.training.encoding.request_key import CONTROL, FIRST_FRAME, IMAGE, LATENT, SOUND, TEXT, TEXTS


def frames_for(name: str, seen: tuple[str, ...] = (), parts: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """Return the kinds of frames that a value is computed from.

    `seen` are the values whose frames a caption refers to, `parts` the companions that a control is encoded of with the
    clip. Sound is read with its clip.
    """
    if name in TEXTS:
        return tuple(kind for value in seen for kind in frames_for(value))
    if name in (LATENT, FIRST_FRAME, IMAGE, SOUND):
        return (CLIP,)
    return (CLIP, *parts) if name == CONTROL and parts is not None else (name,)


@torch.no_grad()
def encode(
    encoder: FrozenEncoders, name: str, frames: Mapping[str, Tensor], samples_BSK: Tensor | None = None
) -> Tensor:
    """Return a value of each clip, `[B, ...]` on the encoder's device, in the dtype of live encoding.

    `frames` are those of the kinds that `frames_for` names, or the samples of a source's sound; `samples_BSK` are those of
    the clips.
    """
    if name == SOUND:
        assert encoder.sound is not None
        assert samples_BSK is not None
        return encoder.sound.latents(samples_BSK, encoder.device)
    if name == CONTROL and encoder.conditioning.companions.control_parts:
        return conditioning.control_parts(encoder, frames)
    (frames_BTHWC,) = frames.values()
    if name == FIRST_FRAME:
        return conditioning.first_frame_latents(encoder, frames_BTHWC, frames_BTHWC.shape[1])
    if name == IMAGE:
        return conditioning.image_embeddings(encoder, frames_BTHWC)
    return conditioning.companion_latents(encoder, name, frames_BTHWC)


def pack(embedding: TextEmbedding) -> Tensor:
    """Return an embedding of one caption as bytes, without padding and in the narrowest dtype that keeps its values.

    The bytes are six integers (tokens, kept tokens, width, pooled width, and 1 for each of both in bfloat16), the mask,
    the kept tokens and the pooled embedding.
    """
    tokens_LD, mask_L, pooled_P = (part[0].cpu() for part in embedding)
    kept, pooled = narrow(tokens_LD[mask_L].float().contiguous()), narrow(pooled_P.float())
    sizes = [len(mask_L), len(kept), tokens_LD.shape[1], len(pooled)]
    flags = [int(part.dtype == torch.bfloat16) for part in (kept, pooled)]
    parts = [torch.tensor(sizes + flags, dtype=torch.int64), mask_L, kept, pooled]
    return torch.cat([safetensors_header.raw(part) for part in parts if part.numel()])


def unpack(packed: Tensor) -> TextEmbedding:
    """Return the embedding `[1, L, D]` of packed bytes; masked tokens are zeros."""
    length, kept, width, pooled_width, tokens_narrow, pooled_narrow = packed[:48].view(torch.int64).tolist()
    mask_L = packed[48 : 48 + length].view(torch.bool)
    dtypes = [torch.bfloat16 if narrow else torch.float32 for narrow in (tokens_narrow, pooled_narrow)]
    first = 48 + length
    end = first + kept * width * dtypes[0].itemsize
    tokens_LD = torch.zeros(length, width)
    tokens_LD[mask_L] = packed[first:end].clone().view(dtypes[0]).reshape(kept, width).float()
    pooled_P = packed[end:].clone().view(dtypes[1]).reshape(pooled_width).float()
    return TextEmbedding(tokens_LD[None], mask_L[None].clone(), pooled_P[None])


def is_finite(kind: str, value: Tensor) -> bool:
    """Return whether a stored value has no infinities and no NaN."""
    return all(bool(part.isfinite().all()) for part in (unpack(value) if kind == TEXT else (value,)))


def value_shape(encoder: FrozenEncoders, name: str, shape: Shape) -> tuple[int, ...]:
    """Return the shape of a value of one clip."""
    if name == IMAGE:
        return conditioning.image_shape(encoder)
    if name == SOUND:
        assert encoder.sound is not None
        return encoder.sound.latent_shape(shape.num_frames)
    if name in SOUNDS:
        assert encoder.sound is not None
        return encoder.sound.shape_of_samples(shape.num_frames)
    t, h, w = encoder.autoencoder.geometry.latent(shape)
    if name == FIRST_FRAME and encoder.conditioning.shown.first != "grey":
        t = 2 if encoder.conditioning.shown.last else 1
    if name in SOURCES and encoder.conditioning.companions.sources_as_frames:
        t = 1
    channels = conditioning.companion_channels(encoder) if name == CONTROL else encoder.autoencoder.latent_channels
    return channels, t, h, w


def blank_text(encoder: FrozenEncoders) -> TextEmbedding:
    """Return an embedding of zeros, for a clip whose picture could not be decoded."""
    text = encoder.text_encoder
    mask = torch.ones(1, text.max_length, dtype=torch.bool)
    return TextEmbedding(torch.zeros(1, text.max_length, text.dim), mask, torch.zeros(1, text.pooled_dim))
