"""Compare attention kernels with exact attention, for the calls of a network, and find what takes the place of wrong and slow ones.

A kernel is wrong if any number that it returns is not finite, or if a row of the output or of a gradient is further from the
exact one than rounding explains. Rows are compared for as many clips and heads as can be computed exactly in a moment.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from reelworks.core import arguments, device_memory
from reelworks.core.arguments import checked
from reelworks.core.errors import UserError
from reelworks.core.units import plural
from reelworks.models.attention.attention_calls import (
    ATTEND,
    Attend,
    AttentionCall,
    CallKind,
    Recorder,
    in_one_layout,
    mask_for,
)
from reelworks.models.attention.torch_kernels import KERNELS, kernel_of, replacing, versions

# What rounding explains, of a row's natural size. Kernels round the weights of values to the dtype, and sum in float32.
_TOLERATED = {torch.bfloat16: 0.05, torch.float16: 0.01, torch.float32: 5e-3, torch.float64: 5e-3}
_MOST_ON_CPU = 2e10  # operations of a call: about a second
_REPEATS = 3  # of a call that is timed; the shortest counts
_LEAST_GAIN = 1.1  # times as fast; a measurement that is repeated may differ by less
# Passes of a call in a run, such as 100 steps of a bucket through 30 blocks: they earn back what planning it takes.
_PASSES = 3000
_LEAST_SIZE = 0.01  # of the largest row
_HUGE = 10.0  # an error that needs no number
_MOST_PAIRS, _MOST_OPERATIONS, _MOST_LOGITS = 64, 1e12, 2**25
_RESULTS = ("the output", "the gradient of the query", "the gradient of the key", "the gradient of the value")


@dataclass(frozen=True)
class AttentionFault:
    """A kernel that computes a call wrongly.

    Attributes:
        call: What is computed: clips, heads, tokens, dtype, and strides.
        kernel: Name of the kernel.
        problem: What is wrong in its results.
        instead: The quickest kernel that is right for all such calls; None if none is.
    """

    call: str
    kind: CallKind
    kernel: str
    problem: str
    instead: str | None
    JSON_KEYS: ClassVar = ("call", "kernel", "problem", "instead")

    def __str__(self) -> str:
        return f"attention: the {self.kernel} kernel of {versions()} is wrong: {self.problem}, for {self.call}"


@dataclass(frozen=True)
class QuickerKernel:
    """A right kernel that computes calls in less time than the one that torch chooses.

    Attributes:
        call: One of the calls.
        kernel: Name of the kernel that torch chooses.
        instead: Name of the quicker one.
        times: How many times as fast it is, forward and backward, over all such calls.
    """

    call: str
    kind: CallKind
    kernel: str
    instead: str
    times: float
    JSON_KEYS: ClassVar = ("call", "kernel", "instead", "times")


@dataclass(frozen=True)
class ReplacedKernels:
    """Kernels that others take the place of, because they are wrong or slow."""

    faults: tuple[AttentionFault, ...] = ()
    quicker: tuple[QuickerKernel, ...] = ()

    def replaced(self) -> AbstractContextManager[None]:
        """Compute calls with the kernels that are right and quicker, while open; other calls go on as before."""
        slow = {each.kind: [each.instead, each.kernel] for each in self.quicker}
        wrong = {fault.kind: [fault.instead] for fault in self.faults if fault.instead is not None}
        return replacing({**slow, **wrong})

    def fault_lines(self) -> Iterator[str]:
        """Yield a line for each kernel and kind of call that is wrong and replaced."""
        for fault in {(each.kernel, each.kind): each for each in self.faults if each.instead is not None}.values():
            yield f"{fault}; the {fault.instead} kernel, which is right, takes its place for these calls"

    def quicker_lines(self) -> Iterator[str]:
        """Yield a line for each kernel that takes the place of a slower one."""
        for instead, kernel in sorted({(one.instead, one.kernel) for one in self.quicker}):
            times = [one.times for one in self.quicker if (one.instead, one.kernel) == (instead, kernel)]
            yield (
                f"attention: the {instead} kernel takes the place of {kernel}, which torch chooses, for "
                f"{plural(len(times), 'kind')} of calls: it was {min(times):.1f} to {max(times):.1f} times as fast"
            )


@dataclass(frozen=True, kw_only=True)
class AttentionReport(ReplacedKernels):
    """The result of an audit.

    Attributes:
        faults: Kernels that are wrong.
        quicker: Kernels that are quicker than what torch chooses; empty where none was timed.
        calls: Number of different calls that were compared.
        left_out: Number of those that were not: memory did not suffice, or a CPU would take long.
        worst: Largest error of a right kernel, of the size of a row.
        planning_seconds: What the first passes of all calls take longer than later ones, in the kernels that are used.
    """

    calls: int
    left_out: int
    worst: float
    planning_seconds: float

    def lines(self) -> Iterator[str]:
        """Yield what was found, but for faults."""
        left_out = f", {self.left_out} too large to compare" if self.left_out else ""
        right = self.calls - len(self.faults)
        yield f"attention: kernels are right for {right} of {self.calls} kinds of calls, at most {self.worst:.1%} off{left_out}"
        if self.planning_seconds:
            yield f"attention: planning these calls takes {self.planning_seconds:.1f} s in each start"
        yield from self.quicker_lines()


@checked(step=arguments.FUNCTION, device=arguments.optional(arguments.DEVICE))
def check_attention(step: Callable[[], object], *, device: torch.device | str | None = None) -> AttentionReport:
    """Run a forward and backward pass, and compare each of its attention calls with exact attention.

        report = rw.check_attention(lambda: model(batch).square().mean().backward())
        with report.replaced():
            train(model)

    Seen and replaced are calls of torch's `scaled_dot_product_attention`, by whatever module: torch's own layers and those
    that imported it by name too. A function that an object keeps is not reached, and compiled code makes no call: pass
    the model as it is.

    Args:
        step: Computes a loss and its gradients; what it changes stays changed.
        device: Where kernels are compared; by default where the pass ran. A model on the meta device makes the same calls.

    Raises:
        UserError: The pass made no call or one of nested tensors, no device computes, or a kernel crashed the GPU.
    """
    recorder = Recorder()
    with recorder.recording():
        step()
    if recorder.device is None:
        raise UserError(
            "it made no call of torch's scaled_dot_product_attention",
            code="no-attention",
            field="step",
            remedy="pass a function that runs the model, without torch.compile",
        )
    chosen = recorder.device if device is None else torch.device(device)
    if chosen.type == "meta":
        raise UserError(
            "nothing is computed on the meta device",
            code="attention-on-meta",
            field="device",
            value=str(chosen),
            remedy="name the device on which the model is to run",
        )
    return audit(recorder.calls, chosen, times=chosen.type == "cuda")


def audit(
    calls: Iterable[AttentionCall], device: torch.device, attend: Attend = ATTEND, *, times: bool = False
) -> AttentionReport:
    """Compare each call as `attend` computes it; with `times`, look for quicker kernels of torch."""
    compared: dict[AttentionCall, _Found] = {}
    left_out = 0
    for call in calls:
        is_long = device.type == "cpu" and call.operations > _MOST_ON_CPU
        found = None if is_long else _compare(call, device, attend, times=times)
        if found is None:
            left_out += 1
        else:
            compared[call] = found
    faults: list[AttentionFault] = []
    quicker: list[QuickerKernel] = []
    planning = 0.0
    # What takes a kernel's place is told by the kind of a call, so it is judged by all calls of that kind.
    for kind in dict.fromkeys(call.kind for call in compared):
        of_kind = {call: found for call, found in compared.items() if call.kind == kind}
        wrong = {call: found for call, found in of_kind.items() if found.problem is not None}
        others = list(_right_kernels(of_kind, device, times=times)) if attend is ATTEND and (wrong or times) else []
        best = min(others, key=lambda other: other.seconds, default=None)
        used = _Total.of_calls("", of_kind.values())
        if wrong:
            instead = None if best is None else best.kernel
            faults += [
                AttentionFault(str(call), kind, found.kernel, str(found.problem), instead)
                for call, found in wrong.items()
            ]
            used = best or used
        elif best is not None and best.is_worth(used):
            call, found = next(iter(of_kind.items()))
            quicker.append(QuickerKernel(str(call), kind, found.kernel, best.kernel, used.seconds / best.seconds))
            used = best
        planning += used.planning
    worst = max((found.error for found in compared.values() if found.problem is None), default=0.0)
    device_memory.release(device)  # a training's tensors have other sizes
    return AttentionReport(
        tuple(faults),
        tuple(quicker),
        calls=len(compared),
        left_out=left_out,
        worst=worst,
        planning_seconds=planning if times else 0.0,
    )


def _compare(call: AttentionCall, device: torch.device, attend: Attend, *, times: bool) -> _Found | None:
    """Return how far a call is off, or None if memory does not suffice to know."""
    try:
        return _Comparison.of_call(call, device).run(attend, repeats=_REPEATS if times else 0)
    except RuntimeError as error:
        if _is_lack(error):
            return None
        raise


def _is_lack(error: RuntimeError) -> bool:
    """Whether memory did not suffice; of Apple's GPUs torch says so in the message only."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)


