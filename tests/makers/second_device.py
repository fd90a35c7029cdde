"""A pretended accelerator named `secondgpu`: tensors say that they lie there, and torch refuses what it refuses of CUDA.

Values are real and lie in the CPU's memory, so whole trainings run. A tensor is handed over by DLPack, whose header says
where its memory lies: with another device written into it, torch makes a tensor of that device from the same memory,
without a copy. All kernels of the device are one fallback, which checks what the kernels of CUDA check of their
arguments' devices, and then calls the CPU's.

As Apple's GPU it also refuses float64, float8, pinned memory and what torch names "cuda", and reelworks takes it for one.

What it cannot refuse: a generator of this device that draws for a CPU tensor. What it does not pretend is the time that
a device takes: streams, events and pinned memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import backend_registration
from torch.utils._pytree import tree_iter, tree_map

from reelworks.core import machine, system
from reelworks.models.precision.boundary import ATTENTION, LOWERED

NAME = "secondgpu"  # also that of a method which torch adds to every tensor and module
_DLPACK_CPU, _DLPACK_SECOND = 1, 12  # 12 is the "extension device", for torch its PrivateUse1
# Views, which only write other sizes and strides beside the same memory; whatever else makes a view is made of these.
_VIEWS = ("as_strided", "view", "view.dtype", "_reshape_alias", "unfold", "view_as_real", "view_as_complex")
_VIEWS += ("set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor", "set_")
# What moves values between devices.
_CROSSING = {"aten::_copy_from", "aten::_copy_from_and_resize", "aten::copy_"}
# CUDA allows indices of CPU memory for these.
_INDEXING = {"aten::index.Tensor", "aten::index_put_", "aten::_index_put_impl_", "aten::index.Tensor_out"}
# What autocast computes in float32 on CUDA.
_RAISED = ("layer_norm", "group_norm", "softmax", "log_softmax", "exp", "log", "pow", "cumsum", "mse_loss", "rsqrt")
# What Apple's GPUs have no values of.
_NOT_OF_APPLE = {torch.float64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2}
_refused: set[torch.dtype] = set()
observers: list[Callable[[str], None]] = []  # are told the name of each operator that has no composite


class _Header(ctypes.Structure):
    """The beginning of DLPack's DLTensor: address, type and number of the device."""

    _fields_ = (("data", ctypes.c_void_p), ("type", ctypes.c_int32), ("number", ctypes.c_int32))


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _cross(tensor: Tensor, device: int) -> Tensor:
    """Return a tensor of another device that has the memory of this one."""
    if device == _DLPACK_SECOND and tensor.dtype in _refused:
        raise TypeError(f"Cannot convert a tensor to {tensor.dtype}: the framework of {NAME} does not support it")
    capsule = torch._C._to_dlpack(tensor.detach())
    _Header.from_address(_pointer(capsule, b"dltensor")).type = device
    return torch._C._from_dlpack(capsule)


def _is_here(value: object) -> bool:
    return isinstance(value, Tensor) and value.device.type == NAME


def _refuse(op: Any, given: list[Any]) -> None:
    """Raise what CUDA's kernels raise for arguments on several devices."""
    if op.name() in _CROSSING:
        return
    others = [each for each in given if isinstance(each, Tensor) and not _is_here(each) and each.dim()]
    if op.name() in _INDEXING:
        others = [each for each in others if each is given[0] or each.is_floating_point()]
    if others:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and "
            f"{others[0].device}! ({op.name()})"
        )
    for each in given:
        if isinstance(each, torch._C.Generator) and each._cdata not in _GENERATORS:
            raise RuntimeError(f"Expected a '{NAME}' device type for generator but found '{each.device.type}'")


def _is_wrapped(value: Any, argument: Any) -> bool:
    return isinstance(value, int | float) and str(argument.type) == "Tensor"


