"""What a training takes, told before anything is downloaded: memory by part, and seconds.

The network is built in full size on the meta device, where it has shapes and no numbers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reelworks.buckets.table import Bucket, BucketTable
from reelworks.core.shape import Geometry
from reelworks.encode.live import LiveEncoder
from reelworks.models import config as models
from reelworks.models import published
from reelworks.models.api import Denoiser
from reelworks.models.lora import quantized
from reelworks.recipe.recipe import Recipe
from reelworks.train import build, meter, rehearsal
from reelworks.train.meter import Pass

ASSUMED_TFLOPS = 165.0  # of an RTX 4090 in bfloat16, summed in float32
UTILISATION = 0.4  # what trainings of transformers usually reach
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
    """Bytes on one GPU, by part.

    Attributes:
        base: Weights that stay as they are; 0 where all are trained.
        trained: Weights that are trained: a LoRA, or the network.
        gradients: Of those.
        optimizer: Two moments of each.
        ema: Their average.
        encoders: Autoencoder and text encoders.
        activations: Most that a forward and backward pass of the largest bucket holds at a time.
        reserve: For CUDA itself.
    """

    base: int
    trained: int
    gradients: int
    optimizer: int
    ema: int
    encoders: int
    activations: int
    reserve: int = _RESERVE_BYTES

    @property
    def total(self) -> int:
        """All parts."""
        return sum(asdict(self).values())

    def words(self) -> str:
        """The parts, largest first, as people read them."""
        parts = sorted(asdict(self).items(), key=lambda part: -part[1])
        return ", ".join(f"{name} {size / 1e9:.1f} GB" for name, size in parts if size >= 5e7)


@dataclass(frozen=True)
class Estimate:
    """What a recipe takes on one GPU.

    Attributes:
        parameters: Of the network, without a LoRA.
        trained_parameters: Of the LoRA, or of the network.
        memory: By part.
        flops: Of a micro-batch of each bucket, forward and backward, by the bucket's name.
        measured: False for a network that does not run without numbers: activations are left out then, and arithmetic
            is counted by parameters and tokens.
    """

    parameters: int
    trained_parameters: int
    memory: Memory
    flops: dict[str, float]
    measured: bool

    def seconds(self, bucket: str, tflops: float = ASSUMED_TFLOPS) -> float:
        """Of a micro-batch on a GPU that can do so much in bfloat16; encoding and decoding not counted."""
        return self.flops[bucket] / (tflops * 1e12 * UTILISATION)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "memory": {**asdict(self.memory), "total": self.memory.total}}


@dataclass(frozen=True)
class Held:
    """What a recipe holds from its first step to its last, before anything is run.

    Attributes:
        denoiser: In full size, on the meta device.
        memory: Without activations.
    """

    denoiser: Denoiser
    memory: Memory


def held(recipe: Recipe) -> Held:
    """Build a recipe's network without numbers, and count; reads no weights.

    Raises:
        UserError: The recipe's parts do not fit together.
    """
    bare = recipe.model_copy(update={"model": recipe.model.model_copy(update={"weights": None})})
    denoiser = build.denoiser(bare, torch.device("meta"))
    parameters = list(denoiser.module.parameters())
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    frozen: list[Tensor] = [p for p in parameters if not p.requires_grad]
    frozen += [codes for layer in quantized.layers(denoiser.module) for codes in layer.buffers()]
    memory = Memory(
        base=sum(value.numel() * value.element_size() for value in frozen),
        trained=4 * trained,
        gradients=4 * trained,
        optimizer=8 * trained,
        ema=4 * trained,
        encoders=_encoders(recipe),
        activations=0,
    )
    return Held(denoiser, memory)


def estimate(recipe: Recipe, table: BucketTable, there: Held | None = None) -> Estimate:
    """Estimate memory and arithmetic.

    Args:
        recipe: What would be trained.
        table: Its buckets; of each entry the largest is run.
        there: What `held` found, if that was asked.

    Raises:
        UserError: The recipe's parts do not fit together.
    """
    there = held(recipe) if there is None else there
    denoiser, memory = there.denoiser, there.memory
    passes = {bucket.name: _pass(recipe, denoiser, bucket) for bucket in _largest_of_each(table)}
    parameters = _count(denoiser)
    trained = memory.trained // 4
    return Estimate(
        parameters - trained if recipe.lora is not None else parameters,
        trained,
        replace(memory, activations=max(one.peak_bytes for one in passes.values())),
        _of_all(table, {name: one.flops for name, one in passes.items()}),
        denoiser.runs_on_meta,
    )


def _count(denoiser: Denoiser) -> int:
    return sum(p.numel() for p in denoiser.module.parameters()) + quantized.count(denoiser.module)


def _largest_of_each(table: BucketTable) -> list[Bucket]:
    """Of every entry the bucket with the most tokens."""
    best: dict[int, Bucket] = {}
    for bucket in sorted(table.buckets, key=lambda b: b.tokens):
        best[bucket.entry] = bucket
    return list(best.values())


def _pass(recipe: Recipe, denoiser: Denoiser, bucket: Bucket) -> Pass:
    if not denoiser.runs_on_meta:
        weights = _count(denoiser)
        times = 2 if recipe.lora is not None else 3  # of a frozen weight no gradient is made
        times += recipe.model.gradient_checkpointing
        return Pass(0, 2 * times * weights * bucket.tokens * bucket.batch_size)
    inputs = rehearsal.blank(_sizes(recipe), bucket, bucket.batch_size, torch.device("meta"))
    return meter.measure(denoiser, inputs)


class _Latents(NamedTuple):
    """Of an autoencoder what shapes follow from."""

    geometry: Geometry
    latent_channels: int


def _sizes(recipe: Recipe) -> LiveEncoder:
    """Both encoders as their sizes alone."""
    latents: Any = _Latents(
        models.autoencoder_geometry(recipe.autoencoder), models.latent_channels(recipe.autoencoder)
    )
    text: Any = recipe.text
    return LiveEncoder(latents, text, torch.device("meta"), models.conditioning(recipe.model))


def _of_all(table: BucketTable, largest: dict[str, int]) -> dict[str, float]:
    """Arithmetic of every bucket, from that of its entry's largest by tokens."""
    of_entry = {
        b.entry: largest[b.name] / (b.tokens * b.batch_size) for b in table.buckets if b.name in largest
    }
    return {b.name: of_entry[b.entry] * b.tokens * b.batch_size for b in table.buckets}


def _encoders(recipe: Recipe) -> int:
    autoencoder, text = recipe.autoencoder.name, recipe.text.name
    counts = _PARAMETERS | {name: one.parameters for name, one in published.AUTOENCODERS.items()}
    of_text = _PARAMETERS | {name: one.parameters for name, one in published.TEXT_ENCODERS.items()}
    wide = 4 if recipe.autoencoder.dtype == "float32" else 2
    return wide * counts[autoencoder] + 2 * of_text[text]