class _Found(NamedTuple):
    kernel: str
    error: float
    problem: str | None
    first_seconds: float = 0.0  # of the first pass
    seconds: float = 0.0  # of the shortest


class _Total(NamedTuple):
    """Time that a kernel takes for several calls."""

    kernel: str
    seconds: float
    planning: float  # seconds that first passes take longer

    @classmethod
    def of_calls(cls, kernel: str, found: Iterable[_Found]) -> _Total:
        found = list(found)
        seconds = sum(one.seconds for one in found)
        return cls(kernel, seconds, sum(one.first_seconds for one in found) - seconds)

    def is_worth(self, former: _Total) -> bool:
        """Return whether a run gains by this kernel, which plans each call once, in place of the former."""
        gain = former.seconds - self.seconds
        return former.seconds > _LEAST_GAIN * self.seconds and gain * _PASSES > self.planning - former.planning


def _right_kernels(calls: Mapping[AttentionCall, _Found], device: torch.device, *, times: bool) -> Iterator[_Total]:
    """Yield the other kernels that are right for all calls of a kind; the slowest if no other is."""
    is_any = False
    for name, backend in KERNELS.items():
        if {name} == {found.kernel for found in calls.values()} or (name == "math" and is_any):
            continue
        with warnings.catch_warnings(), sdpa_kernel(backend):
            warnings.simplefilter("ignore")  # torch says why a kernel does not take a call
            found = []
            for call in calls:
                one = _compare(call, device, ATTEND, times=times)
                if one is None or one.problem is not None:
                    break
                found.append(one)
            else:
                is_any = True
                yield _Total.of_calls(name, found)


