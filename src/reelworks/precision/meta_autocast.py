"""Autocast for meta tensors, for which torch has none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Functions whose inputs autocast casts to the compute dtype.
LOWERED = frozenset(("linear", "matmul", "mm", "bmm", "baddbmm", "addmm", "einsum", "conv1d", "conv2d", "conv3d"))
ATTENTION = "scaled_dot_product_attention"


class MetaAutocast(TorchFunctionMode):
    """Mode that casts inputs of matrix products, convolutions and attention to the compute dtype."""

    def __init__(self, compute: torch.dtype) -> None:
        super().__init__()
        self._compute = compute

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function of torch, with lowered inputs if autocast would lower them."""
        name = str(getattr(func, "__name__", "")).strip("_")
        kwargs = kwargs or {}
        if (name in LOWERED or name == ATTENTION) and torch.is_autocast_enabled("cpu"):
            args = tuple(self._lowered(value) for value in args)
            kwargs = {key: self._lowered(value) for key, value in kwargs.items()}
        return func(*args, **kwargs)

    def _lowered(self, value: Any) -> Any:
        takes = isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64
        return value.to(self._compute) if takes else value
