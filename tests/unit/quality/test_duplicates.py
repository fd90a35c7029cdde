"""Near-duplicates are found under changes that keep what is shown, and no others; groups keep their numbers."""

from __future__ import annotations

from pathlib import Path

import drawn_scenes as drawn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from reelworks.annexes.quality import bands, duplicates
from reelworks.annexes.quality.duplicates import Duplicates
from reelworks.annexes.quality.measure import ComparedClips, SampledClip, Still

SIZE = (135, 240)


def feature(picture: drawn.Frame) -> bytes:
    still = Still(picture)
    return Duplicates().features(SampledClip(Path("x"), True, *picture.shape[:2], 1, 0.0, (still,)))


def compared(
    features: list[bytes], pixels: list[int], former: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    count = len(features)
    stored = np.frombuffer(b"".join(features), dtype=np.uint8).reshape(count, -1)
    uid = np.arange(count, dtype=np.uint64)
    nothing = np.full((count, 2), np.nan)
    clips = ComparedClips(
        stored, np.array(pixels), np.ones(count, dtype=np.int64), uid, nothing if former is None else former
    )
    return Duplicates().compare(clips)


@pytest.mark.parametrize("kind", drawn.COPIES)
@pytest.mark.quick_cases(1)
def test_a_copy_is_in_the_group_of_its_original(kind: str) -> None:
    rng = np.random.default_rng(list(drawn.COPIES).index(kind))
    originals = [drawn.scene(rng, *SIZE) for _ in range(6)]
    copies = [np.ascontiguousarray(drawn.COPIES[kind](rng, picture)) for picture in originals]
    shown = [*originals, *copies, *(np.ascontiguousarray(np.roll(p, 1, axis=-1)) for p in originals)]
    group = compared([feature(p) for p in shown], [p.shape[0] * p.shape[1] for p in shown])[:, 0]
    found = np.flatnonzero(group[:6] == group[6:12])
    assert len(found) >= (4 if "corner" in kind else 6)
    assert len({*group[found]}) == len(found)
    assert np.isnan(group[12:]).all()  # the same in other colours


def test_even_frames_are_like_no_other() -> None:
    grey = [np.full((90, 160, 3), level, dtype=np.uint8) for level in (0, 0, 128, 128)]
    grainy = [drawn.noisy(np.random.default_rng(seed), grey[2], 4) for seed in range(4)]
    found = compared([feature(picture) for picture in grey + grainy], [1] * 8)
    assert np.isnan(found[:, 0]).all()
    assert not found[:, 1].any()


@pytest.mark.parametrize("contrast", [0.15, 0.3])
def test_copies_of_dim_and_foggy_pictures_are_found(contrast: float) -> None:
    rng = np.random.default_rng(8)
    flat = [
        (level + contrast * (drawn.scene(rng, *SIZE) - 110.0)).clip(0, 255).astype(np.uint8) for level in [40, 190] * 10
    ]
    copies = [drawn.COPIES["mirrored and cropped"](rng, picture) for picture in flat[:10]]
    group = compared([feature(np.ascontiguousarray(p)) for p in flat + copies], [1] * 30)[:, 0]
    assert len({*group[:10].tolist()} - {np.nan}) == 10
    assert group[20:].tolist() == group[:10].tolist()
    assert np.isnan(group[10:20]).all()


def test_the_best_is_the_largest_and_then_the_sharpest() -> None:
    picture = drawn.scene(np.random.default_rng(2), 270, 480)
    half = np.asarray(Image.fromarray(picture).resize((240, 135)))
    shown = [half, drawn.blurred(picture, 2), picture, drawn.blurred(picture, 1)]
    found = compared([feature(p) for p in shown], [p.shape[0] * p.shape[1] for p in shown])
    assert found[:, 1].tolist() == [3, 2, 0, 1]
    assert (found[:, 0] == 1).all()


def test_groups_keep_their_numbers() -> None:
    rng = np.random.default_rng(3)
    a, b, c = (feature(drawn.scene(rng, *SIZE)) for _ in range(3))
    former = np.array([[5, 0], [5, 1], [np.nan, 0], [np.nan, 0], [2, 0], [2, 1]])
    found = compared([a, a, b, b, c, c], [1] * 6, former)
    assert found[:, 0].tolist() == [5, 5, 6, 6, 2, 2]
    parted = compared([a, a, b, b, c, a], [1] * 6, np.array([[5, 0]] * 4 + [[np.nan, 0]] * 2))
    assert np.isnan(parted[4, 0])
    assert parted[[0, 1, 5], 0].tolist() == [5, 5, 5]
    assert parted[2, 0] == parted[3, 0] == 6  # of a group that fell apart, one part keeps the number


def test_parts_of_the_work_find_what_all_at_once_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    shown = [feature(drawn.scene(rng, *SIZE)) for _ in range(5)]
    grey = feature(np.full((90, 160, 3), 128, dtype=np.uint8))
    features = [*shown, grey, *shown[:3], grey, shown[0]]
    at_once = compared(features, [1] * len(features))
    monkeypatch.setattr(duplicates, "_FRAMES", 3)
    monkeypatch.setattr(duplicates, "_HASHED_AT_ONCE", 4)
    monkeypatch.setattr(duplicates, "_IN_PRODUCT", 2)
    monkeypatch.setattr(bands, "_BLOCK", 2)
    monkeypatch.setattr(duplicates, "_PAIRS", 2)
    np.testing.assert_array_equal(compared(features, [1] * len(features)), at_once)
    assert np.isfinite(at_once[:, 0]).sum() == 7


def test_candidates_of_thousands_are_found_by_bands() -> None:
    """Pairs of noise with the spectrum of pictures; each band has 12 bits."""
    rng, count, pairs = np.random.default_rng(4), 2500, 100
    frames = pictures(rng, count)
    noise = rng.integers(-4, 5, (pairs, 2, 16, 16))
    frames[-pairs:] = np.clip(frames[:pairs].astype(np.int64) + noise, 0, 255).astype(np.uint8)
    frames[-pairs::2] = frames[-pairs::2, :, :, ::-1]
    found = {
        tuple(pair) for pair in duplicates.near_duplicates(frames, np.full((count, 2, 4, 4, 2), 128, np.uint8)).tolist()
    }
    there = {(i, count - pairs + i) for i in range(pairs)}
    assert len(found & there) >= 0.97 * pairs
    assert len(found - there) <= 2


def pictures(rng: np.random.Generator, count: int) -> NDArray[np.uint8]:
    """Two frames of clips with the spectrum of pictures."""
    coarse = rng.standard_normal((count, 2, 12, 12)) / (1 + np.hypot(*np.mgrid[:12, :12])) ** 1.2
    cosines = duplicates._cosines(12)
    return np.clip(128 + 40 * (cosines.T @ coarse @ cosines), 0, 255).astype(np.uint8)


@settings(max_examples=4, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 60), st.integers(96, 160)), max_size=9))
def test_a_few_clips_have_the_pairs_that_comparing_all_of_them_finds(clips: list[tuple[int, bool, int, int]]) -> None:
    rng = np.random.default_rng(7)
    drawn_before = pictures(rng, 4)
    frames, colours = np.zeros((len(clips), 2, 16, 16), np.uint8), np.zeros((len(clips), 2, 4, 4, 2), np.uint8)
    for i, (which, is_mirrored, noise, tint) in enumerate(clips):
        shown = drawn_before[which][..., :: -1 if is_mirrored else 1] + rng.integers(-noise, noise + 1, (2, 16, 16))
        frames[i], colours[i] = shown.clip(0, 255), tint
    every = np.array([(i, j) for j in range(len(clips)) for i in range(j)], dtype=np.int64).reshape(-1, 2)
    light = duplicates._Light(colours, duplicates._deviations(frames))
    alike = every[light.agree(every) & light.may_agree(*every.T) & duplicates._alike(frames, every)]
    found = duplicates.near_duplicates(frames, colours)
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, alike.tolist()))


