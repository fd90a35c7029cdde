"""The floor always stays; everything else stays or goes for a reason that the policy names."""

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from reelworks.checkpoint.config import CheckpointsConfig, KeepBest
from reelworks.checkpoint.policy import plan_retention

LOSS = "validation/loss"
NAN, INF = math.nan, math.inf


@dataclass(frozen=True)
class Record:
    step: int
    pinned: bool = False
    metrics: dict[str, float] = field(default_factory=dict)


def run(*losses: float | None, pinned: tuple[int, ...] = ()) -> list[Record]:
    """Checkpoints of steps 100, 200, ... with these losses; None is not measured."""
    return [
        Record(100 * i, 100 * i in pinned, {} if loss is None else {LOSS: loss})
        for i, loss in enumerate(losses, 1)
    ]


def kept(records: list[Record], in_use: int | None = None, **policy: object) -> list[int]:
    return [d.step for d in plan_retention(records, CheckpointsConfig(**policy), in_use) if d.keep]


BEST_1 = KeepBest()
MAX_2 = KeepBest(mode="max", n=2)


@pytest.mark.parametrize(
    ("records", "policy", "expected"),
    [
        ([], {}, []),
        (run(None), {}, [100]),
        (run(1, 2, 3, 4, 5), {"keep_last": 2, "keep_best": None}, [400, 500]),
        (run(1, 2, 3, 4, 5), {}, [100, 300, 400, 500]),
        (run(9, 1, 3, 4, 5), {"keep_last": 1}, [200, 500]),
        # Not a number is never best, wherever it stands: sorting with it gives any order.
        (run(0.5, 1.0, NAN, 0.2), {"keep_last": 1, "keep_best": MAX_2}, [100, 200, 400]),
        (run(1.0, NAN, 0.5, 0.2), {"keep_last": 1, "keep_best": MAX_2}, [100, 300, 400]),
        (run(-INF, 2, INF, 3), {"keep_last": 1, "keep_best": BEST_1}, [200, 400]),
        (run(NAN, None, NAN), {"keep_last": 1}, [300]),
        # Equal values: the newer.
        (run(1, 1, 2), {"keep_last": 1}, [200, 300]),
        # The newest stays though it is the worst.
        (run(0.6, 0.7, 0.8, 0.9), {"keep_last": 1}, [100, 400]),
        (run(5, 4, 3, 2, 1), {"keep_last": 1, "keep_best": None, "keep_every": 200, "every_steps": 100},
         [200, 400, 500]),
        (run(1, 2, 3, 4, pinned=(200,)), {"keep_last": 1, "keep_best": None}, [200, 400]),
        # A limit counts all, the best included, and cannot break the floor.
        (run(1, 2, 3, 4, 5), {"save_total_limit": 3}, [100, 400, 500]),
        (run(1, 2, 3, 4, 5), {"save_total_limit": 1}, [100, 500]),
        (run(1, 2, 3, 4, 5), {"save_total_limit": 1, "keep_best": None}, [500]),
        (run(9, 9, 9, 9, 1), {"save_total_limit": 4}, [200, 300, 400, 500]),
        (run(1, 2, 3, 4, 5, pinned=(200, 300)), {"save_total_limit": 2}, [100, 200, 300, 500]),
        (run(1, 2, 3, 4, 5), {"save_total_limit": 2, "keep_best": MAX_2}, [400, 500]),
    ],
)  # fmt: skip
def test_table(records: list[Record], policy: dict[str, object], expected: list[int]) -> None:
    assert kept(records, **policy) == expected


def test_in_use_is_kept() -> None:
    assert kept(run(None, None, None), keep_last=1, in_use=100) == [100, 300]
    assert kept(run(None, None, None), keep_last=1, in_use=100, save_total_limit=1) == [100, 300]


def test_a_metric_that_arrives_late_counts_from_then_on() -> None:
    assert kept(run(1, None, None), keep_last=1) == [100, 300]
    assert kept(run(1, 0.5, None), keep_last=1) == [200, 300]


def test_reasons_say_why() -> None:
    policy = CheckpointsConfig(keep_last=2, keep_every=1000)
    decisions = {d.step: d for d in plan_retention(run(1, 2, NAN, 4, 5, pinned=(100,)), policy)}
    assert decisions[100].reasons == ("the best by validation/loss (1)", "pinned")
    assert decisions[200].reasons == (
        "not among the last 2", "not among the best 1 by validation/loss (2)", "not a multiple of 1000 steps",
    )  # fmt: skip
    assert "no finite validation/loss" in decisions[300].reasons
    assert decisions[400].reasons == ("among the last 2",)
    assert decisions[500].reasons == ("the newest",)
    limited = plan_retention(run(1, 2, 3), CheckpointsConfig(save_total_limit=1))
    assert limited[1].reasons == ("over save_total_limit = 1",)


METRICS = st.one_of(
    st.just({}),
    st.floats().map(lambda x: {LOSS: x}),
    st.sampled_from([0.0, 1.0, NAN, INF, -INF]).map(lambda x: {LOSS: x}),
)
RUNS = st.lists(
    st.builds(Record, st.integers(0, 40), st.booleans(), METRICS), max_size=12, unique_by=lambda r: r.step
)
POLICIES = st.builds(
    CheckpointsConfig,
    every_steps=st.none(),
    keep_last=st.integers(1, 4),
    keep_best=st.none() | st.builds(KeepBest, mode=st.sampled_from(["min", "max"]), n=st.integers(1, 3)),
    keep_every=st.none() | st.integers(1, 9),
    save_total_limit=st.none() | st.integers(1, 6),
)


def floor(records: list[Record], policy: CheckpointsConfig, in_use: int | None) -> set[int]:
    """What no policy may delete, told in another way than the policy does."""
    steps = {r.step for r in records if r.pinned or r.step == in_use}
    if records:
        steps.add(max(r.step for r in records))
    scored = [r for r in records if math.isfinite(r.metrics.get(LOSS, NAN))]
    if policy.keep_best and scored:
        extreme = (min if policy.keep_best.mode == "min" else max)(r.metrics[LOSS] for r in scored)
        steps.add(max(r.step for r in scored if r.metrics[LOSS] == extreme))
    return steps


@settings(max_examples=150, deadline=None)
@given(RUNS, POLICIES, st.none() | st.integers(0, 40), st.randoms(use_true_random=False))
def test_properties(records, policy, in_use, random) -> None:
    decisions = plan_retention(records, policy, in_use)
    keep = {d.step for d in decisions if d.keep}
    must = floor(records, policy, in_use)

    assert [d.step for d in decisions] == sorted(r.step for r in records)
    assert all(d.reasons for d in decisions)
    assert must <= keep
    if policy.save_total_limit is not None:
        assert len(keep) <= max(policy.save_total_limit, len(must))

    shuffled = list(records)
    random.shuffle(shuffled)
    assert plan_retention(shuffled, policy, in_use) == decisions

    survivors = [r for r in records if r.step in keep]
    assert all(d.keep for d in plan_retention(survivors, policy, in_use))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"keep_last": 0}, "greater than or equal to 1"),
        ({"save_total_limit": 0}, "greater than or equal to 1"),
        ({"keep_best": {"mode": "lowest"}}, "'min' or 'max'"),
        ({"keep_every": 700}, "give a multiple of 500"),
        ({"keep_lats": 3}, "Extra inputs"),
    ],
)
def test_config_refuses(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CheckpointsConfig(**values)
