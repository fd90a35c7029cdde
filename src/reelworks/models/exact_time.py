"""Times that stay float32 on their way into networks of diffusers.

Some networks round the timestep to the dtype of their latents before they embed it, and bfloat16 has
three digits. The sines and cosines are made from the exact value here; only they are rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def embedded(time_proj: nn.Module, *values: Tensor) -> Iterator[None]:
    """While open, let the calls of the module that makes sines and cosines take these values, in order."""
    left = list(values)

    def exact(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (left.pop(0), *args[1:])

    handle = time_proj.register_forward_pre_hook(exact)
    try:
        yield
    finally:
        handle.remove()
    assert not left, f"{type(time_proj).__name__} was called fewer times than it was given values"
