"""Checks of dtypes at every module call, which report the module's path when dtypes do not match."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from reelworks.precision.boundary import DtypeError
from reelworks.precision.contract import name_of

# Words in torch's errors about dtypes.
_OF_DTYPES = re.compile(r"dtype|scalar type|should be the same|to be bool|BFloat16|Half|Double")

_CASTS_ITSELF = "FP32LayerNorm"  # of diffusers: computes in float32, whatever its input and its weights are


class Calls:
    """Stack of the modules whose forward pass is running."""

    def __init__(self, root: nn.Module) -> None:
        self._kind = type(root).__name__
        self._paths: list[str] = []
        self._failed: tuple[BaseException | None, str] = (None, "")

    @property
    def path(self) -> str:
        """Path of the innermost running module."""
        return (self._paths[-1] if self._paths else "") or self._kind

    def enter(self, path: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        """Return the hook that runs before a module's forward."""
        return lambda _module, _args: self._paths.append(path)

    def leave(self, path: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        """Return the hook that runs after a module's forward, also on errors; it refuses float64 outputs."""

        def hook(module: nn.Module, _args: tuple[Any, ...], result: Any) -> None:
            error = sys.exc_info()[1]
            if error is not None and self._failed[0] is not error:
                self._failed = error, self.path
            self._paths.pop()
            for value in result if isinstance(result, tuple) else (result,):
                if isinstance(value, Tensor) and value.dtype == torch.float64:
                    raise DtypeError(
                        f"{type(module).__name__} returns float64, which makes later operations slow or fail",
                        field=path or self._kind,
                        remedy="give constants of numpy and Python a dtype, and cast to float32 at the end",
                        found=torch.float64,
                        declared=torch.float32,
                    )

        return hook

    def named(self, error: RuntimeError) -> DtypeError | None:
        """Return torch's error about dtypes with the path of its module, or None for other errors."""
        failed, path = self._failed
        text = str(error).splitlines()[0] if str(error) else ""
        if failed is not error or not _OF_DTYPES.search(text):
            return None
        return DtypeError(
            f"an operation inside refuses its dtypes ({text})",
            field=path,
            remedy=f"cast one of them inside {path}, or call {self._kind} through precision.DtypeBoundary",
        )


@contextlib.contextmanager
def guard(module: nn.Module) -> Iterator[Calls]:
    """Check every module at each call while the context is open.

    A leaf whose floating inputs differ in dtype from its parameters raises, unless autocast reconciles them, which it
    does not do for float64. Parameters are read at the call, so those that FSDP lowers for the forward pass count as
    lowered. Errors of other modules are raised with their path.
    """
    calls, handles = Calls(module), []
    for path, child in module.named_modules():
        handles += [
            child.register_forward_pre_hook(calls.enter(path)),
            child.register_forward_hook(calls.leave(path), always_call=True),
        ]
        if _is_leaf(child):
            handles.append(child.register_forward_pre_hook(_check(path or type(module).__name__, module)))
    try:
        yield calls
    except RuntimeError as error:
        named = calls.named(error)
        if named is None:
            raise
        raise named from error
    finally:
        for handle in handles:
            handle.remove()


def _is_leaf(module: nn.Module) -> bool:
    if type(module).__name__ == _CASTS_ITSELF or next(module.children(), None) is not None:
        return False
    return any(p.is_floating_point() for p in module.parameters(recurse=False))


def _check(path: str, root: nn.Module) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def hook(leaf: nn.Module, args: tuple[Any, ...]) -> None:
        weight = next(p for p in leaf.parameters(recurse=False) if p.is_floating_point())
        for value in args:
            if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype == weight.dtype:
                continue
            device = "cpu" if value.device.type == "meta" else value.device.type
            if torch.is_autocast_enabled(device) and value.dtype != torch.float64:
                continue
            declared = name_of(weight.dtype)
            raise DtypeError(
                f"{type(leaf).__name__} got an input of {name_of(value.dtype)}, but has weights of {declared}",
                field=path,
                remedy=f"call {type(root).__name__} through precision.DtypeBoundary, which casts inputs of role latent, "
                f"text and condition; or cast the input of {path} to {declared}",
                found=value.dtype,
                declared=weight.dtype,
            )

    return hook
