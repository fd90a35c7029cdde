"""A draw is a function of its words: equal everywhere, even, and blind to its company."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reelworks.core import hash_rng
from reelworks.core.hash_rng import Purpose

words = st.one_of(st.integers(0, 2**64 - 1), st.text(max_size=8))


def test_hashes_never_change() -> None:
    """Every plan of every run hangs on these numbers."""
    assert hash_rng.hash_int() == 0x9E3779B97F4A7C15
    assert hash_rng.hash_int(42, 0, 7, 0, Purpose.KEEP) == 6802966524539381344
    assert hash_rng.hash_int("footage", "a/b.mp4") == 17789448791457351676


@given(st.lists(words, min_size=1, max_size=4), st.lists(words, max_size=2), st.sampled_from([1, 5, 40]))
def test_arrays_hash_like_their_elements(before: list[int | str], after: list[int | str], n: int) -> None:
    uids, copies = np.arange(n, dtype=np.uint64) * np.uint64(0x123456789ABCDEF), np.arange(n) - 2
    together = hash_rng.hash64(*before, uids, copies, *after)
    assert together.dtype == np.uint64
    pairs = zip(uids.tolist(), copies.tolist(), strict=True)
    assert together.tolist() == [hash_rng.hash_int(*before, uid, copy, *after) for uid, copy in pairs]


@given(st.lists(st.text(max_size=8), max_size=4))
def test_many_texts_hash_like_each(texts: list[str]) -> None:
    assert hash_rng.hash64(hash_rng.text_words(texts)).tolist() == [hash_rng.hash_int(text) for text in texts]


@given(st.lists(words, min_size=2, max_size=4, unique=True))
def test_the_order_of_words_counts(values: list[int | str]) -> None:
    assert hash_rng.hash_int(*values) != hash_rng.hash_int(*reversed(values))


def test_draws_are_even_and_unlike_each_other() -> None:
    uids = np.arange(20_000, dtype=np.uint64)
    first, second = (hash_rng.uniform(hash_rng.hash64(1, e, uids, 0, Purpose.CROP)) for e in (0, 1))
    assert ((first >= 0) & (first < 1)).all()
    share = np.histogram(first, bins=10, range=(0, 1))[0] / len(uids)
    np.testing.assert_allclose(share, 0.1, atol=0.01)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03


def test_below_covers_its_range_evenly() -> None:
    drawn = hash_rng.below(hash_rng.hash64(np.arange(30_000)), 7)
    np.testing.assert_allclose(np.bincount(drawn, minlength=7) / len(drawn), 1 / 7, atol=0.01)
    assert drawn.max() == 6
    ends = np.array([0, 2**64 - 1], dtype=np.uint64)
    assert hash_rng.below(ends, 2**31 - 1).tolist() == [0, 2**31 - 2]


def test_passes_never_at_zero_and_always_at_one() -> None:
    ends = np.array([0, 2**63, 2**64 - 1], dtype=np.uint64)
    assert not hash_rng.bernoulli(ends, 0.0).any()
    assert hash_rng.bernoulli(ends, 1.0).all()
    drawn = hash_rng.bernoulli(hash_rng.hash64(np.arange(20_000)), 0.3)
    assert abs(drawn.mean() - 0.3) < 0.015
