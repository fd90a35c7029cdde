"""Every clip has one bucket or one reason, and neither depends on the clips around it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from reelworks.core.shape import Geometry
from reelworks.data.buckets import assign, table
from reelworks.data.buckets.assign import Assignment, Clips, Reason
from reelworks.data.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.data.buckets.table import BucketTable

GEOMETRY = Geometry(stride=(1, 8, 8), patch=(1, 2, 2))


def build(*entries: dict[str, object], **values: object) -> BucketTable:
    configs = [BucketEntryConfig.model_validate(entry) for entry in entries]
    return table.build(configs, BucketsConfig.model_validate(values), GEOMETRY)


FULL = build(
    {"resolution": "256px", "num_frames": [1, 17]},
    {"resolution": "128px", "num_frames": [1, 9, 33]},
    {"resolution": "64px", "num_frames": 9},
)


def make_clips(shapes: list[tuple[int, int, int]], **columns: object) -> Clips:
    """Clips of (frames, height, width); one frame makes a picture."""
    frames, height, width = (np.array(column, dtype=np.int64) for column in zip(*shapes, strict=True))
    n = len(shapes)
    values = {
        "uid": np.arange(n, dtype=np.uint64) * np.uint64(7919),
        "copy": np.zeros(n, dtype=np.int64),
        "num_frames": frames,
        "height": height,
        "width": width,
        "is_image": frames == 1,
        "excluded": np.zeros(n, dtype=np.int8),
        "held_out": np.zeros(n, dtype=np.bool_),
    }
    return Clips(**{**values, **columns})  # type: ignore[arg-type]


def many(n: int, **columns: object) -> Clips:
    return make_clips([(40, 720, 1280)] * n, **columns)


def run(clips: Clips, built: BucketTable = FULL, *, seed: int = 1, epoch: int = 0) -> Assignment:
    return assign.assign(clips, built, seed=seed, epoch=epoch)


def take(clips: Clips, where: NDArray[np.int64]) -> Clips:
    return clips.take(where)


def fills(built: BucketTable, entry: int, shape: tuple[int, int, int]) -> int | None:
    """The slow way to say whether and where a clip fits: the nearest aspect, no upscaling, little cut."""
    frames, height, width = shape
    if (built.entries[entry].num_frames == 1) != (frames == 1) or frames < built.entries[entry].num_frames:
        return None
    of_entry = [(built.buckets[i].shape, i) for i in built.of_entry(entry)]
    near = min(of_entry, key=lambda b: abs(np.log(b[0].width / b[0].height) - np.log(width / height)))
    scale = max(Fraction(near[0].height, height), Fraction(near[0].width, width))
    kept = near[0].height * near[0].width / (scale**2 * height * width)
    return near[1] if (scale <= 1 or built.upscale) and kept >= 1 - Fraction(str(built.max_crop)) else None


@pytest.mark.parametrize(
    ("crop", "shape"), [(0.5, (1, 2)), (0.5, (2, 1)), (0.1, (9, 10)), (0.25, (4, 3)), (0.2, (4, 5))]
)
def test_a_clip_may_lose_exactly_as_much_as_is_allowed_at_any_size(crop: float, shape: tuple[int, int]) -> None:
    built = build({"resolution": "64x64", "num_frames": 1}, max_crop=crop)
    shapes = [(1, shape[0] * n, shape[1] * n) for n in range(64, 600)]
    assert (run(make_clips(shapes), built).reason == Reason.NONE).all()


shapes = st.tuples(st.integers(1, 40), st.integers(8, 400), st.integers(8, 400))
tables = st.sampled_from([FULL, build({"resolution": "96px", "num_frames": [1, 5]}, upscale=True, max_crop=0.2)])


@given(st.lists(shapes, min_size=1, max_size=30), tables)
def test_each_clip_has_the_first_entry_that_it_fills(clips: list[tuple[int, int, int]], built: BucketTable) -> None:
    result = run(make_clips(clips), built)
    for i, shape in enumerate(clips):
        fitting = [b for e in range(len(built.entries)) if (b := fills(built, e, shape)) is not None]
        assert result.bucket[i] == (fitting[0] if fitting else -1)
        assert (result.bucket[i] >= 0) == (result.reason[i] == Reason.NONE)
        assert (result.nearest[i] >= 0) <= (result.reason[i] != Reason.NONE)


@given(st.lists(shapes, min_size=1, max_size=30), st.randoms(use_true_random=False), st.integers(0, 3))
def test_clips_do_not_depend_on_each_other(clips: list[tuple[int, int, int]], random: object, epoch: int) -> None:
    built = build({"resolution": "128px", "num_frames": [1, 9, 17], "keep_prob": [0.5, 0.4, 0.6]})
    everything = make_clips(clips, held_out=assign.held_out(1, np.arange(len(clips), dtype=np.uint64), 0.2))
    where = np.array(random.sample(range(len(clips)), k=max(len(clips) // 2, 1)))  # type: ignore[attr-defined]
    whole, part = run(everything, built, epoch=epoch), run(take(everything, where), built, epoch=epoch)
    for name in ("bucket", "reason", "nearest"):
        assert np.array_equal(getattr(whole, name)[where], getattr(part, name))


@pytest.mark.parametrize(
    ("shape", "reason", "nearest"),
    [
        ((8, 720, 1280), Reason.TOO_SHORT, "128px ×9"),
        ((40, 40, 60), Reason.TOO_SMALL, "64px ×9"),
        ((20, 40, 60), Reason.TOO_SMALL, "64px ×9"),
        ((40, 100, 1000), Reason.NO_BUCKET, "256px ×17"),
        ((1, 100, 100), Reason.TOO_SMALL, "128px ×1"),
        ((1, 2000, 100), Reason.NO_BUCKET, "256px ×1"),
    ],
)
def test_reasons_and_the_nearest_entry(shape: tuple[int, int, int], reason: Reason, nearest: str) -> None:
    result = run(make_clips([shape]))
    assert (result.bucket[0], Reason(result.reason[0]).label) == (-1, reason.label)
    assert str(FULL.entries[result.nearest[0]]) == nearest


def test_the_nearest_entry_is_one_that_the_use_of_a_clip_may_take() -> None:
    """Uses are those of `dataset.resolutions` and `dataset.lengths`."""
    allowed = np.array([[2 * ("256px" in str(entry)) for entry in FULL.entries]], dtype=np.int8)
    result = run(make_clips([(40, 40, 60)], choice=np.array([0]), allowed=allowed))
    assert (result.reason[0], str(FULL.entries[result.nearest[0]])) == (Reason.TOO_SMALL, "256px ×17")


def test_a_kind_without_entries_has_no_bucket() -> None:
    built = build({"resolution": "64px", "num_frames": 9})
    result = run(make_clips([(1, 500, 500)]), built)
    assert (result.reason[0], result.nearest[0]) == (Reason.NO_BUCKET, -1)


def test_known_reasons_stay() -> None:
    excluded = np.array([Reason.UNREADABLE, Reason.NO_CAPTION, Reason.IN_EXCLUDE_FILE, Reason.NONE], dtype=np.int8)
    result = run(many(4, excluded=excluded))
    assert result.reason.tolist() == excluded.tolist()
    assert (result.bucket >= 0).tolist() == [False, False, False, True]
    assert result.nearest.tolist() == [-1] * 4


def test_chances_are_met_and_independent() -> None:
    built = build(
        {"resolution": "128px", "num_frames": [17, 33], "keep_prob": [0.5, 0.3]},
        {"resolution": "64px", "num_frames": 9, "keep_prob": 0.0},
    )
    first = run(many(6000), built)
    entry = np.array([built.buckets[b].entry if b >= 0 else -1 for b in first.bucket])
    share = [(entry == e).mean() for e in (0, 1, 2, -1)]
    np.testing.assert_allclose(share, [0.3, 0.7 * 0.5, 0, 0.7 * 0.5], atol=0.02)
    assert set(first.reason[entry == -1]) == {Reason.NOT_DRAWN}
    for other in (run(many(6000), built, epoch=1), run(many(6000, copy=np.ones(6000, np.int64)), built)):
        both = ((first.bucket >= 0) & (other.bucket >= 0)).mean()
        assert abs(both - 0.65**2) < 0.02


def test_held_out_clips_are_the_same_in_every_epoch_and_company() -> None:
    groups = np.arange(4000, dtype=np.uint64)
    held = assign.held_out(3, groups, 0.1)
    assert abs(held.mean() - 0.1) < 0.015
    assert np.array_equal(held[::7], assign.held_out(3, groups[::7], 0.1))
    assert not np.array_equal(held, assign.held_out(4, groups, 0.1))
    assert not assign.held_out(3, groups, 0.0).any()
    built = build({"resolution": "128px", "num_frames": 17, "keep_prob": 0.2})
    results = [run(many(400, held_out=held[:400]), built, epoch=epoch) for epoch in range(3)]
    for result in results:
        assert (result.reason[held[:400]] == Reason.HELD_OUT).all()
        assert (result.bucket[held[:400]] >= 0).all()
        assert Reason.HELD_OUT not in result.reason[~held[:400]]


def test_validation_uses_no_entry_that_training_never_does() -> None:
    built = build(
        {"resolution": "256px", "num_frames": 17, "keep_prob": 0.0},
        {"resolution": "128px", "num_frames": 17, "keep_prob": 0.1},
    )
    result = run(many(5, held_out=np.ones(5, dtype=np.bool_)), built)
    assert {built.buckets[b].entry for b in result.bucket} == {1}
    only = build({"resolution": "256px", "num_frames": 17, "keep_prob": 0.0})
    assert set(run(many(5, held_out=np.ones(5, dtype=np.bool_)), only).reason) == {Reason.NO_BUCKET}


def test_what_no_epoch_can_draw_is_not_told_to_wait_for_another() -> None:
    off = {"resolution": "256px", "num_frames": 17, "keep_prob": 0.0}
    longer = build(off, {"resolution": "256px", "num_frames": 81})
    result = run(many(5), longer)
    assert set(result.reason) == {Reason.TOO_SHORT}
    assert {longer.entries[int(i)].num_frames for i in result.nearest} == {81}
    drawn = build(off | {"keep_prob": 1e-9}, {"resolution": "256px", "num_frames": 81})
    assert set(run(many(5), drawn).reason) == {Reason.NOT_DRAWN}


def test_no_clips_are_no_trouble() -> None:
    result = run(take(many(3), np.zeros(0, dtype=np.int64)))
    assert len(result.bucket) == len(result.reason) == len(result.nearest) == 0


EXTENDED = [
    BucketEntryConfig.model_validate(entry)
    for entry in (
        {"resolution": "256px", "num_frames": [1, 17]},
        {"resolution": "128px", "num_frames": [9, 33]},
        {"resolution": "64px", "num_frames": 21},
    )
]


@given(st.lists(shapes, min_size=1, max_size=30))
def test_only_videos_too_short_for_all_that_they_fill_are_extended(clips: list[tuple[int, int, int]]) -> None:
    """Extended or not, all others are assigned alike; those go to the shortest entry whose size they fill."""
    plain, extended = (
        table.build(EXTENDED, BucketsConfig(), GEOMETRY).with_short_clips(says) for says in ("reject", "hold")
    )
    before, after = run(make_clips(clips), plain), run(make_clips(clips), extended)
    videos = [i for i, e in enumerate(plain.entries) if e.num_frames > 1]
    for i, (frames, height, width) in enumerate(clips):
        by_size = {e: b for e in videos if (b := fills(plain, e, (999, height, width))) is not None}
        if frames > 1 and by_size and before.bucket[i] < 0:
            shortest = min(by_size, key=lambda e: (plain.entries[e].num_frames, e))
            assert after.bucket[i] == by_size[shortest]
            assert frames < plain.entries[shortest].num_frames
        else:
            assert after.bucket[i] == before.bucket[i]
        assert after.reason[i] != Reason.TOO_SHORT
        assert (after.bucket[i] >= 0) == (after.reason[i] == Reason.NONE)


def test_a_short_clip_is_drawn_by_the_chance_of_its_entry() -> None:
    """No more of them than of others come to an entry, none to one that is switched off; validation has all."""
    entries = [
        BucketEntryConfig(resolution="128px", num_frames=9, keep_prob=0.0),
        BucketEntryConfig(resolution="128px", num_frames=[17, 33], keep_prob=[0.3, 1.0]),
    ]
    built = table.build(entries, BucketsConfig(), GEOMETRY).with_short_clips("loop")
    held = np.arange(4000) % 4 == 0
    result = run(make_clips([(10, 200, 200)] * 4000, held_out=held), built)
    assert {built.entries[built.buckets[b].entry].num_frames for b in result.bucket if b >= 0} == {17}
    assert (result.reason[held] == Reason.HELD_OUT).all()
    assert set(result.reason[~held]) == {Reason.NONE, Reason.NOT_DRAWN}
    assert abs((result.reason[~held] == Reason.NONE).mean() - 0.3) < 0.03
