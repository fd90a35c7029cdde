"""From sizes to a network, of whichever family."""

from __future__ import annotations

from torch import nn

from reelworks.models import diffusers_denoiser
from reelworks.models.family import FamilyConfig
from reelworks.models.stdit2.config import STDiT2Config
from reelworks.models.stdit2.model import STDiT2
from reelworks.models.stdit3.config import STDiT3Config
from reelworks.models.stdit3.model import STDiT3

Sizes = STDiT2Config | STDiT3Config | FamilyConfig
"""What a network is built with."""


def build(config: Sizes, *, gradient_checkpointing: bool = False) -> nn.Module:
    """Build a network on the default device; on `meta` it has shapes alone."""
    if isinstance(config, STDiT2Config):
        return STDiT2(config, gradient_checkpointing=gradient_checkpointing)
    if isinstance(config, STDiT3Config):
        return STDiT3(config, gradient_checkpointing=gradient_checkpointing)
    return diffusers_denoiser.network(config, gradient_checkpointing)