@dataclass(frozen=True)
class _Comparison:
    """A call with drawn values, and the exact results for some clips and heads."""

    call: AttentionCall
    inputs: list[Tensor]
    mask: Tensor | None
    gradient: Tensor | None
    exact: _Exact

    @classmethod
    def of_call(cls, call: AttentionCall, device: torch.device) -> _Comparison:
        """Draw values, which are the same each time, and compute what is exact."""
        generator = torch.Generator(device).manual_seed(0)
        inputs = [layout.drawn(device, generator) for layout in (call.query, call.key, call.value)]
        gradient = None if call.gradient is None else call.gradient.drawn(device, generator)
        mask = None if call.mask is None else mask_for(call.mask, device)
        if gradient is not None and mask is not None and mask.dtype == torch.bool and 0 not in gradient.stride():
            # What a query without keys attends to is not defined, so no loss may depend on it.
            gradient.masked_fill_(~mask.any(dim=-1, keepdim=True), 0)
        return cls(call, inputs, mask, gradient, _Exact.compute(call, inputs, mask, gradient))

    def run(self, attend: Attend, *, repeats: int) -> _Found:
        """Compute the call, compare its results, and time it, `repeats` times more."""
        try:
            (kernel, results), first = self._timed(attend)
            again = [self._timed(attend)[1] for _ in range(repeats)]
        except RuntimeError as error:
            if _is_lack(error):
                raise
            self._require_device(error)
            return _Found("chosen", math.inf, f"it fails ({str(error).splitlines()[0]})")
        return _Found(kernel, *self._compared(results), first, min([first, *again]))

    def _require_device(self, error: RuntimeError) -> None:
        """Raise an error for people if the GPU computes nothing any more, as after an illegal memory access."""
        try:
            _wait(self.inputs[0].device)
        except RuntimeError:
            raise UserError(
                f"attention: a kernel of {versions()} crashed the GPU ({str(error).splitlines()[0]}) for {self.call}",
                code="attention-is-wrong",
                field="model.attention",
                remedy="set it to another kernel, or install another version of torch",
            ) from error

    def _timed(self, attend: Attend) -> tuple[tuple[str, list[Tensor]], float]:
        """Run forward and backward; return the kernel's name with its results, and the seconds that it took."""
        inputs = [tensor.detach().requires_grad_() for tensor in self.inputs]
        more: dict[str, Any] = {"enable_gqa": True} if self.call.enable_gqa else {}
        _wait(inputs[0].device)
        start = perf_counter()
        out = attend(*inputs, attn_mask=self.mask, is_causal=self.call.is_causal, scale=self.call.scale, **more)
        out = in_one_layout(out)  # as in a run
        results = [out.detach()]
        if self.gradient is not None:
            results += torch.autograd.grad(out, inputs, self.gradient)
        _wait(inputs[0].device)
        return (kernel_of(out), results), perf_counter() - start

    def _compared(self, results: Sequence[Tensor]) -> tuple[float, str | None]:
        tolerated, worst, problems = _TOLERATED[self.call.query.dtype], 0.0, []
        for name, whole, wanted in zip(_RESULTS, results, self.exact.rows, strict=False):
            lost = int((~whole.isfinite()).sum())
            error = math.inf if lost else wanted.error_of(self.exact.pairs.select(whole))
            worst = max(worst, error)
            if lost:
                problems.append(f"{name} is not finite in {lost} of {whole.numel()} numbers")
            elif error > tolerated:
                problems.append(f"{name} is {error:.0%} off" if error < _HUGE else f"{name} is far off")
        return worst, " and ".join(problems) or None


