"""Encoders that are loaded when they are first used: training from stored latents and embeddings needs none."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Generic, TypeVar, final

import torch
from torch import Tensor, nn

from reelworks.core import log
from reelworks.core.shape import Geometry
from reelworks.data.distributed.contract import Contract
from reelworks.models.api import Autoencoder, ImageEncoder, TextEncoder
from reelworks.models.family import PublishedSound
from reelworks.models.sound.encoder import SoundEncoder

E = TypeVar("E", bound=Autoencoder | TextEncoder | ImageEncoder | SoundEncoder)


class _Later(Generic[E]):
    """An encoder that `build` makes on its device at its first use; from then on it stays in memory."""

    def __init__(self, name: str, build: Callable[[], E]) -> None:
        self._name, self._build = name, build
        self.made: list[E] = []

    def get(self) -> E:
        if not self.made:
            with log.stage(f"loading the {self._name}", at_once=True):
                self.made.append(self._build())
        return self.made[0]

    def drop(self) -> None:
        self.made.clear()
        gc.collect()  # a compiled network refers to itself


class _Lazy(Generic[E]):
    """The parts of a lazy encoder that do not depend on its kind."""

    later: _Later[E]

    @property
    def contract(self) -> Contract:
        """Its dtypes, for which it is loaded."""
        return self.later.get().contract

    def encode(self, *inputs: Any) -> Any:
        """Encode what the loaded one encodes; see `models.api`."""
        return self.later.get().encode(*inputs)

    def to(self, device: torch.device) -> E:
        """Move it, for which it is loaded; return the loaded one."""
        return self.later.get().to(device)  # type: ignore[return-value]


@final
class LazyAutoencoder(_Lazy[Autoencoder]):
    """An autoencoder of known sizes whose weights are loaded at its first use."""

    def __init__(self, geometry: Geometry, latent_channels: int, build: Callable[[], Autoencoder]) -> None:
        self.geometry, self.latent_channels = geometry, latent_channels
        self.later = _Later("autoencoder", build)

    @property
    def encoding_networks(self) -> tuple[nn.Module, ...]:
        """Networks that encode; see `models.api.Autoencoder`."""
        return self.later.get().encoding_networks

    def decode(self, latent_BCTHW: Tensor, num_frames: int) -> Tensor:
        """Decode latents; see `models.api.Autoencoder`."""
        return self.later.get().decode(latent_BCTHW, num_frames)


@final
class LazyTextEncoder(_Lazy[TextEncoder]):
    """A text encoder of known sizes whose weights are loaded at its first use."""

    def __init__(
        self, dim: int, pooled_dim: int, max_length: int, *, sees_pictures: bool, build: Callable[[], TextEncoder]
    ) -> None:
        self.dim, self.pooled_dim, self.max_length, self.sees_pictures = dim, pooled_dim, max_length, sees_pictures
        self.later = _Later("text encoder", build)

    def unseen(self, caption: str) -> int:
        """Count the words that are cut off; see `models.api.TextEncoder`."""
        return self.later.get().unseen(caption)


@final
class LazyImageEncoder(_Lazy[ImageEncoder]):
    """An image encoder of known sizes whose weights are loaded at its first use."""

    def __init__(self, tokens: int, dim: int, build: Callable[[], ImageEncoder]) -> None:
        self.tokens, self.dim = tokens, dim
        self.later = _Later("image encoder", build)


@final
class LazySoundEncoder(_Lazy[SoundEncoder]):
    """A sound encoder of known latents whose weights are loaded at its first use."""

    def __init__(self, facts: PublishedSound, build: Callable[[], SoundEncoder]) -> None:
        self.facts = facts
        self.later = _Later("sound encoder", build)

    def decode(self, latent_BFN: Tensor) -> tuple[Tensor, int]:
        """Decode latents; see `models.sound.encoder.SoundEncoder`."""
        return self.later.get().decode(latent_BFN)
