"""Encode what a denoiser is conditioned on: companions, and the clip's own first frame and perhaps its last one.

Legend: B clips, C channels, T frames, H height, W width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import avg_pool3d, interpolate, pad

from reelworks.core.shape import Geometry, Shape
from reelworks.data.catalog.sources import IN_ORDER, SOUNDS, SOURCES
from reelworks.data.loader.part_masks import WHITE, PartMask
from reelworks.data.loader.upload import to_device
from reelworks.data.media.decode import BLACK
from reelworks.models import components
from reelworks.training.encoding.encoders import FrozenEncoders

_GREY = 127.5  # 0 in [-1, 1]
_WHITE_FROM = 128  # pixels of a mask that are made anew
CLIP = "clip"  # kind of the clips' own frames


def encode_conditioning(
    encoder: FrozenEncoders,
    latent_BCTHW: Tensor,
    companions: Mapping[str, Tensor],
    frames_BTHWC: Tensor,
    num_frames: int,
) -> dict[str, Tensor]:
    """Return the inputs of companions and given frames of a denoiser by name; see `models.api.given`."""
    return join(encoder, latent_BCTHW, condition_values(encoder, companions, frames_BTHWC, num_frames))


def condition_values(
    encoder: FrozenEncoders, companions: Mapping[str, Tensor], frames_BTHWC: Tensor, num_frames: int
) -> dict[str, Tensor]:
    """Encode what these inputs are made of, by name.

    Companions are `[B, T, H, W, 3]` uint8 frames by name, and sounds of sources `[B, S, K]` int16 samples. Of the clip's
    own uint8 frames only the first and the last are used, so that there may be fewer than `num_frames`, unless a control is
    told in parts. A picture (`num_frames` is 1) is its own first frame, so that none is encoded for it.
    """
    if encoder.conditioning.companions.control_parts:
        encoded = {"control": control_parts(encoder, {CLIP: frames_BTHWC, **companions})}
    else:
        encoded = {}
    alone = [name for name in encoder.companion_latents if name in companions and name not in encoded]
    encoded |= {name: companion_latents(encoder, name, companions[name]) for name in alone}
    if encoder.conditioning.shown.first == "grey" or (encoder.conditioning.shown.first is not None and num_frames > 1):
        encoded["first_frame"] = first_frame_latents(encoder, frames_BTHWC, num_frames)
    if encoder.image_encoder is not None and num_frames > 1:
        encoded["image"] = image_embeddings(encoder, frames_BTHWC)
    return encoded


def companion_latents(encoder: FrozenEncoders, name: str, companion: Tensor) -> Tensor:
    """Return the latents of a companion that is encoded alone: of frames, or of the samples of a source's sound."""
    if name not in SOUNDS:
        return encoder.latents(companion)
    assert encoder.sound is not None, "the recipe was checked"
    return encoder.sound.latents(companion, encoder.device)


def with_drawn_masks(
    companions: Mapping[str, Tensor], masks: Sequence[PartMask | None], shape: Shape
) -> Mapping[str, Tensor]:
    """Return companions of which the mask of each clip is the drawn one, if there is one."""
    if not any(masks):
        return companions
    size = (len(masks), shape.num_frames, shape.height, shape.width, 3)
    mask = companions["mask"].clone() if "mask" in companions else torch.full(size, WHITE, dtype=torch.uint8)
    for i, drawn in enumerate(masks):
        if drawn is not None:
            mask[i] = torch.from_numpy(drawn.pixels(shape)).to(mask.device)
    return {**companions, "mask": mask}


