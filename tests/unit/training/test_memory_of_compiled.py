"""What a compiled block is said to save for its backward pass is near what torch's own partitioner lets it save."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from reelworks.core.shape import Shape
from reelworks.models.api import Denoiser
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.testing import contract
from reelworks.training.memory.estimate import fused
from reelworks.training.memory.meter import Meter


def build(name: str) -> tuple[Denoiser, list[nn.Module], Any]:
    """Return a network, its blocks, and inputs of many tokens, beside which its weights are small."""
    denoiser = contract.build(name, compute=torch.bfloat16)
    blocks = list(denoiser.sharding().blocks)
    small = contract.shapes(name)[-1]
    return denoiser, blocks, contract.example(Shape(small.num_frames, 6 * small.height, 6 * small.width), name)


@contextmanager
def noting(blocks: list[nn.Module], found: dict[int, tuple[Any, int]], compiled: bool) -> Iterator[None]:
    """Note what is saved in blocks, parameters aside, as torch's partitioner decides or as without a compiler."""

    weights = {p.untyped_storage()._cdata for block in blocks for p in block.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            found[storage._cdata] = (storage, storage.nbytes())  # held, so that no other takes its place
        return tensor

    def run(forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            return forward(*args, **named)

    with ExitStack() as stack:
        for block in blocks:
            forward = block.forward
            if compiled:
                forward = torch.compile(forward, backend="aot_eager_decomp_partition", dynamic=False)
            stack.enter_context(patch.object(block, "forward", partial(run, forward)))
        yield


def saved_bytes(name: str, compiled: bool) -> int:
    torch._dynamo.reset()
    denoiser, blocks, inputs = build(name)
    found: dict[int, tuple[Any, int]] = {}
    with noting(blocks, found, compiled):
        DtypeBoundary(denoiser)(inputs)
    return sum(size for _, size in found.values())


def told_bytes(name: str) -> int:
    """Return what the meter counts after a forward pass; few of it is saved outside of blocks."""
    denoiser, blocks, inputs = build(name)
    meter = Meter(denoiser.module)
    with meter, fused(blocks):
        out = DtypeBoundary(denoiser)(inputs)
    held = meter._now
    del out
    return held


@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.slow(reason="compiles")
@pytest.mark.parametrize("name", ["stdit3-tiny", "flux-tiny", "kandinsky5-tiny", "ltx-tiny"])
def test_blocks_save_what_torchs_partitioner_saves(name: str) -> None:
    plain, compiled, told = saved_bytes(name, False), saved_bytes(name, True), told_bytes(name)
    assert compiled < 0.9 * plain
    assert 0.8 * compiled < told < 1.35 * compiled


def test_a_block_that_is_compiled_in_parts_saves_what_it_does_without_a_compiler() -> None:
    """As those of HiDream, whose experts are not compiled."""
    _, blocks, _ = build("hidream-i1-tiny")
    forwards = [block.forward for block in blocks]
    with fused(blocks):
        assert [block.forward for block in blocks] == forwards
