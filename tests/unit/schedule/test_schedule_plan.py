"""Every (uid, copy) of an epoch is trained exactly once, in full and even steps, on any number of ranks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from consumed_places import places_before
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from reelworks.core import blocks, digests, hash_rng
from reelworks.data.schedule import plan
from reelworks.data.schedule.plan import EpochPlan, PlanSpec, Samples, plan_epoch
from reelworks.training.loop.config import TrainConfig
from reelworks.training.step import progress

# Test processes share the cores with others: what is slow now and then is no failure.


def make_entries(counts: list[int], copies: int = 1, seed: int = 0) -> Samples:
    """`counts[b]` clips in bucket `b`, each in `copies` copies, in no particular order."""
    clips = sum(counts)
    uid = np.repeat(hash_rng.hash64(seed, np.arange(clips)), copies)
    copy = np.tile(np.arange(copies), clips)
    bucket = np.repeat(np.repeat(np.arange(len(counts)), counts), copies)
    ordinal = np.repeat(np.arange(clips), copies)
    group = hash_rng.hash64(ordinal // 7)  # as clips of folders are: of several buckets
    return Samples(uid, copy, ordinal, bucket, group).take(np.random.default_rng(seed).permutation(clips * copies))


def make_spec(sizes: list[int], g: int = 4, width: int = 2, incomplete: str = "partial", seed: int = 5) -> PlanSpec:
    costs = tuple(100 * (i % 5 + 1) for i in range(len(sizes)))
    return PlanSpec(seed, g, width, incomplete, tuple(sizes), costs, "table")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Samples, PlanSpec]:
    buckets = draw(st.integers(1, 12))
    counts = draw(st.lists(st.integers(0, 32), min_size=buckets, max_size=buckets))
    sizes = draw(st.lists(st.integers(1, 9), min_size=buckets, max_size=buckets))
    g = draw(st.integers(1, 16))
    width = draw(st.sampled_from([w for w in range(1, g + 1) if g % w == 0]))
    incomplete = draw(st.sampled_from(["partial", "pad", "repeat"]))
    spec = make_spec(sizes, g, width, incomplete, draw(st.integers(0, 99)))
    spec = replace(spec, window_clips=draw(st.sampled_from([0, 0, 1, 20, 10_000])))
    return make_entries(counts, draw(st.integers(1, 3)), draw(st.integers(0, 9))), spec


def identities(entries: Samples | EpochPlan, where: NDArray[np.bool_] | None = None) -> list[tuple[int, int]]:
    chosen = slice(None) if where is None else where
    return list(zip(entries.uid[chosen].tolist(), entries.copy[chosen].tolist(), strict=True))


def micro_batches(made: EpochPlan) -> list[slice]:
    return [made.places(m) for m in range(len(made.offsets) - 1)]


def micro_buckets(made: EpochPlan) -> NDArray[np.int64]:
    return made.bucket[made.offsets[:-1]]


@given(cases(), st.integers(0, 9), st.integers(1, 3000))
def test_the_end_after_some_clips_is_the_step_that_trains_the_last_of_them(
    case: tuple[Samples, PlanSpec], step: int, clips: int
) -> None:
    """Each epoch is planned as the first one here, so that the step is that of a walk over any number of epochs."""
    made, trained, walked = plan_epoch(*case, 0), 0, 0
    assume(made.num_steps)
    step %= made.num_steps
    while trained < clips:
        trained += made.planned_in((step + walked) % made.num_steps)
        walked += 1
    here = SimpleNamespace(plan=made, plan_step=step, global_step=40, clips=100)
    assert progress.last_step(TrainConfig(max_clips=100 + clips), here) == 40 + walked


@given(cases(), st.integers(0, 3))
def test_each_copy_of_each_clip_is_planned_once(case: tuple[Samples, PlanSpec], epoch: int) -> None:
    entries, spec = case
    made = plan_epoch(entries, spec, epoch)
    assert sorted(identities(made, made.is_first_use)) == sorted(identities(entries))
    assert made.planned == len(entries)
    of = dict(zip(identities(entries), zip(entries.ordinal, entries.bucket, strict=True), strict=True))
    assert all(of[key] == (o, b) for key, o, b in zip(identities(made), made.ordinal, made.bucket, strict=True))


@given(cases())
def test_micro_batches_are_of_one_bucket_and_full_but_for_one_each(case: tuple[Samples, PlanSpec]) -> None:
    entries, spec = case
    made = plan_epoch(entries, spec, 0)
    incomplete = []
    for where in micro_batches(made):
        (bucket,) = set(made.bucket[where].tolist())
        own, size = int(made.is_first_use[where].sum()), spec.batch_sizes[bucket]
        assert 1 <= own <= size
        assert where.stop - where.start == (own if spec.incomplete_batch == "partial" else size)
        if own < size:
            incomplete.append(bucket)
    assert len(incomplete) == len(set(incomplete))


@given(cases())
def test_what_pads_is_already_decoded_there(case: tuple[Samples, PlanSpec]) -> None:
    entries, spec = case
    made = plan_epoch(entries, replace(spec, incomplete_batch="pad"), 0)
    assert made.repeated == 0
    for where in micro_batches(made):
        own = set(identities(made, made.is_first_use & _mask(made, where)))
        assert set(identities(made, _mask(made, where))) == own


@given(cases(), st.integers(0, 3))
def test_second_showings_are_clips_of_the_bucket_shown_as_seldom_as_can_be(
    case: tuple[Samples, PlanSpec], epoch: int
) -> None:
    entries, spec = case
    made = plan_epoch(entries, replace(spec, incomplete_batch="repeat"), epoch)
    assert made.real.all()
    assert made.planned + made.repeated == len(made.uid)
    for bucket in set(made.bucket.tolist()):
        inside = made.bucket == bucket
        clips = int((made.is_first_use & inside).sum())
        shown = identities(made, inside)
        times = [shown.count(key) for key in set(shown)]
        assert len(times) == clips
        assert max(times) - min(times) <= 1
        # Each showing of a copy has its own number, so that it meets its own draws.
        keys = list(zip(shown, made.repeat_index[inside].tolist(), strict=True))
        assert len(set(keys)) == len(keys)
        drawn = plan.draw_copies(made.copy[inside], made.repeat_index[inside])
        assert len(set(zip(made.uid[inside].tolist(), drawn.tolist(), strict=True))) == len(keys)
    for where in micro_batches(made):  # none meets itself in a micro-batch while others are there
        clips = int((made.is_first_use & (made.bucket == made.bucket[where.start])).sum())
        assert len(set(identities(made, _mask(made, where)))) == min(clips, where.stop - where.start)


def _mask(made: EpochPlan, where: slice) -> NDArray[np.bool_]:
    mask = np.zeros(len(made.uid), dtype=np.bool_)
    mask[where] = True
    return mask


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_the_entries_does_not_matter(case: tuple[Samples, PlanSpec], random: object) -> None:
    entries, spec = case
    order = list(range(len(entries)))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = entries.take(np.array(order, dtype=np.int64))
    assert plan_epoch(shuffled, spec, 1).digest() == plan_epoch(entries, spec, 1).digest()


@given(cases(), st.integers(1, 8))
def test_ranks_share_a_step_evenly(case: tuple[Samples, PlanSpec], world: int) -> None:
    entries, spec = case
    made = plan_epoch(entries, spec, 0)
    assert sorted(made.steps[made.steps >= 0].tolist()) == list(range(len(made.offsets) - 1))
    for plan_step in range(made.num_steps):
        columns = [list(plan.columns(made.steps[plan_step], rank, world)) for rank in range(world)]
        assert len({len(own) for own in columns}) == 1
        counted = [m for own in columns for m, filler in own if not filler]
        assert sorted(counted) == sorted(made.micro_batches(plan_step).tolist())
        assert len(columns[0]) == -(-len(counted) // world)
        fillers = {m for own in columns for m, filler in own if filler}
        assert fillers <= {int(made.micro_batches(plan_step)[-1])}


@given(cases())
def test_steps_are_full_and_slots_of_one_bucket(case: tuple[Samples, PlanSpec]) -> None:
    entries, spec = case
    made = plan_epoch(entries, spec, 0)
    bucket, width = micro_buckets(made), spec.same_bucket_run
    left = sum(n % width for n in np.bincount(bucket, minlength=1)) if len(bucket) else 0
    slots = [step[i : i + width] for step in made.steps for i in range(0, len(step), width)]
    assert not ((made.steps[:, :-1] < 0) & (made.steps[:, 1:] >= 0)).any()  # empty columns come last
    used = [slot[slot >= 0] for slot in slots if (slot >= 0).any()]
    mixed = [slot for slot in used if len(slot) < width or len(set(bucket[slot].tolist())) > 1]
    assert len(mixed) <= -(-left // width)
    assert made.num_steps == -(-len(used) // (spec.micro_batches_per_step // width))
    assert len(used) - len([s for s in used if len(s) == width]) <= 1


@given(cases(), st.integers(0, 5))
def test_ranks_never_wait_where_the_slot_width_is_a_multiple_of_them(
    case: tuple[Samples, PlanSpec], multiple: int
) -> None:
    _, spec = case
    counts = [size * spec.same_bucket_run * multiple for size in spec.batch_sizes]
    made = plan_epoch(make_entries(counts), spec, 0)
    for world in (w for w in range(1, 17) if spec.same_bucket_run % w == 0):
        assert made.waste(spec, world) == 0
    assert made.waste(spec, 2 * spec.micro_batches_per_step) >= (0.49 if made.num_steps else 0)


def test_waste_is_the_share_of_waiting() -> None:
    spec = make_spec([1, 1], g=2, width=1)  # costs 100 and 200
    made = plan_epoch(make_entries([1, 1]), spec, 0)
    assert made.num_steps == 1
    assert made.waste(spec, 1) == 0
    assert made.waste(spec, 2) == 0.25
    assert made.waste(spec, 4) == 1 - 300 / 800


@given(cases(), st.integers(0, 400))
def test_the_others_keep_their_order_when_a_clip_goes(case: tuple[Samples, PlanSpec], which: int) -> None:
    entries, spec = case
    spec = replace(spec, window_clips=0)  # which count clips
    if not len(entries):
        return
    gone = entries.uid[which % len(entries)]
    before = plan_epoch(entries, spec, 2)
    after = plan_epoch(entries.take(entries.uid != gone), spec, 2)
    for bucket in range(len(spec.batch_sizes)):
        had = identities(before, before.is_first_use & (before.bucket == bucket) & (before.uid != gone))
        assert identities(after, after.is_first_use & (after.bucket == bucket)) == had


def test_epochs_and_seeds_differ_in_batches_and_in_their_order() -> None:
    entries, spec = make_entries([200, 100]), make_spec([4, 2])
    plans = [plan_epoch(entries, spec, e) for e in (0, 1)] + [plan_epoch(entries, replace(spec, seed=6), 0)]
    for first, second in pairwise(plans):
        assert not np.array_equal(first.uid, second.uid)
        assert not np.array_equal(first.steps, second.steps)
    together = [{frozenset(identities(p)[w]) for w in micro_batches(p)} for p in plans]
    assert not together[0] & together[1]


def test_steps_mix_buckets_where_there_are_several() -> None:
    spec = make_spec([2, 2, 2, 2], g=8, width=2)
    made = plan_epoch(make_entries([64, 64, 64, 64]), spec, 0)
    assert made.num_steps == 16
    assert all(len(set(micro_buckets(made)[step].tolist())) == 4 for step in made.steps)


@given(cases(), st.integers(0, 3))
def test_with_locality_groups_are_read_together_in_windows_of_another_order_each_epoch(
    case: tuple[Samples, PlanSpec], epoch: int
) -> None:
    entries, spec = case
    spec = replace(spec, window_clips=20)
    made = plan_epoch(entries, spec, epoch)
    group = dict(zip(identities(entries), entries.group.tolist(), strict=True))
    windows = max(round(len(entries) / 20), 1)
    hashed = {g: int(hash_rng.hash64(spec.seed, epoch, g, hash_rng.Purpose.WINDOW)) for g in group.values()}
    # The slots of a step, and steps one after the other, begin in windows that never go back.
    slots = made.steps.reshape(-1, spec.same_bucket_run)
    first = [identities(made)[made.offsets[slot[0]]] for slot in slots if (slot >= 0).all()]
    begun = [hashed[group[key]] * windows >> 64 for key in first]
    assert begun == sorted(begun)


def test_windows_hold_about_as_many_clips_as_asked_for_and_are_shuffled_inside() -> None:
    entries, spec = make_entries([2000, 2000]), replace(make_spec([2, 2], g=2, width=1), window_clips=400)
    made = plan_epoch(entries, spec, 0)
    group = dict(zip(entries.ordinal.tolist(), entries.group.tolist(), strict=True))
    step_of = np.repeat(np.argsort(made.steps.ravel()) // 2, 2)
    steps: dict[int, list[int]] = {}
    for ordinal, step in zip(made.ordinal.tolist(), step_of.tolist(), strict=True):
        steps.setdefault(group[ordinal], []).append(step)
    spread = np.array([max(found) - min(found) for found in steps.values() if len(found) == 7])
    assert np.quantile(spread, 0.95) < 200  # a tenth of the 1,000 steps is a window; all would be 750
    assert np.median(spread) > 40  # and within it a group's clips lie apart
    again = plan_epoch(entries, spec, 1)
    assert not np.array_equal(made.ordinal, again.ordinal)


def test_repeats_of_a_clip_are_spread() -> None:
    made = plan_epoch(make_entries([100], copies=3), make_spec([4]), 0)
    distinct = [len(set(made.uid[w].tolist())) for w in micro_batches(made)]
    assert np.mean(distinct) > 3.7


def test_an_empty_epoch_has_no_steps() -> None:
    for width in (1, 2):
        spec = make_spec([4, 2], width=width)
        made = plan_epoch(make_entries([0, 0]), spec, 0)
        assert (made.num_steps, made.planned, made.steps.shape) == (0, 0, (0, 4))
        assert made.waste(spec, 2) == 0
        assert made.step_digest(0) == made.step_digest(7)
        assert not places_before(made, 0).any()


@given(cases())
@settings(max_examples=settings().max_examples // 3)
def test_a_plan_of_narrow_numbers_is_that_of_wide_ones(case: tuple[Samples, PlanSpec]) -> None:
    """Integers may be of any width, and the digest is that of 64 bits, computed as a whole."""
    entries, spec = case
    narrow = {name: blocks.narrow(getattr(entries, name)) for name in ("copy", "ordinal", "bucket")}
    made, wide = plan_epoch(replace(entries, **narrow), spec, 0), plan_epoch(entries, spec, 0)
    arrays = {name: array.astype(np.int64) for name, array in wide.arrays().items() if name not in ("uid", "ordinal")}
    arrays |= {"showing": arrays.pop("repeat_index").astype(np.int32), "rows": arrays.pop("steps")}
    assert made.digest() == wide.digest() == digests.digest_arrays(uid=wide.uid, **arrays)
    assert np.array_equal(made.ordinal, wide.ordinal)
    assert [made.step_digest(s) for s in range(made.num_steps)] == [wide.step_digest(s) for s in range(made.num_steps)]
    assert replace(entries, **narrow).wide().copy.dtype == np.int64


@given(cases())
@settings(max_examples=settings().max_examples // 3)
def test_digests_see_the_plan_and_the_spec(case: tuple[Samples, PlanSpec]) -> None:
    entries, spec = case
    made = plan_epoch(entries, spec, 0)
    assert plan_epoch(entries, spec, 0).digest() == made.digest()
    for changed in (replace(spec, buckets_digest="other"), replace(spec, planner_version=2)):
        assert changed.digest() != spec.digest()
    of_steps = [made.step_digest(plan_step) for plan_step in range(made.num_steps + 1)]
    assert len(set(of_steps)) == len(of_steps)


GOLDEN = {
    "partial": "0b1f5e02a21aac3081506db726807026",
    "pad": "329a9bdd89e7a7a3c8d3de3e98ec3540",
    "repeat": "40697888a5438a1fea06d3bc8333ddb2",
    "merge": "aa4fce597a8b17c56fd461397bc8ed8d",
    "locality": "7042c74e99839f709153dc706db7d11a",
}


@pytest.mark.parametrize("way", GOLDEN)
def test_plans_never_change(way: str) -> None:
    """A run that was planned once goes on with the same plan for as long as the planner has this version."""
    spec = make_spec([4, 3, 2], g=6, width=3, incomplete="partial" if way == "locality" else way)
    spec = replace(spec, merge_to=(1, 2, -1), window_clips=30 if way == "locality" else 0)
    made = plan_epoch(make_entries([53, 20, 7], copies=1), spec, 3)
    assert plan.PLANNER_VERSION == 1
    assert made.planned == 80
    assert made.digest() == GOLDEN[way]


def test_padding_is_drawn_as_the_clip_that_it_copies() -> None:
    assert plan.draw_copies(np.array([3, 3, 4]), np.array([0, -1, 0])).tolist() == [3, 3, 4]
