"""Kandinsky 5 of diffusers without the rounding to bfloat16 that it does in any dtype."""

import torch
from torch.overrides import TorchFunctionMode


class Unrounded(TorchFunctionMode):
    """Leaves what is cast to bfloat16 as it is."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.to and args[1:] == (torch.bfloat16,):
            return args[0]
        return func(*args, **(kwargs or {}))
