"""The floor always stays; everything else stays or goes for a reason that the policy names."""

import dataclasses
import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refused import refused

from reelworks.core import units
from reelworks.core.errors import UserError
from reelworks.data.checkpoint.config import CheckpointsConfig, KeepBest
from reelworks.data.checkpoint.policy import Decision, PolicyTime, plan_retention, rank_best

LOSS = "validation/loss"
NAN, INF = math.nan, math.inf


@dataclass(frozen=True)
class Record:
    step: int
    pinned: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    created: float = 0.0
    num_bytes: int = 100
    stage: str = ""
    measured_on: dict[str, str] = field(default_factory=dict)


def run(*losses: float | None, pinned: tuple[int, ...] = ()) -> list[Record]:
    """Checkpoints of steps 100, 200, ... with these losses; None is not measured."""
    return [
        Record(100 * i, 100 * i in pinned, {} if loss is None else {LOSS: loss}, created=3600.0 * i)
        for i, loss in enumerate(losses, 1)
    ]


def plan(records: list[Record], policy: CheckpointsConfig, **moment: Any) -> list[Decision]:
    return plan_retention(records, policy, PolicyTime(**{"now": 0.0, **moment}))


def kept(records: list[Record], in_use: tuple[int, ...] = (), now: float = 0.0, **policy: object) -> list[int]:
    decisions = plan(records, CheckpointsConfig(**policy), in_use=in_use, now=now)
    return [d.step for d in decisions if d.keep]


BEST_1 = KeepBest()
MAX_1, MAX_2 = (KeepBest(mode="max", n=n) for n in (1, 2))


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
        (run(0.5, 1.0, NAN, 0.2), {"keep_last": 1, "keep_best": MAX_1}, [200, 400]),
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
        # Saved at 1:00, 2:00, ... 5:00; asked at 0:00, so all of them are younger.
        (run(1, 2, 3, 4, 5), {"keep_last": 1, "keep_best": None, "keep_within": "2h"}, [100, 200, 300, 400, 500]),
        # A limit counts all, the best included, and cannot break the floor.
        (run(1, 2, 3, 4, 5), {"save_total_limit": 3}, [100, 400, 500]),
        (run(1, 2, 3, 4, 5), {"save_total_limit": 1}, [100, 500]),
        (run(1, 2, 3, 4, 5), {"save_total_limit": 1, "keep_best": None}, [500]),
        (run(9, 9, 9, 9, 1), {"save_total_limit": 4}, [200, 300, 400, 500]),
        (run(1, 2, 3, 4, 5, pinned=(200, 300)), {"save_total_limit": 2}, [100, 200, 300, 500]),
        (run(1, 2, 3, 4, 5), {"save_total_limit": 2, "keep_best": MAX_2}, [400, 500]),
        # It stands in place of keep_last, whose default would push out what other rules keep.
        (run(1, 2, 3, 4, 5, 6), {"save_total_limit": 3, "keep_every": 200, "every_steps": 100, "keep_best": None}, [200, 400, 600]),
        (run(6, 5, 4, 3, 2, 1), {"save_total_limit": 4, "keep_best": {"mode": "max", "n": 3}}, [100, 200, 300, 600]),
    ],
)  # fmt: skip
def test_table(records: list[Record], policy: dict[str, object], expected: list[int]) -> None:
    assert kept(records, **policy) == expected


def test_in_use_is_kept() -> None:
    records = run(None, None, None, None)
    assert kept(records, keep_last=1, in_use=(100, 200)) == [100, 200, 400]
    assert kept(records, keep_last=1, in_use=(100,), save_total_limit=1) == [100, 400]


@pytest.mark.parametrize(
    ("within", "expected"),
    [("3600s", [500]), ("60m", [500]), ("2h", [500]), ("0.1d", [400, 500]), ("1w", [*range(100, 501, 100)])],
)
def test_young_ones_are_kept(within: str, expected: list[int]) -> None:
    """Saved at 1:00 to 5:00, asked at 6:00."""
    assert kept(run(1, 2, 3, 4, 5), keep_last=1, keep_best=None, keep_within=within, now=6 * 3600.0) == expected


