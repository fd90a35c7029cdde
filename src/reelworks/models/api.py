"""Protocols of models as the trainer sees them. Adapters are final classes that satisfy them.

Shape legend: B batch, C channels, T frames, H height, W width, L text tokens, D text width, P pooled width,
N image tokens or latent frames of sound, E image width, F features of sound. Latent sizes are in latent elements, the inputs `height` and `width` in pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from reelworks.core.shape import Geometry
from reelworks.data.catalog.sources import SOUNDS, SOURCES, sound_of
from reelworks.data.distributed.contract import Contract, Role
from reelworks.models.adapters.config import Targets
from reelworks.models.base_model import Base
from reelworks.models.precision import tensors
from reelworks.models.recompute import Recompute

PURE_NOISE = 1000.0  # timestep at which no signal is left


@dataclass(frozen=True)
class SoundInputs:
    """The sound of a micro-batch, for networks that predict it beside the picture."""

    latent: Tensor  # `[B, F, N, 1, 1]` noised latents
    time: Tensor  # `[B]` timesteps in [0, 1000]
    mask: Tensor  # `[B, N]` True where the sound is generated, False where it is given


@dataclass(frozen=True)
class DenoiserInputs:
    """One micro-batch of inputs to a denoiser; those with a default are None where the family's `Conditioning` has none."""

    latent: Tensor  # `[B, C, T, H, W]` noised latents
    time: Tensor  # `[B]` timesteps in [0, 1000], 1000 is pure noise
    text: Tensor  # `[B, L, D]` text embeddings
    text_mask: Tensor  # `[B, L]` True where a token is attended to
    pooled: Tensor  # `[B, P]` pooled text embeddings; P is 0 if the text encoder has none
    guidance: Tensor  # `[B]` guidance scale, an input of guidance-distilled networks; 1 in training
    frame_mask: Tensor  # `[B, T]` True where the frame is generated, False where it is a condition (time 0)
    fps: Tensor  # `[B]` frames per second
    height: Tensor  # `[B]` height in pixels
    width: Tensor  # `[B]` width in pixels
    drop_text: Tensor  # `[B]` True where the empty caption, learned or fixed, replaces the text
    # `[B, C, T, H, W]` latents of the control clip, or its parts one after the other (`Companions.control_parts`).
    control: Tensor | None = None
    # `[B, C, T, H, W]` latents of the first frame of a clip alone, or of it and the last one, each alone, with zeros after
    # them; or of both with grey frames between them. Unused for a picture.
    first_frame: Tensor | None = None
    image: Tensor | None = None  # `[B, N, E]` image embeddings of the first frame, then of the last if given
    # Latents `[B, C, T, H, W]` of the sources of an edit in order, each with its own sizes, perhaps none; their number
    # and sizes are the same for all clips. A sound alone has `[B, 0]`.
    sources: tuple[Tensor, ...] = ()
    # Latents `[B, F, N, 1, 1]` of the sound of each source, `[B, 0]` for one without; none if no source has sound.
    source_sounds: tuple[Tensor, ...] = ()
    # `[B, 4]` height and width of the file before resizing, and top and left of the crop after it, in pixels; None for
    # files that are neither resized nor cropped.
    crop: Tensor | None = None
    # `[B, C, T, H, W]` clean latents, of which the network sees the condition frames.
    condition: Tensor | None = None
    sound: SoundInputs | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor by name; sources have the names in `data.catalog.sources`."""
        names = {"sources": iter(SOURCES), "source_sounds": iter(SOUNDS)}
        return {next(names[name]) if name in names else name: value for name, value in tensors.named(self)}

    def each(self, change: Callable[[Tensor], Tensor]) -> DenoiserInputs:
        """Return the inputs with every tensor changed."""
        return tensors.mapped(self, lambda _name, value: change(value))

    def followed_by(self, other: DenoiserInputs) -> DenoiserInputs:
        """Return the clips of both; those of the other one have the same sizes, and come last."""
        others = [value for _, value in tensors.named(other)]
        both = self.each(lambda own: torch.cat([own, others.pop(0)]))
        assert not others, "they have the same inputs"
        return both


def given(values: Mapping[str, Tensor], count: int) -> dict[str, Any]:
    """Return the inputs of a denoiser that tell companions and frames of `count` clips.

    `values` are those by name, sources under the names in `data.catalog.sources`; one row is repeated for all clips.
    """
    rows = {name: value.expand(count, *value.shape[1:]) for name, value in values.items()}
    used = [name for name in SOURCES if name in rows or sound_of(name) in rows]
    has_sounds = not rows.keys().isdisjoint(SOUNDS)
    none = next(iter(rows.values()), torch.empty(0)).new_zeros(count, 0)
    sources = tuple(rows.pop(name, none) for name in used)
    sounds = tuple(rows.pop(sound_of(name), none) for name in used) if has_sounds else ()
    return {**rows, "sources": sources, "source_sounds": sounds}


INPUT_ROLES: dict[str, Role] = {
    "latent": Role.LATENT,
    "time": Role.TIME,
    **dict.fromkeys(("text", "pooled"), Role.TEXT),
    **dict.fromkeys(("text_mask", "frame_mask", "drop_text"), Role.MASK),
    **dict.fromkeys(("guidance", "fps", "height", "width", "crop"), Role.GEOMETRY),
    **dict.fromkeys(("control", "first_frame", "image", "condition", "sources", "source_sounds"), Role.CONDITION),
    "sound_latent": Role.LATENT,
    "sound_time": Role.TIME,
    "sound_mask": Role.MASK,
}


class TextEmbedding(NamedTuple):
    """Embeddings of a batch of captions."""

    tokens: Tensor  # `[B, L, D]` float32
    mask: Tensor  # `[B, L]` bool, True where a token is attended to
    pooled: Tensor  # `[B, P]` float32, one vector per caption; P may be 0


@dataclass(frozen=True)
class ShardingPlan:
    """Parts of a network that are sharded, checkpointed and compiled by themselves.

    Attributes:
        blocks: Its blocks, of which none holds another one, those of a list in order of use.
        networks: Networks that hold blocks, and of which one is called without the others; none if there is one alone.
    """

    blocks: Sequence[nn.Module]
    networks: Sequence[nn.Module] = ()

    @property
    def units(self) -> list[nn.Module]:
        """Blocks and networks, which are sharded as units, outermost last."""
        return [*self.blocks, *self.networks]


class Denoiser(Protocol):
    """A trainable network that predicts the objective's target from noised latents."""

    module: nn.Module  # the network, possibly wrapped by a parallel strategy or adapted by a LoRA
    contract: Contract
    latent_channels: int
    runs_on_meta: bool  # whether it runs on the meta device, since no step of its forward pass depends on values
    base: Base | None  # identity of the weights below its LoRA; None without a LoRA

    def predict(self, inputs: DenoiserInputs) -> Tensor:
        """Return the network's output `[B, C, T, H, W]`: velocity or clean latent, by the objective.

        Inputs already have the contract's dtypes.
        """

    def sharding(self) -> ShardingPlan:
        """Return the modules that parallel strategies wrap."""

    def lora_targets(self, of: Targets = "default") -> Sequence[str]:
        """Return names of linear layers for LoRA: those of all attentions by default, or all of the blocks."""


