"""Tracing of inputs through a network by role: refuses the use of rounded values, and of masks as numbers.

A tensor keeps its role through casts, views and arithmetic, until a sine or a layer turns it into something else, or
until it meets latents or text, with which the network computes. Times and sizes must stay float32; the rest must not
fall below the compute dtype. Rounding alone is no fault: an exact value may replace a rounded time before it is used.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from reelworks.data.distributed.contract import Contract, Role, name_of
from reelworks.models.precision.boundary import ATTENTION, LOWERED, DtypeError

_EXACT = tuple(role for role in Role if role.is_exact)
_PRODUCTS = LOWERED | {ATTENTION}
# Dtypes that hold all values of another; float16 lacks the range of bfloat16, and 8 bits that of any.
_HOLDS = {torch.float32: (torch.float32, torch.float64), torch.bfloat16: (torch.bfloat16, torch.float32, torch.float64)}
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
# Functions that change no value; operators without underscores.
_VIEWS = frozenset((
    "bfloat16", "broadcast_to", "clone", "contiguous", "detach", "expand", "expand_as", "flatten", "float", "get",
    "getitem", "half", "permute", "repeat", "repeat_interleave", "reshape", "squeeze", "to", "transpose", "type",
    "type_as", "unflatten", "unsqueeze", "view", "view_as",
))  # fmt: skip
# Functions that mostly read a size or a dtype, which networks do all the time.
_ATTRIBUTES = frozenset(("get", "size", "stride", "dim"))
# Functions that take size and dtype of a tensor, and none of its values.
_FRESH = frozenset(
    ("empty_like", "full_like", "new_empty", "new_full", "new_ones", "new_zeros", "ones_like", "zeros_like")
)
# Functions whose result still is the time, size or mask that went in.
_KEEP = _VIEWS | frozenset((
    "add", "bool", "cat", "chunk", "concat", "concatenate", "div", "divide", "double", "floor", "index_select",
    "int", "long", "mul", "multiply", "narrow", "neg", "pow", "radd", "reciprocal", "rmul", "round", "rpow",
    "rsqrt", "rsub", "rtruediv", "select", "split", "sqrt", "square", "stack", "sub", "subtract", "tile",
    "true_divide", "truediv", "unbind", "where",
))  # fmt: skip


class _Followed(NamedTuple):
    """A tensor derived from an input, by weak reference so that a real pass can free its memory."""

    tensor: weakref.ref[Tensor]
    role: Role
    fault: DtypeError | None = None  # error that says where and to which dtype the tensor was rounded
    plain: bool = True  # whether it still has the input's values, in any dtype and shape


class Trace(TorchFunctionMode):
    """Mode that checks forward passes; enter it before autocast, so that it sees autocast's casts.

    `where` returns the path of the running module.
    """

    def __init__(self, contract: Contract, where: Callable[[], str]) -> None:
        super().__init__()
        self._contract, self._where = contract, where
        self._followed: dict[int, _Followed] = {}

    def follow(self, inputs: Iterable[tuple[str, Tensor]]) -> None:
        """Start a pass with these inputs, each with its name."""
        roles = self._contract.roles
        self._followed = {id(value): _Followed(weakref.ref(value), roles[name]) for name, value in inputs}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = str(getattr(func, "__name__", "")).strip("_")
        if name in _ATTRIBUTES and not isinstance(value := func(*args, **kwargs), Tensor):
            return value
        tensors = list(_tensors((*args, *kwargs.values())))
        sources = [source for value in tensors if (source := self._of(value)) is not None]
        self._refuse_integers(name, args)
        if name in _PRODUCTS:
            self._refuse_narrow_product(tensors, sources)
        if name == ATTENTION:
            self._refuse_added_mask(args[3] if len(args) > 3 else kwargs.get("attn_mask"))
        out = func(*args, **kwargs)
        if sources and name not in _FRESH:
            self._follow_through(name, sources, list(_tensors([out])))
        return out

    def _of(self, value: Any) -> _Followed | None:
        followed = self._followed.get(id(value))
        return followed if followed is not None and followed.tensor() is value else None

    def _follow_through(self, name: str, sources: list[_Followed], results: list[Tensor]) -> None:
        """Record the sources of a function's results, or raise if a source was rounded."""
        computed = next((source.role for source in sources if source.role not in (*_EXACT, Role.MASK)), None)
        fault = next((source.fault for source in sources if source.fault is not None), None)
        keeps = computed is None and name in _KEEP
        if fault is not None and results and not keeps:
            raise fault
        if not keeps and sources[0].role in _EXACT:
            computed = computed or Role.CONDITION  # a sine or a layer turned a time into a condition
        role = computed or sources[0].role
        plain = name in _VIEWS and all(source.plain for source in sources)
        if keeps or computed is not None:
            for value in results:
                lost = fault or self._rounding(role, value.dtype)
                self._followed[id(value)] = _Followed(weakref.ref(value), role, lost, plain)

    def _refuse_integers(self, name: str, args: tuple[Any, ...]) -> None:
        """Refuse integer masks that are used as indices, or inverted bit by bit, where ~1 is -2."""
        read = {"invert": args[:1], "bitwise_not": args[:1], "getitem": args[1:]}.get(name, ())
        for value in _tensors(read):
            source = self._of(value)
            if source is not None and source.role is Role.MASK and value.dtype in _INTEGERS:
                raise DtypeError(
                    f"a mask of {name_of(value.dtype)} is used as numbers ({name})",
                    field=self._where(),
                    remedy="keep the mask bool, as it arrives",
                    found=value.dtype,
                    declared=torch.bool,
                )

    def _refuse_narrow_product(self, tensors: list[Tensor], sources: list[_Followed]) -> None:
        """Refuse products below the compute dtype, by their inputs or by an autocast inside a module."""
        declared = self._contract.compute
        lowered = [torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        if lowered and (exact := next((source.role for source in sources if source.role in _EXACT), None)):
            raise self._rounded(exact, lowered[0])
        for dtype in (*(value.dtype for value in tensors if value.is_floating_point()), *lowered):
            if dtype not in _HOLDS[declared]:
                raise DtypeError(
                    f"a product is computed in {name_of(dtype)}, but {name_of(declared)} is declared",
                    field=self._where(),
                    remedy="remove the cast or the autocast before it, or widen the weights first",
                    found=dtype,
                    declared=declared,
                )

    def _refuse_added_mask(self, value: Any) -> None:
        """Refuse a mask of ones and zeros that attention would add, which masks nothing."""
        source = self._of(value)
        if source is not None and source.plain and source.role is Role.MASK and value.is_floating_point():
            raise DtypeError(
                f"a mask of {name_of(value.dtype)} is added by attention, and masks nothing",
                field=self._where(),
                remedy="keep the mask bool, as it arrives",
                found=value.dtype,
                declared=torch.bool,
            )

    def _rounding(self, role: Role, dtype: torch.dtype) -> DtypeError | None:
        """Return the error for a dtype that is too narrow for a role; None if it fits."""
        fits = role is Role.MASK or not dtype.is_floating_point or dtype in _HOLDS[self._declared(role)]
        return None if fits else self._rounded(role, dtype)

    def _declared(self, role: Role) -> torch.dtype:
        return torch.float32 if role in _EXACT else self._contract.compute

    def _rounded(self, role: Role, dtype: torch.dtype) -> DtypeError:
        exact, declared = role in _EXACT, self._declared(role)
        return DtypeError(
            f"an input of role {role} is rounded to {name_of(dtype)} and used",
            field=self._where(),
            remedy="keep it float32 up to its sine and cosine embedding" if exact else f"keep it {name_of(declared)}",
            found=dtype,
            declared=declared,
        )


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
