"""Places where the host would wait for a GPU, counted on the pretended one of `second_device`.

Torch warns of them on CUDA alone. Here they are told from the operations: values that are read, results whose sizes depend
on values, and copies between the memories of the host and the device that block. An H100 warned as often as is counted
here, 33 times in a HunyuanVideo 1.5 network and 51 times in one of Qwen-Image 2.1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import second_device
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reelworks.data.loader import upload

# What they return is read from the device, or has a size that is.
_READ = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "bincount"}
_READ |= {"_unique", "_unique2", "unique_consecutive", "unique_dim"}
_INDEXED = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}
_TORCH = str(Path(torch.__file__).parent)
_MADE = (torch.tensor, torch.as_tensor, Tensor.new_tensor)


@contextmanager
def counted() -> Iterator[list[str]]:
    """List the lines whose operations on tensors of the device wait within the context, each as often as it waits."""
    with _Made(), _Waits() as mode:
        yield mode.places


def _is_there(value: object) -> bool:
    return isinstance(value, Tensor) and value.device.type == second_device.NAME


class _Waits(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        tensors = [each for each in tree_leaves((args, kwargs, found)) if isinstance(each, Tensor)]
        if any(map(_is_there, tensors)):
            name = func.name().removeprefix("aten::").partition(".")[0]
            if count := _waits(name, args, kwargs, tensors):
                caller = _caller()
                # It copies from pinned memory to CUDA.
                if caller.f_code is not upload.to_device.__code__:
                    self.places += [f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno} ({name})"] * count
        return found


class _Made(TorchFunctionMode):
    """Make tensors of numbers on the host and copy them: a device that is written in Python cannot do so within a mode."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        source = args[0] if func is Tensor.new_tensor else None
        device = torch.device(kwargs.get("device") or ("cpu" if source is None else source.device))
        if func not in _MADE or isinstance(args[-1], Tensor) or device.type != second_device.NAME:
            return func(*args, **kwargs)
        if source is not None:
            args, kwargs = args[1:], {"dtype": source.dtype} | kwargs
        return torch.tensor(*args, **kwargs | {"device": "cpu"}).to(device)


def _waits(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> int:
    if name in ("_to_copy", "copy_"):
        is_late = kwargs.get("non_blocking") or args[2:3] == (True,)
        return int(not is_late and not all(map(_is_there, tensors)))
    if name in _INDEXED:
        indices: list[Tensor] = [each for each in args[1] if each is not None]
        # The places of a mask's values are counted, and an index of the host is copied.
        return sum(each.dtype == torch.bool or not _is_there(each) for each in indices)
    if name == "repeat_interleave":
        return 2 * int(kwargs.get("output_size") is None)  # for the sum of the repeats, and for their signs
    return int(name in _READ)


def _caller() -> FrameType:
    """Return the frame that called torch; for the backward pass the one that called it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_TORCH, __file__)):
        frame = frame.f_back
    return frame
