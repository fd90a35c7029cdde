"""Split the tokens of a clip over the ranks of a group, and exchange them for heads around attention (Ulysses).

Each rank of a group holds a part of the tokens of the same clip. What concerns one token needs no other rank. Attention
does: before it, ranks exchange all tokens of some heads for some tokens of all heads, and back after it. So the number
of heads must be a multiple of the number of ranks. Tokens are padded with zeros to a multiple of it.

Each rank computes the whole loss from the gathered result, and its backward pass follows its own tokens alone. So the
gradient of a parameter is the sum over the group.

Legend: N sequences, A heads, L tokens, E head width, P ranks of the group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

Projections = tuple[Tensor, Tensor, Tensor]  # queries, keys and values


@dataclass(frozen=True)
class SequenceGroup:
    """The ranks that share the tokens of a clip: neighbours, so that they lie on one machine.

    Attributes:
        rank: This process's place in the group.
    """

    group: dist.ProcessGroup
    rank: int
    size: int

    def shares(self, tokens: int) -> Shares:
        """Return how so many tokens are divided."""
        return Shares(self, tokens)


@dataclass(frozen=True)
class Shares:
    """Equal shares of a sequence of `tokens`, of which the last ones may hold padding."""

    of: SequenceGroup
    tokens: int

    @property
    def length(self) -> int:
        """Tokens of each rank, padding included."""
        return -(-self.tokens // self.of.size)

    @property
    def padding(self) -> int:
        """Number of zeros behind the last token."""
        return self.length * self.of.size - self.tokens

    def split(self, whole: Tensor, dim: int) -> Tensor:
        """Return this rank's tokens of a tensor that is equal on all ranks of the group."""
        return _pad(whole, dim, self.padding).narrow(dim, self.of.rank * self.length, self.length)

    def gather(self, part: Tensor, dim: int) -> Tensor:
        """Return all tokens, on all ranks of the group, which then compute the same of them."""
        whole = cast(Tensor, _Gather.apply(part.movedim(dim, 0), self.of))  # type: ignore[no-untyped-call]
        return whole.narrow(0, 0, self.tokens).movedim(0, dim)

    def attend(self, q_NALE: Tensor, k_NALE: Tensor, v_NALE: Tensor) -> Tensor:
        """Return attention of this rank's tokens to all tokens, `[N, A, L, E]`."""
        packed = _exchange(torch.stack([q_NALE, k_NALE, v_NALE]).flatten(0, 1), self.of, to_heads=True)
        q, k, v = packed.narrow(2, 0, self.tokens).chunk(3)
        return _exchange(_pad(F.scaled_dot_product_attention(q, k, v), 2, self.padding), self.of, to_heads=False)

    def attend_by(self, attend: Callable[..., Tensor], q_BSAE: Tensor, k_BSAE: Tensor, v_BSAE: Tensor) -> Tensor:
        """Return what `attend`, which takes and returns `[B, L, A, E]`, computes among all tokens of some heads."""
        packed = torch.cat([each.transpose(1, 2) for each in (q_BSAE, k_BSAE, v_BSAE)])
        all_tokens = _exchange(packed, self.of, to_heads=True).transpose(1, 2).narrow(1, 0, self.tokens)
        out = _pad(attend(*all_tokens.chunk(3)), 1, self.padding)
        return _exchange(out.transpose(1, 2), self.of, to_heads=False).transpose(1, 2)

    def attend_with_whole(
        self, shared: Projections, whole: Projections, attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return attention among divided tokens `[B, L, A, E]` and others, `[B, M, A, E]`, that each rank has.

        `attend` computes it of queries, keys and values of some heads, the divided tokens first.
        """
        heads = shared[0].shape[2] // self.of.size
        packed = torch.cat([each.transpose(1, 2) for each in shared])
        mine = _exchange(packed, self.of, to_heads=True).transpose(1, 2).narrow(1, 0, self.tokens).chunk(3)
        others = [each.narrow(2, self.of.rank * heads, heads) for each in whole]
        out = attend(*(torch.cat(pair, 1) for pair in zip(mine, others, strict=True)))
        own, rest = out.narrow(1, 0, self.tokens), out.narrow(1, self.tokens, out.shape[1] - self.tokens)
        padded = _pad(own, 1, self.padding).transpose(1, 2).contiguous()
        own = _exchange(padded, self.of, to_heads=False).transpose(1, 2)
        rest = cast(Tensor, _GatherParts.apply(rest.movedim(2, 0), self.of))  # type: ignore[no-untyped-call]
        return own, rest.movedim(0, 2)


def _pad(whole: Tensor, dim: int, count: int) -> Tensor:
    if not count:
        return whole
    size = list(whole.shape)
    size[dim] = count
    return torch.cat([whole, whole.new_zeros(size)], dim)


def _exchange(x: Tensor, of: SequenceGroup, *, to_heads: bool) -> Tensor:
    """Exchange `[N, A, L / P, E]` for `[N, A / P, L, E]`, or back."""
    return cast(Tensor, _Exchange.apply(x, of, to_heads))  # type: ignore[no-untyped-call]


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, of: SequenceGroup, to_heads: bool) -> Tensor:
        ctx.of, ctx.to_heads = of, to_heads
        # What goes to the ranks lies in the first dimension, and so does afterwards what came from them.
        given, taken = (1, 2) if to_heads else (2, 1)
        sent = torch.stack(x.chunk(of.size, given))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=of.group)
        return received.movedim(0, taken).flatten(taken, taken + 1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _exchange(grads[0], ctx.of, to_heads=not ctx.to_heads), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, of: SequenceGroup) -> Tensor:
        ctx.of = of
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(of.size)]
        dist.all_gather(parts, part, group=of.group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        # Not summed over ranks: each has computed the same loss of the whole.
        return grads[0].chunk(ctx.of.size)[ctx.of.rank], None


class _GatherParts(_Gather):
    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        # Summed: each rank goes on with a whole of its own, on which its divided tokens depend.
        summed = grads[0].contiguous()
        dist.all_reduce(summed, group=ctx.of.group)
        return summed.chunk(ctx.of.size)[ctx.of.rank], None
