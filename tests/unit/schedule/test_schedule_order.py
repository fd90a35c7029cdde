"""The order is that of (bucket, hash, uid, copy), however many of the hash's bits fit beside the place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reelworks.core import hash_rng
from reelworks.core.hash_rng import Purpose
from reelworks.data.schedule import micro_batches, plan
from reelworks.data.schedule.plan import by_bucket_and_hash


def slow_order(uid: Any, copy: Any, bucket: Any, seed: int, epoch: int) -> list[int]:
    pairs = zip(uid.tolist(), copy.tolist(), strict=True)
    hashed = [hash_rng.hash_int(seed, epoch, u, c, Purpose.SHUFFLE) >> 16 for u, c in pairs]
    return sorted(range(len(uid)), key=lambda i: (bucket[i], hashed[i], uid[i], copy[i]))


@given(st.integers(0, 60), st.integers(0, 50), st.integers(0, 9), st.integers(0, 9))
@settings(max_examples=40)
def test_the_order_is_the_slow_one(n: int, high_bits: int, seed: int, epoch: int) -> None:
    """A large bucket index takes the hash's room in the word, so that ties must be put right."""
    random = np.random.default_rng(n)
    uid = random.integers(0, 12, n).astype(np.uint64)
    copy = random.integers(0, 3, n)
    bucket = random.integers(0, 3, n) << high_bits
    made = by_bucket_and_hash(uid, copy, bucket, seed=seed, epoch=epoch)
    assert made.dtype == np.int64
    chosen = list(zip(bucket[made], uid[made], copy[made], strict=True))
    slow = slow_order(uid, copy, bucket, seed, epoch)
    assert chosen == [(bucket[i], uid[i], copy[i]) for i in slow]


@pytest.mark.parametrize("bits", [2, 20, 40])
def test_many_ties_over_many_blocks(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_BLOCK", 64)
    uid = hash_rng.hash64(1, np.arange(5000))
    copy = np.zeros(5000, dtype=np.int64)
    bucket = np.full(5000, (1 << bits) - 1)
    made = by_bucket_and_hash(uid, copy, bucket, seed=3, epoch=1)
    hashed = hash_rng.hash64(3, 1, uid, copy, Purpose.SHUFFLE) >> np.uint64(16)
    assert np.array_equal(made, np.lexsort((copy, uid, hashed, bucket)))
    word_bits = 64 - 13 - bits
    first = hashed >> np.uint64(max(48 - word_bits, 0))
    assert (len(np.unique(first)) < 5000) == (bits == 40)  # the case that is meant to tie does


def test_no_clips_have_an_order() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert len(by_bucket_and_hash(none.astype(np.uint64), none, none, seed=0, epoch=0)) == 0


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 5), st.booleans())
def test_a_step_that_lacks_a_micro_batch_is_the_last_whatever_its_window(
    counts: list[int], seed: int, several: bool
) -> None:
    bucket = np.repeat(np.arange(len(counts)), counts)
    window = np.arange(len(bucket))[::-1] // 3 * several
    sizes, costs = {"micro_batches_per_step": 2, "same_bucket_run": 2}, np.ones(len(bucket), np.int64)
    steps = micro_batches.group_into_steps(bucket, costs, **sizes, seed=seed, epoch=0, window=window)
    assert sorted(steps[steps >= 0].tolist()) == list(range(len(bucket)))
    assert (steps[:-1] >= 0).all()
    assert (steps[-1] < 0).sum() == len(bucket) % 2
