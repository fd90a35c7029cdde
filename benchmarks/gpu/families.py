"""Compiled steps over nine aspect ratios in turn, with token families and without: graphs, compiling, tokens per second.

Without families, each token count has a graph of its own. Blocks share their graphs, so that the depth of the network
changes the time of steps, and not that of compiling.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu import machine, steps
from benchmarks.gpu.steps import Case, Way
from reelworks.data.buckets.config import DEFAULT_ASPECT_RATIOS

_WAY = Way("ours", True, "selective")
_RATIOS = tuple(DEFAULT_ASPECT_RATIOS)
_CASE = Case("stdit3-xl", "480p", 17, 2, (), _RATIOS)
_TINY = Case("stdit3-tiny", "64px", 1, 1, (), _RATIOS)
_ROUNDS = 2  # over all ratios, timed


def rows(_: str, device: str, tiny: bool) -> Iterator[dict[str, Any]]:
    """Yield a row with families, one without, and what a row of tokens costs in both."""
    found = []
    for with_families in (True, False):
        case = dataclasses.replace(_TINY if tiny else _CASE, token_families=with_families)
        row = measure(steps.fitting(case, device), device)
        found.append(row)
        yield row
        if device == "cuda":
            torch.cuda.empty_cache()
    own, without = found
    yield {
        "graphs_saved": without["graphs"] - own["graphs"],
        "compile_s_saved": round(without["compile_s"] - own["compile_s"], 1),
        "tokens_per_s_ratio": round(own["tokens_per_s"] / without["tokens_per_s"], 3),
    }


def measure(case: Case, device: str) -> dict[str, Any]:
    """Take a step with each ratio, which compiles, and then some rounds over all of them."""
    torch.manual_seed(0)
    torch.compiler.reset()
    steps.forget_graphs()
    buckets = case.table().buckets
    loop = steps.ours(case, _WAY, device)
    with loop.kernels.replaced():
        first = _round(loop, len(buckets), device)
        each = [_round(loop, len(buckets), device) for _ in range(_ROUNDS)]
    tokens = case.batch_size * sum(bucket.tokens for bucket in buckets)
    return {
        "case": case.name,
        "token_families": case.token_families,
        "token_counts": len({bucket.tokens for bucket in buckets}),
        "graphs": loop.graphs(),
        "compile_s": round(first - min(each), 2),
        "round_s": round(min(each), 4),
        "tokens_per_s": round(tokens / min(each)),
    }


def _round(loop: steps.Loop, buckets: int, device: str) -> float:
    machine.wait(device)
    began = time.perf_counter()
    for _ in range(buckets):
        loop.step()
    machine.wait(device)
    return time.perf_counter() - began
