"""Protocols of models as the trainer sees them. Adapters are final classes that satisfy them.

Shape legend: B batch, C channels, T frames, H height, W width, L text tokens, D text width, P width of a
text's summary, N tokens of a picture, E their width. Latent sizes are in latent elements, `height` and `width` inputs in pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from reelworks.core.shape import Geometry
from reelworks.models.lora.base_model import Base
from reelworks.models.lora.config import Targets
from reelworks.precision.contract import Contract, Role

PURE_NOISE = 1000.0  # the time at which nothing of the data is left


@dataclass(frozen=True)
class DenoiserInputs:
    """One micro-batch as a denoiser takes it.

    Attributes:
        latent: `[B, C, T, H, W]` noised latents.
        time: `[B]` timesteps in [0, 1000], 1000 is pure noise.
        text: `[B, L, D]` text embeddings.
        text_mask: `[B, L]` True where a token counts.
        pooled: `[B, P]` one vector for a whole text; P is 0 where the text encoder makes none.
        guidance: `[B]` guidance scale that networks distilled to take it are told; 1 in training.
        frame_mask: `[B, T]` True where the frame is generated, False where it is a condition (time 0).
        fps: `[B]` frames per second as shown to the model.
        height: `[B]` pixels.
        width: `[B]` pixels.
        drop_text: `[B]` True where the text is replaced by the learned or fixed empty caption.
        control: `[B, C, T, H, W]` latents of a clip that steers this one; C is 0 where there is none, as in the next two.
        source: `[B, C, T, H, W]` latents of a clip that this one is an edit of.
        first_frame: `[B, C, T, H, W]` latents of the clip's first frame with nothing behind it; a picture has none.
        image: `[B, N, E]` what an image encoder says of the first frame; N is 0 where there is none.
    """

    latent: Tensor
    time: Tensor
    text: Tensor
    text_mask: Tensor
    pooled: Tensor
    guidance: Tensor
    frame_mask: Tensor
    fps: Tensor
    height: Tensor
    width: Tensor
    drop_text: Tensor
    control: Tensor
    source: Tensor
    first_frame: Tensor
    image: Tensor


def nothing_given(latent_BCTHW: Tensor) -> dict[str, Tensor]:
    """The last four inputs where a clip has no companion, and its first frame is not shown."""
    none, image = latent_BCTHW[:, :0], latent_BCTHW.new_zeros(len(latent_BCTHW), 0, 0)
    return {"control": none, "source": none, "first_frame": none, "image": image}


INPUT_ROLES: dict[str, Role] = {
    "latent": Role.LATENT,
    "time": Role.TIME,
    "text": Role.TEXT,
    "text_mask": Role.MASK,
    "pooled": Role.TEXT,
    "guidance": Role.GEOMETRY,
    "frame_mask": Role.MASK,
    "fps": Role.GEOMETRY,
    "height": Role.GEOMETRY,
    "width": Role.GEOMETRY,
    "drop_text": Role.MASK,
    "control": Role.CONDITION,
    "source": Role.CONDITION,
    "first_frame": Role.CONDITION,
    "image": Role.CONDITION,
}


class TextEmbedding(NamedTuple):
    """Captions as a text encoder gives them.

    Attributes:
        tokens: `[B, L, D]` float32.
        mask: `[B, L]` bool, True where a token counts.
        pooled: `[B, P]` float32, one vector for a whole caption; P may be 0.
    """

    tokens: Tensor
    mask: Tensor
    pooled: Tensor


@dataclass(frozen=True)
class ShardingPlan:
    """Modules that are sharded, checkpointed and compiled as units, outermost last."""

    blocks: Sequence[nn.Module]


class Denoiser(Protocol):
    """A trainable network from noised latents to what the objective asks for.

    Attributes:
        module: The network, or what a parallel strategy or LoRA made of it.
        contract: Its dtypes.
        latent_channels: Channels of the latents that it takes.
        runs_on_meta: No step of its forward pass depends on values, so that shapes alone can be tried.
        base: What a LoRA in it lies on; None without one.
    """

    module: nn.Module
    contract: Contract
    latent_channels: int
    runs_on_meta: bool
    base: Base | None

    def predict(self, inputs: DenoiserInputs) -> Tensor:
        """Return the network's output `[B, C, T, H, W]`, by the objective the velocity or the clean latent.

        Inputs already have the contract's dtypes.
        """
        ...

    def sharding(self) -> ShardingPlan:
        """Name the units that parallel strategies wrap."""
        ...

    def lora_targets(self, of: Targets = "default") -> Sequence[str]:
        """Names of linear layers for LoRA: by default those of all attentions, or all of the blocks."""
        ...


class FamilyNetwork(Protocol):
    """How the networks of a family are built, loaded and called: `NETWORK` in the family's `network.py`."""

    @property
    def keeps_file_tensors(self) -> bool:
        """Parameters may be the tensors of a file as they lie there, read when they are used."""
        ...

    def build(self, config: Any, *, gradient_checkpointing: bool = False) -> nn.Module:
        """Build a network on the default device; on `meta` it has shapes alone."""
        ...

    def load(self, module: Any, config: Any, source: str | None, part: str | None = None) -> None:
        """Load weights from a folder, a file or a hub id; without a source, draw fresh ones.

        Args:
            module: Network to fill.
            config: Its sizes.
            source: Where the weights lie.
            part: Folder of the network in a pipeline, of several.

        Raises:
            UserError: If nothing readable is found, or keys or shapes differ; the first are listed.
        """
        ...

    def renamed(self, module: Any, config: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Give the tensors of a model's first release this network's names, as far as they are known."""
        ...

    def learns_variance(self, config: Any, source: str, channels: int) -> bool:
        """Whether weights were trained with a second half of output channels.

        Args:
            config: Sizes of the network.
            source: Where the weights lie.
            channels: Channels of the latents.
        """
        ...

    def denoiser(self, module: nn.Module, contract: Contract, config: Any, channels: int) -> Denoiser:
        """Wrap a network as the trainer sees it.

        Args:
            module: The network.
            contract: Its dtypes.
            config: Its sizes.
            channels: Channels of the latents that it takes.
        """
        ...


class Autoencoder(Protocol):
    """Pixels to latents and back."""

    geometry: Geometry
    latent_channels: int
    contract: Contract

    def encode(self, video_BCTHW: Tensor) -> Tensor:
        """Encode video in [-1, 1] to latents of about unit variance."""
        ...

    def decode(self, latent_BCTHW: Tensor, num_frames: int) -> Tensor:
        """Decode latents to video in [-1, 1] with `num_frames` frames."""
        ...

    def to(self, device: torch.device) -> Autoencoder:
        """Move to a device, in place."""
        ...


class TextEncoder(Protocol):
    """Captions to embeddings.

    Attributes:
        sees_pictures: It looks at the pictures that it is given.
    """

    contract: Contract
    sees_pictures: bool
    dim: int
    pooled_dim: int
    max_length: int

    def encode(self, captions: Sequence[str], pictures_BHWC: Tensor | None = None) -> TextEmbedding:
        """Embed captions; L is `max_length` for every one of them.

        Args:
            captions: What to embed.
            pictures_BHWC: uint8 pictures that the captions speak of; most encoders do not look at them.
        """
        ...

    def unseen(self, caption: str) -> int:
        """Count the words at a caption's end that `max_length` cuts off."""
        ...

    def to(self, device: torch.device) -> TextEncoder:
        """Move to a device, in place."""
        ...


class ImageEncoder(Protocol):
    """Pictures to tokens.

    Attributes:
        tokens: N, of every picture.
        dim: E, their width.
    """

    contract: Contract
    tokens: int
    dim: int

    def encode(self, pictures_BHWC: Tensor) -> Tensor:
        """Embed uint8 pictures as `[B, N, E]` float32."""
        ...

    def to(self, device: torch.device) -> ImageEncoder:
        """Move to a device, in place."""
        ...
