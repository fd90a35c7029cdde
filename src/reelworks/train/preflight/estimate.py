"""Estimate the memory, by part, and the time of a training, before any weights are downloaded.

The network is built in full size on the meta device, where tensors have shapes and no values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from reelworks.buckets.table import Bucket, BucketTable
from reelworks.encoders.encoders import LiveEncoder
from reelworks.models import components, registry
from reelworks.models.api import Denoiser
from reelworks.models.family import IMAGE_ENCODERS
from reelworks.models.lora import frozen
from reelworks.recipe.recipe import Recipe
from reelworks.train import build, optimizers
from reelworks.train.preflight import dry_run, meter
from reelworks.train.preflight.meter import Pass

ASSUMED_TFLOPS = 165.0  # of an RTX 4090 in bfloat16, summed in float32
UTILISATION = 0.4  # usual in the training of transformers
BUS_GB = 25.0  # per second, of PCIe 4.0 with 16 lanes, from pinned memory
_RESERVE_BYTES = 1_000_000_000  # for the CUDA context, and for fragmentation
# Parameters of the encoders that do not belong to a family of diffusers.
_PARAMETERS = {"pixel": 0, "opensora-1.1": 83_653_863, "opensora-1.2": 393_341_007, "hashed": 0, "t5": 4_762_310_656}


@dataclass(frozen=True)
class Memory:
    """Memory on one GPU in bytes, by part, and CPU memory.

    Attributes:
        base: Frozen weights, 0 without a LoRA; with offload only those on the GPU at one time.
        trained: Trained weights: a LoRA, or the network.
        encoders: Autoencoder, text encoders and image encoder; if latents are stored and there are no previews, what
            encoding needs beyond the memory of training.
        activations: Peak of a forward and backward pass of the largest bucket; memory of encoding is released by then.
        reserve: Memory for CUDA itself.
        host: CPU memory, not part of the total.
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
        """Sum of all parts on the GPU."""
        return sum(self._parts().values())

    def to_text(self) -> str:
        """Return the parts in GB, largest first, without those below 0.05 GB."""
        parts = sorted(self._parts().items(), key=lambda part: -part[1])
        return ", ".join(f"{name} {size / 1e9:.1f} GB" for name, size in parts if size >= 5e7)

    def _parts(self) -> dict[str, int]:
        return {name: size for name, size in asdict(self).items() if name != "host"}


@dataclass(frozen=True)
class Estimate:
    """Memory and arithmetic of a recipe on one GPU.

    Attributes:
        parameters: Number of parameters of the network, without a LoRA.
        trained_parameters: Number of parameters of the LoRA, or of the network.
        flops: Operations of a forward and backward pass of a micro-batch, by bucket name.
        measured: False for a network that cannot run on the meta device: activations are left out, and `flops` is
            computed from the numbers of parameters and tokens.
        moved_bytes: Bytes that a micro-batch moves between CPU memory and the GPU, with offload.
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
        """Return the seconds of a micro-batch at a speed in bfloat16, without encoding and decoding.

        Transfers are added in full, although some GPUs hide them behind arithmetic.
        """
        return self.flops[bucket] / (tflops * 1e12 * UTILISATION) + self.moving_seconds

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as plain values."""
        return {**asdict(self), "memory": {**asdict(self.memory), "total": self.memory.total}}


def network(recipe: Recipe) -> Denoiser:
    """Build a recipe's network in full size on the meta device; of weights it reads only how large their codes are."""
    if recipe.lora is not None and recipe.lora.base == "gguf":
        return build.denoiser(recipe, torch.device("meta"))
    without_weights = recipe.model_copy(update={"model": recipe.model.model_copy(update={"weights": None})})
    return build.denoiser(without_weights, torch.device("meta"))


def estimate(recipe: Recipe, table: BucketTable) -> Estimate:
    """Estimate memory and arithmetic of a recipe."""
    denoiser = network(recipe)
    return from_passes(recipe, table, denoiser, passes(recipe, denoiser, table))


def passes(recipe: Recipe, denoiser: Denoiser, table: BucketTable) -> dict[str, Pass]:
    """Run a micro-batch of each entry's largest bucket on the meta device; returns the passes by bucket name."""
    largest: dict[int, Bucket] = {}
    for bucket in sorted(table.buckets, key=lambda b: b.tokens):
        largest[bucket.entry] = bucket
    return {bucket.name: _pass(recipe, denoiser, bucket) for bucket in largest.values()}


def _pass(recipe: Recipe, denoiser: Denoiser, bucket: Bucket) -> Pass:
    clips = bucket.batch_size * recipe.clips_per_place
    if not denoiser.runs_on_meta:
        times = 2 if recipe.lora is not None else 3  # frozen weights get no gradient
        times += recipe.model.gradient_checkpointing is True
        return Pass(0, 2 * times * _count(denoiser) * bucket.tokens * clips)
    inputs = dry_run.blank(encoder_sizes(recipe), bucket, clips, torch.device("meta"))
    return meter.measure_few_blocks(denoiser, inputs)


