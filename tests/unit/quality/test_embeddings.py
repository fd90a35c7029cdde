"""Clips whose embeddings have nearly the same direction are one group, found among many in little time and memory."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from reelworks.annexes.quality import embeddings
from reelworks.annexes.quality.measure import ComparedClips

WIDTH = 96  # of the network
Vectors = NDArray[np.float64]


def directions(rng: np.random.Generator, count: int, shared: float = 0.5) -> Vectors:
    """Return embeddings `[N, 2, D]` with a mean that all share, as those of CLIP have."""
    mean, own = (rng.standard_normal((n, WIDTH)) / WIDTH**0.5 for n in (1, count))
    return np.repeat((shared**0.5 * mean + (1 - shared) ** 0.5 * own)[:, None], 2, axis=1)


def beside(rng: np.random.Generator, vectors: Vectors, cosine: float) -> Vectors:
    """Return vectors that have this cosine with the given ones."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    away = rng.standard_normal((len(vectors), 1, WIDTH)) + 0 * vectors
    away -= (away * vectors).sum(axis=-1, keepdims=True) * vectors / length**2
    away *= length / np.linalg.norm(away, axis=-1, keepdims=True)
    return cosine * vectors + (1 - cosine**2) ** 0.5 * away


def compared(vectors: Vectors, pixels: list[int] | None = None) -> NDArray[np.float64]:
    count = len(vectors)
    clips = ComparedClips(
        embeddings.packed(vectors, [0.5] * count),
        np.array(pixels or [1] * count),
        np.ones(count, dtype=np.int64),
        np.arange(count, dtype=np.uint64),
        np.full((count, 2), np.nan),
    )
    return embeddings.compare(clips)


def test_kept_vectors_have_the_cosines_of_the_embeddings() -> None:
    rng = np.random.default_rng(0)
    vectors = directions(rng, 200)
    near = beside(rng, vectors, 0.95)
    stored = embeddings.packed(np.concatenate([vectors, near]), [0.5] * 400)
    assert stored.shape == (400, embeddings.FEATURE_BYTES)
    pairs = np.stack([np.arange(200), np.arange(200, 400)], axis=1)
    cosines = embeddings._cosines(stored[:, :-2].view(np.int8), pairs)
    assert cosines.mean() == pytest.approx(0.95, abs=0.002)
    assert cosines.std() < 0.008


def test_copies_are_found_among_thousands_and_others_are_not() -> None:
    rng = np.random.default_rng(1)
    originals = directions(rng, 6_000)
    copies, takes = beside(rng, originals[:300], 0.97), beside(rng, originals[300:600], 0.9)
    group = compared(np.concatenate([originals, copies, takes]))[:, 0]
    assert (group[:300] == group[6_000:6_300]).mean() >= 0.98
    assert np.isnan(group[300:6_000]).all()
    assert np.isnan(group[6_300:]).all()


def test_each_of_a_group_is_like_the_best_one_and_a_chain_is_not_joined() -> None:
    """Clips 8° apart on a circle: within 18.2°, cosine 0.95, lie two to each side."""
    angles = np.deg2rad(8 * np.arange(5))
    chain = np.zeros((5, 2, WIDTH))
    chain[..., 0], chain[..., 1] = np.cos(angles)[:, None], np.sin(angles)[:, None]
    apart = directions(np.random.default_rng(2), 200)
    found = compared(np.concatenate([chain, apart]), [9, 1, 1, 1, 8, *[1] * 200])[:5]
    assert found[:, 0].tolist() == [1, 1, 1, 2, 2]
    assert found[:, 1].tolist() == [0, 1, 2, 1, 0]


@pytest.mark.slow
def test_many_copies_of_one_clip_are_one_group() -> None:
    one = directions(np.random.default_rng(3), 1)
    found = compared(np.concatenate([np.repeat(one, 500, axis=0), directions(np.random.default_rng(4), 50)]))
    assert {*found[:500, 0]} == {1.0}
    assert sorted(found[:500, 1]) == list(range(500))
    assert np.isnan(found[500:, 0]).all()


def test_clips_without_an_embedding_are_like_no_others_and_few_clips_can_be_compared() -> None:
    nothing = np.zeros((3, 2, WIDTH))
    assert np.isnan(compared(nothing)[:, 0]).all()
    assert compared(np.zeros((0, 2, WIDTH))).shape == (0, 2)
    one = directions(np.random.default_rng(5), 1)
    assert compared(np.concatenate([nothing, one, one]))[:, 1].tolist() == [0, 0, 0, 0, 1]


def test_parts_of_the_work_find_what_all_at_once_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    originals = directions(rng, 50)
    vectors = np.concatenate([originals, beside(rng, originals, 0.98)])
    at_once = compared(vectors)
    monkeypatch.setattr(embeddings, "_CLIPS", 7)
    monkeypatch.setattr(embeddings, "_PAIRS", 3)
    np.testing.assert_array_equal(compared(vectors), at_once)
