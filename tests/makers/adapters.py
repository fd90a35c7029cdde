"""Tiny networks with adapters of random numbers."""

from __future__ import annotations

import torch

from reelworks.models.adapters import inject
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.api import Denoiser
from reelworks.testing import contract


def adapted(name: str, settings: LoraConfig, seed: int = 0) -> Denoiser:
    """A network of the contract's suite with an adapter of random numbers."""
    denoiser = contract.build(name)
    inject.inject(denoiser, settings, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in inject.weights(denoiser.module).values():
            value.add_(torch.randn(value.shape, generator=generator), alpha=0.3)
    return denoiser
