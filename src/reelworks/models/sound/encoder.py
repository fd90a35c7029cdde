"""Encoders of sound to latents: the protocol, and the one without weights."""

from __future__ import annotations

from typing import Protocol, final

import torch
from torch import Tensor

from reelworks.data.distributed.contract import Contract
from reelworks.models.autoencoders.pixel import CONTRACT
from reelworks.models.family import PublishedSound


class SoundEncoder(Protocol):
    """Encodes sound to latents and decodes latents to sound."""

    facts: PublishedSound
    contract: Contract

    def encode(self, samples_BSK: Tensor) -> Tensor:
        """Encode float32 samples in [-1, 1] to latents `[B, F, N]` of about unit variance."""

    def decode(self, latent_BFN: Tensor) -> tuple[Tensor, int]:
        """Decode latents to samples `[B, S, K]`, and return their rate too."""

    def to(self, device: torch.device) -> SoundEncoder:
        """Move to a device, in place."""


@final
class PcmSound:
    """Sound as it is: the samples of a latent frame are its features, divided so that loud sound has unit variance."""

    contract = CONTRACT
    _STD = 0.5

    def __init__(self, facts: PublishedSound) -> None:
        self.facts = facts

    def encode(self, samples_BSK: Tensor) -> Tensor:
        """Cut samples to latent frames."""
        B, S, K = samples_BSK.shape
        frames = samples_BSK.reshape(B, S // self.facts.samples_per_latent, self.facts.samples_per_latent * K)
        return (frames / self._STD).transpose(1, 2).contiguous()

    def decode(self, latent_BFN: Tensor) -> tuple[Tensor, int]:
        """Join latent frames to samples."""
        B = len(latent_BFN)
        return (latent_BFN * self._STD).transpose(1, 2).reshape(B, -1, self.facts.channels), self.facts.sample_rate

    def to(self, device: torch.device) -> SoundEncoder:
        """Return this object, which has no tensors."""
        return self