@pytest.mark.parametrize(
    ("policy", "moment", "expected"),
    [
        # 100 bytes each, the next save has room too.
        ({"keep_last": 5, "max_disk": "600B"}, {}, [100, 200, 300, 400, 500]),
        ({"keep_last": 5, "max_disk": "599B"}, {}, [100, 300, 400, 500]),
        ({"keep_last": 5, "max_disk": "450B"}, {}, [100, 400, 500]),
        ({"keep_last": 5, "max_disk": "450B"}, {"other_bytes": 100}, [100, 500]),
        ({"keep_last": 5, "max_disk": "1B"}, {}, [100, 500]),
        ({"keep_last": 5, "max_disk": "1B"}, {"in_use": (200,)}, [100, 200, 500]),
        ({"keep_last": 5, "keep_best": None, "max_disk": "300B"}, {}, [400, 500]),
        # What goes anyway is counted as free before anything else is given up.
        ({"keep_last": 2, "max_disk": "400B"}, {}, [100, 400, 500]),
        ({"keep_last": 5, "min_free": "50B"}, {"free_bytes": 150}, [100, 200, 300, 400, 500]),
        ({"keep_last": 5, "min_free": "50B"}, {"free_bytes": 149}, [100, 300, 400, 500]),
        ({"keep_last": 3, "min_free": "250B"}, {"free_bytes": 150}, [100, 400, 500]),
        ({"keep_last": 2, "min_free": "50B"}, {"free_bytes": 0}, [100, 400, 500]),
        ({"keep_last": 5, "min_free": "1TB"}, {"free_bytes": 0}, [100, 500]),
        ({"save_total_limit": 4, "max_disk": "400B"}, {}, [100, 400, 500]),
    ],
)  # fmt: skip
def test_budgets_let_the_oldest_go_first(policy: Any, moment: Any, expected: list[int]) -> None:
    """The first is the best, so it stays; the newest stays; what goes says by how much the budget is exceeded."""
    decisions = plan(run(1, 2, 3, 4, 5), CheckpointsConfig(**policy), next_bytes=100, **moment)
    assert [d.step for d in decisions if d.keep] == expected


def test_a_budget_says_what_it_asked_for() -> None:
    policy = CheckpointsConfig(keep_last=5, max_disk="450B", min_free="1TB")
    decisions = plan(run(1, 2, 3), policy, free_bytes=10**12 - 50, next_bytes=200)
    assert decisions[1].reasons == (
        "max_disk = 450B requires freeing 50 B; this is the oldest that may be deleted",
        "min_free = 1TB requires freeing 250 B; this is the oldest that may be deleted",
    )


def test_a_metric_that_arrives_late_counts_from_then_on() -> None:
    assert kept(run(1, None, None), keep_last=1) == [100, 300]
    assert kept(run(1, 0.5, None), keep_last=1) == [200, 300]


def test_reasons_say_why() -> None:
    policy = CheckpointsConfig(keep_last=2, keep_every=1000)
    decisions = {d.step: d for d in plan(run(1, 2, NAN, 4, 5, pinned=(100,)), policy)}
    assert decisions[100].reasons == ("the best by validation/loss (1)", "pinned")
    assert decisions[200].reasons == (
        "not among the last 2", "not among the best 1 by validation/loss (2)", "not a multiple of 1000 steps",
    )  # fmt: skip
    assert "no finite validation/loss" in decisions[300].reasons
    assert decisions[400].reasons == ("among the last 2",)
    assert decisions[500].reasons == ("the newest",)
    limited = plan(run(1, 2, 3), CheckpointsConfig(save_total_limit=1))
    assert limited[1].reasons == ("over save_total_limit = 1",)