class FamilyNetwork(Protocol):
    """Builds, loads and wraps the networks of a family; `NETWORK` in the family's `network.py`."""

    @property
    def keeps_file_tensors(self) -> bool:
        """Whether parameters may be memory-mapped tensors of the weights file, in the file's dtypes."""

    def build(self, config: Any, *, gradient_checkpointing: Recompute = False) -> nn.Module:
        """Build a network on the default device (shapes only on `meta`)."""

    def load(self, module: Any, config: Any, source: str | None, part: str | None = None) -> None:
        """Load weights from a folder, a file or a hub id; without a source, draw fresh ones.

        `part` is the folder of the network in a pipeline that has several networks.

        Raises:
            UserError: If nothing readable is found, or keys or shapes differ; the message lists the first.
        """

    def rename_keys(self, module: Any, config: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rename the tensors of a model's original release to this network's keys, as far as known."""

    def learns_variance(self, config: Any, source: str, channels: int) -> bool:
        """Whether weights were trained to predict variance in a second half of output channels."""

    def denoiser(self, module: nn.Module, contract: Contract, config: Any, channels: int) -> Denoiser:
        """Wrap a network, which takes latents of so many channels, for the trainer."""


class Autoencoder(Protocol):
    """Encodes pixels to latents and decodes latents to pixels."""

    geometry: Geometry
    latent_channels: int
    contract: Contract

    @property
    def encoding_networks(self) -> tuple[nn.Module, ...]:
        """Networks in which encoding spends its time and that can be compiled; each takes a tensor first."""

    def encode(self, video_BCTHW: Tensor) -> Tensor:
        """Encode video in [-1, 1] to latents of about unit variance."""

    def decode(self, latent_BCTHW: Tensor, num_frames: int) -> Tensor:
        """Decode latents to video in [-1, 1] with `num_frames` frames."""

    def to(self, device: torch.device) -> Autoencoder:
        """Move to a device, in place."""


class TextEncoder(Protocol):
    """Embeds captions, and the pictures, clips and sounds that they refer to if it `sees_pictures`."""

    contract: Contract
    sees_pictures: bool
    dim: int
    pooled_dim: int
    max_length: int

    def encode(self, captions: Sequence[str], pictures: Sequence[Tensor] = ()) -> TextEmbedding:
        """Embed captions, with what they refer to in order; L is always `max_length`.

        Pictures and clips are uint8 `[B, T, H, W, 3]`. Of a sound `[B, S, K]`, which is that of the clip after it or one
        alone, no sample is used.
        """

    def unseen(self, caption: str) -> int:
        """Count the words at a caption's end that `max_length` cuts off."""

    def to(self, device: torch.device) -> TextEncoder:
        """Move to a device, in place."""


class ImageEncoder(Protocol):
    """Embeds pictures as N `tokens` of width E (`dim`)."""

    contract: Contract
    tokens: int
    dim: int

    def encode(self, pictures_BHWC: Tensor) -> Tensor:
        """Embed uint8 pictures as `[B, N, E]` float32."""

    def to(self, device: torch.device) -> ImageEncoder:
        """Move to a device, in place."""
