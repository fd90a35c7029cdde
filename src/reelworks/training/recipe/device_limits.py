"""Refuse what a recipe asks for and the device lacks, before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reelworks.core import machine
from reelworks.core.errors import UserError
from reelworks.training.recipe.recipe import Recipe

if TYPE_CHECKING:
    import torch


def require(recipe: Recipe, device: torch.device) -> None:
    """Raise `UserError` if a recipe asks for what Apple's GPUs lack; other devices are asked where they compute."""
    if not machine.is_apple(device):
        return
    base, int8_products = (recipe.lora.base, recipe.lora.int8_products) if recipe.lora else (None, False)
    asked = (
        ("lora.base", base, base == "float8", "torch has no float8", 'set "int8" or "nf4"'),
        ("lora.int8_products", int8_products, int8_products, "torch has no products of int8", "leave it out"),
        ("train.compile", recipe.train.compile, recipe.train.compile, "compiled code was not tested", "leave it out"),
        (
            "train.optimizer",
            recipe.train.optimizer,
            recipe.train.optimizer == "adamw8bit",
            "the optimizer of bitsandbytes has kernels for CUDA",
            'set "adamw"',
        ),
        (
            "parallel.offload",
            recipe.parallel.offload,
            recipe.parallel.offload,
            "weights on the CPU take the same memory",
            'leave it out, or set lora.base = "nf4"',
        ),
    )
    for field, value, is_asked, problem, remedy in asked:
        if is_asked:
            raise UserError(
                f"this trains on Apple's GPU, and there {problem}",
                code="not-on-apple-gpu",
                field=field,
                value=value,
                remedy=remedy,
            )