def from_passes(recipe: Recipe, table: BucketTable, denoiser: Denoiser, passes: dict[str, Pass]) -> Estimate:
    """Return the estimate of a recipe, given its network and its passes."""
    parameters, memory = _count(denoiser), memory_without_activations(recipe, denoiser)
    memory = _with_encoders(recipe, replace(memory, activations=max(each.peak_bytes for each in passes.values())))
    trained = sum(p.numel() for p in denoiser.module.parameters() if p.requires_grad)
    # Scale the operations of each entry's largest bucket to the tokens of the others.
    per_token = {b.entry: passes[b.name].flops / (b.tokens * b.batch_size) for b in table.buckets if b.name in passes}
    weights = list(denoiser.module.parameters())
    # A pass moves all weights to the GPU twice, forward and backward, and gradients back.
    moved = 2 * size(weights) + size([p for p in weights if p.requires_grad]) if recipe.parallel.offload else 0
    return Estimate(
        parameters - trained if recipe.lora is not None else parameters,
        trained,
        memory,
        {b.name: per_token[b.entry] * b.tokens * b.batch_size for b in table.buckets},
        denoiser.runs_on_meta,
        moved,
    )


def _count(denoiser: Denoiser) -> int:
    return sum(p.numel() for p in denoiser.module.parameters()) + frozen.count(denoiser.module)


def encoder_sizes(recipe: Recipe) -> LiveEncoder:
    """Return encoders that have only the sizes which `dry_run.blank` needs."""
    conditioning = components.conditioning(recipe.model)
    autoencoder: Any = SimpleNamespace(
        geometry=components.autoencoder_geometry(recipe.autoencoder),
        latent_channels=components.latent_channels(recipe.autoencoder),
    )
    text: Any = recipe.text_encoder
    image: Any = None
    if (kind := conditioning.image_encoder) is not None:
        image = SimpleNamespace(tokens=IMAGE_ENCODERS[kind].tokens, dim=conditioning.image_dim)
    return LiveEncoder(autoencoder, text, torch.device("meta"), conditioning, image, build.given_companions(recipe))


def memory_without_activations(recipe: Recipe, denoiser: Denoiser) -> Memory:
    """Compute the memory that a recipe needs in all steps, from the sizes of its network on any device."""
    module, blocks = denoiser.module, denoiser.sharding().blocks
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    trained_bytes = 4 * sum(p.numel() for p in trained.values())
    base: list[Tensor] = [p for p in module.parameters() if not p.requires_grad]
    base += [buffer for layer in frozen.quantized_layers(module) for buffer in layer.buffers()]
    on_meta = {name: nn.Parameter(torch.empty_like(p, device="meta")) for name, p in trained.items()}
    optimizer = optimizers.ShardedOptimizer(recipe.train, on_meta, optimizers.matrices(module, blocks))
    sizes = {
        "base": size(base),
        "trained": trained_bytes,
        "gradients": trained_bytes,
        "optimizer": size(list(optimizer.tensors().values())),
        "ema": trained_bytes,
    }
    host = 0
    if recipe.train.ema_device == "cpu" and not recipe.parallel.offload:
        host, sizes["ema"] = sizes["ema"], 0
    if recipe.parallel.offload:
        host = sum(sizes.values())
        sizes = dict.fromkeys(sizes, 0) | {"base": bytes_in_use(module, blocks)}
    if recipe.text_encoder.device == "cpu":
        host += _encoder_bytes(recipe)[1]
    return _with_encoders(recipe, Memory(**sizes, encoders=0, activations=0, host=host))


def _with_encoders(recipe: Recipe, memory: Memory) -> Memory:
    """Return the memory of training with that of the encoders, which come before the network if latents are stored."""
    images, text = _encoder_bytes(recipe)
    text = text if recipe.text_encoder.device == "auto" else 0
    kept = images * recipe.keeps_autoencoder + text * recipe.keeps_text_encoder
    training = memory.total - memory.encoders + kept
    return replace(memory, encoders=kept + max(images + text + memory.reserve - training, 0))


def _encoder_bytes(recipe: Recipe) -> tuple[int, int]:
    """Return the bytes of autoencoder and image encoder, and of the text encoders."""
    autoencoders = _PARAMETERS | {name: each.parameters for name, each in registry.AUTOENCODERS.items()}
    texts = _PARAMETERS | {name: each.parameters for name, each in registry.TEXT_ENCODERS.items()}
    images = (4 if recipe.autoencoder.dtype == "float32" else 2) * autoencoders[recipe.autoencoder.name]
    if (kind := components.conditioning(recipe.model).image_encoder) is not None:
        images += 4 * IMAGE_ENCODERS[kind].parameters
    return images, 2 * texts[recipe.text_encoder.name]


def bytes_in_use(module: nn.Module, units: Sequence[nn.Module]) -> int:
    """Return the most bytes of offloaded weights that are on the GPU at one time.

    They are a unit, the next unit, which is fetched ahead, and the weights outside of units, which stay for a pass.
    """
    unit_bytes = sorted(size(list(unit.parameters())) for unit in units)
    return size(list(module.parameters())) - sum(unit_bytes[:-2])


def size(tensors: Sequence[Tensor]) -> int:
    """Return the bytes of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
