"""Share the video tokens of a network over ranks where diffusers' own plan shares captions too.

Its attention has no backward pass for these. Nor does such a plan share the times of tokens, or all angles.
"""

from __future__ import annotations

import importlib
from typing import Any

ATTENTIONS = r"transformer_blocks\.\d+\.attn1"  # names of attentions among divided tokens


def plan(network: Any) -> dict[str, Any]:
    """Return where tokens are divided and gathered, in the terms of diffusers."""
    parallel: Any = importlib.import_module("diffusers.models._modeling_parallel")
    tokens = parallel.ContextParallelInput
    # Angles of positions are [B, A, tokens, width] if they are "split", and else [B, tokens, width].
    dim, dims = (2, 4) if network.config.get("rope_type") == "split" else (1, 3)
    angles = tokens(split_dim=dim, expected_dims=dims, split_output=True)
    return {
        "": {"hidden_states": tokens(split_dim=1, expected_dims=3), "timestep": tokens(split_dim=1, expected_dims=2)},
        "rope": {0: angles, 1: angles},
        "proj_out": parallel.ContextParallelOutput(gather_dim=1, expected_dims=3),
    }
