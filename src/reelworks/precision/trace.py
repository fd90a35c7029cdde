"""Follow inputs through a network by their role: no time or size that was rounded on its way may be used, and
no mask be taken for a number.

A number follows its role through casts, views and arithmetic, until a sine or a layer makes something else
of it, or until it meets latents or text, which are what the network computes with. Rounding alone is no
fault: what is put in the place of a rounded time may be exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, ValuesView
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from reelworks.precision.boundary import DtypeError
from reelworks.precision.contract import Contract, Role, name_of

_EXACT = (Role.TIME, Role.GEOMETRY)
_NARROW = (torch.bfloat16, torch.float16)
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
# Functions whose result still is the time, size or mask that went in; operators without their underscores.
_KEEP = frozenset((
    "add", "bfloat16", "bool", "broadcast_to", "cat", "chunk", "clone", "concat", "concatenate", "contiguous",
    "detach", "div", "divide", "double", "expand", "expand_as", "flatten", "float", "floor", "get", "getitem",
    "half", "index_select", "int", "long", "mul", "multiply", "narrow", "neg", "permute", "pow", "radd",
    "reciprocal", "repeat", "repeat_interleave", "reshape", "rmul", "round", "rpow", "rsqrt", "rsub",
    "rtruediv", "select", "split", "sqrt", "square", "squeeze", "stack", "sub", "subtract", "tile", "to",
    "transpose", "true_divide", "truediv", "type", "type_as", "unbind", "unflatten", "unsqueeze", "view",
    "view_as", "where",
))  # fmt: skip


class _Followed(NamedTuple):
    """A tensor that came from an input; held, so that no other one takes over its id.

    Attributes:
        fault: Where and to what it was rounded.
    """

    tensor: Tensor
    role: Role
    fault: DtypeError | None = None


class Trace(TorchFunctionMode):
    """Watches forward passes; opened before autocast, so that it sees what autocast casts.

    Args:
        contract: The component's.
        where: Tells the path of the module that is running.
    """

    def __init__(self, contract: Contract, where: Callable[[], str]) -> None:
        super().__init__()
        self._contract, self._where = contract, where
        self._followed: dict[int, _Followed] = {}

    def follow(self, inputs: Mapping[str, Tensor]) -> None:
        """Begin with the inputs of a pass."""
        roles = self._contract.roles
        self._followed = {id(value): _Followed(value, roles[name]) for name, value in inputs.items()}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function of torch, and look at what it does to roles.

        Raises:
            DtypeError: It uses a rounded time or size, or misreads a mask.
        """
        kwargs = kwargs or {}
        name = str(getattr(func, "__name__", "")).strip("_")
        given = _tensors([args, kwargs.values()])
        met = [self._followed[id(value)] for value in given if id(value) in self._followed]
        self._refuse_integers(name, args)
        out = func(*args, **kwargs)
        if met:
            self._follow_through(name, met, list(_tensors([out])))
        return out

    def _follow_through(self, name: str, met: list[_Followed], results: list[Tensor]) -> None:
        """Say of a function's results what they came from, or raise if they come from what was rounded."""
        computed = next((one.role for one in met if one.role not in (*_EXACT, Role.MASK)), None)
        fault = next((one.fault for one in met if one.fault is not None), None)
        keeps = computed is None and name in _KEEP
        if fault is not None and results and not keeps:
            raise fault
        role = computed or met[0].role
        if keeps or computed is not None:
            for value in results:
                lost = fault or self._rounding(role, value.dtype)
                self._followed[id(value)] = _Followed(value, role, lost)

    def _refuse_integers(self, name: str, args: tuple[Any, ...]) -> None:
        """Refuse masks that are read as numbers: as places, or bit by bit, where ~1 is -2."""
        read = {"invert": args[:1], "bitwise_not": args[:1], "getitem": args[1:]}.get(name, ())
        for value in _tensors(read):
            one = self._followed.get(id(value))
            if one is not None and one.role is Role.MASK and value.dtype in _INTEGERS:
                raise DtypeError(
                    f"a mask of {name_of(value.dtype)} is taken for numbers ({name})",
                    field=self._where(),
                    remedy="keep it bool, as it comes",
                    found=value.dtype,
                    declared=torch.bool,
                )

    def _rounding(self, role: Role, dtype: torch.dtype) -> DtypeError | None:
        if role not in _EXACT or dtype not in _NARROW:
            return None
        return DtypeError(
            f"an input of role {role} is rounded to {name_of(dtype)} and used",
            field=self._where(),
            remedy="keep it float32 up to its sines and cosines",
            found=dtype,
            declared=torch.float32,
        )


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple, ValuesView)):
            yield from _tensors(value)
