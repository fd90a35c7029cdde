"""Find the place where two dtypes meet that must not, before torch reports it without a name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from reelworks.precision.boundary import DtypeError


@contextlib.contextmanager
def guard(module: nn.Module) -> Iterator[None]:
    """Check every leaf module with floating parameters at each call while the context is open.

    A leaf whose floating inputs differ in dtype from its parameters raises, unless autocast is on and
    reconciles them. Parameters are looked at when the call happens, so those that FSDP lowers for the
    forward pass count as lowered.

    Raises:
        DtypeError: From inside the forward pass; names module path, both dtypes and the remedy.
    """
    handles = [
        child.register_forward_pre_hook(_check(path or type(module).__name__, module))
        for path, child in module.named_modules()
        if _is_leaf(child)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_leaf(module: nn.Module) -> bool:
    has_children = next(module.children(), None) is not None
    return not has_children and any(p.is_floating_point() for p in module.parameters(recurse=False))


def _check(path: str, root: nn.Module) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    kind = type(root).__name__

    def hook(leaf: nn.Module, args: tuple[Any, ...]) -> None:
        weight = next(p for p in leaf.parameters(recurse=False) if p.is_floating_point())
        for value in args:
            if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != weight.dtype:
                _refuse(path, leaf, kind, value, weight)

    return hook


def _refuse(path: str, leaf: nn.Module, kind: str, value: Tensor, weight: Tensor) -> None:
    device = "cpu" if value.device.type == "meta" else value.device.type
    if torch.is_autocast_enabled(device):
        return
    raise DtypeError(
        f"{type(leaf).__name__} got an input of {value.dtype} and has weights of {weight.dtype}",
        field=path,
        remedy=f"call {kind} through precision.Boundary, which casts inputs of role latent, text and "
        f"condition; or cast what reaches {path} to {weight.dtype}",
    )
