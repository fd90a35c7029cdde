"""A device that does not exist: its tensors lie in CPU memory, and torch refuses to mix them with others, as on a GPU.

Torch knows it for the rest of a process's life, so it belongs in processes of their own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "second"
# Operations that bring numbers from one device to the other, and those that take indices from the CPU, as CUDA's do.
_COPIES = {"aten::copy_", "aten::_to_copy"}
_TAKES_INDICES = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}


class SecondTensor(torch.Tensor):
    """A tensor on the device; `held` are its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> SecondTensor:
        """Wrap a tensor in CPU memory, whose memory it shares."""
        made: SecondTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        return _run(func, args, kwargs or {})

    def __repr__(self) -> str:
        return f"SecondTensor({self.held!r})"

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        """The tensor without its history."""
        return self.detach()

    @data.setter
    def data(self, value: SecondTensor) -> None:
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.held = value.held

    def tolist(self) -> Any:
        """Wait for the numbers, as on a GPU."""
        return self.held.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Refuse, as a GPU does."""
        if not force:
            raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first.")
        return self.held.numpy(force=True)

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            made = SecondTensor(self.held.clone())
            memo[id(self)] = (
                torch.nn.Parameter(made, self.requires_grad) if isinstance(self, torch.nn.Parameter) else made
            )
        return memo[id(self)]


class _Mode(TorchDispatchMode):
    """Makes tensors on the device."""

    def __init__(self) -> None:
        super().__init__()
        # With this key torch does not look for the device's own functions when one is made.
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    name = func._overloadpacket._qualified_op_name
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    here = [tensor for tensor in tensors if isinstance(tensor, SecondTensor)]
    asked = kwargs.get("device")
    _require_one_device(name, tensors, bool(here))
    if asked is not None and torch.device(asked).type == NAME:
        kwargs = kwargs | {"device": torch.device("cpu")}
        is_here = True
    else:
        is_here = bool(here) and asked is None
    if (drawn := kwargs.get("generator")) is not None and (drawn._cdata in _of_device) != is_here:
        raise RuntimeError(f"Expected a '{NAME if is_here else 'cpu'}' device type for generator")
    if name == "aten::copy_":
        is_here = isinstance(args[0], SecondTensor)
    kwargs = kwargs | ({"pin_memory": False} if "pin_memory" in kwargs else {})
    plain_args, plain_kwargs = pytree.tree_map_only(SecondTensor, lambda tensor: tensor.held, (args, kwargs))
    if name == "aten::_to_copy" and is_here != bool(here):
        plain_args = (plain_args[0].clone(), *plain_args[1:])  # `to` never shares memory between devices
    out = func(*plain_args, **plain_kwargs)
    if not is_here:
        return out
    # What is changed in place is returned as it came.
    known = {id(tensor.held): tensor for tensor in here}
    return pytree.tree_map_only(Tensor, lambda held: known[id(held)] if id(held) in known else SecondTensor(held), out)


_TorchGenerator = torch.Generator
_of_device: dict[int, torch.Generator] = {}  # by torch's own number, which stays when an operation wraps one anew


class _AnyGenerator(type):
    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        if torch.device(device).type != NAME:
            return _TorchGenerator(device)
        made = _TorchGenerator()
        return _of_device.setdefault(made._cdata, made)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _TorchGenerator)


class _Generator(metaclass=_AnyGenerator):
    """What takes the place of `torch.Generator`, which knows no device of this name."""


class _Module(backend_registration._DummyBackendModule):
    """Functions that torch asks of a device's module."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def manual_seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


def _require_one_device(name: str, tensors: list[Tensor], is_here: bool) -> None:
    if not is_here or name in _COPIES:
        return
    others = [one for one in tensors if not isinstance(one, SecondTensor) and one.dim() > 0]
    if name in _TAKES_INDICES and isinstance(tensors[0], SecondTensor):
        others = [one for one in others if one.is_floating_point()]
    if others:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found {NAME}:0 and {others[0].device} ({name})"
        )


_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
_LOWERED = (
    "addmm",
    "baddbmm",
    "bmm",
    "conv1d",
    "conv2d",
    "conv3d",
    "linear",
    "matmul",
    "mm",
    "scaled_dot_product_attention",
)


@functools.cache
def _register() -> list[torch.library.Library]:
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    every, some = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for name in _LOWERED:
        some.impl(name, functools.partial(_lowered, getattr(torch.ops.aten, name)), "AutocastPrivateUse1")
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` then copies to the device by an operation
    return [every, some]


def _lowered(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a product in the dtype of autocast."""
    dtype = torch.get_autocast_dtype(NAME)
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        return operation(
            *(_cast(value, dtype) for value in args), **{key: _cast(value, dtype) for key, value in kwargs.items()}
        )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.dtype == torch.float32 else value


@contextlib.contextmanager
def opened() -> Iterator[torch.device]:
    """Let tensors be made on the device while open; yields it."""
    _register()
    from torch.distributed.checkpoint._state_dict_stager import StateDictStager

    from reelworks.checkpoint import tree

    with contextlib.ExitStack() as stack:
        stack.enter_context(_Mode())
        stack.enter_context(mock.patch.object(torch, "Generator", _Generator))
        # These look at the class of a tensor and at its memory, where a GPU's has nothing of its own.
        stack.enter_context(mock.patch.object(tree, "type", _Type, create=True))
        stack.enter_context(mock.patch.object(StateDictStager, "stage", _stage))
        yield torch.device(NAME, 0)


class _AnyType(type):
    def __call__(cls, value: Any) -> type:
        return torch.Tensor if isinstance(value, SecondTensor) else type(value)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, type)


class _Type(metaclass=_AnyType):
    """Takes the place of `type`, which would say that a tensor is of another class than a GPU's."""


def _stage(_: Any, tensors: dict[str, Tensor], non_blocking: bool = False) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def train(recipe: dict[str, Any]) -> None:
    """Train a recipe on the device."""
    from reelworks.distributed import mesh
    from reelworks.recipe import recipe_file
    from reelworks.train import trainer
    from reelworks.train.request import TrainRequest

    @contextlib.contextmanager
    def join(**_: Any) -> Iterator[mesh.World]:
        yield mesh.World(0, 1, torch.device(NAME, 0))

    with opened(), mock.patch.object(mesh, "join", join):
        assert trainer.run(recipe_file.parse(recipe), TrainRequest()) == 0
