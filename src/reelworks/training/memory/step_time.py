"""Seconds that a GPU takes for the passes of a step, from what they compute, move and launch; torch-free.

The factors are those of an H100 by measurement: profiles of Wan 2.1 1.3B and STDiT3-XL and steps of these and of SD3.5
medium, compiled and not (`benchmarks.gpu`). Other GPUs are taken to use the same shares of what their makers publish, which
held on an H200.
"""

from __future__ import annotations

from typing import NamedTuple

from reelworks.core.gpus import Gpu

PRODUCTS_SHARE = 0.63  # of the published arithmetic, in products as wide as those of networks
MEMORY_SHARE = 0.66  # of the published bandwidth, in element-wise operations
FUSED_SHARE = 0.2  # of what such operations move that is left when they are compiled into few kernels
# An attention weight is also scaled, exponentiated and summed, for which a head of 115 more elements would take as long.
_SOFTMAX_WIDTH = 115
# Kernels for heads of any width are older than those for multiples of 64: padded, in tiles, and less quick.
_TILE, _PADDED_WIDTH, _OLDER = 128, 32, 1.57
_NARROW = 64
# Operations for a byte that is moved, below which a product waits for memory: those of a LoRA, and of few tokens.
LEAST_INTENSITY = 150
_LAUNCH_SECONDS = 8e-6  # of the host in Python, for an operation with its part of autograd
# An update reads and writes float32 values: AdamW 7 (weight, gradient, two moments), the norm and clipping 3, the average 3.
_UPDATE_BYTES = 4 * 13


class Work(NamedTuple):
    """Work that a pass asks of a GPU.

    Attributes:
        products: Operations of products and convolutions; attention counts as the products that take as long.
        moved_bytes: What operations that wait for memory read and write, uncompiled.
        launches: Number of operations, uncompiled.
    """

    products: float
    moved_bytes: float
    launches: float

    def seconds(self, gpu: Gpu, *, compiled: bool, share: float = 1.0) -> float:
        """Return the seconds of a pass of a share of the clips; the host launches its operations meanwhile, which small ones wait for.

        A share takes as many operations as the whole.
        """
        left = FUSED_SHARE if compiled else 1.0
        arithmetic = share * self.products / (PRODUCTS_SHARE * gpu.tflops * 1e12)
        moving = share * left * self.moved_bytes / (MEMORY_SHARE * gpu.gb_per_second * 1e9)
        return max(arithmetic + moving, left * self.launches * _LAUNCH_SECONDS)


def attention(heads: int, queries: int, keys: int, width: int) -> int:
    """Return the operations of products that take as long as a forward pass of attention; `heads` are those of all clips."""
    share = PRODUCTS_SHARE
    if width % _NARROW:
        queries, keys, width = (up(queries, _TILE), up(keys, _TILE), up(width, _PADDED_WIDTH))
        share *= _OLDER
    return round(4 * heads * queries * keys * (width + _SOFTMAX_WIDTH) * share)


def update_seconds(trained_parameters: int, gpu: Gpu) -> float:
    """Return the seconds of an optimizer's update with clipping and average, as of AdamW."""
    return _UPDATE_BYTES * trained_parameters / (MEMORY_SHARE * gpu.gb_per_second * 1e9)


def up(size: int, multiple: int) -> int:
    """Round a size up to a multiple."""
    return -(-size // multiple) * multiple