def _kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation of the CPU on the memory of the device's tensors."""
    for observe in observers:
        observe(op.name().removeprefix("aten::"))
    # A number in a tensor's place, which torch had wrapped, comes as it was.
    asked = zip(args, op._schema.arguments, strict=False)
    args = tuple(torch.tensor(value) if _is_wrapped(value, each) else value for value, each in asked)
    _refuse(op, [*tree_iter((args, kwargs))])
    written: dict[int, Tensor] = {}  # by the alias, which an operation in place returns; it is the tensor given
    aliases: list[Tensor] = []  # keeps their ids

    def here(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not _is_here(value):
            return value
        # An empty tensor may be an output that is about to get its size, which memory of another owner cannot change.
        aliases.append(_cross(value, _DLPACK_CPU) if value.numel() else torch.empty_like(value, device="cpu"))
        written[id(aliases[-1])] = value
        return aliases[-1]

    def there(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if (given := written.get(id(value))) is None:
            return _cross(value, _DLPACK_SECOND)
        return given if given.shape == value.shape else given.resize_(value.shape).copy_(value)

    found = op(*tree_map(here, args), **tree_map(here, kwargs))
    return found if op.name() in _CROSSING and not _is_here(args[1]) else tree_map(there, found)


def _view(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)


def _copy_from(value: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy from, to or within the device."""
    plain = value.conj() if value.is_conj() else value  # DLPack knows no conjugates
    one, other = (_cross(each, _DLPACK_CPU) if _is_here(each) else each for each in (plain, target))
    other.copy_(one.conj() if plain is not value else one)
    return target


def _resize(tensor: Tensor, size: list[int], *, memory_format: Any = None) -> Tensor:
    strided = torch.empty(
        size, dtype=tensor.dtype, device="meta", memory_format=memory_format or torch.contiguous_format
    )
    whole = _cross(torch.empty(max(strided.numel(), 1), dtype=tensor.dtype), _DLPACK_SECOND)
    count = min(tensor.numel(), strided.numel())
    if count:
        whole[:count].copy_(tensor.reshape(-1)[:count])
    return tensor.set_(whole.untyped_storage(), 0, strided.shape, strided.stride())


_GENERATORS: set[int] = set()  # addresses, since kernels are given another object for them


class _Generator(torch.Generator):
    """A generator of the CPU that says that it is one of the device, if made for it."""

    def __new__(cls, device: Any = "cpu") -> _Generator:
        is_second = torch.device(device).type == NAME
        made = super().__new__(cls, "cpu" if is_second else device)
        (_GENERATORS.add if is_second else _GENERATORS.discard)(made._cdata)
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device(NAME, 0) if self._cdata in _GENERATORS else super().device


class _Stream:
    """A stream or event of a device that is never late."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self


class _Module:
    """What `torch.cuda` is to CUDA, as far as a training asks."""

    device = contextlib.nullcontext
    is_initialized = is_available = staticmethod(lambda: True)
    current_device = staticmethod(lambda: 0)
    device_count = staticmethod(lambda: 1)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)  # the CPU's generator, which kernels draw from, has been seeded

    get_rng_state = staticmethod(lambda *_: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, *_: torch.set_rng_state(state))

    Stream = Event = _Stream

    def current_stream(self, device: object = None) -> _Stream:
        return _Stream()

    @staticmethod
    def stream(stream: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def manual_seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)  # which all kernels draw from that are given no generator

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]


def _convolution(*args: Any) -> Any:
    return _kernel(torch.ops.aten.convolution.default, *args)


def _convolution_backward(gradient: Tensor, value: Tensor, weight: Tensor, *args: Any) -> Any:
    return _kernel(torch.ops.aten.convolution_backward.default, gradient, value, weight, None, *args)


def _autocast(op: Any, dtype: torch.dtype | None, *args: Any, **kwargs: Any) -> Any:
    """Run an operation under autocast, in a dtype or in that of autocast."""
    to = dtype or torch.get_autocast_dtype(NAME)

    def cast(value: Any) -> Any:
        takes = _is_here(value) and value.is_floating_point() and value.dtype != torch.float64
        return value.to(to) if takes else value

    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
        return op(*tree_map(cast, args), **tree_map(cast, kwargs))


def _clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).clone().untyped_storage()


def _resize_storage(storage: torch.UntypedStorage, size: int) -> None:
    """FSDP frees memory so, and takes it again; here it stays."""
    if storage.device.type != NAME:
        _RESIZE(storage, size)


_RESIZE = torch.UntypedStorage.resize_


