"""Store less in the forward pass of blocks and recompute it in the backward pass (gradient checkpointing)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from reelworks.core.context_variables import setting
from reelworks.data.buckets.entry import Recomputation

# What a network is built with: "auto" leaves it to `by`, which says for each micro-batch how its bucket is recomputed.
Recompute = bool | Literal["selective", "auto"]

_aten = torch.ops.aten
# Their results take long to compute for their size; what lies between them is quick.
ATTENTION = frozenset(
    {
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
    }
)
PRODUCTS = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten.linear.default,
        _aten.convolution.default,
    }
)
_kept: ContextVar[frozenset[Any]] = ContextVar("kept", default=ATTENTION | PRODUCTS)


def _policy(_context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _kept.get() else CheckpointPolicy.PREFER_RECOMPUTE


def as_compiled() -> AbstractContextManager[None]:
    """Keep what compiled blocks let torch see while open: attention, and not the products inside their kernels."""
    return setting(_kept, ATTENTION)


class _Blocks:
    """Blocks of a forward pass, of which a share keeps its inputs alone."""

    def __init__(self, recompute: Recomputation) -> None:
        self._recompute, self._count = recompute, 0

    def next(self) -> bool | Literal["selective"]:
        """Return how the next block is recomputed; the last blocks of a pass, whose turn comes first, store more."""
        if not isinstance(self._recompute, float):
            return self._recompute
        before, self._count = self._count, self._count + 1
        turns = (math.ceil(count * self._recompute) for count in (before, self._count))
        return "selective" if next(turns) == next(turns) else True


_blocks: ContextVar[_Blocks | None] = ContextVar("blocks", default=None)


def by(recompute: Recomputation) -> AbstractContextManager[None]:
    """Recompute the blocks of networks that were built with "auto" so in forward passes within the context.

    Their backward passes may come later. Without it, such networks keep the inputs of blocks alone.
    """
    return setting(_blocks, _Blocks(recompute))


def of_eager_pass(recompute: Recomputation, *, compiles: bool) -> Recomputation:
    """Return how a pass recomputes that is not compiled in a training that compiles: without, it keeps more than compiled ones."""
    return True if compiles and recompute is False else recompute


@contextmanager
def _without_autocast_cache() -> Iterator[None]:
    """Lower each weight where it is used: those that another block has lowered would be missing when one is recomputed."""
    former = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(former)


def run_block(block: Callable[..., Any], recompute: Recompute, *args: Any, **named: Any) -> Any:
    """Call a block, storing for the backward pass what `recompute` says."""
    if recompute == "auto":
        blocks = _blocks.get()
        recompute = True if blocks is None else blocks.next()
    if not recompute or not torch.is_grad_enabled():
        return block(*args, **named)
    if recompute == "selective":
        contexts = partial(create_selective_checkpoint_contexts, _policy)
        with _without_autocast_cache():
            return checkpoint(block, *args, use_reentrant=False, context_fn=contexts, **named)
    return checkpoint(block, *args, use_reentrant=False, **named)


def enable(module: Any, recompute: Recompute) -> None:
    """Turn recomputation on in a network of diffusers."""
    if recompute:
        module.enable_gradient_checkpointing(
            lambda block, *args, **named: run_block(block.__call__, recompute, *args, **named)
        )
