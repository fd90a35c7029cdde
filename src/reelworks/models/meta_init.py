"""Networks of shapes alone, built on the meta device without drawing weights."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextlib.contextmanager
def build_on_meta() -> Iterator[None]:
    """Build what is built in this context on `meta`; fresh weights are not drawn, which takes most of the time there.

    Nor is garbage collected, which takes half of the rest: all modules are kept.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.device("meta"), _WithoutDraws():
            yield
    finally:
        if collects:
            gc.enable()


class _WithoutDraws(TorchFunctionMode):
    """Return tensors unchanged from the functions of `torch.nn.init`."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) != torch.nn.init.__name__:
            return func(*args, **kwargs)
        return kwargs["tensor"] if "tensor" in kwargs else args[0]
