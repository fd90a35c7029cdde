"""Estimate a training before anything is downloaded: memory by part, and seconds.

The network is built in full size on the meta device, where it has shapes and no numbers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch

from reelworks.buckets.table import Bucket, BucketTable
from reelworks.core.shape import Geometry
from reelworks.encoders.encoders import LiveEncoder
from reelworks.models import components
from reelworks.models.api import Denoiser
from reelworks.models.family import IMAGE_ENCODERS
from reelworks.models.lora import frozen
from reelworks.recipe.recipe import Recipe
from reelworks.train import build
from reelworks.train.preflight import dry_run, memory, meter
from reelworks.train.preflight.memory import Memory
from reelworks.train.preflight.meter import Pass

ASSUMED_TFLOPS = 165.0  # of an RTX 4090 in bfloat16, summed in float32
UTILISATION = 0.4  # what trainings of transformers usually reach
BUS_GB = 25.0  # in a second, of PCIe 4.0 with 16 lanes, from pinned memory


@dataclass(frozen=True)
class Estimate:
    """Needs of a recipe on one GPU.

    Attributes:
        parameters: Of the network, without a LoRA.
        trained_parameters: Of the LoRA, or of the network.
        memory: By part.
        flops: Of a micro-batch of each bucket, forward and backward, by the bucket's name.
        measured: False for a network that does not run without numbers: activations are left out then, and arithmetic
            is counted by parameters and tokens.
        moved_bytes: Between CPU memory and the GPU in a micro-batch, where weights lie in CPU memory.
    """

    parameters: int
    trained_parameters: int
    memory: Memory
    flops: dict[str, float]
    measured: bool
    moved_bytes: int = 0

    @property
    def moving_seconds(self) -> float:
        """Seconds that a micro-batch spends on offload transfers."""
        return self.moved_bytes / (BUS_GB * 1e9)

    def seconds(self, bucket: str, tflops: float = ASSUMED_TFLOPS) -> float:
        """Return the seconds of a micro-batch at a speed in bfloat16; encoding and decoding are not counted.

        Weights that are moved are waited for: what is hidden behind arithmetic depends on the machine.
        """
        return self.flops[bucket] / (tflops * 1e12 * UTILISATION) + self.moving_seconds

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "memory": {**asdict(self.memory), "total": self.memory.total}}


def network(recipe: Recipe) -> Denoiser:
    """Build a recipe's network in full size on the meta device; reads no weights.

    Raises:
        UserError: The recipe's parts do not fit together.
    """
    bare = recipe.model_copy(update={"model": recipe.model.model_copy(update={"weights": None})})
    return build.denoiser(bare, torch.device("meta"))


def passes(recipe: Recipe, denoiser: Denoiser, table: BucketTable) -> dict[str, Pass]:
    """Run a micro-batch of each entry's largest bucket; by the bucket's name."""
    return {bucket.name: _pass(recipe, denoiser, bucket) for bucket in _largest_of_each(table)}


def estimate(recipe: Recipe, table: BucketTable) -> Estimate:
    """Estimate memory and arithmetic.

    Args:
        recipe: What would be trained.
        table: Its buckets; of each entry the largest is run.

    Raises:
        UserError: The recipe's parts do not fit together.
    """
    denoiser = network(recipe)
    return from_passes(recipe, table, denoiser, passes(recipe, denoiser, table))


def from_passes(recipe: Recipe, table: BucketTable, denoiser: Denoiser, passes: dict[str, Pass]) -> Estimate:
    """The estimate of a recipe whose network was built and run."""
    parameters, held = _count(denoiser), memory.held(recipe, denoiser)
    trained = sum(p.numel() for p in denoiser.module.parameters() if p.requires_grad)
    return Estimate(
        parameters - trained if recipe.lora is not None else parameters,
        trained,
        replace(held, activations=max(one.peak_bytes for one in passes.values())),
        _of_all(table, {name: one.flops for name, one in passes.items()}),
        denoiser.runs_on_meta,
        memory.moved(recipe, denoiser),
    )


def _count(denoiser: Denoiser) -> int:
    return sum(p.numel() for p in denoiser.module.parameters()) + frozen.count(denoiser.module)


def _largest_of_each(table: BucketTable) -> list[Bucket]:
    """Return of every entry the bucket with the most tokens."""
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
    inputs = dry_run.blank(_sizes(recipe), bucket, bucket.batch_size, torch.device("meta"))
    return meter.measure_few_blocks(denoiser, inputs)


class _Latents(NamedTuple):
    """The part of an autoencoder that shapes follow from."""

    geometry: Geometry
    latent_channels: int


class _Image(NamedTuple):
    """The part of an image encoder that shapes follow from."""

    tokens: int
    dim: int


def _sizes(recipe: Recipe) -> LiveEncoder:
    """The encoders as their sizes alone."""
    conditioning = components.conditioning(recipe.model)
    latents: Any = _Latents(
        components.autoencoder_geometry(recipe.autoencoder), components.latent_channels(recipe.autoencoder)
    )
    text: Any = recipe.text_encoder
    image: Any = None
    if (kind := conditioning.image_encoder) is not None:
        image = _Image(IMAGE_ENCODERS[kind].tokens, conditioning.image_dim)
    return LiveEncoder(latents, text, torch.device("meta"), conditioning, image, build.given_companions(recipe))


def _of_all(table: BucketTable, largest: dict[str, int]) -> dict[str, float]:
    """Arithmetic of every bucket, from that of its entry's largest by tokens."""
    of_entry = {b.entry: largest[b.name] / (b.tokens * b.batch_size) for b in table.buckets if b.name in largest}
    return {b.name: of_entry[b.entry] * b.tokens * b.batch_size for b in table.buckets}
