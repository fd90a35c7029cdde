"""Times of ranks against the plan: waiting adds up, and only a rank that is slow for its own work is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reelworks.data.schedule.plan import PlanSpec
from reelworks.training.observers import balance
from reelworks.training.step.forward_times import ForwardTimes, Note, RankNotes

COSTS = (1000, 3000)


def ranks(buckets: list[list[int]], factors: list[float]) -> list[RankNotes]:
    """Notes of ranks that are slower than planned by factors; a bucket of -1 is idle."""
    return [
        RankNotes(
            f"node-{rank}",
            [
                Note(max(b, 0), 2, 2 * COSTS[b] if b >= 0 else 0, factor * COSTS[b] / 1e6 if b >= 0 else 0.0)
                for b in row
            ],
        )
        for rank, (row, factor) in enumerate(zip(buckets, factors, strict=True))
    ]


@given(st.lists(st.lists(st.integers(-1, 1), min_size=4, max_size=4), min_size=1, max_size=20))
def test_ranks_that_take_what_was_planned_wait_as_planned_and_none_is_named(columns: list[list[int]]) -> None:
    found = balance.compare(ranks([list(row) for row in zip(*columns, strict=True)], [1.0] * 4))
    assert found.measured == pytest.approx(found.planned)
    assert 0 <= found.planned <= 0.75 + 1e-9
    assert found.stragglers == []


def test_a_slow_rank_is_named_with_its_host_and_factor_whatever_the_others_train() -> None:
    found = balance.compare(ranks([[1] * 12, [0] * 12, [0, 1] * 6, [0, 1] * 6], [1.0, 1.0, 1.4, 1.0]))
    assert [(one.rank, one.host) for one in found.stragglers] == [(2, "node-2")]
    assert found.stragglers[0].factor == pytest.approx(1.4)
    assert found.measured > found.planned
    # A rank that has the long clips takes longer, but is not slow.
    assert found.seconds_by_rank[0] > found.seconds_by_rank[2]
    assert found.ms_by_bucket == pytest.approx({0: 0.5, 1: 1.5})


def test_few_micro_batches_accuse_nobody() -> None:
    assert balance.compare(ranks([[0] * 3, [0] * 3], [1.0, 9.0])).stragglers == []


def test_a_slow_rank_is_told_to_the_user_once_and_each_comparison_has_its_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[Any] = []
    log = SimpleNamespace(event=lambda kind, **values: told.append(values["stragglers"]), curves=lambda *_: None)
    world = SimpleNamespace(is_main=True, gather=lambda own: ranks([[0] * 12] * 3, [1.0, 1.4, 1.0]))
    recipe = SimpleNamespace(train=SimpleNamespace(log_balance_every=4))
    data = SimpleNamespace(table=SimpleNamespace(buckets=[SimpleNamespace(name="short")]), recipe=recipe)
    training: Any = SimpleNamespace(world=world, data=data, log=log)
    reports = balance.BalanceReports(training, ForwardTimes(torch.device("cpu"), True))
    now: Any = SimpleNamespace(position=SimpleNamespace(spec=PlanSpec(0, 1, 1, "partial", (2, 2), COSTS, "")), step=9)
    with caplog.at_level("WARNING", "reelworks"):
        for number in range(1, 10):  # of which two are due
            reports.after_step(SimpleNamespace(position=now.position, number=number))
        reports.end(now)
    assert [[one["rank"] for one in each] for each in told] == [[1]] * 3
    assert [record.getMessage()[:32] for record in caplog.records] == ["rank 1 on node-1 takes 1.40 time"]


def test_times_are_noted_where_they_are_asked_for_only() -> None:
    spec = PlanSpec(0, 1, 1, "partial", (2, 2), COSTS, "", batch_costs_us=(5, 7))
    for is_on in (False, True):
        times = ForwardTimes(torch.device("cpu"), is_on)
        for ends_step in (False, True, True):  # the first step, of two micro-batches, warms up
            work = SimpleNamespace(bucket=1, uids=np.arange(2), is_idle=False, ends_step=ends_step)
            with times.noting(work):  # type: ignore[arg-type]
                pass
        taken = times.take(spec).notes
        assert [(note.bucket, note.clips, note.planned) for note in taken] == ([(1, 2, 6007)] if is_on else [])
        assert times.take(spec).notes == []
