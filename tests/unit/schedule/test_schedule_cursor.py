"""first k steps + remaining == all, at every k: what was trained and what is left are the whole epoch."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from consumed_places import places_before
from hypothesis import given, settings
from hypothesis import strategies as st
from refused import refused
from test_schedule_plan import cases, identities, make_entries, make_spec

from reelworks.data.schedule.cursor import Aliases, Cursor, Excluded, check_same, remaining, remaining_after
from reelworks.data.schedule.plan import EpochPlan, PlanSpec, Samples, plan_epoch


@given(cases(), st.integers(1, 7))
@settings(max_examples=settings().max_examples // 4)
@pytest.mark.slow
def test_the_first_steps_and_what_remains_are_the_epoch(case: tuple[Samples, PlanSpec], new_size: int) -> None:
    entries, spec = case
    made = plan_epoch(entries, spec, 0)
    other = replace(spec, batch_sizes=tuple(new_size for _ in spec.batch_sizes), incomplete_batch="pad")
    for plan_step in range(made.num_steps + 1):
        done = places_before(made, plan_step)
        rest = remaining(entries, made.uid[done], made.copy[done])
        again = plan_epoch(rest, other, 0)
        trained, left = identities(made, done), identities(again, again.is_first_use)
        assert sorted(trained + left) == sorted(identities(entries))
    assert places_before(made, made.num_steps).sum() == made.planned


@given(cases())
@settings(max_examples=settings().max_examples // 3)
def test_steps_before_are_the_steps_before(case: tuple[Samples, PlanSpec]) -> None:
    entries, spec = case
    made = plan_epoch(entries, spec, 0)
    seen: set[tuple[int, int]] = set()
    for plan_step in range(made.num_steps):
        assert set(identities(made, places_before(made, plan_step))) == seen
        for micro_batch in made.micro_batches(plan_step):
            where = made.places(int(micro_batch))
            real = [identities(made)[i] for i in range(where.start, where.stop) if made.is_first_use[i]]
            assert not seen & set(real)
            seen |= set(real)


@given(cases(), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=settings().max_examples * 4 // 10)
def test_by_ordinals_remains_what_remains_by_uids(case: tuple[Samples, PlanSpec], every: int, copies: int) -> None:
    """Edited clips have a new ordinal; others have lost their bucket since; some, or further copies, were never planned."""
    entries, _ = case
    rows = int(entries.ordinal.max(initial=-1)) + 1
    uid = np.zeros(rows + len(entries), dtype=np.uint64)
    uid[entries.ordinal] = entries.uid
    done = entries.take((np.arange(len(entries)) % 4 < every) & (entries.copy < copies))
    excluded = Excluded().with_places(done.ordinal, done.copy)
    edited = entries.uid % 3 == 0
    ordinal = np.where(edited, entries.ordinal + rows, entries.ordinal)
    uid[ordinal] = entries.uid
    now = replace(entries, ordinal=ordinal).take(entries.uid % 5 != 1)
    expected = remaining(now, done.uid, done.copy)
    assert identities(remaining_after(now, excluded, uid)) == identities(expected)
    slow = set(identities(done))
    assert identities(expected) == [i for i in identities(now) if i not in slow]


@given(st.sets(st.integers(0, 300)), st.integers(0, 55))
def test_uids_that_begin_alike_are_told_apart(done: set[int], shift: int) -> None:
    """The quick look at a uid's first bits only ever saves work."""
    uid = np.arange(200, dtype=np.uint64) << np.uint64(shift)
    entries = Samples(uid, np.zeros(200, np.int64), np.arange(200), np.zeros(200, np.int64))
    consumed = np.array(sorted(done), dtype=np.uint64) << np.uint64(shift)
    left = remaining(entries, consumed, np.zeros(len(done), dtype=np.int64))
    assert set(left.ordinal.tolist()) == set(range(200)) - done


places = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 4)), max_size=40)