METRICS = st.one_of(
    st.just({}),
    st.floats().map(lambda x: {LOSS: x}),
    st.sampled_from([0.0, 1.0, NAN, INF, -INF]).map(lambda x: {LOSS: x}),
)
RUNS = st.lists(
    st.builds(Record, st.integers(0, 40), st.booleans(), METRICS, st.floats(0, 1000), st.integers(0, 99)),
    max_size=12,
    unique_by=lambda r: r.step,
)
POLICIES = st.builds(
    CheckpointsConfig,
    every_steps=st.none(),
    keep_last=st.integers(1, 4),
    keep_best=st.none() | st.builds(KeepBest, mode=st.sampled_from(["min", "max"]), n=st.integers(1, 3)),
    keep_every=st.none() | st.integers(1, 9),
    keep_within=st.none() | st.integers(1, 900).map("{}s".format),
    save_total_limit=st.none() | st.integers(1, 6),
    max_disk=st.none() | st.integers(1, 900).map("{}B".format),
    min_free=st.none() | st.integers(1, 900).map("{}B".format),
)
MOMENTS = st.builds(
    PolicyTime,
    now=st.floats(0, 1200),
    in_use=st.sets(st.integers(0, 40), max_size=2),
    other_bytes=st.integers(0, 200),
    next_bytes=st.integers(0, 99),
    free_bytes=st.integers(0, 900),
)


def floor(records: list[Record], policy: CheckpointsConfig, moment: PolicyTime) -> set[int]:
    """What no policy may delete, told in another way than the policy does."""
    steps = {r.step for r in records if r.pinned or r.step in moment.in_use}
    if records:
        steps.add(max(r.step for r in records))
    scored = [r for r in records if math.isfinite(r.metrics.get(LOSS, NAN))]
    if policy.keep_best and scored:
        extreme = (min if policy.keep_best.mode == "min" else max)(r.metrics[LOSS] for r in scored)
        steps.add(max(r.step for r in scored if r.metrics[LOSS] == extreme))
    return steps


def keep(records: list[Record], policy: CheckpointsConfig, moment: PolicyTime) -> set[int]:
    return {d.step for d in plan_retention(records, policy, moment) if d.keep}


@settings(max_examples=80)
@given(RUNS, POLICIES, MOMENTS, st.randoms(use_true_random=False))
def test_the_floor_holds_and_the_order_of_listing_does_not_matter(records, policy, moment, random) -> None:
    decisions = plan_retention(records, policy, moment)
    stays = {d.step for d in decisions if d.keep}
    must = floor(records, policy, moment)

    assert [d.step for d in decisions] == sorted(r.step for r in records)
    assert all(d.reasons for d in decisions)
    assert must <= stays
    if policy.save_total_limit is not None:
        assert len(stays) <= max(policy.save_total_limit, len(must))

    shuffled = list(records)
    random.shuffle(shuffled)
    assert plan_retention(shuffled, policy, moment) == decisions


@settings(max_examples=80)
@given(RUNS, POLICIES, MOMENTS)
def test_a_plan_that_was_applied_deletes_nothing_more(records, policy, moment) -> None:
    stays = keep(records, policy, moment)
    survivors = [r for r in records if r.step in stays]
    freed = sum(r.num_bytes for r in records if r.step not in stays)
    later = dataclasses.replace(moment, free_bytes=moment.free_bytes + freed)
    assert keep(survivors, policy, later) == stays


@settings(max_examples=80)
@given(RUNS, POLICIES, MOMENTS)
def test_rules_together_keep_what_each_of_them_keeps(records, policy, moment) -> None:
    """Without limits and budgets, what stays is the union of what the single rules keep."""
    free = {"save_total_limit": None, "max_disk": None, "min_free": None}
    alone = CheckpointsConfig(every_steps=None, keep_last=1, keep_best=None)
    rules = ("keep_last", "keep_best", "keep_every", "keep_within")
    single = [alone.model_copy(update={rule: getattr(policy, rule)}) for rule in rules]
    union = set().union(*(keep(records, one, moment) for one in single))
    assert keep(records, policy.model_copy(update=free), moment) == union


@settings(max_examples=80)
@given(RUNS, POLICIES, MOMENTS, st.integers(1, 900), st.integers(0, 900))
def test_a_larger_budget_never_keeps_less(records, policy, moment, disk, more) -> None:
    budget = lambda size: policy.model_copy(update={"max_disk": f"{size}B"})  # noqa: E731
    assert keep(records, budget(disk), moment) <= keep(records, budget(disk + more), moment)
    roomier = dataclasses.replace(moment, free_bytes=moment.free_bytes + more)
    assert keep(records, policy, moment) <= keep(records, policy, roomier)


