"""Record the attention calls of a network: sizes, masks, memory layouts, and the layout of the gradient that comes back.

A kernel may be right for contiguous tensors and wrong for the views that a network gives it. Tensors of a recorded layout can
be made anew, with drawn values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from reelworks.core.errors import UserError

Attend = Callable[..., Tensor]  # with the arguments of torch's scaled_dot_product_attention
ATTEND: Attend = functional.scaled_dot_product_attention

_ALIGNMENT = 8  # elements; kernels load up to 16 bytes at once
_PLANNING = "cuda"  # device on which torch keeps the plans of kernels
_MASKED = -10_000.0  # near what networks add where a key is masked, and finite in bfloat16


class TensorLayout(NamedTuple):
    """Shape, strides and dtype of a tensor; the offset of its first element counts from an aligned address."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @classmethod
    def of_tensor(cls, tensor: Tensor) -> TensorLayout:
        """Return the layout of a tensor on any device."""
        return cls(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()) % _ALIGNMENT, tensor.dtype)

    def empty(self, device: torch.device) -> Tensor:
        """Return a tensor of this layout whose memory, gaps included, is zero."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        memory = torch.zeros(self.offset + last + 1, dtype=self.dtype, device=device)
        return memory.as_strided(self.shape, self.strides, self.offset)

    def drawn(self, device: torch.device, generator: torch.Generator) -> Tensor:
        """Return a tensor of this layout with normally distributed values, the same along expanded dimensions."""
        tensor = self.empty(device)
        return _filled(tensor, torch.randn(_written(tensor).shape, generator=generator, device=device))


def _written(tensor: Tensor) -> Tensor:
    """Return the part of an expanded tensor that has memory of its own."""
    for dim, stride in enumerate(tensor.stride()):
        tensor = tensor.narrow(dim, 0, 1) if stride == 0 and tensor.shape[dim] > 1 else tensor
    return tensor


def _filled(tensor: Tensor, values: Tensor) -> Tensor:
    _written(tensor).copy_(values)
    return tensor


class _InOneLayout(torch.autograd.Function):
    """Hand the kernel's backward pass a gradient whose strides its shape alone decides: those of `[B, L, A, E]` in memory.

    Torch 2.11, among others, keeps cuDNN's plans by the strides of query, key and value, and reads later gradients with
    those of the first. Layers that attend alike and go on differently, as those of FLUX, then get garbage or crash the GPU.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(out: Tensor) -> Tensor:
        """Return the result as it is."""
        return out.view_as(out)

    @staticmethod
    def setup_context(_context: Any, _inputs: Any, _out: Tensor) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        """Copy a gradient that lies otherwise; most networks merge heads, after which it lies so."""
        return gradient.transpose(-3, -2).contiguous().transpose(-3, -2)


def in_one_layout(out: Tensor) -> Tensor:
    """Return a result of attention whose gradient no plan of a kernel misreads."""
    if out.device.type != _PLANNING or not out.requires_grad or out.ndim < 3:
        return out
    return _InOneLayout.apply(out)  # type: ignore[no-any-return, no-untyped-call]


def keeps_plans() -> bool:
    """Return whether there is a device on which torch keeps plans."""
    return bool(torch.get_device_module(_PLANNING).is_available())


@contextmanager
def through(compute: Callable[..., Tensor]) -> Iterator[None]:
    """Let attention calls go through a function while open, on all threads: those of torch's own layers too.

    `compute` gets the function that it takes the place of, and then the arguments of a call. Gradients come in one layout.
    """
    former: Attend = functional.scaled_dot_product_attention

    def attend(*args: Any, **more: Any) -> Tensor:
        return in_one_layout(compute(former, *args, **more))

    _exchange(former, attend)
    try:
        yield
    finally:
        _exchange(attend, former)


def _exchange(former: Attend, attend: Attend) -> None:
    """Put a function in place of another in torch's namespace, and in those of modules that imported it from there."""
    for name, module in [*sys.modules.items()]:
        if name == functional.__name__ or (
            isinstance(module, ModuleType) and name.partition(".")[0] not in ("torch", "reelworks")
        ):
            for key in [key for key, value in [*vars(module).items()] if value is former]:
                vars(module)[key] = attend


HasShape = Tensor | TensorLayout


class CallKind(NamedTuple):
    """Facts of a call that are known before it is computed, whatever its layout; they tell the calls of a fault from others."""

    queries: int
    keys: int
    width: int  # of a head
    value_width: int
    masked: bool
    causal: bool