def _wait(device: torch.device) -> None:
    """Wait until a GPU has computed what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class _Pairs:
    """Some clips and heads of keys, each with the heads of queries that share its keys."""

    clips: Tensor
    heads: Tensor
    key_heads: int

    @classmethod
    def of_call(cls, call: AttentionCall, device: torch.device) -> _Pairs:
        """Choose as many as can be computed in a moment, the first and the last among them."""
        key_heads, clips = _four_sizes(call.key.shape)[1], _four_sizes(call.query.shape)[0]
        every = clips * key_heads
        most = int(min(_MOST_PAIRS, _MOST_OPERATIONS * every // max(call.operations, 1)))
        chosen = torch.linspace(0, every - 1, min(every, max(most, 2)), device=device).round().long()
        return cls(chosen // key_heads, chosen % key_heads, key_heads)

    def select(self, tensor: Tensor) -> Tensor:
        """Return `[P, heads that share keys, tokens, E]` of a tensor of all, in float32."""
        four_BALE = tensor.reshape(_four_sizes(tensor.shape))  # whatever torch's attention takes
        _, heads, *rest = four_BALE.shape
        return four_BALE.view(-1, self.key_heads, heads // self.key_heads, *rest)[self.clips, self.heads].float()


def _four_sizes(shape: Sequence[int]) -> tuple[int, ...]:
    four = (*[1] * (4 - len(shape)), *shape)
    return (math.prod(four[:-3]), *four[-3:])


class _ExactRows(NamedTuple):
    """Exact rows `[P, G, tokens, E]`, and the squares of the sizes by which their errors are judged, if they are larger."""

    exact: Tensor
    natural: Tensor  # `[P, G, tokens]`
    defined: Tensor | None = None  # `[P, G, tokens]`

    def error_of(self, found: Tensor) -> float:
        """Return the error of the worst row, of its size or of the natural one, whichever is larger."""
        sizes = torch.maximum(self.exact.norm(dim=-1), self.natural.sqrt())
        # A key that no query sees has no size of its own.
        errors = (found - self.exact).norm(dim=-1) / sizes.clamp(min=_LEAST_SIZE * float(sizes.max()))
        return float((errors if self.defined is None else errors * self.defined).max())


@dataclass(frozen=True)
class _Exact:
    """Attention by its definition in float32: rows of the output, and of the gradients of query, key and value.

    The natural size of a row is that of its terms, as if none cancelled another: what cancels leaves an error of that size.
    """

    pairs: _Pairs
    rows: list[_ExactRows]

    @classmethod
    def compute(
        cls, call: AttentionCall, inputs: Sequence[Tensor], mask: Tensor | None, gradient: Tensor | None
    ) -> _Exact:
        """Compute rows of queries in parts, so that the matrix of weights never takes much memory."""
        pairs = _Pairs.of_call(call, inputs[0].device)
        query, key, value = (pairs.select(tensor) for tensor in inputs)
        grad = None if gradient is None else pairs.select(gradient)
        scale = query.shape[-1] ** -0.5 if call.scale is None else call.scale
        count, shared, queries, width = query.shape
        keys, value_width = value.shape[-2:]
        bias = None if mask is None else mask.expand(*call.query.shape[:-2], mask.shape[-2], keys)
        out, of_query = query.new_empty(count, shared, queries, value_width), torch.empty_like(query)
        of_key, of_value = torch.zeros_like(key), torch.zeros_like(value)
        of_rows, of_keys = query.new_empty(count, shared, queries), key.new_zeros(count, 1, keys)
        squares = torch.zeros_like(of_rows) if grad is None else grad.square().sum(-1)
        with _exactly(query.device):
            for first in range(0, queries, step := max(_MOST_LOGITS // (count * shared * keys), 1)):
                rows = slice(first, min(first + step, queries))
                weights = _weights(call, query[:, :, rows] @ key.mT * scale, bias, pairs, rows)
                out[:, :, rows], of_rows[:, :, rows] = weights @ value, weights.square().sum(-1)
                if grad is None:
                    continue
                of_weights = grad[:, :, rows] @ value.mT
                of_logits = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True)) * scale
                of_query[:, :, rows] = of_logits @ key
                of_key += (of_logits.mT @ query[:, :, rows]).sum(1, keepdim=True)
                of_value += (weights.mT @ grad[:, :, rows]).sum(1, keepdim=True)
                of_keys += (weights.square() * squares[:, :, rows, None]).sum((1, 2))[:, None]
        found = [_ExactRows(out, of_rows * value_width, of_rows > 0)]
        if grad is not None:
            of_logit = scale**2 * width
            found += [_ExactRows(of_query, of_rows * squares * of_logit, of_rows > 0)]
            found += [_ExactRows(of_key, of_keys * of_logit), _ExactRows(of_value, of_keys)]
        return cls(pairs, found)


def _weights(call: AttentionCall, logits: Tensor, bias: Tensor | None, pairs: _Pairs, rows: slice) -> Tensor:
    """Return the weights of keys; those of a query that sees none are zero."""
    if call.is_causal:
        tokens = torch.arange(rows.start, rows.stop, device=logits.device)
        logits = logits.masked_fill(torch.arange(logits.shape[-1], device=logits.device) > tokens[:, None], -math.inf)
    if bias is not None:
        own = pairs.select(bias[..., rows, :] if bias.shape[-2] > 1 else bias)
        logits = logits.masked_fill(own == 0, -math.inf) if bias.dtype == torch.bool else logits + own
    return logits.softmax(-1).nan_to_num(0.0)


@contextmanager
def _exactly(device: torch.device) -> Iterator[None]:
    """Compute products in full float32 while open."""
    former = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(former)
