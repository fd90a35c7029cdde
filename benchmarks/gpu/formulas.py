"""Operations of a forward pass by formula, beside which what torch counts is checked.

A product of `[n, a]` and `[a, b]` has 2·n·a·b operations; attention of n tokens to m has 4·n·m·d, d the width of all
heads. Layers that run once for each clip, not for each token, are left out.

Legend: B clips, T latent frames, n tokens of a clip, L tokens of its text, d width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from reelworks.models.api import DenoiserInputs


def forward_flops(network: nn.Module, inputs: DenoiserInputs) -> int:
    """Return the operations of one forward pass of a network."""
    return len(inputs.latent) * _CLIPS[type(network).__name__](network, inputs)


def _stdit3(network: Any, inputs: DenoiserInputs) -> int:
    """Blocks alternate: one attends within frames, the next across them."""
    _, _, T, H, W = inputs.latent.shape
    frame = -(-H // 2) * -(-W // 2)
    n, L, d = T * frame, inputs.text.shape[1], network.config.hidden_size
    own = 2 * n * 4 * d * d + 2 * n * 8 * d * d
    text = 2 * n * 2 * d * d + 2 * L * 2 * d * d + 4 * n * L * d
    pairs = 2 * (own + text) + 4 * n * frame * d + 4 * n * T * d
    return network.config.depth * pairs + 2 * L * (inputs.text.shape[2] + d) * d


def _wan(network: Any, inputs: DenoiserInputs) -> int:
    _, _, T, H, W = inputs.latent.shape
    config = network.config
    n, L = T * (H // 2) * (W // 2), inputs.text.shape[1]
    d = config.num_attention_heads * config.attention_head_dim
    own = 2 * n * 4 * d * d + 4 * n * n * d
    text = 2 * n * 2 * d * d + 2 * L * 2 * d * d + 4 * n * L * d
    return config.num_layers * (own + text + 4 * n * d * config.ffn_dim) + 2 * L * (inputs.text.shape[2] + d) * d


def _sd3(network: Any, inputs: DenoiserInputs) -> int:
    """Text and image attend to each other; some blocks attend within the image once more; the last drops the text."""
    *_, H, W = inputs.latent.shape
    config = network.config
    n, L = (H // 2) * (W // 2), inputs.text.shape[1]
    d = config.num_attention_heads * config.attention_head_dim
    image = 2 * n * 12 * d * d
    text = 2 * L * 12 * d * d
    joint = 4 * (n + L) * (n + L) * d
    again = 2 * n * 4 * d * d + 4 * n * n * d
    last = 2 * L * 9 * d * d  # products of the text behind the attention, which the last block has not
    blocks = config.num_layers * (image + text + joint) + len(config.dual_attention_layers) * again - last
    return blocks + 2 * L * inputs.text.shape[2] * d


_CLIPS: dict[str, Callable[[Any, DenoiserInputs], int]] = {
    "STDiT3": _stdit3,
    "WanTransformer3DModel": _wan,
    "SD3Transformer2DModel": _sd3,
}
