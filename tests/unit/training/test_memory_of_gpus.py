"""Passes are measured as a GPU computes them, and the model of its allocator keeps to torch's rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from caching_allocator import MIB, CachingAllocator
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from reelworks.training.memory import meter, step_time

FUNCTIONS = {
    "layer_norm": lambda x: functional.layer_norm(x, (8,)),
    "rms_norm": lambda x: functional.rms_norm(x, (8,), torch.ones(8, device=x.device)),
    "group_norm": lambda x: functional.group_norm(x, 2),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: functional.log_softmax(x, dim=-1),
    "sum": torch.Tensor.sum,
    "cumsum": lambda x: x.cumsum(-1),
    "prod": torch.Tensor.prod,
    "pow": lambda x: x.pow(2),
    "operator **": lambda x: x**2,
    "rsqrt": torch.rsqrt,
    "exp": torch.exp,
    "log": torch.log,
    "norm": lambda x: x.norm(),
    "softplus": functional.softplus,
    "mse_loss": lambda x: functional.mse_loss(x, x),
    "mean": torch.Tensor.mean,
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "add": lambda x: x + x,
    "mul": lambda x: x * x,
    "square": torch.square,
    "cat": lambda x: torch.cat([x, x]),
    "sin": torch.sin,
}


@contextmanager
def autocast_of_gpu() -> Iterator[None]:
    """Turn autocast on for a GPU that need not be there."""
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_dtype_of_a_gpu_under_autocast(name: str) -> None:
    """Against torch's own rules, by tensors that pretend to be on one."""
    with FakeTensorMode(), torch.no_grad(), autocast_of_gpu():
        wanted = FUNCTIONS[name](torch.ones(2, 4, 8, device="cuda", dtype=torch.bfloat16)).dtype
    counted = meter.Meter(nn.Linear(1, 1, device="meta"))
    with meter._Kernels(counted), torch.autocast("cpu", dtype=torch.bfloat16):
        assert FUNCTIONS[name](torch.ones(2, 4, 8, device="meta", dtype=torch.bfloat16)).dtype == wanted


@given(st.integers(0, 10**6), st.sampled_from([1, 32, 128]))
def test_a_kernel_s_workspace_is_the_next_multiple(size: int, multiple: int) -> None:
    rounded = step_time.up(size, multiple)
    assert rounded % multiple == 0
    assert size <= rounded < size + multiple


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40 * MIB)), max_size=60))
def test_an_allocator_reserves_what_it_gave_and_no_more_segments_than_requests(steps: list[tuple[bool, int]]) -> None:
    """Whatever is freed in between: all of it can be freed, and what was reserved stays."""
    allocator, blocks = CachingAllocator(), []
    for frees, size in steps:
        if frees and blocks:
            allocator.free(blocks.pop(size % len(blocks)))
        else:
            blocks.append(allocator.allocate(size))
        assert allocator.reserved >= allocator.allocated >= sum(block.size for block in blocks)
    reserved, largest = allocator.reserved, max((block.size for block in blocks), default=0)
    for block in blocks:
        allocator.free(block)
    assert (allocator.allocated, allocator.reserved) == (0, reserved)
    if blocks:  # joined again: the largest fits without another segment
        allocator.allocate(largest)
        assert allocator.reserved == reserved


def test_an_allocator_rounds_as_torch_does() -> None:
    """Segments of 2 and 20 MiB are shared; larger requests have their own, in which a larger one does not fit."""
    allocator = CachingAllocator()
    allocator.allocate(1)
    assert (allocator.allocated, allocator.reserved) == (512, 2 * MIB)
    allocator.allocate(3 * MIB)
    allocator.allocate(4 * MIB)
    assert allocator.reserved == 22 * MIB
    large = allocator.allocate(31 * MIB)
    assert allocator.reserved == 54 * MIB
    allocator.free(large)
    allocator.allocate(33 * MIB)
    assert allocator.reserved == 88 * MIB
