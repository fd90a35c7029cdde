"""Keep networks of diffusers from waiting for the device before their blocks, by modes that replace functions of torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from reelworks.data.loader import upload


class NumbersSent(TorchFunctionMode):
    """Mode that makes tensors of Python numbers on the host, and sends them to the device without waiting for it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace what copies numbers."""
        kwargs = kwargs or {}
        if func not in (torch.tensor, torch.as_tensor) or isinstance(args[0], Tensor) or not kwargs.get("device"):
            return func(*args, **kwargs)
        return upload.to_device(func(*args, **kwargs | {"device": "cpu"}), torch.device(kwargs["device"]))


@contextmanager
def until_called(block: nn.Module, mode: TorchFunctionMode) -> Iterator[None]:
    """Keep a mode on until the first block is called: blocks may be compiled, and may be computed once more without it."""
    with ExitStack() as stack, block.register_forward_pre_hook(lambda *_: stack.close()):
        stack.enter_context(mode)
        yield