def join(encoder: FrozenEncoders, latent_BCTHW: Tensor, encoded: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the same inputs, given what was encoded for them; a picture's first frame and image are zeros."""
    inputs = {name: encoded[name].to(encoder.device) for name in encoder.companion_latents if name in encoded}
    if encoder.conditioning.companions.sources_as_frames:  # they lie before the control as frames that are kept
        control, pictures = inputs["control"], [inputs[name] for name in SOURCES if name in inputs]
        frames = [pad(each, (0, 0, 0, 0, 0, 0, 0, control.shape[1] - each.shape[1])) for each in pictures]
        inputs = {"control": torch.cat([*frames, control], dim=2)}
    if encoder.conditioning.shown.first is not None:
        first = encoded["first_frame"].to(encoder.device) if "first_frame" in encoded else latent_BCTHW[:, :, :0]
        inputs["first_frame"] = pad(first, (0, 0, 0, 0, 0, latent_BCTHW.shape[2] - first.shape[2]))
    if encoder.image_encoder is not None:
        blank_BNE = latent_BCTHW.new_zeros(len(latent_BCTHW), *image_shape(encoder))
        inputs["image"] = encoded["image"].to(encoder.device) if "image" in encoded else blank_BNE
    return inputs


def prepend_sources(latent_BCTHW: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the latents of clips behind those of the sources that their control begins with, perhaps none."""
    control = inputs.get("control", latent_BCTHW)
    count = control.shape[2] - latent_BCTHW.shape[2]
    return torch.cat([control[:, : latent_BCTHW.shape[1], :count], latent_BCTHW], dim=2) if count else latent_BCTHW


def first_frame_latents(encoder: FrozenEncoders, frames_BTHWC: Tensor, num_frames: int) -> Tensor:
    """Return the latents of the given frames: of each alone, or with grey frames in place of those not given.

    Those of a picture are the latents of a grey one.
    """
    first_B1HWC = frames_BTHWC[:, :1].float()
    if encoder.conditioning.shown.first != "grey":
        return torch.cat([encoder.latents(each) for each in shown_frames(encoder, frames_BTHWC)], dim=2)
    shown_BTHWC = torch.full_like(first_B1HWC, _GREY).repeat(1, num_frames, 1, 1, 1)
    if num_frames > 1:
        shown_BTHWC[:, :1] = first_B1HWC
        if encoder.conditioning.shown.last:
            shown_BTHWC[:, -1] = frames_BTHWC[:, -1].float()
    return encoder.latents(shown_BTHWC)


def shown_frames(encoder: FrozenEncoders, frames_BTHWC: Tensor) -> list[Tensor]:
    """Return the frames of clips that the network is shown, `[B, 1, H, W, 3]` each; none if it is shown none."""
    shown = encoder.conditioning.shown
    return [] if shown.first is None else [frames_BTHWC[:, :1], *([frames_BTHWC[:, -1:]] if shown.last else [])]


def seen_by_texts(
    encoder: FrozenEncoders, companions: Mapping[str, Tensor], frames_BTHWC: Tensor, num_frames: int
) -> list[Tensor]:
    """Return what captions refer to if the text encoder sees pictures: sources with sounds, and frames of the clip.

    The frames are those that the network is shown.
    """
    sources = [companions[name] for name in IN_ORDER if name in companions and name in encoder.given]
    return [*sources, *(shown_frames(encoder, frames_BTHWC) if num_frames > 1 else [])]


def with_noise(
    encoder: FrozenEncoders, inputs: Mapping[str, Tensor], draw: Callable[[str, Tensor], Tensor]
) -> dict[str, Tensor]:
    """Return inputs with the share of noise that the network was trained with, of which `draw` returns that of one.

    Sounds have none.
    """
    share = encoder.conditioning.given_noise
    noised = {} if not share else {name: each for name, each in inputs.items() if name not in SOUNDS}
    return {**inputs, **{name: (1 - share) * each + share * draw(name, each) for name, each in noised.items()}}


def image_embeddings(encoder: FrozenEncoders, frames_BTHWC: Tensor) -> Tensor:
    """Return the image embeddings of the first frame, and behind them those of the last one if it is given."""
    assert encoder.image_encoder is not None
    ends = (0, -1) if encoder.conditioning.shown.last else (0,)
    return torch.cat([encoder.image_encoder.encode(frames_BTHWC[:, i]) for i in ends], dim=1)


def image_shape(encoder: FrozenEncoders) -> tuple[int, int]:
    """Return the number and the width of a clip's image embeddings."""
    assert encoder.image_encoder is not None
    return (2 if encoder.conditioning.shown.last else 1) * encoder.image_encoder.tokens, encoder.image_encoder.dim


def control_parts(encoder: FrozenEncoders, frames: Mapping[str, Tensor]) -> Tensor:
    """Return what VACE is told, `[B, 2·C + h·w, T, H, W]` for a latent stride of h by w pixels.

    `frames` are `[B, T, H, W, 3]` uint8 by kind: `CLIP`, "control", "mask". Channels are the latents of what is kept of
    the clip, those of the control where it is made anew, and the mask, 1 in pixels that are made anew. What is missing in
    either part is grey.
    """
    clip, control, mask = (
        None if (each := frames.get(kind)) is None else to_device(each, encoder.device)
        for kind in (CLIP, "control", "mask")
    )
    assert clip is not None
    grey = clip.new_full((), _GREY, dtype=torch.float32)
    made_BTHW1 = torch.ones_like(clip[..., :1], dtype=torch.bool)
    if mask is not None:
        made_BTHW1 = mask.float().mean(dim=4, keepdim=True) >= _WHITE_FROM
    kept = torch.where(made_BTHW1, grey, clip.float())
    remade = grey.expand(clip.shape) if control is None else torch.where(made_BTHW1, control.float(), grey)
    latents = [encoder.latents(each) for each in (kept, remade)]
    channels = _pixel_channels(made_BTHW1[..., 0].float(), tuple(latents[0].shape[2:]), encoder.autoencoder.geometry)
    return torch.cat([*latents, channels], dim=1)


def _pixel_channels(mask_BTHW: Tensor, sizes: tuple[int, ...], geometry: Geometry) -> Tensor:
    """Return the pixels of each latent element as its channels, of the frame nearest to its middle."""
    _, h, w = geometry.stride
    B, T, *_ = mask_BTHW.shape
    cells = mask_BTHW[..., : sizes[1] * h, : sizes[2] * w].reshape(B, T, sizes[1], h, sizes[2], w)
    return interpolate(cells.permute(0, 3, 5, 1, 2, 4).flatten(1, 2), size=sizes, mode="nearest-exact")


def companion_channels(encoder: FrozenEncoders) -> int:
    """Return the channels of each input that is made of companions."""
    _, h, w = encoder.autoencoder.geometry.stride
    channels = encoder.autoencoder.latent_channels
    return 2 * channels + h * w if encoder.conditioning.companions.control_parts else channels


def blank(encoder: FrozenEncoders, latent_BCTHW: Tensor) -> dict[str, Tensor]:
    """Return the same inputs filled with zeros, in the shapes of training."""
    channels = companion_channels(encoder)
    names, frames = encoder.companion_latents, latent_BCTHW[:, :1]
    if encoder.conditioning.companions.sources_as_frames:
        names, frames = names[:1], pad(frames, (0, 0, 0, 0, len(names) - 1, 0))
    t, h, w = frames.shape[2:]
    largest = components.source_latent(encoder.conditioning, (t, h, w), encoder.autoencoder.geometry.stride)
    sizes = {name: largest if name in SOURCES else (t, h, w) for name in names if name not in SOUNDS}
    inputs = {name: frames.new_zeros(len(frames), channels, *size) for name, size in sizes.items()}
    if encoder.conditioning.shown.first is not None:
        inputs["first_frame"] = torch.zeros_like(latent_BCTHW)
    if encoder.image_encoder is not None:
        inputs["image"] = latent_BCTHW.new_zeros(len(latent_BCTHW), *image_shape(encoder))
    return inputs


def weights(mask_BTHWC: Tensor, geometry: Geometry) -> Tensor:
    """Average a uint8 mask, white for the full loss weight, over each latent element: `[B, T', h, w]` in [0, 1].

    A latent frame covers `stride` frames; the first one of a chunk (or clip) covers those that remain.
    """
    grey_BTHW = mask_BTHWC.float().mean(dim=4)
    grey_BTHW = torch.where(grey_BTHW < BLACK, grey_BTHW.new_zeros(()), grey_BTHW) / 255
    chunk = geometry.chunk_frames or grey_BTHW.shape[1]
    return torch.cat([_pooled(part, geometry.stride) for part in torch.split(grey_BTHW, chunk, dim=1)], dim=1)


def _pooled(grey_BTHW: Tensor, stride: tuple[int, int, int]) -> Tensor:
    """Average cells; the first along time may be incomplete, and incomplete ones of height and width are cut."""
    missing = -grey_BTHW.shape[1] % stride[0]
    filled = pad(grey_BTHW, (0, 0, 0, 0, missing, 0))
    covered = pad(torch.ones_like(grey_BTHW), (0, 0, 0, 0, missing, 0))
    return avg_pool3d(filled, stride) / avg_pool3d(covered, stride)
