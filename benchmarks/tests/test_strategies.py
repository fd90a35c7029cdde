"""Figures of the strategies are those of their plans, and real processes wait as long as planned."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import _weblike, strategies
from benchmarks.strategies import Case
from reelworks.data.buckets import assign
from reelworks.data.buckets.assign import Reason
from reelworks.data.schedule.plan import Samples


def case(name: str, ranks: int, clips: int = 4000) -> Case:
    table, made = _weblike.buckets(), _weblike.clips(clips)
    result = assign.assign(made, table, seed=1, epoch=0)
    where = np.flatnonzero(result.reason == Reason.NONE)
    entries = Samples(made.uid[where], made.copy[where], where, result.bucket[where].astype(np.int64))
    return Case(strategies.networks(table)[name], ranks, table, entries)


@pytest.mark.parametrize(
    ("flops", "tokens_of_text", "parameters", "width", "blocks"),
    [(strategies.stdit3_flops, 300, 1.19e9, 1152, 56), (strategies.wan_flops, 512, 14.1e9, 5120, 40)],
)
def test_operations_are_two_for_each_weight_and_the_attention(flops, tokens_of_text, parameters, width, blocks) -> None:  # type: ignore[no-untyped-def]
    """The keys and values of texts, which the count leaves out, have two matrices in each block."""
    smallest = min(_weblike.buckets().buckets, key=lambda b: b.tokens)
    attention = 4 * width * blocks * tokens_of_text
    per_token = flops(smallest) / smallest.tokens - attention + 4 * width**2 * blocks
    assert per_token == pytest.approx(2 * parameters, rel=0.03)


@pytest.mark.parametrize("name", ["stdit3-xl", "wan-14b"])
def test_a_columns_time_is_that_of_its_choice(name: str) -> None:
    one = case(name, 32)
    planned = one.best([4])
    full = planned.plan.costs_us(planned.spec)
    chosen = planned.plan.bucket[planned.plan.offsets[:-1]]
    assert full == pytest.approx([1e6 * planned.choices[b].seconds for b in chosen], rel=1e-3)
    assert {planned.choices[b].degree for b in one.used} <= {1, 2, 4}
    assert planned.spec.micro_batches_per_step == 32 // 4
    tokens = one.table.tokens()[one.entries.bucket].sum()
    seconds = 1e-6 * full[planned.plan.steps].max(axis=1, where=planned.plan.steps >= 0, initial=0).sum()
    assert planned.tokens_per_second == pytest.approx(tokens / seconds, rel=1e-6)


@pytest.mark.slow
def test_what_was_promised_holds_at_ten_thousand_clips() -> None:
    found = strategies.compare(case("wan-14b", 8, 10_000))
    plans = found["strategies"]
    assert plans["planned"]["imbalance"] < 0.05 < 0.3 < plans["equal_tokens"]["imbalance"]
    assert plans["planned"]["tokens_per_second"] > 1.3 * plans["equal_tokens"]["tokens_per_second"]
    assert plans["equal_tokens"]["tokens_per_second"] > plans["fixed"]["tokens_per_second"]
    assert plans["planned"]["peak_memory_share"] <= 1
    assert found["speedup_over_fixed_degree"]["8"] >= 1
    # A clip of 408 frames needs two GPUs, since eight of them hold the optimizer's state of 14 billion weights.
    assert found["fixed_degree"]["1"]["peak_memory_share"] > 1
    assert max(plans["planned"]["degrees"]) > 1


@pytest.mark.slow(reason="eight processes that import torch and sleep for half a minute")
def test_processes_wait_as_long_as_planned() -> None:
    plan = case("wan-14b", 8).simple()["equal_tokens"]
    found = strategies.sleeps(plan, 20.0, columns=10)
    assert (found["processes"], found["planned"] > 0.2) == (8, True)
    assert found["measured"] == pytest.approx(found["planned"], abs=0.02)