@dataclass(frozen=True)
class AttentionCall:
    """Arguments of scaled dot product attention.

    Attributes:
        gradient: Layout of the output's gradient; None if none came back.
    """

    query: TensorLayout  # `[B, A, L, E]`
    key: TensorLayout  # `[B, A or fewer, S, E]`
    value: TensorLayout
    mask: TensorLayout | None = None  # boolean, or added to the logits
    gradient: TensorLayout | None = None
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def kind(self) -> CallKind:
        """Kind of the call, as `kind_of` finds it from the tensors."""
        return kind_of(self.query, self.key, self.value, self.mask, is_causal=self.is_causal)

    @property
    def operations(self) -> int:
        """Floating-point operations forward and backward."""
        *batch, queries, width = self.query.shape
        products = 2 * queries * self.key.shape[-2] * (width + self.value.shape[-1])
        return int(torch.Size(batch).numel()) * products * (1 if self.gradient is None else 3)

    def __str__(self) -> str:
        *batch, queries, width = self.query.shape
        heads, keys = " × ".join(map(str, batch)), self.key.shape[-2]
        lengths = f"{queries} tokens" if queries == keys else f"{queries} tokens to {keys}"
        dtype = str(self.query.dtype).removeprefix("torch.")
        extra = [f"a mask {self.mask.shape}"] if self.mask is not None else []
        extra += ["causal"] if self.is_causal else []
        extra += [f"query strides {self.query.strides}"]
        extra += [f"gradient strides {self.gradient.strides}"] if self.gradient is not None else []
        return f"{heads} heads of {width}, {lengths}, {dtype}, {', '.join(extra)}"


def kind_of(
    query: HasShape,
    key: HasShape,
    value: HasShape,
    attn_mask: object = None,
    _dropout: float = 0.0,
    is_causal: bool = False,
    **_: object,
) -> CallKind:
    """Return the kind of a call, whose arguments are those of torch's function."""
    return CallKind(query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1], attn_mask is not None, is_causal)


def mask_for(layout: TensorLayout, device: torch.device) -> Tensor:
    """Return a mask of a layout with padding behind the keys of each clip, and in a square mask behind its queries too."""
    mask = layout.empty(device)
    own = _written(mask)
    clips, rows, keys = own.shape[0] if own.dim() > 2 else 1, own.shape[-2], own.shape[-1]
    left = keys - (torch.arange(clips, device=device) % 3 + 1) * keys // 6
    left = left.clamp(min=1).reshape(-1, *[1] * max(own.dim() - 1, 1))
    kept = torch.arange(keys, device=device) < left
    if rows == keys > 1:
        kept = kept & (torch.arange(rows, device=device)[:, None] < left)
    kept = kept.expand(own.shape) if own.dim() > 1 else kept.reshape(own.shape)
    return _filled(mask, kept if layout.dtype == torch.bool else torch.where(kept, 0.0, _MASKED))


class Recorder:
    """Records each kind of attention call once, on any device, the meta device included."""

    def __init__(self) -> None:
        self._calls: dict[AttentionCall, None] = {}
        self.device: torch.device | None = None  # of the last call

    @property
    def calls(self) -> list[AttentionCall]:
        """The calls in the order in which their gradients came back; calls without gradient first."""
        return list(self._calls)

    def recording(self) -> AbstractContextManager[None]:
        """Note the arguments of calls while open, and their gradients when they come."""
        return through(self._attend)

    def _attend(
        self,
        compute: Attend,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if query.is_nested or key.is_nested or value.is_nested:
            raise UserError(
                "it attends within nested tensors, whose calls cannot be compared",
                code="attention-nested",
                field="step",
                remedy="pass a function that runs the model with padded tensors and a mask",
            )
        query, key, value = _lowered(query), _lowered(key), _lowered(value)
        mask = None if attn_mask is None else _lowered(attn_mask)
        out = compute(query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        of_query, of_key, of_value = map(
            TensorLayout.of_tensor, _broadcast(query, key, value, own=3 if enable_gqa else 2)
        )
        of_mask = None if mask is None else TensorLayout.of_tensor(mask)
        call = AttentionCall(of_query, of_key, of_value, of_mask, None, is_causal, scale, enable_gqa)
        self.device = query.device
        if not call.operations:  # of nothing, which no kernel computes
            return out
        self._calls[call] = None
        if out.requires_grad:
            out.register_hook(partial(self._note_gradient, call))  # type: ignore[no-untyped-call]
        return out

    def _note_gradient(self, call: AttentionCall, gradient: Tensor) -> None:
        self._calls.pop(call, None)
        self._calls[replace(call, gradient=TensorLayout.of_tensor(gradient))] = None


def _broadcast(*tensors: Tensor, own: int) -> list[Tensor]:
    """Return tensors with the same dimensions before the last ones, as attention takes them."""
    shape = torch.broadcast_shapes(*(each.shape[:-own] for each in tensors))  # type: ignore[no-untyped-call]
    return [each.detach().expand(*shape, *each.shape[-own:]) for each in tensors]


def _lowered(tensor: Tensor) -> Tensor:
    """Cast a tensor as autocast does inside of attention, where nobody sees the result."""
    device = "cpu" if tensor.is_meta else tensor.device.type
    if not torch.is_autocast_enabled(device) or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))
