"""Measure memory and operations of one forward and backward pass on the meta device.

A deep network is measured with few of its blocks, as each further one adds the same.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from reelworks.models.api import Denoiser, DenoiserInputs
from reelworks.models.attention.attention_calls import ATTEND
from reelworks.models.precision import repeats
from reelworks.models.precision.boundary import DtypeBoundary, MetaAutocast
from reelworks.training.memory import step_time
from reelworks.training.memory.memory import Pass
from reelworks.training.memory.step_time import Work

_BACKWARD_MATMULS = 5  # of flash attention, which computes query · key again


class _Peaks(NamedTuple):
    """Peaks of a pass: while blocks still hold their activations, and in the first blocks, when most gradients are there.

    Each of them grows evenly with the number of blocks, which the larger of both does not.
    """

    early: int
    late: int
    flops: int
    work: Work

    def with_blocks(self, count: int, without: _Peaks, one_more: _Peaks) -> _Peaks:
        """Return the peaks with `count` blocks more, of which one makes the difference of the two others."""

        def extended(values: Iterable[tuple[float, float, float]]) -> Iterator[Any]:
            return (own + count * (more - less) for own, less, more in values)

        work = Work(*extended(zip(self.work, without.work, one_more.work, strict=True)))
        early, late, flops = extended(zip(self[:3], without[:3], one_more[:3], strict=True))
        return _Peaks(early, late, flops, work)


def measure(denoiser: Denoiser, inputs: DenoiserInputs, *, accumulates: bool = False) -> Pass:
    """Run forward and backward as a step does, usually on the meta device, and measure the pass as a GPU computes it.

    With `accumulates`, gradients of parameters are there before it, as in a step's second micro-batch. They are released
    after it.
    """
    return _as_pass(denoiser, _peaks(denoiser, inputs, _bytes_of_gradients(denoiser) // 2, accumulates), accumulates)


def _as_pass(denoiser: Denoiser, peaks: _Peaks, accumulates: bool) -> Pass:
    """Leave out the gradients, which count by themselves."""
    gradients = 0 if accumulates else _bytes_of_gradients(denoiser)
    return Pass(max(peaks.early, peaks.late, gradients) - gradients, peaks.flops, peaks.work)


def _bytes_of_gradients(denoiser: Denoiser) -> int:
    return sum(parameter.nbytes for parameter in _trained(denoiser.module))


def _peaks(denoiser: Denoiser, inputs: DenoiserInputs, late_bytes: int, accumulates: bool) -> _Peaks:
    """Measure a pass, of which the gradients of the last `late_bytes` are late."""
    meter = Meter(denoiser.module, accumulates=accumulates, late_bytes=late_bytes)
    for tensor in inputs.tensors().values():
        meter.follow(tensor)
    with meter, _Kernels(meter):
        run_pass(denoiser, inputs)
    denoiser.module.zero_grad(set_to_none=True)
    meter.close()
    return _Peaks(meter.early_peak, meter.peak, meter.flops, meter.work)


def run_pass(denoiser: Denoiser, inputs: DenoiserInputs) -> None:
    """Run forward and backward as a step does, usually on the meta device; modes that are entered see all of it."""
    # Gradient checkpointing recomputes outside of the boundary, so it needs the boundary's autocast here.
    with MetaAutocast(denoiser.contract.compute), torch.autograd.set_multithreading_enabled(False):
        loss = _loss(denoiser, inputs)
        # torch.autograd.backward would disable dispatch modes while it runs.
        _engine_run_backward((loss,), (torch.ones_like(loss),), False, False, (), True, accumulate_grad=True)


def _loss(denoiser: Denoiser, inputs: DenoiserInputs) -> Tensor:
    """Return a loss that holds what a step does: clean latents and noise, the error, and the error of generated frames."""
    boundary, heard = DtypeBoundary(denoiser), inputs.sound
    latents = [inputs.latent] if heard is None else [inputs.latent, heard.latent]
    targets = [torch.empty_like(latent) for latent in latents for _ in range(2)]
    outputs = (boundary(inputs),) if heard is None else boundary.both(inputs)
    errors = [output.float() - torch.empty_like(output, dtype=torch.float32) for output in outputs]
    counted = [torch.where(torch.ones_like(error[:1, :1], dtype=torch.bool), error, 0.0) for error in errors]
    loss = torch.stack([each.square().mean() for each in counted]).sum()
    loss.targets = targets  # type: ignore[attr-defined]  # a step has them until it ends
    return loss


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, count the memory of every tensor from the operation that allocates it until it is freed.

    Parameters and buffers of the module are not counted. With `accumulates`, parameters get gradients of zeros, which are
    not counted either. `early_peak` is the peak until no more than `late_bytes` of gradients are missing, `peak` that of
    the rest.
    """

    def __init__(self, module: nn.Module, *, accumulates: bool = True, late_bytes: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = self.peak = self.early_peak = self._now = 0
        self.work = Work(0, 0, 0)
        trained = _trained(module)
        if accumulates:
            for parameter in trained:
                parameter.grad = torch.zeros_like(parameter)
        known = [*module.parameters(), *module.buffers()]
        known += [p.grad for p in trained if p.grad is not None]
        self._known = weakref.WeakSet(tensor.untyped_storage() for tensor in known)
        self._missing = sum(parameter.nbytes for parameter in trained) - late_bytes
        self._hooks: list[Any] = [
            p.register_post_accumulate_grad_hook(self._got_gradient)  # type: ignore[no-untyped-call]
            for p in trained
            if p.is_leaf
        ]

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _got_gradient(self, parameter: Tensor) -> None:
        before, self._missing = self._missing, self._missing - parameter.nbytes
        if before > 0 >= self._missing:
            self.early_peak, self.peak = self.peak, self._now

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count its result and its work."""
        kwargs = kwargs or {}
        result = repeats.run(func, args, kwargs) if repeats.makes_new(func) else func(*args, **kwargs)
        count = flop_registry.get(func._overloadpacket)
        flops = 0 if count is None else count(*args, **kwargs, out_val=result)
        self.flops += flops
        if func is _FLASH:
            self.attends(*args[:2])
        elif not func.is_view and func not in _WITHOUT_KERNEL:
            tensors = _tensors((args, kwargs, result))  # of which expanded ones have fewer bytes in memory than values
            moved = sum(min(each.nbytes, each.untyped_storage().nbytes()) for each in tensors)
            self._asks(*((0, moved) if flops < step_time.LEAST_INTENSITY * moved else (flops, 0)))
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, Tensor):
                self.follow(tensor)
        return result

    def attends(self, query: Tensor, key: Tensor, times: float = 1.0) -> None:
        """Count the work of attention, so many times that of a forward pass."""
        *batch, queries, width = query.shape
        self._asks(times * step_time.attention(math.prod(batch), queries, key.shape[-2], width), 0)

    def _asks(self, products: float, moved_bytes: int) -> None:
        self.work = Work(self.work.products + products, self.work.moved_bytes + moved_bytes, self.work.launches + 1)

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


_FLASH = torch.ops.aten._scaled_dot_product_flash_attention.default
_WITHOUT_KERNEL = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("_unsafe_view", "detach", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
) | {torch.ops.aten.empty.memory_format}


def _tensors(values: Any) -> Iterator[Tensor]:
    """Yield the tensors among arguments or results."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list | dict):
        for each in values.values() if isinstance(values, dict) else values:
            yield from _tensors(each)


# Functions that autocast computes in float32 on a GPU, and not on a CPU, whose rules hold on the meta device.
_WIDENED = frozenset((
    "acos", "asin", "cdist", "cosh", "cosine_similarity", "cumprod", "cumsum", "dist", "erfinv", "exp", "expm1",
    "group_norm", "l1_loss", "layer_norm", "log", "log10", "log1p", "log2", "log_softmax", "mse_loss", "norm",
    "normalize", "pow", "prod", "reciprocal", "rms_norm", "rsqrt", "sinh", "smooth_l1_loss", "softmax", "softplus",
    "square", "sum", "tan",
))  # fmt: skip
_WIDENED_INSIDE = frozenset(("cumprod", "cumsum", "log_softmax", "prod", "softmax", "sum"))  # without a wider copy


class _Kernels(TorchFunctionMode):
    """Count functions as GPU kernels compute them: attention without its matrix, norms in one piece, some in float32."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace attention and norms, and widen what autocast does."""
        kwargs = kwargs or {}
        if func is ATTEND:
            named = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
            return _Flash.apply(self._meter, named["query"], named["key"], named["value"])  # type: ignore[no-untyped-call]
        name = str(getattr(func, "__name__", "")).strip("_")
        if name in _WIDENED and torch.is_autocast_enabled("cpu"):
            if name in _WIDENED_INSIDE:
                is_narrow = isinstance(args[0], Tensor) and args[0].dtype == torch.bfloat16
                has_dtype = kwargs.get("dtype") is not None or any(isinstance(each, torch.dtype) for each in args)
                kwargs = kwargs | {"dtype": torch.float32} if is_narrow and not has_dtype else kwargs
            else:
                args, kwargs = tuple(map(_widened, args)), {key: _widened(value) for key, value in kwargs.items()}
        if name == "rms_norm":
            named = dict(zip(("input", "shape", "weight"), args, strict=False)) | kwargs
            if named.get("weight") is None or named["weight"].dtype == named["input"].dtype:
                return _RmsNorm.apply(named["input"], named.get("weight"))  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value


class _RmsNorm(torch.autograd.Function):
    """Allocate the memory of a norm that one kernel computes, without its values."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight, input.new_empty(input.shape[:-1], dtype=torch.float32))
        return torch.empty_like(input)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        input, weight, _ = ctx.saved_tensors
        return torch.empty_like(input), torch.empty_like(weight) if ctx.needs_input_grad[1] else None


class _Flash(torch.autograd.Function):
    """Allocate the memory of flash attention, without its values."""

    @staticmethod
    def forward(ctx: Any, meter: Meter, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.meter, ctx.product = meter, 2 * query.numel() * key.shape[-2]
        out, sums = _attention_outputs(meter, query, key, value)
        ctx.save_for_backward(query, key, value, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
        query, key, value, *_ = ctx.saved_tensors
        ctx.meter.flops += _BACKWARD_MATMULS * ctx.product
        ctx.meter.attends(query, key, _BACKWARD_MATMULS / 2)
        *batch, tokens, width = query.shape
        # The kernel sums gradients of queries in float32, in whole tiles.
        workspace = query.new_empty((*batch, step_time.up(tokens, 128), step_time.up(width, 32)), dtype=torch.float32)
        del workspace
        return None, torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _attention_outputs(meter: Meter, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result and the sums of attention, of an operation that selective recomputation keeps."""
    if query.ndim == 4 and value.shape[-1] == query.shape[-1]:
        out, sums, *_ = _FLASH(query, key, value)
        return out, sums
    meter.attends(query, key)
    meter.flops += 2 * key.shape[-2] * (query.numel() + math.prod(query.shape[:-1]) * value.shape[-1])
    out = query.new_empty(*query.shape[:-1], value.shape[-1])
    return out, query.new_empty(query.shape[:-1], dtype=torch.float32)


_FEW = 3  # the peak may be in the first or in the last block, and one is between them
_LONG = 12  # for shorter runs, two passes with few blocks are not faster than one with all


class _BlockRange(NamedTuple):
    """Range of consecutive equal blocks in a list of blocks."""

    start: int
    stop: int
    length: int  # of the whole list


_List = tuple[nn.Module, str, nn.ModuleList]  # parent, name and blocks


def measure_few_blocks(denoiser: Denoiser, inputs: DenoiserInputs, *, accumulates: bool = False) -> Pass:
    """Return the same as `measure`, in a fraction of the time for a network with many equal blocks."""
    groups: dict[_BlockRange, list[_List]] = {}
    _collect(denoiser.module, groups)
    with _cut(groups, {}):
        late_bytes = _bytes_of_gradients(denoiser) // 2
        whole = base = _peaks(denoiser, inputs, late_bytes, accumulates)
    for run in groups:
        with _cut(groups, {run: 1}):
            more = _peaks(denoiser, inputs, late_bytes, accumulates)
        whole = whole.with_blocks(run.stop - run.start - _FEW, base, more)
    return _as_pass(denoiser, whole, accumulates)


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
