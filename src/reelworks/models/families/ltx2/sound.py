"""The sound of LTX-2: log-mel spectrograms, their autoencoder, and the vocoder that makes samples of them.

The spectrograms are those that the release's autoencoder was trained on: magnitudes of a short-time Fourier transform
with a Hann window of 1024 samples, in mel bands of Slaney's scale and area, as natural logarithms. diffusers has the
autoencoder and the vocoder, and no code for spectrograms.

Legend: B clips, S samples, K channels, M mel bands, F features of a latent frame (channels · bands), N latent frames.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, final

import torch
from torch import Tensor, nn

from reelworks.core import optional_imports
from reelworks.core.errors import UserError
from reelworks.models.autoencoders.pixel import CONTRACT
from reelworks.models.family import PublishedSound
from reelworks.models.sound.encoder import SoundEncoder
from reelworks.models.storage import weights

_WINDOW = 1024
_SMALLEST = 1e-5
_MELS_PER_LATENT = 4
_LINEAR_HZ, _HZ_PER_MEL = 1000.0, 200 / 3  # Slaney's scale is linear up to here, and logarithmic from here on
_LOG_STEP = math.log(6.4) / 27


def _hertz(mel: Tensor) -> Tensor:
    linear, corner = mel * _HZ_PER_MEL, _LINEAR_HZ / _HZ_PER_MEL
    return torch.where(mel < corner, linear, _LINEAR_HZ * torch.exp((mel - corner) * _LOG_STEP))


def mel_filters(sample_rate: int, bands: int) -> Tensor:
    """Return the weights of frequencies in mel bands up to half the sample rate, each of unit area: `[513, M]`."""
    highest = _LINEAR_HZ / _HZ_PER_MEL + math.log(sample_rate / 2 / _LINEAR_HZ) / _LOG_STEP
    edges = _hertz(torch.linspace(0.0, highest, bands + 2, dtype=torch.float64))
    frequency = torch.linspace(0.0, sample_rate / 2, _WINDOW // 2 + 1, dtype=torch.float64)[:, None]
    rising = (frequency - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequency) / (edges[2:] - edges[1:-1])
    return (torch.minimum(rising, falling).clamp(min=0.0) * 2 / (edges[2:] - edges[:-2])).float()


def log_mel(samples_BSK: Tensor, filters: Tensor, hop: int) -> Tensor:
    """Return the logarithms of mel magnitudes `[B, K, 1 + S // hop, M]`, of frames centred on multiples of the hop."""
    B, S, K = samples_BSK.shape
    flat = samples_BSK.transpose(1, 2).reshape(B * K, S)
    window = torch.hann_window(_WINDOW, device=flat.device)
    spectrum = torch.stft(flat, _WINDOW, hop, window=window, center=True, pad_mode="reflect", return_complex=True).abs()
    mel: Tensor = spectrum.transpose(1, 2) @ filters
    return mel.clamp(min=_SMALLEST).log().reshape(B, K, mel.shape[1], -1)


@final
class LTX2Sound:
    """The sound autoencoder of LTX-2 and, from its first use, the vocoder."""

    contract = CONTRACT

    def __init__(self, source: str, facts: PublishedSound) -> None:
        """Load the autoencoder from a pipeline's folder or the hub; it must be that of the release's latents."""
        self.facts, self._source = facts, source
        self.module = _load("AutoencoderKLLTX2Audio", source, "audio_vae")
        config = self.module.config
        features = config.latent_channels * (config.mel_bins // _MELS_PER_LATENT)
        found = (config.sample_rate, config.in_channels, config.mel_hop_length * _MELS_PER_LATENT, features)
        if found != (facts.sample_rate, facts.channels, facts.samples_per_latent, facts.features):
            raise UserError(
                f"this sound autoencoder makes other latents: {found} of (samples per second, channels, samples per "
                f"latent frame, features), not {facts.shape}",
                code="other-autoencoder",
                field="sound.weights",
                value=source,
                remedy="name the release that the model was trained with",
            )
        self._filters = mel_filters(config.sample_rate, config.mel_bins)
        self._vocoder: Any = None

    @torch.no_grad()
    def encode(self, samples_BSK: Tensor) -> Tensor:
        """Encode samples; N latent frames come of 4·N − 3 frames of the spectrogram, as the causal network wants."""
        N = samples_BSK.shape[1] // self.facts.samples_per_latent
        mel = log_mel(samples_BSK.float(), self._filters, self.module.config.mel_hop_length)
        latent = self.module.encode(mel[:, :, : _MELS_PER_LATENT * (N - 1) + 1]).latent_dist.mode()
        assert latent.shape[2] == N, f"{N} latent frames became {latent.shape[2]}"
        tokens = latent.transpose(1, 2).flatten(2)
        normal: Tensor = (tokens - self.module.latents_mean) / self.module.latents_std
        return normal.transpose(1, 2).contiguous()

    @torch.no_grad()
    def decode(self, latent_BFN: Tensor) -> tuple[Tensor, int]:
        """Decode latents to a spectrogram, and that to samples, of a higher rate than those that are encoded."""
        if self._vocoder is None:
            found = weights.config(self._source, "sound.weights", part="vocoder") or {}
            kind = found.get("_class_name", "LTX2Vocoder")
            self._vocoder = _load(kind, self._source, "vocoder").to(latent_BFN.device)
        tokens = latent_BFN.float().transpose(1, 2) * self.module.latents_std + self.module.latents_mean
        latent = tokens.unflatten(2, (self.module.config.latent_channels, -1)).transpose(1, 2)
        samples = self._vocoder(self.module.decode(latent).sample)
        return samples.transpose(1, 2), int(self._vocoder.config.output_sampling_rate)

    def to(self, device: torch.device) -> SoundEncoder:
        """Move the networks and return this object."""
        self.module.to(device)
        self._filters = self._filters.to(device)
        if self._vocoder is not None:
            self._vocoder.to(device)
        return self


def _load(name: str, source: str, part: str) -> Any:
    library, field = optional_imports.diffusers(), "sound.weights"
    vocoders: Any = importlib.import_module("diffusers.pipelines.ltx2")
    kind: Any = getattr(library, name, None) or getattr(vocoders, name, None)
    sizes = weights.config(source, field, part=part)
    if sizes is None or kind is None:
        raise UserError(
            f"there is no {part} with a config that this version knows",
            code="autoencoder-config-missing",
            field=field,
            value=source,
            remedy="name the folder of a release in diffusers' layout, or its hub id",
        )
    module: nn.Module = kind.from_config(sizes)
    weights.load_into(module, weights.read(source, field, part=part), source, field)
    return module.requires_grad_(False).float().eval()


def build(source: str, facts: PublishedSound) -> SoundEncoder:
    """Load the sound encoder of a release."""
    return LTX2Sound(source, facts)
