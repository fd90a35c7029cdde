"""Build, load and call STDiT2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from reelworks.models import weights
from reelworks.models.api import DenoiserInputs
from reelworks.models.families.stdit2.model import STDiT2
from reelworks.models.families.stdit3.network import STDiTNetwork, draw, fit_caption


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


def predict(module: Any, inputs: DenoiserInputs) -> Tensor:
    """Return all output channels of the network, `[B, C or 2·C, T, H, W]`.

    Its `num_frames` is the number of latent frames, since v1.1 encodes frame by frame.
    """
    out: Tensor = module(
        inputs.latent,
        inputs.time,
        inputs.text[:, None],
        mask=inputs.text_mask,
        x_mask=inputs.frame_mask,
        num_frames=torch.full_like(inputs.fps, inputs.latent.shape[2]),
        height=inputs.height,
        width=inputs.width,
        ar=inputs.height / inputs.width,
        fps=inputs.fps,
        drop_text=inputs.drop_text,
    )
    return out


NETWORK = STDiTNetwork(STDiT2, predict, lambda module: list(module.blocks), fill)
