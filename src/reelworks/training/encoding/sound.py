"""The sound of clips for a model that is trained with it: its encoder, how it is read, and the recipe's keys."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reelworks.data.distributed import transfer
from reelworks.data.media.sound import SoundSpec
from reelworks.models.sound.config import SoundConfig
from reelworks.models.sound.encoder import SoundEncoder
from reelworks.training.encoding.lazy import LazySoundEncoder

_FULL_SCALE = 32768.0


@dataclass(frozen=True)
class SoundTrack:
    """A sound encoder, the samples that it takes, and how the sound is trained."""

    encoder: SoundEncoder
    spec: SoundSpec
    config: SoundConfig

    def loaded(self) -> SoundTrack:
        """Return the same with the encoder in memory, if it was to be loaded at its first use."""
        encoder = self.encoder
        return replace(self, encoder=encoder.later.get()) if isinstance(encoder, LazySoundEncoder) else self

    def at_rate(self, fps: float) -> SoundTrack:
        """Return the same for clips of another frame rate."""
        return replace(self, spec=replace(self.spec, frame_rate=fps))

    def latent_shape(self, num_frames: int) -> tuple[int, int, int, int]:
        """Return the shape of the latents of a clip with so many frames, `(F, N, 1, 1)`."""
        return self.encoder.facts.features, self.spec.latents(num_frames), 1, 1

    @torch.no_grad()
    def latents(self, samples_BSK: Tensor, device: torch.device) -> Tensor:
        """Encode int16 samples to float32 latents `[B, F, N, 1, 1]`, clip by clip, so that none depends on others."""
        samples = transfer.to_device(samples_BSK, device).float() / _FULL_SCALE
        return torch.cat([self.encoder.encode(one[None]).float() for one in samples])[..., None, None]

    @torch.no_grad()
    def samples(self, latent_BFN11: Tensor) -> tuple[Tensor, int]:
        """Decode latents to int16 samples `[B, S, K]` on the CPU, and return their rate."""
        samples, rate = self.encoder.decode(latent_BFN11.float().flatten(2))
        return (samples.clamp(-1, 1) * (_FULL_SCALE - 1)).round().to(torch.int16).cpu(), rate
