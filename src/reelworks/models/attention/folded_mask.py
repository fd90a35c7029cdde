"""Attention of heads with an odd width, whose mask is folded into the width that kernels pad anyway.

Kernels that are quick on a GPU take no mask, and widths that are multiples of 16. So queries and keys get further
elements: of a query 1 and zeros, of a key 0, or a large negative number where the mask is False, whose weight is then
exactly 0. Shapes do not depend on the mask, and the host does not read it.

Kernels compute tiles of tokens, of which a short sequence fills a small part. So several are computed as one, in which a
token attends to those of its own sequence: its query has a 1 for it, and keys of the others the negative number there.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

_MULTIPLE = 16
_TILE = 128  # tokens that kernels compute at once
_MASKED = -(2.0**15)  # exact in half precision; by the scale of a head it is still thousands below any logit


def attend(query_NALE: Tensor, key_NAME: Tensor, value_NAME: Tensor, mask_N11M: Tensor | None) -> Tensor:
    """Return `[N, A, L, E]`; `mask_N11M` is True where a key is attended to, which each query needs one of."""
    if mask_N11M is None or not _pads(query_NALE, query_NALE.shape[-1]):
        return F.scaled_dot_product_attention(query_NALE, key_NAME, value_NAME, attn_mask=mask_N11M)
    return fold(query_NALE, key_NAME, value_NAME, mask_N11M)


def _pads(values: Tensor, width: int) -> bool:
    """Whether kernels of a GPU would pad heads; on the meta device too, where the calls of a GPU are counted."""
    on_gpu = values.device.type in ("cuda", "meta") and values.dtype in (torch.bfloat16, torch.float16)
    return on_gpu and width % _MULTIPLE != 0


def _spare(width: int) -> int:
    return -width % _MULTIPLE or _MULTIPLE


def fold(query_NALE: Tensor, key_NAME: Tensor, value_NAME: Tensor, mask_N11M: Tensor) -> Tensor:
    """Return the same without a mask; see the module's docstring."""
    spare = _spare(query_NALE.shape[-1])
    reads = F.pad(query_NALE.new_ones(1), (0, spare - 1))
    hidden_NM = torch.where(mask_N11M[:, 0, 0], 0.0, _MASKED).to(key_NAME.dtype)
    return _with(query_NALE, key_NAME, value_NAME, reads, F.pad(hidden_NM[:, None, :, None], (0, spare - 1)))


def together(values: Tensor, width: int, of_clip: int) -> int:
    """Return how many of N short sequences `[N, L, D]` are computed as one, with heads of a width; 1 if none are.

    It divides the sequences of a clip, so that calls have the same lengths whatever the clips of a micro-batch.
    """
    most = min(_spare(width), _TILE // values.shape[1]) if _pads(values, width) else 1
    return next((count for count in range(most, 1, -1) if of_clip % count == 0), 1)


def attend_apart(query_NALE: Tensor, key_NALE: Tensor, value_NALE: Tensor, count: int) -> Tensor:
    """Return `[N, A, L, E]` of L tokens that are those of `count` sequences, each of which attends within itself."""
    own_LS = torch.eye(count, _spare(query_NALE.shape[-1]), dtype=query_NALE.dtype, device=query_NALE.device)
    own_LS = own_LS.repeat_interleave(query_NALE.shape[-2] // count, dim=0, output_size=query_NALE.shape[-2])
    return _with(query_NALE, key_NALE, value_NALE, own_LS, (1 - own_LS) * _MASKED)


def _with(query: Tensor, key: Tensor, value: Tensor, reads: Tensor, hides: Tensor) -> Tensor:
    """Attend with further elements of queries and keys, which are broadcast over sequences, heads and tokens."""
    width, spare = query.shape[-1], reads.shape[-1]
    query = torch.cat([query, reads.expand(*query.shape[:-1], spare)], dim=-1)
    key = torch.cat([key, hides.expand(*key.shape[:-1], spare)], dim=-1)
    return F.scaled_dot_product_attention(query, key, F.pad(value, (0, spare)), scale=width**-0.5)[..., :width]
