"""Follow inputs through a network by their role: nothing that was rounded below what is declared may be used, and
no mask be taken for a number.

A number follows its role through casts, views and arithmetic, until a sine or a layer makes something else
of it, or until it meets latents or text, which are what the network computes with: times and sizes stay float32,
the rest must not fall below the compute dtype. Rounding alone is no fault: what is put in the place of a rounded time may be
exact.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, ValuesView
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from reelworks.precision.boundary import DtypeError
from reelworks.precision.contract import Contract, Role, name_of
from reelworks.precision.meta_autocast import ATTENTION, LOWERED

_EXACT = (Role.TIME, Role.GEOMETRY)
_PRODUCTS = LOWERED | {ATTENTION}
# What holds the numbers of others; float16 has not the range of bfloat16, nor 8 bits that of any.
_HOLDS = {
    torch.float32: (torch.float32, torch.float64),
    torch.bfloat16: (torch.bfloat16, torch.float32, torch.float64),
}
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

# Those that change no value.
_VIEWS = frozenset((
    "bfloat16", "broadcast_to", "clone", "contiguous", "detach", "expand", "expand_as", "flatten", "float", "getitem",
    "get", "half", "permute", "repeat", "repeat_interleave", "reshape", "squeeze", "to", "transpose", "type", "type_as",
    "unflatten", "unsqueeze", "view", "view_as",
))  # fmt: skip


class _Followed(NamedTuple):
    """A tensor that came from an input; not held, since a real pass would keep all that it makes.

    Attributes:
        tensor: Tells whether it still is the one that its id meant.
        fault: Where and to what it was rounded.
        plain: It has the values that came in, of whatever dtype and shape.
    """

    tensor: weakref.ref[Tensor]
    role: Role
    fault: DtypeError | None = None
    plain: bool = True


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
        self._followed = {
            id(value): _Followed(weakref.ref(value), roles[name]) for name, value in inputs.items()
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function of torch, and look at what it does to roles.

        Raises:
            DtypeError: It uses a rounded time or size, or misreads a mask.
        """
        kwargs = kwargs or {}
        name = str(getattr(func, "__name__", "")).strip("_")
        given = list(_tensors([args, kwargs.values()]))
        met = [one for value in given if (one := self._of(value)) is not None]
        self._refuse_integers(name, args)
        if name in _PRODUCTS:
            self._refuse_narrow_product(given, met)
        if name == ATTENTION:
            self._refuse_added_mask(args[3] if len(args) > 3 else kwargs.get("attn_mask"))
        out = func(*args, **kwargs)
        if met:
            self._follow_through(name, met, list(_tensors([out])))
        return out

    def _of(self, value: Any) -> _Followed | None:
        one = self._followed.get(id(value))
        return one if one is not None and one.tensor() is value else None

    def _follow_through(self, name: str, met: list[_Followed], results: list[Tensor]) -> None:
        """Say of a function's results what they came from, or raise if they come from what was rounded."""
        computed = next((one.role for one in met if one.role not in (*_EXACT, Role.MASK)), None)
        fault = next((one.fault for one in met if one.fault is not None), None)
        keeps = computed is None and name in _KEEP
        if fault is not None and results and not keeps:
            raise fault
        if not keeps and met[0].role in _EXACT:
            computed = computed or Role.CONDITION  # what a sine or a layer made of a time
        role = computed or met[0].role
        plain = name in _VIEWS and all(one.plain for one in met)
        if keeps or computed is not None:
            for value in results:
                lost = fault or self._rounding(role, value.dtype)
                self._followed[id(value)] = _Followed(weakref.ref(value), role, lost, plain)

    def _refuse_integers(self, name: str, args: tuple[Any, ...]) -> None:
        """Refuse masks that are read as numbers: as places, or bit by bit, where ~1 is -2."""
        read = {"invert": args[:1], "bitwise_not": args[:1], "getitem": args[1:]}.get(name, ())
        for value in _tensors(read):
            one = self._of(value)
            if one is not None and one.role is Role.MASK and value.dtype in _INTEGERS:
                raise DtypeError(
                    f"a mask of {name_of(value.dtype)} is taken for numbers ({name})",
                    field=self._where(),
                    remedy="keep it bool, as it comes",
                    found=value.dtype,
                    declared=torch.bool,
                )

    def _refuse_narrow_product(self, given: list[Tensor], met: list[_Followed]) -> None:
        """Refuse products below the compute dtype, by what they are given or by an autocast that a module opened."""
        declared = self._contract.compute
        lowered = [
            torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
        ]
        if lowered and (exact := next((one.role for one in met if one.role in _EXACT), None)):
            raise self._rounded(exact, lowered[0])
        for dtype in (*(value.dtype for value in given if value.is_floating_point()), *lowered):
            if dtype not in _HOLDS[declared]:
                raise DtypeError(
                    f"a product is computed in {name_of(dtype)}, and {name_of(declared)} is declared",
                    field=self._where(),
                    remedy="remove the cast or the autocast before it, or widen the weights first",
                    found=dtype,
                    declared=declared,
                )

    def _refuse_added_mask(self, value: Any) -> None:
        """Refuse a mask of ones and zeros that attention adds, which hides nothing."""
        one = self._of(value)
        if one is not None and one.plain and one.role is Role.MASK and value.is_floating_point():
            raise DtypeError(
                f"a mask of {name_of(value.dtype)} is added by attention, and hides nothing",
                field=self._where(),
                remedy="keep it bool, as it comes",
                found=value.dtype,
                declared=torch.bool,
            )

    def _rounding(self, role: Role, dtype: torch.dtype) -> DtypeError | None:
        """Say what is wrong with a dtype that an input of a role was given; masks have none."""
        if role is Role.MASK or not dtype.is_floating_point:
            return None
        declared = torch.float32 if role in _EXACT else self._contract.compute
        return None if dtype in _HOLDS[declared] else self._rounded(role, dtype)

    def _rounded(self, role: Role, dtype: torch.dtype) -> DtypeError:
        exact = role in _EXACT
        declared = torch.float32 if exact else self._contract.compute
        return DtypeError(
            f"an input of role {role} is rounded to {name_of(dtype)} and used",
            field=self._where(),
            remedy="keep it float32 up to its sines and cosines" if exact else f"keep it {name_of(declared)}",
            found=dtype,
            declared=declared,
        )


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple, ValuesView)):
            yield from _tensors(value)
