"""Decide how ranks share a network in training, from the recipe and the size of the network."""

from __future__ import annotations

from torch import Tensor

from reelworks.data.distributed import layout
from reelworks.data.distributed.layout import Layout, Needs
from reelworks.models.adapters import frozen
from reelworks.models.api import Denoiser
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import optimizer_names

# A trained weight has a gradient, an average and two moments of the optimizer beside itself, all in float32.
_BYTES_BESIDE_A_TRAINED_WEIGHT = 16


def choose(
    recipe: Recipe, denoiser: Denoiser, *, ranks: int, local_ranks: int, device_bytes: int
) -> tuple[Layout, str]:
    """Return the layout of a recipe's network, which is not sharded yet, and the reason for it.

    Raises:
        UserError: The ranks cannot be divided as the recipe says, or the optimizer cannot work on shards.
    """
    needs = Needs(
        is_lora=recipe.lora is not None,
        state_bytes=state_bytes(denoiser),
        device_bytes=device_bytes,
        whole=optimizer_names.OPTIMIZERS[recipe.train.optimizer].whole,
    )
    chosen, reason = layout.choose(recipe.parallel, ranks, local_ranks, needs)
    optimizer_names.require(recipe.train.optimizer, chosen)
    return chosen, reason


def state_bytes(denoiser: Denoiser) -> int:
    """Return the bytes of one full copy of a network with its gradients, optimizer state and average."""
    module = denoiser.module
    held: list[Tensor] = [*module.parameters(), *module.buffers()]
    held += [buffer for layer in frozen.quantized_layers(module) for buffer in layer.buffers()]
    unique = {id(tensor): tensor.numel() * tensor.element_size() for tensor in held}
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return sum(unique.values()) + _BYTES_BESIDE_A_TRAINED_WEIGHT * trained
