"""Products of two thin matrices: their sums, norms, distances and singular values, without the matrix that they stand for.

In shapes, `out` and `in` are the outputs and inputs of a layer, those of a kernel among the inputs, and `r` is a rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class LowRank(NamedTuple):
    """The matrix `B @ A`, `[out, in]`, in float32."""

    B: Tensor  # [out, r]
    A: Tensor  # [r, in]

    @property
    def rank(self) -> int:
        """Number of rows of A."""
        return self.A.shape[0]

    def scaled(self, factor: float) -> LowRank:
        """Return the product times a number."""
        return LowRank(self.B * factor, self.A)

    def balanced(self) -> LowRank:
        """Return the same product with largest numbers alike in B and A by rank, so that neither leaves float16; exact."""
        halves = ((self.B.abs().amax(dim=0) / self.A.abs().amax(dim=1)).log2() / 2).round().nan_to_num(0, 0, 0)
        return LowRank(self.B.ldexp(-halves), self.A.ldexp(halves[:, None]))

    def norm(self) -> float:
        """Return the Frobenius norm, whose square is the sum of (BᵀB) * (AAᵀ), in float64."""
        B, A = self.B.double(), self.A.double()
        return math.sqrt(max(float(((B.T @ B) * (A @ A.T)).sum()), 0.0))

    def distance(self, other: LowRank) -> float:
        """Return the Frobenius norm of the difference; below 1e-8 of the norm it is rounding."""
        if torch.equal(self.B, other.B) and torch.equal(self.A, other.A):
            return 0.0
        return add([self, other.scaled(-1)]).norm()


def add(products: Sequence[LowRank]) -> LowRank:
    """Return a sum exactly, by concatenation: ranks add up."""
    return LowRank(torch.cat([each.B for each in products], dim=1), torch.cat([each.A for each in products]))


class Spectrum(NamedTuple):
    """Singular values of a matrix, descending and in float64, and a function that returns its best approximation of a rank."""

    values: Tensor
    truncate: Callable[[int], LowRank]

    def norm(self) -> float:
        """Return the Frobenius norm of the matrix."""
        return math.sqrt(float(self.values.square().sum()))

    def left_out(self, rank: int) -> float:
        """Return the Frobenius norm of what the best approximation of a rank lacks (Eckart and Young, 1936)."""
        return math.sqrt(float(self.values[rank:].square().sum()))

    def rank_for(self, share: float) -> int:
        """Return the smallest rank, from 1, that keeps a share of the squared Frobenius norm."""
        kept = self.values.square().cumsum(0)
        return min(int((kept < share * kept[-1]).sum()) + 1, len(self.values)) if len(kept) else 1


def spectrum(product: LowRank) -> Spectrum:
    """Decompose a product: with B = QR and Aᵀ = PS, its singular values are those of the small matrix RSᵀ."""
    Q, R = torch.linalg.qr(product.B)
    P, S = torch.linalg.qr(product.A.T)
    U, values, V = torch.linalg.svd(R @ S.T, full_matrices=False)
    return Spectrum(values.double(), lambda rank: split(Q @ U[:, :rank], values[:rank], V[:rank] @ P.T))


def dense_spectrum(matrix: Tensor) -> Spectrum:
    """Decompose a whole matrix `[out, in]`."""
    U, values, V = torch.linalg.svd(matrix, full_matrices=False)
    return Spectrum(values.double(), lambda rank: split(U[:, :rank], values[:rank], V[:rank]))


def split(U: Tensor, values: Tensor, V: Tensor) -> LowRank:
    """Return `U @ diag(values) @ V` as a product whose factors have equal norms, so that neither leaves float16."""
    root = values.sqrt()
    return LowRank(U * root, root[:, None] * V)


_EXACT_SIDE = 1024  # matrices up to this side are decomposed exactly, which takes a second
_MORE, _ITERATIONS = 16, 4  # of the random method: further columns, and multiplications that sharpen them


def approximate(matrix: Tensor, rank: int) -> LowRank:
    """Return a product of a rank near a matrix: the nearest, or for a large matrix one that random columns find.

    The latter is that of Halko, Martinsson and Tropp (arXiv 0909.4061), with a seed of its own.
    """
    side = min(matrix.shape)
    if side <= max(_EXACT_SIDE, 4 * rank):
        return dense_spectrum(matrix).truncate(rank)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        U, values, V = torch.svd_lowrank(matrix, min(rank + _MORE, side), _ITERATIONS)
    return split(U[:, :rank], values[:rank], V[:, :rank].T)
