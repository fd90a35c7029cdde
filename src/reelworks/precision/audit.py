"""Audit of a model's dtypes: runs its forward pass on the meta device, without numbers.

A dtype that does not fit at one shape of a thousand is found in milliseconds, before any data is read, instead of
hours into a run.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic

import torch
from torch import Tensor, nn

from reelworks.precision import storage_dtype
from reelworks.precision.boundary import DtypeBoundary, DtypeError, InputsT, InputsT_contra, Predictor
from reelworks.precision.dtype_guard import guard
from reelworks.precision.trace import Trace


def audit(
    denoiser: Predictor[InputsT], examples: Sequence[InputsT], *, sharded: bool = False, units: Sequence[nn.Module] = ()
) -> int:
    """Raise the first of a model's `faults`, which takes the same arguments, or return the number of shapes."""
    for fault in faults(denoiser, examples, sharded=sharded, units=units):
        raise fault
    return len(examples)


def faults(
    denoiser: Predictor[InputsT], examples: Iterable[InputsT], *, sharded: bool = False, units: Sequence[nn.Module] = ()
) -> Iterator[DtypeError]:
    """Check the stored dtypes, then run each example through a boundary and a guarded copy on the meta device.

    Args:
        denoiser: The model, before it is sharded; it is not changed.
        examples: Inputs of every shape to be trained, on any device; only shapes and dtypes matter.
        sharded: Give parameters the compute dtype in the forward pass, as FSDP's mixed precision will.
        units: Modules that FSDP shards as one unit.

    Yields:
        A fault for each place, in the order of the pass, which ends at its first fault.
    """
    reported = set()
    for fault in storage_dtype.faults(denoiser.module, denoiser.contract, units if sharded else ()):
        reported.add(str(fault.field).rpartition(".")[0])
        yield fault
    compute = denoiser.contract.compute if sharded else None
    shadow = _shadow(denoiser, compute)
    if compute is not None:
        shadow.contract = dataclasses.replace(shadow.contract, storage=compute)
    _run_repeats_once(shadow.module)
    with torch.no_grad(), guard(shadow.module) as calls:
        trace = Trace(shadow.contract, lambda: calls.path)
        boundary = DtypeBoundary(_Traced(shadow, trace))
        for example in examples:
            try:
                with trace:
                    boundary(_on_meta(example))
            except (DtypeError, RuntimeError) as error:
                named = error if isinstance(error, DtypeError) else calls.named(error)
                if named is None:
                    raise
                if named.field not in reported:
                    reported.add(str(named.field))
                    yield named


@contextlib.contextmanager
def watched(denoiser: Predictor[InputsT]) -> Iterator[DtypeBoundary[InputsT]]:
    """Yield a boundary whose forward passes raise `DtypeError` for a fault, on any device, while the context is open."""
    with guard(denoiser.module) as calls, Trace(denoiser.contract, lambda: calls.path) as trace:
        yield DtypeBoundary(_Traced(denoiser, trace))


@dataclasses.dataclass
class _Traced(Generic[InputsT_contra]):
    """A model whose inputs are followed by role once they have passed the boundary."""

    inner: Predictor[InputsT_contra]
    trace: Trace

    def __post_init__(self) -> None:
        self.module, self.contract = self.inner.module, self.inner.contract

    def predict(self, inputs: InputsT_contra) -> Tensor:
        self.trace.follow({f.name: getattr(inputs, f.name) for f in dataclasses.fields(inputs)})
        return self.inner.predict(inputs)


def _shadow(denoiser: Predictor[InputsT], compute: torch.dtype | None) -> Predictor[InputsT]:
    """Copy the model with meta tensors in place of its own, which are not touched."""
    memo: dict[int, Any] = {}
    for parameter in denoiser.module.parameters():
        dtype = compute if compute is not None and parameter.is_floating_point() else parameter.dtype
        empty = torch.empty(parameter.shape, dtype=dtype, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    others = (value for module in denoiser.module.modules() for value in vars(module).values())
    for value in (*denoiser.module.buffers(), *others):
        if isinstance(value, Tensor):
            memo[id(value)] = torch.empty(value.shape, dtype=value.dtype, device="meta")
    return copy.deepcopy(denoiser, memo)


def _on_meta(example: InputsT) -> InputsT:
    values = {f.name: getattr(example, f.name).to("meta") for f in dataclasses.fields(example)}
    return dataclasses.replace(example, **values)


def _run_repeats_once(root: nn.Module) -> None:
    """Let members of a ModuleList that agree in type, dtypes and shapes share one result.

    On the meta device the second of 28 equal blocks can only repeat the first one's result. A member whose parameters or
    inputs differ in any dtype or shape runs separately.
    """
    for parent in root.modules():
        if isinstance(parent, nn.ModuleList):
            results: dict[Hashable, Any] = {}
            for child in parent:
                child.forward = _shared(child, child.forward, results)


def _shared(child: nn.Module, run: Callable[..., Any], results: dict[Hashable, Any]) -> Callable[..., Any]:
    state = (type(child), _signature(list(child.named_parameters())), _signature(list(child.named_buffers())))

    def forward(*args: Any, **kwargs: Any) -> Any:
        key = (state, _signature(args), _signature(sorted(kwargs.items())))
        if key not in results:
            results[key] = run(*args, **kwargs)
        return results[key]

    return forward


def _signature(value: Any) -> Hashable:
    """Reduce tensors, also in lists and tuples, to dtype and shape; return other values as they are."""
    if isinstance(value, Tensor):
        return value.dtype, value.shape
    if isinstance(value, (list, tuple)):
        return tuple(_signature(item) for item in value)
    return value if isinstance(value, Hashable) else id(value)
