"""Estimate the memory, by part, and the time of a training, before any weights are downloaded.

The network is built in full size on the meta device, where tensors have shapes and no values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from reelworks.data.buckets.entry import recomputed_share
from reelworks.data.buckets.table import Bucket, BucketTable
from reelworks.models import recompute
from reelworks.models.adapters import frozen
from reelworks.models.api import Denoiser
from reelworks.training.assembly import build
from reelworks.training.memory import dry_run, memory, meter
from reelworks.training.memory.fused import fused
from reelworks.training.memory.memory import Estimate, NetworkSizes, Pass
from reelworks.training.memory.step_time import Work
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import optimizers


def network(recipe: Recipe) -> Denoiser:
    """Build a recipe's network in full size on the meta device; of weights it reads only how large their codes are."""
    if recipe.lora is not None and recipe.lora.base == "gguf":
        return build.denoiser(recipe, torch.device("meta"))
    without_weights = recipe.model_copy(update={"model": recipe.model.model_copy(update={"weights": None})})
    return build.denoiser(without_weights, torch.device("meta"))


def estimate(recipe: Recipe, table: BucketTable) -> Estimate:
    """Estimate memory and work of a recipe."""
    denoiser = network(recipe)
    return memory.from_passes(recipe, table, sizes(recipe, denoiser), partial(one_pass, recipe, denoiser))


def one_pass(recipe: Recipe, denoiser: Denoiser, bucket: Bucket) -> Pass:
    """Run a micro-batch of a bucket on the meta device; its memory is that of a rank's share."""
    return memory.of_rank(recipe, bucket, partial(_whole_pass, recipe, denoiser))


def _whole_pass(recipe: Recipe, denoiser: Denoiser, bucket: Bucket) -> Pass:
    clips = bucket.batch_size * recipe.clips_per_place
    if denoiser.runs_on_meta:
        return measured_pass(recipe, denoiser, bucket, clips)
    times = 2 if recipe.lora is not None else 3  # frozen weights get no gradient
    more = recomputed_share(memory.recomputation(recipe, bucket))
    flops = round(2 * (times + more) * _count(denoiser) * bucket.tokens * clips)
    return Pass(0, flops, Work(flops, 0, 0))


def measured_pass(recipe: Recipe, denoiser: Denoiser, bucket: Bucket, clips: int) -> Pass:
    """Run some clips of a bucket on the meta device as the recipe's training does."""
    inputs = dry_run.blank(build.lazy_encoder(recipe, torch.device("meta")), bucket, clips, torch.device("meta"))
    accumulates = recipe.train.gradient_accumulation_steps > 1 or (recipe.train.micro_batches_per_step or 1) > 1
    recomputed = memory.recomputation(recipe, bucket)
    with contextlib.ExitStack() as stack:
        stack.enter_context(recompute.by(recomputed))
        if recipe.train.compile and recomputed:
            stack.enter_context(recompute.as_compiled())
        elif recipe.train.compile and _fuses(recipe):
            stack.enter_context(fused(denoiser.sharding().blocks))
        return meter.measure_few_blocks(denoiser, inputs, accumulates=accumulates)


def _fuses(recipe: Recipe) -> bool:
    """Whether a pass without recomputation is compiled into few kernels; a network that never recomputes is rehearsed uncompiled."""
    return recipe.train.compile_backend == "inductor" and recipe.model.gradient_checkpointing == "auto"


def _count(denoiser: Denoiser) -> int:
    return sum(p.numel() for p in denoiser.module.parameters()) + frozen.count(denoiser.module)


def sizes(recipe: Recipe, denoiser: Denoiser) -> NetworkSizes:
    """Return the sizes of a recipe's network, which may be on any device."""
    module, blocks = denoiser.module, denoiser.sharding().blocks
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    base: list[Tensor] = [p for p in module.parameters() if not p.requires_grad]
    base += [buffer for layer in frozen.quantized_layers(module) for buffer in layer.buffers()]
    on_meta = {name: nn.Parameter(torch.empty_like(p, device="meta")) for name, p in trained.items()}
    inner, experts = optimizers.matrices(module, blocks), optimizers.experts(module)
    optimizer = optimizers.ShardedOptimizer(recipe.train, on_meta, inner, experts)
    count = sum(p.numel() for p in trained.values())
    return NetworkSizes(
        _count(denoiser) - count if recipe.lora is not None else _count(denoiser),
        count,
        size(base),
        size(list(optimizer.tensors().values())),
        bytes_in_use(module, blocks),
        denoiser.runs_on_meta,
    )


def bytes_in_use(module: nn.Module, blocks: Sequence[nn.Module]) -> int:
    """Return the most bytes of offloaded weights that are on the GPU at one time.

    They are a block, the next block, which is fetched ahead, and the weights outside of blocks, which stay for a pass.
    """
    block_bytes = sorted(size(list(block.parameters())) for block in blocks)
    return size(list(module.parameters())) - sum(block_bytes[:-2])


def size(tensors: Sequence[Tensor]) -> int:
    """Return the bytes of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
