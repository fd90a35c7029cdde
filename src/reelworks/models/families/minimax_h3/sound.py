"""The sound autoencoder of MiniMax-H3: left and right are encoded apart, and are halves of a latent frame's features.

Legend: B clips, S samples, K channels, F features of a channel, N latent frames.
"""

from __future__ import annotations

import warnings
from typing import Any, final

import torch
from torch import Tensor

from reelworks.core import optional_imports
from reelworks.core.errors import UserError
from reelworks.models.autoencoders.pixel import CONTRACT
from reelworks.models.family import PublishedSound
from reelworks.models.sound.encoder import SoundEncoder
from reelworks.models.storage import weights

_FIELD, _PART = "sound.weights", "audio_vae"


@final
class MiniMaxH3Sound:
    """Encodes and decodes sound in float32, in which alone the release does."""

    contract = CONTRACT

    def __init__(self, source: str, facts: PublishedSound) -> None:
        """Load the autoencoder from a pipeline's folder or the hub; it must be that of the release's latents."""
        self.facts = facts
        # diffusers builds it with a function that torch deprecates.
        warnings.filterwarnings("ignore", message=".*weight_norm. is deprecated", category=FutureWarning)
        sizes = weights.config(source, _FIELD, part=_PART)
        kind: Any = optional_imports.from_diffusers("AutoencoderKLMiniMaxH3Audio")
        module: Any = None if sizes is None else kind.from_config(sizes)
        config = None if sizes is None else module.config
        wanted = (facts.sample_rate, facts.features)
        if config is None or (config.sampling_rate, facts.channels * config.latent_channels) != wanted:
            raise UserError(
                "this is not the sound autoencoder of MiniMax-H3, or it has no config",
                code="other-autoencoder",
                field=_FIELD,
                value=source,
                remedy="name the release that the model was trained with",
            )
        self.module = module
        weights.load_into(self.module, weights.read(source, _FIELD, part=_PART), source, _FIELD)
        self.module.requires_grad_(False).float().eval()
        units = (config.latents_mean or [0.0], config.latents_std or [1.0])
        self._mean, self._std = (torch.tensor(values).view(1, -1, 1) for values in units)

    @torch.no_grad()
    def encode(self, samples_BSK: Tensor) -> Tensor:
        """Encode samples as the means of the posteriors, `[B, K · F, N]`."""
        mono = samples_BSK.float().transpose(1, 2).flatten(0, 1)[:, None]
        latent = self.module.encode(mono).latent_dist.mode()
        normal: Tensor = (latent - self._mean) / self._std
        return normal.reshape(len(samples_BSK), -1, normal.shape[2])

    @torch.no_grad()
    def decode(self, latent_BFN: Tensor) -> tuple[Tensor, int]:
        """Decode latents to samples."""
        B, _, N = latent_BFN.shape
        mono = latent_BFN.float().reshape(B * self.facts.channels, -1, N)
        samples: Tensor = self.module.decode(mono * self._std + self._mean).sample[:, 0]
        return samples.reshape(B, self.facts.channels, -1).transpose(1, 2), self.facts.sample_rate

    def to(self, device: torch.device) -> SoundEncoder:
        """Move the network and return this object."""
        self.module.to(device)
        self._mean, self._std = self._mean.to(device), self._std.to(device)
        return self


def build(source: str, facts: PublishedSound) -> SoundEncoder:
    """Load the sound encoder of a release."""
    return MiniMaxH3Sound(source, facts)
