"""Kernels of attention with a fault, in place of torch's own on the CPU: torch chooses them as it chose the right one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
Results = tuple[Tensor, ...]


@dataclass
class Arguments:
    """What a kernel is given; `gradient` is None in the forward pass."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float
    gradient: Tensor | None = None


def exact(given: Arguments) -> Results:
    """Return the output, or the gradients of query, key and value, as a right kernel does."""
    shared = given.query.shape[1] // given.key.shape[1]
    key, value = (each.float().repeat_interleave(shared, 1) for each in (given.key, given.value))
    query = given.query.float()
    logits = query @ key.mT * given.scale
    if given.causal:
        logits = logits.masked_fill(torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    if given.mask is not None:
        logits = logits + given.mask
    weights = logits.softmax(-1).nan_to_num(0.0)
    if given.gradient is None:
        return ((weights @ value).to(given.query.dtype),)
    gradient = given.gradient.float()
    of_weights = gradient @ value.mT
    of_logits = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True)) * given.scale
    of_keys = (each.unflatten(1, (-1, shared)).sum(2) for each in (of_logits.mT @ query, weights.mT @ gradient))
    return tuple(each.to(given.query.dtype) for each in (of_logits @ key, *of_keys))


@contextmanager
def planted(compute: Callable[[Arguments], Results]) -> Iterator[None]:
    """Let a function compute attention where torch would take its quickest kernel for CPUs."""

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Results:
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        (out,) = compute(Arguments(query, key, value, attn_mask, is_causal, scale))
        return out.transpose(1, 2).contiguous().transpose(1, 2), query.new_zeros(query.shape[:-1], dtype=torch.float32)

    def backward(
        gradient: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        dropout_p: float,
        is_causal: bool,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Results:
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return compute(Arguments(query, key, value, attn_mask, is_causal, scale, gradient))

    library: Any = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced
        library.impl(_FORWARD, forward, "CPU", allow_override=True)
        library.impl(f"{_FORWARD}_backward", backward, "CPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()
