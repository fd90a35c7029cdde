"""Let blocks on the meta device save for the backward pass what they save when they are compiled and nothing is recomputed.

A compiler that fuses computes anew, in the kernels that need it, what lies between products and attention. So a block saves
its inputs, the sums with them, and what products and attention read and write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reelworks.models.recompute import ATTENTION, PRODUCTS

_CAST = torch.ops.aten._to_copy.default
_SUMS = {torch.ops.aten.add.Tensor, torch.ops.aten.addcmul.default}


@contextmanager
def fused(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Let blocks on the meta device save while open what they save when they are compiled, if they can be as a whole."""
    with ExitStack() as stack:
        for block in blocks:
            if any(getattr(type(each).forward, "_torchdynamo_disable", False) for each in block.modules()):
                continue
            stack.enter_context(patch.object(block, "forward", partial(_run, block.forward)))
        yield


class _Ends(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the memory that products and attention read and write while entered, and holds what is added to a block's inputs."""

    def __init__(self, given: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages = WeakSet(each.untyped_storage() for each in _tensors(given))
        self.sums: list[Tensor] = []
        self._stream = WeakSet(self.storages)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in ATTENTION or func in PRODUCTS:
            self.storages.update(each.untyped_storage() for each in _tensors((args, result)))
        elif (func is _CAST or func in _SUMS) and any(
            each.shape == result.shape and each.untyped_storage() in self._stream for each in _tensors(args)
        ):
            self._stream.add(result.untyped_storage())
            if func in _SUMS:
                self.sums.append(result.detach())
        return result


def _tensors(values: Any) -> list[Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, Tensor)]


class _Saved:
    """A tensor that is saved for the backward pass, or made anew there without values."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor: Tensor | None = tensor
        self._layout = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)

    def settle(self, ends: _Ends) -> None:
        """Let go of a computed tensor that is not noted."""
        assert self._tensor is not None
        self._sums = ends.sums  # as long as the block's values are there
        if not self._tensor.is_leaf and self._tensor.untyped_storage() not in ends.storages:
            self._tensor = None

    def get(self) -> Tensor:
        """Return the tensor."""
        if self._tensor is not None:
            return self._tensor
        shape, strides, dtype, device = self._layout
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def _run(forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
    saved: list[_Saved] = []

    def pack(tensor: Tensor) -> _Saved:
        saved.append(_Saved(tensor))
        return saved[-1]

    with _Ends((args, named)) as ends, saved_tensors_hooks(pack, _Saved.get):
        out = forward(*args, **named)
    for each in saved:
        each.settle(ends)
    return out
