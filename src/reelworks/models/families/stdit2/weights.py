"""Draw fresh weights of STDiT2, or check and load existing ones."""

from __future__ import annotations

import torch
from torch import nn

from reelworks.models import weights
from reelworks.models.families.stdit2.model import STDiT2
from reelworks.models.families.stdit3.weights import draw, fit_caption


def fill(module: STDiT2, source: str | None) -> None:
    """Load the weights of a source, or draw fresh ones without a source."""
    if source is None:
        init(module)
    else:
        load(module, source)


@torch.no_grad()
def init(module: STDiT2) -> None:
    """Draw fresh weights from the global generator, by the rules of STDiT3.

    Temporal attention adds zeros at first, so that a fresh model treats frames as pictures.
    """
    draw(module, module.config)
    for name, parameter in module.named_parameters():
        if name.endswith("attn_temp.proj.weight"):
            nn.init.zeros_(parameter)


def load(module: STDiT2, source: str) -> None:
    """Load weights from a folder, a `.safetensors` or `.pt` file, or a hub id; see `stdit3.weights.load`.

    Raises:
        UserError: If nothing readable is found, or keys or shapes differ; the message lists the first.
    """
    state = weights.read(source)
    fit_caption(state, module.config.model_max_length)
    weights.load_into(module, state, source)
