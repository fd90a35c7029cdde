"""Repeated operations on the meta device, whose results are known without running them again.

torch finds shapes and dtypes there in Python, in up to a millisecond for each operation, and a network that is run with
hundreds of shapes repeats most of them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Functions of several kernels each, whose result is one new tensor.
_FUNCTIONS = frozenset((
    "__radd__", "__rdiv__", "__rsub__", "add", "addcmul", "arange", "baddbmm", "bmm", "cat", "conv1d", "conv2d", "conv3d",
    "cos", "div", "einsum", "embedding", "exp", "gelu", "group_norm", "layer_norm", "linear", "matmul", "mean", "mul",
    "outer", "pow", "repeat_interleave", "rms_norm", "rsqrt", "scaled_dot_product_attention", "sigmoid", "silu", "sin",
    "softmax", "stack", "sub", "sum", "tanh", "where",
))  # fmt: skip


class Repeats(TorchFunctionMode):
    """Mode that runs an operation on meta tensors once for each layout of its arguments; for passes without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self._results: dict[Hashable, tuple[torch.Size, tuple[int, ...], torch.dtype]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in _FUNCTIONS:
            return func(*args, **kwargs)
        key = (func, layout(args), layout(kwargs))
        try:
            known = self._results.get(key)
        except TypeError:  # an argument cannot be compared
            return func(*args, **kwargs)
        if known is not None:
            size, stride, dtype = known
            return torch.empty_strided(size, stride, dtype=dtype, device="meta")
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.is_meta and "out" not in kwargs:
            self._results[key] = result.size(), result.stride(), result.dtype
        return result


def layout(value: Any) -> Hashable:
    """Reduce tensors, also in containers, to what a result depends on but for their numbers; other values stay."""
    if isinstance(value, Tensor):
        return value.dtype, value.size(), value.stride(), value.device
    if isinstance(value, (list, tuple)):
        return tuple(map(layout, value))
    if isinstance(value, dict):
        return tuple((key, layout(each)) for key, each in value.items())
    return type(value), value  # 1, 1.0 and True are equal, and give results of different dtypes
