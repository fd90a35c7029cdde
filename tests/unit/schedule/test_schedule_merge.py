"""Merging loses no clip, and moves some only where that leaves fewer micro-batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from test_schedule_plan import identities, make_entries, make_spec

from reelworks.data.schedule import micro_batches as merging
from reelworks.data.schedule.plan import PlanSpec, Samples, plan_epoch


@st.composite
def cases(draw: st.DrawFn) -> tuple[Samples, PlanSpec]:
    buckets = draw(st.integers(1, 8))
    counts = draw(st.lists(st.integers(0, 20), min_size=buckets, max_size=buckets))
    sizes = draw(st.lists(st.integers(1, 9), min_size=buckets, max_size=buckets))
    to = [draw(st.sampled_from([-1, *range(i + 1, buckets)])) for i in range(buckets)]
    spec = make_spec(sizes, 4, draw(st.sampled_from([1, 2, 4])), "merge")
    entries = make_entries(counts, draw(st.integers(1, 2)))
    may_merge = draw(st.none() | st.lists(st.booleans(), min_size=len(entries), max_size=len(entries)))
    mask = None if may_merge is None else np.array(may_merge, dtype=np.bool_)
    return replace(entries, may_merge=mask), replace(spec, merge_to=tuple(to))


def micro_batches(entries: Samples, spec: PlanSpec, how: str, epoch: int = 0) -> int:
    return len(plan_epoch(entries, replace(spec, incomplete_batch=how), epoch).offsets) - 1


@given(cases(), st.integers(0, 3))
def test_every_clip_is_planned_once_in_micro_batches_of_one_bucket(case: tuple[Samples, PlanSpec], epoch: int) -> None:
    entries, spec = case
    made = plan_epoch(entries, spec, epoch)
    assert sorted(identities(made)) == sorted(identities(entries))
    assert made.real.all()
    incomplete = []
    for m in range(len(made.offsets) - 1):
        where = made.places(m)
        (bucket,) = set(made.bucket[where].tolist())
        incomplete += [bucket] * (where.stop - where.start < spec.batch_sizes[bucket])
    assert len(incomplete) == len(set(incomplete))


@given(cases())
def test_clips_move_only_where_that_saves_micro_batches(case: tuple[Samples, PlanSpec]) -> None:
    entries, spec = case
    made = plan_epoch(entries, spec, 0)
    home = dict(zip(identities(entries), entries.bucket.tolist(), strict=True))
    moved = sum(home[i] != b for i, b in zip(identities(made), made.bucket.tolist(), strict=True))
    partial = micro_batches(entries, spec, "partial")
    assert len(made.offsets) - 1 < partial if moved else len(made.offsets) - 1 == partial


@given(cases())
def test_clips_move_only_along_the_arrows_and_no_more_than_needed(case: tuple[Samples, PlanSpec]) -> None:
    entries, spec = case
    made = plan_epoch(entries, spec, 0)
    home = dict(zip(identities(entries), entries.bucket.tolist(), strict=True))
    stays = set() if entries.may_merge is None else {*identities(entries.take(~entries.may_merge))}
    moved = 0
    for key, bucket in zip(identities(made), made.bucket.tolist(), strict=True):
        assert bucket in (home[key], spec.merge_to[home[key]])  # two moves may crop more than is allowed
        moved += bucket != home[key]
        assert bucket == home[key] or key not in stays
    givers = [size - 1 for size, to in zip(spec.batch_sizes, spec.merge_to, strict=True) if to >= 0]
    assert moved <= sum(givers)


@given(cases())
def test_without_arrows_merge_is_partial(case: tuple[Samples, PlanSpec]) -> None:
    entries, spec = case
    nowhere = replace(spec, merge_to=(-1,) * len(spec.batch_sizes))
    partial = replace(spec, incomplete_batch="partial")
    assert plan_epoch(entries, nowhere, 0).digest() == plan_epoch(entries, partial, 0).digest()


@given(cases())
def test_the_order_of_the_entries_does_not_matter(case: tuple[Samples, PlanSpec]) -> None:
    entries, spec = case
    turned = entries.take(np.arange(len(entries))[::-1])
    assert plan_epoch(turned, spec, 1).digest() == plan_epoch(entries, spec, 1).digest()


def test_merging_by_hand() -> None:
    """What arrives fills up a micro-batch, or it does not move."""
    bucket = np.array([0] * 7 + [1] * 2 + [2] * 1)
    order, then = merging.merge_into_larger(bucket, (4, 4, 4), (1, 2, -1))
    assert order.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert then.tolist() == [0] * 7 + [2] * 3  # 3 and 2 would still make two
    order, then = merging.merge_into_larger(bucket, (5, 4, 4), (1, 2, -1))
    assert order.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert then.tolist() == [0] * 5 + [1] * 4 + [2] * 1
    order, then = merging.merge_into_larger(np.array([0] * 3 + [1] * 2 + [2] * 1), (4, 4, 4), (1, 2, -1))
    assert then.tolist() == [0] * 3 + [2] * 3
    order, then = merging.merge_into_larger(np.array([0, 0, 1, 1, 1, 2]), (4, 4, 4), (2, 2, -1))
    assert order.tolist() == [0, 1, 2, 3, 4, 5]
    assert then.tolist() == [2] * 6


def test_a_rest_that_may_not_move_as_a_whole_stays() -> None:
    """To move a part of it would crop that more, and the rest would still need its micro-batch."""
    bucket = np.array([0] * 6 + [1] * 2)
    for movable, moved in ((0, 0), (1, 0), (2, 2), (6, 2)):
        may_move = np.arange(len(bucket)) < movable
        order, then = merging.merge_into_larger(bucket, (4, 4), (1, -1), may_move)
        assert then.tolist() == [0] * (6 - moved) + [1] * (2 + moved)
        assert sorted(order.tolist()) == [*range(8)]


def test_an_empty_epoch_merges_nothing() -> None:
    spec = replace(make_spec([4, 2], incomplete="merge"), merge_to=(1, -1))
    assert plan_epoch(make_entries([0, 0]), spec, 0).num_steps == 0


def test_twenty_pictures_of_seven_shapes_are_all_trained() -> None:
    """Batch size 4, a larger and a smaller resolution: the smaller has one bucket or seven."""
    counts = [5, 3, 3, 3, 2, 2, 2] + [0] * 7
    spec = make_spec([4] * 14, g=1, width=1, incomplete="merge")
    made = plan_epoch(make_entries(counts), replace(spec, merge_to=(*range(7, 14), *[-1] * 7)), 0)
    assert made.planned == 20
    assert made.num_steps == 8  # nothing is gained by moving each shape for itself
    one_place = plan_epoch(make_entries(counts), replace(spec, merge_to=(*[7] * 7, *[-1] * 7)), 0)
    assert one_place.planned == 20
    assert one_place.num_steps == 5
