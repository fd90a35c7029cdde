"""Repeated operations on the meta device, whose results are known without running them again.

torch finds shapes and dtypes there in Python, in up to a millisecond for each operation, and a network that is run with
hundreds of shapes repeats most of them, as do networks that are run after one another.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Functions of several kernels each, whose result is one new tensor.
_FUNCTIONS = frozenset((
    "__radd__", "__rdiv__", "__rsub__", "add", "addcmul", "arange", "baddbmm", "bmm", "cat", "conv1d", "conv2d", "conv3d",
    "cos", "div", "einsum", "embedding", "exp", "gelu", "group_norm", "layer_norm", "linear", "matmul", "mean", "mul",
    "outer", "pow", "repeat_interleave", "rms_norm", "rsqrt", "scaled_dot_product_attention", "sigmoid", "silu", "sin",
    "softmax", "stack", "sub", "sum", "tanh", "where",
))  # fmt: skip


_MOST_RESULTS = 10_000  # in about 20 MB
_results: dict[Hashable, tuple[torch.Size, tuple[int, ...], torch.dtype]] = {}


class Repeats(TorchFunctionMode):
    """Mode that runs an operation on meta tensors once for each layout of its arguments; for passes without gradients."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in _FUNCTIONS or "out" in kwargs:
            return func(*args, **kwargs)
        return run(func, args, kwargs)


class RepeatedOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that does the same below autograd, for forward and backward passes."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return run(func, args, kwargs or {}) if makes_new(func) else func(*args, **(kwargs or {}))


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation that makes a new tensor of what its arguments are, or, on the meta device, repeat its result."""
    key = (func, layout(args), layout(kwargs), torch.get_default_dtype())
    try:
        known = _results.get(key)
    except TypeError:  # an argument cannot be compared
        return func(*args, **kwargs)
    if known is not None:
        size, stride, dtype = known
        return torch.empty_strided(size, stride, dtype=dtype, device="meta")
    result = func(*args, **kwargs)
    if isinstance(result, Tensor) and result.is_meta:
        if len(_results) >= _MOST_RESULTS:
            _results.clear()
        _results[key] = result.size(), result.stride(), result.dtype
    return result


@functools.cache
def makes_new(func: Any) -> bool:
    """Return whether the result of an operation of `torch.ops` is one tensor with memory of its own."""
    schema = func._schema
    alone = len(schema.returns) == 1 and all(one.alias_info is None for one in (*schema.arguments, *schema.returns))
    return alone and str(schema.returns[0].type) == "Tensor" and "view" not in schema.name


def layout(value: Any) -> Hashable:
    """Reduce tensors, also in containers, to what a result depends on but for their numbers; other values stay."""
    if isinstance(value, Tensor):
        return value.dtype, value.size(), value.stride(), value.device
    if isinstance(value, (list, tuple)):
        return tuple(map(layout, value))
    if isinstance(value, dict):
        return tuple((key, layout(each)) for key, each in value.items())
    return type(value), value  # 1, 1.0 and True are equal, and give results of different dtypes
