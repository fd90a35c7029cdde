"""Estimate the memory, by part, and the time of a training, before any weights are downloaded.

The network is built in full size on the meta device, where tensors have shapes and no values.

A compiler that fuses computes anew, in the kernels that need it, what lies between products and attention. So a block that is
compiled, and of which nothing is recomputed, saves its inputs, the sums with them, and what products and attention read and
write. `fused` lets blocks on the meta device save the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reelworks.data.buckets.entry import recomputed_share
from reelworks.data.buckets.table import Bucket, BucketTable
from reelworks.models import recompute
from reelworks.models.adapters import frozen
from reelworks.models.api import Denoiser
from reelworks.models.recompute import ATTENTION, PRODUCTS
from reelworks.training.assembly import build
from reelworks.training.memory import dry_run, memory, meter
from reelworks.training.memory.memory import Estimate, NetworkSizes, Pass
from reelworks.training.memory.step_time import Work
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import optimizers

_CAST = torch.ops.aten._to_copy.default
_SUMS = {torch.ops.aten.add.Tensor, torch.ops.aten.addcmul.default}


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
        with dry_run.without_numbers(denoiser):
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


@contextmanager
def fused(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Let blocks on the meta device save while open what they save when they are compiled, if they can be as a whole."""
    with ExitStack() as stack:
        for block in blocks:
            if any(getattr(type(each).forward, "_torchdynamo_disable", False) for each in block.modules()):
                continue
            stack.enter_context(patch.object(block, "forward", partial(_run, block.forward)))
        yield


class _Ends(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the memory that products and attention read and write while entered, and holds what is added to a block's inputs."""

    def __init__(self, given: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages = WeakSet(each.untyped_storage() for each in _tensors(given))
        self.sums: list[Tensor] = []
        self._stream = WeakSet(self.storages)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in ATTENTION or func in PRODUCTS:
            self.storages.update(each.untyped_storage() for each in _tensors((args, result)))
        elif (func is _CAST or func in _SUMS) and any(
            each.shape == result.shape and each.untyped_storage() in self._stream for each in _tensors(args)
        ):
            self._stream.add(result.untyped_storage())
            if func in _SUMS:
                self.sums.append(result.detach())
        return result


def _tensors(values: Any) -> list[Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, Tensor)]


class _Saved:
    """A tensor that is saved for the backward pass, or made anew there without values."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor: Tensor | None = tensor
        self._layout = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)

    def settle(self, ends: _Ends) -> None:
        """Let go of a computed tensor that is not noted."""
        assert self._tensor is not None
        self._sums = ends.sums  # as long as the block's values are there
        if not self._tensor.is_leaf and self._tensor.untyped_storage() not in ends.storages:
            self._tensor = None

    def get(self) -> Tensor:
        """Return the tensor."""
        if self._tensor is not None:
            return self._tensor
        shape, strides, dtype, device = self._layout
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def _run(forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
    saved: list[_Saved] = []

    def pack(tensor: Tensor) -> _Saved:
        saved.append(_Saved(tensor))
        return saved[-1]

    with _Ends((args, named)) as ends, saved_tensors_hooks(pack, _Saved.get):
        out = forward(*args, **named)
    for each in saved:
        each.settle(ends)
    return out
