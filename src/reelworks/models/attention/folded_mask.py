"""Attention of heads with an odd width, whose mask of keys is folded into the width that kernels pad anyway.

Kernels that are quick on a GPU take no mask, and widths that are multiples of 16. So queries and keys get further
elements: of a query 1 and zeros, of a key 0, or a large negative number where the mask is False, whose weight is then
exactly 0. Shapes do not depend on the mask, and the host does not read it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

_MULTIPLE = 16
_MASKED = -(2.0**15)  # exact in half precision; by the scale of a head it is still thousands below any logit


def attend(query_NALE: Tensor, key_NAME: Tensor, value_NAME: Tensor, mask_N11M: Tensor | None) -> Tensor:
    """Return `[N, A, L, E]`; `mask_N11M` is True where a key is attended to, which each query needs one of."""
    # Where kernels of a GPU would pad the width; on the meta device too, where the calls of a GPU are counted.
    on_gpu = query_NALE.device.type in ("cuda", "meta") and query_NALE.dtype in (torch.bfloat16, torch.float16)
    if mask_N11M is None or not on_gpu or query_NALE.shape[-1] % _MULTIPLE == 0:
        return F.scaled_dot_product_attention(query_NALE, key_NAME, value_NAME, attn_mask=mask_N11M)
    return fold(query_NALE, key_NAME, value_NAME, mask_N11M)


def fold(query_NALE: Tensor, key_NAME: Tensor, value_NAME: Tensor, mask_N11M: Tensor) -> Tensor:
    """Return the same without a mask; see the module's docstring."""
    width = query_NALE.shape[-1]
    spare = -width % _MULTIPLE or _MULTIPLE
    reads = F.pad(query_NALE.new_ones(1), (0, spare - 1)).expand(*query_NALE.shape[:-1], spare)
    hidden_NM = torch.where(mask_N11M[:, 0, 0], 0.0, _MASKED).to(key_NAME.dtype)
    hides = F.pad(hidden_NM[:, None, :, None], (0, spare - 1)).expand(*key_NAME.shape[:-1], spare)
    query, key = torch.cat([query_NALE, reads], dim=-1), torch.cat([key_NAME, hides], dim=-1)
    value, scale = F.pad(value_NAME, (0, spare)), width**-0.5
    return F.scaled_dot_product_attention(query, key, value, scale=scale)[..., :width]
