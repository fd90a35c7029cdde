"""Audit of a model's dtypes: checks the stored ones, and runs its forward pass on the meta device, without numbers.

A dtype that does not fit at one shape of a thousand is found in milliseconds, before any data is read, instead of
hours into a run.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic

import torch
from torch import Tensor, nn

from reelworks.core.errors import UserError
from reelworks.data.distributed.contract import Contract, name_of
from reelworks.models.precision import tensors
from reelworks.models.precision.boundary import DtypeBoundary, DtypeError, InputsT, InputsT_contra, Predictor
from reelworks.models.precision.repeats import Repeats, layout
from reelworks.models.precision.trace import Trace

PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # these round their weights to the compute dtype anyway

# Words in torch's errors about dtypes.
_OF_DTYPES = re.compile(r"dtype|scalar type|should be the same|to be bool|BFloat16|Half|Double")

_PLACE = "reelworks_module"  # attribute of an error: path of the innermost module that it left
_CASTS_ITSELF = "FP32LayerNorm"  # of diffusers: computes in float32, whatever its input and its weights are


def audit(
    denoiser: Predictor[InputsT], examples: Sequence[InputsT], *, sharded: bool = False, units: Sequence[nn.Module] = ()
) -> int:
    """Raise the first of a model's `faults`, which takes the same arguments, or return the number of shapes."""
    for fault in faults(denoiser, examples, sharded=sharded, units=units):
        raise fault
    return len(examples)


def faults(
    denoiser: Predictor[InputsT], examples: Sequence[InputsT], *, sharded: bool = False, units: Sequence[nn.Module] = ()
) -> Iterator[DtypeError]:
    """Check the stored dtypes, then run each example through a boundary and a guarded copy on the meta device.

    Args:
        denoiser: The model, before it is sharded; it is not changed.
        examples: Inputs of every shape to be trained, on any device; only shapes and dtypes matter.
        sharded: Give parameters the compute dtype in the forward pass, as FSDP's mixed precision will.
        units: Modules that FSDP shards as one unit.

    Yields:
        A fault for each place, in the order of the pass, which ends at its first fault.

    Raises:
        Exception: Whatever else a pass fails of there, for all shapes, or a UserError if it does for some.
    """
    reported = set()
    for fault in storage_faults(denoiser.module, denoiser.contract, units if sharded else ()):
        reported.add(str(fault.field).rpartition(".")[0])
        yield fault
    compute = denoiser.contract.compute if sharded else None
    try:
        yield from _faults_of_passes(denoiser, examples, compute, reported, once=True)
    except UserError:
        raise
    except Exception:  # such as that of a block which notes something elsewhere
        yield from _faults_of_passes(denoiser, examples, compute, reported, once=False)


def _faults_of_passes(
    denoiser: Predictor[InputsT],
    examples: Sequence[InputsT],
    compute: torch.dtype | None,
    reported: set[str],
    *,
    once: bool,
) -> Iterator[DtypeError]:
    """Yield the faults in modules that are not `reported` yet; with `once`, one of several equal blocks is run."""
    shadow = shadow_of(denoiser, compute)
    if compute is not None:
        shadow.contract = dataclasses.replace(shadow.contract, storage=compute)
    tables = _run_repeats_once(shadow.module) if once else []
    failed: list[tuple[InputsT, Exception]] = []
    with torch.no_grad(), Repeats(), guard(shadow.module) as calls:
        trace = Trace(shadow.contract, lambda: calls.path)
        boundary = DtypeBoundary(_Traced(shadow, trace))
        for example in examples:
            for table in tables:
                table.clear()  # the results of an earlier pass have no role in this one
            try:
                with trace:
                    boundary(on_meta(example))
            except Exception as error:
                named = error if isinstance(error, UserError) else calls.named(error)
                if named is None and not once:
                    failed.append((example, error))
                elif not isinstance(named, DtypeError):
                    raise
                elif named.field not in reported:
                    reported.add(str(named.field))
                    yield named
    if failed:
        first, why = failed[0]
        if len(failed) == len(examples) or "meta" in str(why):
            raise why
        sizes = " × ".join(map(str, tensors.named(first)[0][1].shape[1:]))
        raise UserError(
            f"a pass fails for latents of {sizes}: {type(why).__name__}: {why}",
            code="shape-fails",
            field="bucket",
            remedy="leave this size out of the buckets, or let the network take it",
        ) from why


