"""Count the bytes of a recipe by place, from sizes alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from reelworks.models import components, registry
from reelworks.models.api import Denoiser
from reelworks.models.family import IMAGE_ENCODERS
from reelworks.models.lora.frozen import quantized_layers
from reelworks.recipe.recipe import Recipe
from reelworks.train import optimizers

_RESERVE_BYTES = 1_000_000_000  # what CUDA takes for itself, and gaps between tensors
# Encoders that are no family's of diffusers.
_PARAMETERS = {
    "pixel": 0,
    "opensora-1.1": 83_653_863,
    "opensora-1.2": 393_341_007,
    "hashed": 0,
    "t5": 4_762_310_656,
}


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU, by part, and beside it.

    Attributes:
        base: Weights that stay as they are, 0 where all are trained; those in use at a time where they come from CPU memory.
        trained: Weights that are trained: a LoRA, or the network.
        gradients: Of those.
        optimizer: What it keeps of each.
        ema: Their average.
        encoders: Autoencoder, text encoders and image encoder.
        activations: Most that a forward and backward pass of the largest bucket holds at a time. What encoders take while
            they encode is gone by then.
        reserve: For CUDA itself.
        host: In CPU memory; not in the total.
    """

    base: int
    trained: int
    gradients: int
    optimizer: int
    ema: int
    encoders: int
    activations: int
    reserve: int = _RESERVE_BYTES
    host: int = 0

    @property
    def total(self) -> int:
        """All parts on the GPU."""
        return sum(self._parts().values())

    def to_text(self) -> str:
        """The parts, largest first, as people read them."""
        parts = sorted(self._parts().items(), key=lambda part: -part[1])
        return ", ".join(f"{name} {size / 1e9:.1f} GB" for name, size in parts if size >= 5e7)

    def _parts(self) -> dict[str, int]:
        return {name: size for name, size in asdict(self).items() if name != "host"}


def held(recipe: Recipe, denoiser: Denoiser) -> Memory:
    """Count what a recipe holds from its first step to its last, without activations.

    Args:
        recipe: What would be trained.
        denoiser: Its network, with or without numbers.
    """
    module = denoiser.module
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    frozen: list[Tensor] = [p for p in module.parameters() if not p.requires_grad]
    frozen += [codes for layer in quantized_layers(module) for codes in layer.buffers()]
    sizes = {"base": size(frozen), "trained": 4 * trained, "gradients": 4 * trained}
    sizes |= {"optimizer": size(_optimizer_state(recipe, denoiser)), "ema": 4 * trained}
    host = 0
    if recipe.parallel.offload:
        host = sum(sizes.values())
        sizes = dict.fromkeys(sizes, 0) | {"base": in_use(module, denoiser.sharding().blocks)}
    pictures, text = _encoders(recipe)
    if recipe.text_encoder.device == "cpu":
        host, text = host + text, 0
    return Memory(**sizes, encoders=pictures + text, activations=0, host=host)


def _optimizer_state(recipe: Recipe, denoiser: Denoiser) -> list[Tensor]:
    """Build the optimizer's state of the trained weights, without numbers."""
    module = denoiser.module
    shapes = {
        name: nn.Parameter(torch.empty_like(p, device="meta"))
        for name, p in module.named_parameters()
        if p.requires_grad
    }
    inner = optimizers.matrices(module, denoiser.sharding().blocks)
    return list(optimizers.ShardedOptimizer(recipe.train, shapes, inner).tensors().values())


def in_use(module: nn.Module, units: Sequence[nn.Module]) -> int:
    """Most bytes of weights that lie on the GPU at a time where they come from CPU memory when they are used.

    A unit and the next, which is on its way; and what belongs to none, which stays for a whole pass.
    """
    of_units = sorted(size(list(unit.parameters())) for unit in units)
    return size(list(module.parameters())) - sum(of_units[:-2])


def moved(recipe: Recipe, denoiser: Denoiser) -> int:
    """Bytes between CPU memory and GPU in a pass forward and backward: all weights there twice, and gradients back."""
    if not recipe.parallel.offload:
        return 0
    weights = list(denoiser.module.parameters())
    return 2 * size(weights) + size([p for p in weights if p.requires_grad])


def size(tensors: Sequence[Tensor]) -> int:
    """Bytes of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _encoders(recipe: Recipe) -> tuple[int, int]:
    """Bytes of the autoencoder and image encoder, and of the text encoders."""
    autoencoders = _PARAMETERS | {name: one.parameters for name, one in registry.AUTOENCODERS.items()}
    texts = _PARAMETERS | {name: one.parameters for name, one in registry.TEXT_ENCODERS.items()}
    wide = 4 if recipe.autoencoder.dtype == "float32" else 2
    pictures = wide * autoencoders[recipe.autoencoder.name]
    if (kind := components.conditioning(recipe.model).image_encoder) is not None:
        pictures += 4 * IMAGE_ENCODERS[kind].parameters
    return pictures, 2 * texts[recipe.text_encoder.name]