def test_bands_have_more_bits_the_more_clips_there_are() -> None:
    """Of fewer bits, more bands fit into a hash, and they find more."""
    assert [len(bands.bands_for(count)) for count in (2, 200, 5000, 300_000, 5_000_000)] == [9, 7, 4, 3, 3]


@pytest.mark.parametrize("count", [3, 300, 5000])
def test_hashes_that_differ_in_few_bits_are_paired_whatever_band_they_agree_in(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(bands, "_BLOCK", 257)
    rng = np.random.default_rng(count)
    plain = rng.integers(0, 1 << 63, count, dtype=np.uint64)
    flipped = np.bitwise_or.reduce(np.uint64(1) << rng.integers(0, 63, (6, count), dtype=np.uint64))
    other = np.roll(plain ^ flipped, 1)
    found = {
        (i, j)
        for band in bands.bands_for(count)
        for pairs in band.pairs(plain, band.sorted_words(plain), other)
        for i, j in zip(*pairs, strict=True)
    }
    for band in bands.bands_for(count):
        agree = (flipped >> np.uint64(band.shift)) & np.uint64((1 << band.bits) - 1) == 0
        assert {(i, (i + 1) % count) for i in np.flatnonzero(agree)} <= found
    differ = [np.bitwise_count(plain[i] ^ other[j]) for i, j in found]
    assert max(differ) <= 18
