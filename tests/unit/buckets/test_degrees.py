"""Memory decides the least number of ranks that share a bucket's clips, and time the best."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelworks.data.buckets import degrees
from reelworks.data.buckets.degrees import Degree, Exchange, RankLimits, at_degree
from reelworks.data.schedule.cost_fit import CostModel

# A step of 100 tokens takes 2 ms, and exchanges are nearly free.
MODEL = CostModel(per_batch=1, per_clip=0, per_token=0.01, per_token_squared=0)
FREE = Exchange(width=8, attentions=2, link_bytes_per_second=1e15, latency_seconds=0)

positive = st.floats(0.01, 10)
models = st.builds(CostModel, positive, positive, st.floats(0, 1), st.floats(0, 1e-3))
exchanges = st.builds(Exchange, st.integers(64, 5120), st.integers(1, 60), st.integers(1, 2))
limits = st.builds(
    RankLimits, st.floats(1e3, 1e6), positive, st.one_of(st.just(math.inf), positive), st.integers(1, 64)
)
allowed = st.sampled_from([[1], [1, 2], [1, 2, 3, 6], [1, 2, 4, 8], [2], [1, 2, 4, 8, 16]])


@given(st.integers(1, 40_000), models, exchanges, limits, allowed)
def test_no_other_degree_and_batch_is_better(
    n: int, model: CostModel, exchange: Exchange, limit: RankLimits, ranks: list[int]
) -> None:
    """Every degree with every number of clips is tried, and none within the limits takes less time for a clip."""
    chosen = degrees.choose(n, ranks, model, exchange, limit)
    assert chosen.degree in ranks
    tried = [at_degree(n, d, model, exchange, limit, size) for d in ranks for size in range(1, limit.clips + 1)]
    within = [t for t in tried if t.fits and t.seconds <= limit.step_seconds]
    assert chosen.fits == any(t.fits for t in tried)
    if within:
        assert chosen.seconds <= limit.step_seconds
        best = min(t.rank_seconds_per_clip for t in within)
        assert chosen.rank_seconds_per_clip == pytest.approx(best, rel=1e-9)
    elif chosen.fits:  # no clip may be left out for its length
        assert chosen.seconds == min(t.seconds for t in tried if t.fits and t.batch_size == 1)


def choose(
    tokens: list[int],
    model: CostModel,
    exchange: Exchange,
    limit: RankLimits,
    ranks: list[int],
    size: int | None = None,
) -> list[Degree]:
    return [degrees.choose(n, ranks, model, exchange, limit, size) for n in tokens]


def test_memory_decides_the_least_degree() -> None:
    limit = RankLimits(activation_bytes=1000, bytes_per_token=1)
    chosen = choose([100, 1000, 1001, 4000, 9000], MODEL, FREE, limit, [1, 2, 4, 8], 1)
    assert [c.degree for c in chosen] == [1, 1, 2, 4, 8]
    assert [c.fits for c in chosen] == [True, True, True, True, False]
    assert max(c.activation_bytes for c in chosen[:4]) <= 1000


def test_time_decides_the_best() -> None:
    """With room for 1.9 clips on a rank, two ranks train three, so that the fixed part is paid for more clips."""
    limit = RankLimits(activation_bytes=190, bytes_per_token=1)
    fixed = CostModel(per_batch=10, per_clip=0, per_token=0.01, per_token_squared=0)
    (chosen,) = choose([100], fixed, FREE, limit, [1, 2])
    assert (chosen.degree, chosen.batch_size) == (2, 3)
    slow = Exchange(width=8, attentions=2, latency_seconds=0.01)
    (chosen,) = choose([100], fixed, slow, limit, [1, 2])
    assert (chosen.degree, chosen.batch_size) == (1, 1)


def test_a_clip_too_long_for_the_step_is_shared_by_more() -> None:
    """Clips of 1000 tokens take 11 ms on one rank, and 6 ms on two."""
    limit = RankLimits(activation_bytes=math.inf, bytes_per_token=1, step_seconds=0.007, clips=1)
    chosen = choose([100, 1000, 100_000], MODEL, FREE, limit, [1, 2, 4, 8])
    assert [c.degree for c in chosen] == [1, 2, 8]
    assert [c.seconds <= 0.007 for c in chosen] == [True, True, False]


def test_exchanges_by_hand() -> None:
    exchange = Exchange(width=10, attentions=3, forwards=2, link_bytes_per_second=1000, latency_seconds=0.5)
    # Of 8 tokens a rank has 2; of each it sends 4 tensors of 10 elements of 2 bytes, a quarter of them to itself.
    assert exchange.seconds(8, 4) == pytest.approx((2 + 1) * 3 * (2 * 4 * 20 * 0.75 / 1000 + 2 * 0.5))
    assert exchange.seconds(8, 1) == 0


@given(st.integers(1, 1000), models, exchanges, limits, allowed, st.floats(0.001, 1))
def test_a_slower_link_lets_no_more_ranks_share_a_clip(
    n: int, model: CostModel, exchange: Exchange, limit: RankLimits, ranks: list[int], speed: float
) -> None:
    """Where all degrees divide the tokens, and no micro-batch is too long."""
    tokens, limit = 48 * n, replace(limit, step_seconds=math.inf)
    slow = replace(exchange, link_bytes_per_second=speed * exchange.link_bytes_per_second)
    before, after = (degrees.choose(tokens, ranks, model, each, limit) for each in (exchange, slow))
    assert after.degree <= before.degree
    assert after.rank_seconds_per_clip >= before.rank_seconds_per_clip


def test_one_rank_trains_what_it_was_measured_to_train() -> None:
    """The fit says 10 clips; 7 were measured, or not even one."""
    limit = RankLimits(activation_bytes=1000, bytes_per_token=1)
    assert degrees.choose(100, [1], MODEL, FREE, limit, measured=7).batch_size == 7
    assert degrees.choose(100, [1, 2], MODEL, FREE, limit, measured=0).degree == 2
    assert not degrees.choose(100, [1], MODEL, FREE, limit, measured=0).fits