def storage_faults(module: nn.Module, contract: Contract, units: Sequence[nn.Module] = ()) -> Iterator[DtypeError]:
    """Compare the stored dtypes of a module with its contract.

    Parameters must have the storage dtype; trained ones may have the master dtype, and those of products in a base under
    a LoRA the compute dtype. Buffers and parameters of components that are not trained have the storage dtype or float32.
    Buffers of 8 bits and less are not checked: they are codes of quantised weights.

    Trained parameters of each of `units`, which FSDP will shard as one, must agree.
    """
    products = {id(p) for child in module.modules() if isinstance(child, PRODUCTS) for p in child.parameters()}
    for name, parameter in module.named_parameters():
        trained, of_frozen = parameter.requires_grad, torch.float32 if contract.master is None else None
        allowed = {contract.storage, contract.master if trained else of_frozen}
        if contract.base is not None and not trained and id(parameter) in products:
            allowed.add(contract.compute)
        if parameter.is_floating_point() and parameter.dtype not in allowed:
            yield _stored(name, "a parameter", parameter, contract.storage)
    for name, buffer in module.named_buffers():
        wide = buffer.is_floating_point() and buffer.dtype.itemsize > 1
        if wide and buffer.dtype not in (contract.storage, torch.float32):
            yield _stored(name, "a buffer", buffer, contract.storage)
        if buffer.is_complex() and buffer.dtype != torch.complex64:
            yield _stored(name, "a buffer", buffer, torch.complex64)
    if units:
        yield from _mixed_units(module, units)


def _mixed_units(module: nn.Module, units: Sequence[nn.Module]) -> Iterator[DtypeError]:
    """Yield trained parameters that differ from most of their unit; those outside all units form one more."""
    left = {id(p): (name, p) for name, p in module.named_parameters() if p.requires_grad}
    for unit in (*units, module):
        held = [left.pop(id(p)) for p in unit.parameters() if id(p) in left]
        usual = Counter(p.dtype for _, p in held).most_common(1)
        for name, parameter in held:
            if parameter.dtype != (most := usual[0][0]):
                yield DtypeError(
                    f"a trained parameter of {name_of(parameter.dtype)} in a unit ({type(unit).__name__}) of {name_of(most)}: "
                    f"FSDP takes one dtype in each unit",
                    field=name,
                    remedy=f"store it as {name_of(most)}, or make it a unit of its own in the sharding plan",
                    found=parameter.dtype,
                    declared=most,
                )


def _stored(name: str, what: str, tensor: Tensor, declared: torch.dtype) -> DtypeError:
    return DtypeError(
        f"{what} is stored as {name_of(tensor.dtype)}, but {name_of(declared)} is declared",
        field=name,
        remedy=f"load and build it as {name_of(declared)}",
        found=tensor.dtype,
        declared=declared,
    )


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
        self.trace.follow(tensors.named(inputs))
        return self.inner.predict(inputs)


def shadow_of(denoiser: Predictor[InputsT], compute: torch.dtype | None) -> Predictor[InputsT]:
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


def on_meta(example: InputsT) -> InputsT:
    """Return inputs without their values."""
    return tensors.mapped(example, lambda _name, value: value.to("meta"))


def _run_repeats_once(root: nn.Module) -> list[dict[Hashable, Any]]:
    """Let members of a ModuleList that agree in type, dtypes and shapes share one result.

    On the meta device the second of 28 equal blocks can only repeat the first one's result. A member whose parameters or
    inputs differ in any dtype or shape runs separately.

    Returns:
        The results, which are kept until they are cleared.
    """
    tables: list[dict[Hashable, Any]] = []
    for parent in root.modules():
        if isinstance(parent, nn.ModuleList):
            results: dict[Hashable, dict[Hashable, Any]] = {}
            for child in parent:
                kind = (type(child), layout(list(child.named_parameters())), layout(list(child.named_buffers())))
                child.forward = _shared(child.forward, results.setdefault(kind, {}))
            tables += results.values()
    return tables