def _set_data(tensor: Tensor, value: Tensor) -> None:
    """Set `data`, also to a tensor of the other device, which torch allows between the CPU and CUDA alone."""
    if _is_here(tensor) == _is_here(value):
        _DATA.__set__(tensor, value)
    else:
        kept = nn.Parameter(value, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value.detach()
        torch.utils.swap_tensors(tensor, kept)


_DATA = torch._C.TensorBase.data


@functools.cache
def _register() -> list[torch.library.Library]:
    """Tell torch of the device, once in a process; it goes on to know it."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, _Module())
    everything, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    everything.fallback(_kernel, "PrivateUse1")
    for name in _VIEWS:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        aten.impl(op, functools.partial(_view, op), "PrivateUse1")
    aten.impl("_copy_from", _copy_from, "PrivateUse1")
    aten.impl("_copy_from", torch.library.fallthrough_kernel, "Conjugate")  # else it would copy to resolve, for ever
    norm = torch.ops.aten.native_group_norm.default  # torch's own for unknown devices refuses some strides
    aten.impl(norm, functools.partial(_kernel, norm), "PrivateUse1")
    aten.impl("resize_", _resize, "PrivateUse1")
    aten.impl("convolution_overrideable", _convolution, "PrivateUse1")
    aten.impl("convolution_backward_overrideable", _convolution_backward, "PrivateUse1")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for names, dtype in ((LOWERED | {ATTENTION}, None), (_RAISED, torch.float32)):
        for packet in (getattr(torch.ops.aten, name) for name in names if hasattr(torch.ops.aten, name)):
            op = getattr(packet, packet.overloads()[0])
            aten.impl(op, functools.partial(_autocast, op, dtype), "AutocastPrivateUse1")
    ranks = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings(action="ignore"):  # torch has kernels of them, for a backend of the device's own
        for name in ("_allgather_base_", "_reduce_scatter_base_", "allreduce_", "broadcast_"):
            ranks.impl(name, functools.partial(_kernel, getattr(torch.ops.c10d, name).default), "PrivateUse1")
    return [everything, aten, ranks]


def use(patch: pytest.MonkeyPatch) -> torch.device:
    """Return the device, which this process takes for its GPU until the test ends."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch has no devices that are written in Python")
    _register()
    # Autograd counts devices at its first backward pass, and would have no thread for one that came later.
    torch.autograd.set_multithreading_enabled(False)
    device = torch.device(NAME, 0)
    patch.setattr(torch, "Generator", _Generator)
    patch.setattr(torch.UntypedStorage, "clone", _clone)
    patch.setattr(torch.UntypedStorage, "resize_", _resize_storage)
    patch.setattr(Tensor, "data", property(_DATA.__get__, _set_data), raising=False)
    patch.setattr(machine, "default_device", lambda number=0: device)
    return device


def use_as_apples(patch: pytest.MonkeyPatch) -> torch.device:
    """Return the device, which this process takes for Apple's GPU until the test ends."""
    import diffusers.utils.torch_utils as of_diffusers  # takes seconds

    device = use(patch)
    patch.setattr(machine, "_APPLE", {"mps", NAME})
    patch.setattr(f"{__name__}._refused", _NOT_OF_APPLE)
    # diffusers asks both, by the name of the device and without it, for the dtype of positions.
    patch.setitem(of_diffusers._DTYPE_UNSUPPORTED_DEVICES, torch.float64, {NAME})
    patch.setattr(torch.backends.mps, "is_available", lambda: True)
    patch.setattr(torch.mps, "recommended_max_memory", lambda: 16 << 30)
    patch.setattr(torch.mps, "driver_allocated_memory", system.peak_bytes)
    for name in ("empty_cache", "synchronize"):
        patch.setattr(torch.mps, name, lambda: None)
    # All else of CUDA raises without CUDA anyway.
    patch.setattr(torch.cuda, "empty_cache", _pretends_no_cuda)
    patch.setattr(Tensor, "pin_memory", _pretends_no_cuda)
    return device


def _pretends_no_cuda(*_: Any, **__: Any) -> Any:
    raise AssertionError("Apple's GPU is not CUDA")
