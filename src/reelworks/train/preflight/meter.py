"""Measure memory and operations of one forward and backward pass on the meta device.

A deep network is measured with few of its blocks, as each further one adds the same.
"""

from __future__ import annotations

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
from reelworks.precision import repeats
from reelworks.precision.boundary import DtypeBoundary, MetaAutocast
from reelworks.train.preflight.memory import Pass

_BACKWARD_MATMULS = 5  # of flash attention, which computes query · key again


def measure(denoiser: Denoiser, inputs: DenoiserInputs) -> Pass:
    """Run forward and backward, usually on the meta device, and measure the pass.

    Gradients of parameters are allocated before it, as in a step's second micro-batch, and released after it.
    """
    meter = Meter(denoiser.module)
    for tensor in inputs.tensors().values():
        meter.follow(tensor)
    # Gradient checkpointing recomputes outside of the boundary, so it needs the boundary's autocast here.
    autocast = MetaAutocast(denoiser.contract.compute)
    with meter, _Attention(meter), autocast, torch.autograd.set_multithreading_enabled(False):
        boundary = DtypeBoundary(denoiser)
        outputs = boundary.both(inputs) if inputs.sound.shape[1] else (boundary(inputs),)
        gradients = tuple(torch.empty_like(output) for output in outputs)
        # torch.autograd.backward would disable dispatch modes while it runs.
        _engine_run_backward(outputs, gradients, False, False, (), True, accumulate_grad=True)
    denoiser.module.zero_grad(set_to_none=True)
    return Pass(meter.peak, meter.flops)


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, count the memory of every tensor from the operation that allocates it until it is freed.

    The parameters of the module get gradients of zeros; these, parameters and buffers are not counted.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = self.peak = self._now = 0
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        known = [*module.parameters(), *module.buffers()]
        known += [p.grad for p in module.parameters() if p.grad is not None]
        self._known = weakref.WeakSet(tensor.untyped_storage() for tensor in known)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count its result and its floating-point operations."""
        run = repeats.run if repeats.makes_new(func) else _run
        result = run(func, args, kwargs or {})
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=result)
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, Tensor):
                self.follow(tensor)
        return result

    def follow(self, tensor: Tensor) -> None:
        """Count a tensor's memory until it is freed, unless it is counted already."""
        storage: Any = tensor.untyped_storage()
        if storage not in self._known:
            self._known.add(storage)
            size = storage.nbytes()
            self._now += size
            self.peak = max(self.peak, self._now)
            weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self._now -= size


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


class _Attention(TorchFunctionMode):
    """Count attention as GPU kernels compute it, without the matrix of attention weights that torch makes on meta."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace attention by `_Flash`."""
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        named = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
        return _Flash.apply(self._meter, named["query"], named["key"], named["value"])  # type: ignore[no-untyped-call]


class _Flash(torch.autograd.Function):
    """Allocate the memory of flash attention, without its values."""

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


_FEW = 3  # the peak may be in the first or in the last block, and one is between them
_LONG = 12  # for shorter runs, two passes with few blocks are not faster than one with all


class _BlockRange(NamedTuple):
    """Range of consecutive equal blocks in a list of blocks."""

    start: int
    stop: int
    length: int  # of the whole list


_List = tuple[nn.Module, str, nn.ModuleList]  # parent, name and blocks


def measure_few_blocks(denoiser: Denoiser, inputs: DenoiserInputs) -> Pass:
    """Return the same as `measure`, in a fraction of the time for a network with many equal blocks."""
    groups: dict[_BlockRange, list[_List]] = {}
    _collect(denoiser.module, groups)
    with _cut(groups, {}):
        base = measure(denoiser, inputs)
    peak, flops = base
    for run in groups:
        with _cut(groups, {run: 1}):
            more = measure(denoiser, inputs)
        removed = run.stop - run.start - _FEW
        peak += removed * (more.peak_bytes - base.peak_bytes)
        flops += removed * (more.flops - base.flops)
    return Pass(peak, flops)


@contextmanager
def few_blocks(module: nn.Module) -> Iterator[None]:
    """Remove most of the equal blocks of a deep network while open; each that is left does what the others did."""
    groups: dict[_BlockRange, list[_List]] = {}
    _collect(module, groups)
    with _cut(groups, {}):
        yield


def _collect(parent: nn.Module, groups: dict[_BlockRange, list[_List]]) -> None:
    """Group the outermost lists with a long run; lists with equal runs may be used in parallel, so they are cut alike."""
    for name, child in list(parent.named_children()):
        run = _longest_run(child) if isinstance(child, nn.ModuleList) else None
        if isinstance(child, nn.ModuleList) and run is not None and run.stop - run.start > _LONG:
            groups.setdefault(run, []).append((parent, name, child))
        else:
            _collect(child, groups)


def _longest_run(blocks: nn.ModuleList) -> _BlockRange | None:
    runs, start = [], 0
    for _, equal in itertools.groupby(blocks, key=_structure):
        stop = start + len(list(equal))
        runs.append(_BlockRange(start, stop, len(blocks)))
        start = stop
    return max(runs, key=lambda run: run.stop - run.start, default=None)


def _structure(block: nn.Module) -> tuple[Any, ...]:
    """Return the names and types of a block's modules, and the shapes and dtypes of its tensors."""
    tensors = [*block.named_parameters(), *block.named_buffers()]
    return (
        *((name, type(module)) for name, module in block.named_modules()),
        *((name, value.shape, value.dtype) for name, value in tensors),
    )


@contextmanager
def _cut(groups: dict[_BlockRange, list[_List]], more: dict[_BlockRange, int]) -> Iterator[None]:
    """Remove all but `_FEW` blocks of each run, plus the numbers in `more`, while open."""
    lists = [(each, run) for run, group in groups.items() for each in group]
    try:
        for (parent, name, blocks), run in lists:
            kept = [*blocks[: run.start + _FEW + more.get(run, 0)], *blocks[run.stop :]]
            setattr(parent, name, nn.ModuleList(kept))
        yield
    finally:
        for (parent, name, blocks), _ in lists:
            setattr(parent, name, blocks)