@given(st.lists(places, max_size=4), st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 4)), max_size=9))
def test_excluded_places_add_up_and_survive_bytes(
    segments: list[list[tuple[int, int]]], gone: list[tuple[int, int]]
) -> None:
    """What has no row now is kept beside, whatever is added later."""
    keys, copies = (np.array([k for k, _ in gone], dtype=np.uint64), np.array([c for _, c in gone], dtype=np.int64))
    excluded = replace(Excluded(), gone_key=keys, gone_copy=copies)
    for segment in segments:
        ordinal, copy = np.array(segment, dtype=np.int64).reshape(-1, 2).T
        excluded = excluded.with_places(ordinal, copy)
    stored = Excluded.from_bytes(excluded.to_bytes())
    assert np.array_equal(stored.bits, excluded.bits)
    assert stored.bits.dtype == np.bool_
    everything = {place for segment in segments for place in segment}
    assert set(zip(*(a.tolist() for a in stored.places()), strict=True)) == everything
    assert list(zip(stored.gone_key.tolist(), stored.gone_copy.tolist(), strict=True)) == gone
    assert (stored.gone_key.dtype, stored.gone_copy.dtype) == (np.uint64, np.int64)
    assert bool(stored) == bool(everything or gone)
    ordinal, copy = np.indices((303, 6)).reshape(2, -1)
    held = stored.holds(ordinal, copy)
    assert set(zip(ordinal[held].tolist(), copy[held].tolist(), strict=True)) == everything


@given(st.dictionaries(st.integers(0, 40), st.integers(0, 2**64 - 1)), st.lists(st.integers(0, 60)))
def test_a_row_goes_by_its_alias_or_by_its_uid(keys: dict[int, int], asked: list[int]) -> None:
    aliases = Aliases(
        np.array(sorted(keys), dtype=np.int64), np.array([keys[o] for o in sorted(keys)], dtype=np.uint64)
    )
    stored = Aliases.from_bytes(aliases.to_bytes())
    ordinal = np.array(asked, dtype=np.int64)
    uid = ordinal.astype(np.uint64) + np.uint64(1000)
    assert stored.keys(ordinal, uid).tolist() == [keys.get(o, o + 1000) for o in asked]
    assert stored.keys(ordinal, uid).dtype == np.uint64
    assert bool(stored) == bool(keys)


def test_ten_million_clips_take_a_bit_each() -> None:
    last = np.array([9_999_999])
    assert len(Excluded().with_places(last, np.array([0])).to_bytes()) < 1_300_000


def test_adding_places_leaves_the_former_value() -> None:
    former = Excluded().with_places(np.array([1]), np.array([0]))
    former.with_places(np.array([0]), np.array([0]))
    assert [a.tolist() for a in former.places()] == [[1], [0]]


def _cursor(made: EpochPlan, plan_step: int) -> Cursor:
    digests = made.digest(), made.step_digest(plan_step)
    return Cursor("catalog", 1, "spec", *digests, 0, 0, 0, plan_step, plan_step, 9, 9, 0, 0, 0)


def test_a_cursor_is_plain_values() -> None:
    made = plan_epoch(make_entries([20]), make_spec([4]), 0)
    cursor = _cursor(made, 1)
    assert Cursor(**asdict(cursor)) == cursor


def test_a_plan_that_is_not_the_same_is_refused() -> None:
    entries, spec = make_entries([40, 11]), make_spec([4, 2])
    made = plan_epoch(entries, spec, 0)
    for plan_step in range(made.num_steps + 1):
        check_same(_cursor(made, plan_step), made)
    for other in (plan_epoch(entries, spec, 1), plan_epoch(entries.take(np.arange(50)), spec, 0)):
        with refused("plan-differs", "resume") as caught:
            check_same(_cursor(made, 1), other)
        assert (caught.value.field, caught.value.value) == ("resume", "epoch 0, plan step 1")
    with refused("plan-differs", "resume"):
        check_same(replace(_cursor(made, 1), next_step=made.step_digest(2)), made)