@settings(max_examples=80)
@given(RUNS, POLICIES, MOMENTS)
def test_a_budget_holds_unless_nothing_but_the_floor_is_left(records, policy, moment) -> None:
    stays = keep(records, policy, moment)
    sizes = {r.step: r.num_bytes for r in records}
    held = sum(sizes[step] for step in stays)
    if stays - floor(records, policy, moment):
        if policy.max_disk_bytes is not None:
            assert held + moment.other_bytes + moment.next_bytes <= policy.max_disk_bytes
        if policy.min_free_bytes is not None:
            free = moment.free_bytes + sum(sizes.values()) - held - moment.next_bytes
            assert free >= policy.min_free_bytes


@settings(max_examples=80)
@given(RUNS, POLICIES, MOMENTS, st.sampled_from([NAN, INF, -INF]), st.integers(0, 40))
def test_what_is_not_finite_is_as_if_it_was_never_measured(records, policy, moment, odd, at) -> None:
    measured = [dataclasses.replace(r, metrics={LOSS: odd}) if r.step == at else r for r in records]
    bare = [dataclasses.replace(r, metrics={}) if r.step == at else r for r in records]
    assert plan_retention(measured, policy, moment) == plan_retention(bare, policy, moment)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"keep_last": 0}, "greater than or equal to 1"),
        ({"save_total_limit": 0}, "greater than or equal to 1"),
        ({"keep_best": {"mode": "lowest"}}, "'min' or 'max'"),
        ({"keep_every": 700}, "set a multiple of 500"),
        ({"keep_lats": 3}, 'did you mean "keep_last"'),
        ({"max_disk": "500"}, "write a size above 0"),
        ({"max_disk": "0GB"}, "write a size above 0"),
        ({"min_free": "50 gigabytes"}, "min_free = '50 gigabytes'"),
        ({"keep_within": "2 fortnights"}, "write a duration above 0"),
        ({"on_full": "panic"}, "'wait', 'weights-only' or 'stop'"),
    ],
)
def test_config_refuses(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        CheckpointsConfig(**values)
    assert (caught.value.field or "").partition(".")[0] in values


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1B", 1),
        ("2 kB", 2000),
        ("2KB", 2000),
        ("1.5MB", 1_500_000),
        ("500GB", 500 * 10**9),
        ("2GiB", 2 * 2**30),
        ("3TB", 3 * 10**12),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert CheckpointsConfig(max_disk=text).max_disk_bytes == size


@pytest.mark.parametrize("text", ["1Mb", "1gb", "1K", "0B", "GB", "1 kiB"])
def test_a_size_that_is_not_understood_is_answered_with_the_units_that_are(text: str) -> None:
    with refused("quantity-invalid") as caught:
        units.size_bytes(text, "checkpoints.max_disk")
    named = re.findall(r"\b[kKMGT]?i?B\b", caught.value.remedy)
    assert {"B", "kB", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"} == set(named)
    assert [units.size_bytes(f"2{unit}", "") for unit in ("KB", "TiB")] == [2000, 2 << 40]


def test_what_was_measured_on_something_else_is_not_compared() -> None:
    """A lower loss on other clips neither counts as the best nor goes unless that too was followed by another."""
    on = ["a", "a", "b", "b", "c", "c", "c"]
    records = [
        replace(one, measured_on={LOSS: digest}) for one, digest in zip(run(1, 2, 6, 5, 9, 7, 8), on, strict=True)
    ]
    policy = CheckpointsConfig(keep_last=1, keep_best=KeepBest(metric=LOSS))
    decisions = {d.step: d for d in plan(records, policy)}
    assert [step for step, d in decisions.items() if d.keep] == [400, 600, 700]
    assert decisions[600].reasons == (f"the best by {LOSS} (7)",)
    assert decisions[400].reasons == (f"the best of a former series by {LOSS} (5)",)
    assert rank_best(records, policy.keep_best) == [600, 700, 500]


def test_the_best_is_of_the_newest_stage_and_the_last_of_each_stage_stays() -> None:
    """A loss on other clips or sizes is another one."""
    names = ("low", "low", "low", "high", "high", "high")
    of_stages = [replace(one, stage=name) for one, name in zip(run(1, 2, 3, 9, 7, 8), names, strict=True)]
    assert kept(of_stages, keep_last=1) == [300, 500, 600]
    assert "the last of stage low" in plan(of_stages, CheckpointsConfig(keep_last=1))[2].reasons
