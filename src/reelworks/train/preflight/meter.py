"""Measure memory and arithmetic of one forward and backward pass on the meta device; deep networks from shallow ones."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from reelworks.models.api import Denoiser, DenoiserInputs
from reelworks.precision.boundary import DtypeBoundary, MetaAutocast

_BACKWARD_MATMULS = 5  # of attention that keeps no matrix of weights: it makes the first of them again


class Pass(NamedTuple):
    """Memory and arithmetic of one pass.

    Attributes:
        peak_bytes: Most memory at a time beside parameters and their gradients: what is kept for the backward pass, and
            passing values.
        flops: Multiplications and additions of matrix products and convolutions.
    """

    peak_bytes: int
    flops: int


def measure(denoiser: Denoiser, inputs: DenoiserInputs) -> Pass:
    """Run forward and backward, on any device; on the meta device it takes no memory and no arithmetic.

    Gradients of parameters are there from the beginning, as from a step's second micro-batch on, and dropped at the end.
    """
    meter = counting(denoiser.module)
    for field in dataclasses.fields(inputs):
        meter.follow(getattr(inputs, field.name))
    # What checkpointing computes again runs outside of the boundary, which opens the same for the forward pass.
    autocast = MetaAutocast(denoiser.contract.compute)
    with meter, _Attention(meter), autocast, torch.autograd.set_multithreading_enabled(False):
        output = DtypeBoundary(denoiser)(inputs)
        # torch.autograd.backward closes such modes for as long as it runs.
        _engine_run_backward((output,), (torch.empty_like(output),), False, False, (), True, accumulate_grad=True)
    denoiser.module.zero_grad(set_to_none=True)
    return Pass(meter.peak, meter.flops)


def counting(module: nn.Module) -> Meter:
    """A meter of passes of a module, whose parameters are given gradients, to be opened around a real one."""
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    return Meter(module)


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every piece of memory from the operation that makes it to its end."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = self.peak = self._now = 0
        held = [*module.parameters(), *module.buffers()]
        held += [p.grad for p in module.parameters() if p.grad is not None]
        self._known = weakref.WeakSet(tensor.untyped_storage() for tensor in held)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and look at what it made."""
        made = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=made)
        for tensor in made if isinstance(made, list | tuple) else (made,):
            if isinstance(tensor, Tensor):
                self.follow(tensor)
        return made

    def follow(self, tensor: Tensor) -> None:
        """Count a tensor's memory, unless it is known, until it is given back."""
        storage: Any = tensor.untyped_storage()
        if storage not in self._known:
            self._known.add(storage)
            size = storage.nbytes()
            self._now += size
            self.peak = max(self.peak, self._now)
            weakref.finalize(storage, self._end, size)

    def _end(self, size: int) -> None:
        self._now -= size


class _Attention(TorchFunctionMode):
    """Attention as kernels on GPUs do it, which never hold the matrix of its weights; on the meta device torch would."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Take over attention; leave all else as it is."""
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        given = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
        return _Flash.apply(self._meter, given["query"], given["key"], given["value"])  # type: ignore[no-untyped-call]


class _Flash(torch.autograd.Function):
    """The memory of such a kernel, and none of its numbers."""

    @staticmethod
    def forward(ctx: Any, meter: Meter, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        ctx.save_for_backward(query, key, value, out, query.new_empty(query.shape[:-1], dtype=torch.float32))
        ctx.meter, ctx.product = meter, 2 * query.numel() * key.shape[-2]
        meter.flops += 2 * ctx.product
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
        query, key, value, *_ = ctx.saved_tensors
        ctx.meter.flops += _BACKWARD_MATMULS * ctx.product
        return None, torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


_FEW = 3  # the first and the last may be the fullest, and one is between them
_LONG = 12  # of shorter ones two passes with few take as long as one with all


class _Run(NamedTuple):
    """Places of blocks of a list that are alike and follow one another."""

    start: int
    stop: int
    listed: int


class _List(NamedTuple):
    parent: nn.Module
    name: str
    blocks: nn.ModuleList


def measure_few_blocks(denoiser: Denoiser, inputs: DenoiserInputs) -> Pass:
    """Find what `meter.measure` finds, in a fraction of the time where a network has many blocks that are alike."""
    groups: dict[_Run, list[_List]] = {}
    _collect(denoiser.module, groups)
    with _cut(groups, {}):
        base = measure(denoiser, inputs)
    peak, flops = base
    for run in groups:
        with _cut(groups, {run: 1}):
            more = measure(denoiser, inputs)
        left_out = run.stop - run.start - _FEW
        peak += left_out * (more.peak_bytes - base.peak_bytes)
        flops += left_out * (more.flops - base.flops)
    return Pass(peak, flops)


def _collect(parent: nn.Module, groups: dict[_Run, list[_List]]) -> None:
    """Find lists with a long run, and none within one; those with the same may be walked side by side."""
    for name, child in list(parent.named_children()):
        run = _longest_run(child) if isinstance(child, nn.ModuleList) else None
        if isinstance(child, nn.ModuleList) and run is not None and run.stop - run.start > _LONG:
            groups.setdefault(run, []).append(_List(parent, name, child))
        else:
            _collect(child, groups)


def _longest_run(blocks: nn.ModuleList) -> _Run | None:
    runs, start = [], 0
    for _, same in itertools.groupby(blocks, key=_looks):
        stop = start + len(list(same))
        runs.append(_Run(start, stop, len(blocks)))
        start = stop
    return max(runs, key=lambda run: run.stop - run.start, default=None)


def _looks(block: nn.Module) -> tuple[Any, ...]:
    """Its modules, and the shapes of what they hold."""
    held = [*block.named_parameters(), *block.named_buffers()]
    return (
        *((name, type(module)) for name, module in block.named_modules()),
        *((name, value.shape, value.dtype) for name, value in held),
    )


@contextmanager
def _cut(groups: dict[_Run, list[_List]], more: dict[_Run, int]) -> Iterator[None]:
    """Leave few blocks of each run, and some more of one, for as long as it is open."""
    every = [(one, run) for run, group in groups.items() for one in group]
    try:
        for one, run in every:
            kept = [*one.blocks[: run.start + _FEW + more.get(run, 0)], *one.blocks[run.stop :]]
            setattr(one.parent, one.name, nn.ModuleList(kept))
        yield
    finally:
        for one, _ in every:
            setattr(one.parent, one.name, one.blocks)