def _shared(run: Callable[..., Any], results: dict[Hashable, Any]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        key = layout(args), layout(kwargs)
        try:
            known = key in results
        except TypeError:  # an argument cannot be compared
            return run(*args, **kwargs)
        if not known:
            results[key] = run(*args, **kwargs)
        return results[key]

    return forward


class Calls:
    """Stack of the modules whose forward pass is running."""

    def __init__(self, root: nn.Module) -> None:
        self._kind = type(root).__name__
        self._paths: list[str] = []

    @property
    def path(self) -> str:
        """Path of the innermost running module."""
        return (self._paths[-1] if self._paths else "") or self._kind

    def enter(self, path: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        """Return the hook that runs before a module's forward."""
        return lambda _module, _args: self._paths.append(path)

    def leave(self, path: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        """Return the hook that runs after a module's forward, also on errors; it refuses float64 outputs."""

        def hook(module: nn.Module, _args: tuple[Any, ...], result: Any) -> None:
            # The error has its place with it, as whoever keeps an error keeps all tensors of its frames: recomputation
            # ends each block by raising one.
            if (error := sys.exc_info()[1]) is not None:
                vars(error).setdefault(_PLACE, self.path)
            self._paths.pop()
            for value in result if isinstance(result, tuple) else (result,):
                if isinstance(value, Tensor) and value.dtype == torch.float64:
                    raise DtypeError(
                        f"{type(module).__name__} returns float64, which makes later operations slow or fail",
                        field=path or self._kind,
                        remedy="give constants of numpy and Python a dtype, and cast to float32 at the end",
                        found=torch.float64,
                        declared=torch.float32,
                    )

        return hook

    def named(self, error: Exception) -> DtypeError | None:
        """Return torch's error about dtypes with the path of its module, or None for other errors."""
        path = vars(error).get(_PLACE)
        text = str(error).splitlines()[0] if str(error) else ""
        if path is None or not _OF_DTYPES.search(text):
            return None
        return DtypeError(
            f"an operation inside refuses its dtypes ({text})",
            field=path,
            remedy=f"cast one of them inside {path}, or call {self._kind} through precision.DtypeBoundary",
        )


@contextlib.contextmanager
def guard(module: nn.Module) -> Iterator[Calls]:
    """Check every module at each call while the context is open.

    A leaf whose floating inputs differ in dtype from its parameters raises, unless autocast reconciles them, which it
    does not do for float64. Parameters are read at the call, so those that FSDP lowers for the forward pass count as
    lowered. Errors of other modules are raised with their path.
    """
    calls, handles = Calls(module), []
    for path, child in module.named_modules():
        handles += [
            child.register_forward_pre_hook(calls.enter(path)),
            child.register_forward_hook(calls.leave(path), always_call=True),
        ]
        if _is_leaf(child):
            handles.append(child.register_forward_pre_hook(_check(path or type(module).__name__, module)))
    try:
        yield calls
    except RuntimeError as error:
        named = calls.named(error)
        if named is None:
            raise
        raise named from error
    finally:
        for handle in handles:
            handle.remove()


def _is_leaf(module: nn.Module) -> bool:
    if type(module).__name__ == _CASTS_ITSELF or next(module.children(), None) is not None:
        return False
    return any(p.is_floating_point() for p in module.parameters(recurse=False))


def _check(path: str, root: nn.Module) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def hook(leaf: nn.Module, args: tuple[Any, ...]) -> None:
        weight = next(p for p in leaf.parameters(recurse=False) if p.is_floating_point())
        for value in args:
            if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype == weight.dtype:
                continue
            device = "cpu" if value.device.type == "meta" else value.device.type
            if torch.is_autocast_enabled(device) and value.dtype != torch.float64:
                continue
            declared = name_of(weight.dtype)
            raise DtypeError(
                f"{type(leaf).__name__} got an input of {name_of(value.dtype)}, but has weights of {declared}",
                field=path,
                remedy=f"call {type(root).__name__} through precision.DtypeBoundary, which casts inputs of role latent, "
                f"text and condition; or cast the input of {path} to {declared}",
                found=value.dtype,
                declared=weight.dtype,
            )

    return hook
