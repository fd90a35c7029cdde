"""Share the tokens of an LTX-Video network over ranks.

diffusers' plan shares captions too, for which its attention has no backward pass, and not the times of tokens.
"""

from __future__ import annotations

import importlib
from typing import Any

ATTENTIONS = r"transformer_blocks\.\d+\.attn1"  # names of attentions among divided tokens


def plan(_network: Any) -> dict[str, Any]:
    """Return where tokens are divided and gathered, in the terms of diffusers."""
    parallel: Any = importlib.import_module("diffusers.models._modeling_parallel")
    tokens = parallel.ContextParallelInput
    angles = tokens(split_dim=1, expected_dims=3, split_output=True)
    return {
        "": {
            "hidden_states": tokens(split_dim=1, expected_dims=3),
            "timestep": tokens(split_dim=1, expected_dims=2),
        },
        "rope": {0: angles, 1: angles},
        "proj_out": parallel.ContextParallelOutput(gather_dim=1, expected_dims=3),
    }
