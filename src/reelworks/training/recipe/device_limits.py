"""Refuse what a recipe asks for and the device lacks, before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reelworks.core import machine
from reelworks.core.errors import UserError
from reelworks.training.recipe.recipe import Recipe

if TYPE_CHECKING:
    import torch


# What Apple's GPUs lack, by recipe key: the value that asks for it, why it is not there, and what to do.
_NOT_ON_APPLE: dict[str, tuple[object, str, str]] = {
    "lora.base": ("float8", "torch has no float8", 'set "int8" or "nf4"'),
    "lora.int8_products": (True, "torch has no products of int8", "leave it out"),
    "train.compile": (True, "compiled code was not tested", "leave it out"),
    "train.optimizer": ("adamw8bit", "the optimizer of bitsandbytes has kernels for CUDA", 'set "adamw"'),
    "parallel.offload": (True, "weights on the CPU take the same memory", 'leave it out, or set lora.base = "nf4"'),
}


def require(recipe: Recipe, device: torch.device) -> None:
    """Raise `UserError` if a recipe asks for what Apple's GPUs lack; other devices are asked where they compute."""
    if not machine.is_apple(device):
        return
    for field, (value, problem, remedy) in _NOT_ON_APPLE.items():
        table, key = field.split(".")
        if getattr(getattr(recipe, table), key, None) == value:
            raise UserError(
                f"this trains on Apple's GPU, and there {problem}",
                code="not-on-apple-gpu",
                field=field,
                value=value,
                remedy=remedy,
            )
