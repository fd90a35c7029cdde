"""Divide the tokens of a Wan network over ranks."""

from __future__ import annotations

import importlib
import re
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reelworks.models.sequence.divided_tokens import DividedTokens, Places


class WanProcessor:
    """Compute the self-attention of a block as the network's own processor does, of divided tokens.

    Legend: B clips, S tokens of this rank, A heads, E head width, D width.
    """

    def __init__(self, divided: DividedTokens, backend: Any) -> None:
        self._divided, self._backend = divided, backend

    def __call__(
        self,
        attention: Any,
        hidden_states: Tensor,
        encoder_hidden_states: None,
        attention_mask: None,
        rotary_emb: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Return `[B, S, D]`."""
        shares = self._divided.shares
        assert shares is not None, "the first block has set it"
        attend: Any = importlib.import_module("diffusers.models.attention_dispatch").dispatch_attention_fn
        x_BSD = hidden_states
        q, k, v = (
            attention.norm_q(attention.to_q(x_BSD)),
            attention.norm_k(attention.to_k(x_BSD)),
            attention.to_v(x_BSD),
        )
        q_BSAE, k_BSAE, v_BSAE = (each.unflatten(2, (attention.heads, -1)) for each in (q, k, v))
        q_BSAE, k_BSAE = _rotated(q_BSAE, *rotary_emb), _rotated(k_BSAE, *rotary_emb)
        out = shares.attend_by(partial(attend, backend=self._backend), q_BSAE, k_BSAE, v_BSAE)
        result: Tensor = attention.to_out[1](attention.to_out[0](out.flatten(2).type_as(q)))
        return result


def _rotated(x_BSAE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate interleaved pairs; the angles of a pair are stored twice."""
    a, b = x_BSAE[..., 0::2], x_BSAE[..., 1::2]
    cos, sin = cos[..., 0::2], sin[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2).type_as(x_BSAE)


PLACES = Places(
    attentions=lambda path: re.fullmatch(r"blocks\.\d+\.attn1", path) is not None,
    first="blocks.0",
    angles="rope",
    angles_dim=1,
    processor=WanProcessor,
)
