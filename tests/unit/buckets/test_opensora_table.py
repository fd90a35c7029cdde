"""Names, sizes and value forms of the Open-Sora dialect, and the three meanings of its probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from refused import refused

from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry
from reelworks.data.buckets import assign, table
from reelworks.data.buckets.assign import Assignment, Clips, Reason
from reelworks.data.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.data.buckets.opensora import parse, ratios
from reelworks.data.buckets.table import BucketTable

ANY_SIZE = Geometry(stride=(1, 1, 1), patch=(1, 2, 2))
STRIDE_8 = Geometry(stride=(1, 8, 8), patch=(1, 2, 2))


def build(entries: dict[str, Any], probability: str = "opensora-1.2", **values: Any) -> BucketTable:
    config = {"opensora": entries, "probability": probability, **values}
    return table.build([], BucketsConfig.model_validate(config), ANY_SIZE)


def many(n: int, shape: tuple[int, int, int], **columns: Any) -> Clips:
    """Clips of (frames, height, width); one frame makes a picture."""
    frames, height, width = shape
    values = {
        "uid": np.arange(n, dtype=np.uint64) * np.uint64(7919),
        "copy": np.zeros(n, dtype=np.int64),
        "num_frames": np.full(n, frames),
        "height": np.full(n, height),
        "width": np.full(n, width),
        "is_image": np.full(n, frames == 1),
        "excluded": np.zeros(n, dtype=np.int8),
        "held_out": np.zeros(n, dtype=np.bool_),
    }
    return Clips(**{**values, **columns})


def run(clips: Clips, built: BucketTable, *, seed: int = 1, epoch: int = 0) -> Assignment:
    return assign.assign(clips, built, seed=seed, epoch=epoch)


def shares(built: BucketTable, result: Assignment) -> dict[str, float]:
    """Share of the clips in each entry."""
    entry = np.array([built.buckets[b].entry if b >= 0 else -1 for b in result.bucket])
    named = {str(e): float((entry == i).mean()) for i, e in enumerate(built.entries)}
    return {name: share for name, share in named.items() if share} | {"none": float((entry < 0).mean())}


def assert_shares(found: dict[str, float], **expected: float) -> None:
    wanted = {name.replace("_x", " ×").lstrip("n"): share for name, share in expected.items()}
    wanted["none"] = 1 - sum(wanted.values())
    assert found.keys() <= wanted.keys() | {"none"}
    for name, share in wanted.items():
        assert abs(found.get(name, 0.0) - share) < 0.02, (name, found, wanted)


PAIRS = {"512": {48: ((0.8, 0.3), 1), 16: (0.5, 2)}, "256": {16: ((0.6, 0.9), 3)}}


def test_1_2_keeps_a_length_and_then_a_resolution() -> None:
    built = build(PAIRS)
    found = shares(built, run(many(8000, (60, 600, 600)), built))
    # 0.3 keep 48 frames, of them 0.8 stay; 0.7 go on to 16 frames, of them 0.5 stay.
    left = 0.3 * 0.2 + 0.7 * 0.5
    assert_shares(found, n512_x48=0.3 * 0.8, n512_x16=0.7 * 0.5, n256_x16=left * 0.9 * 0.6)


def test_2_0_says_the_chance_to_be_shortened() -> None:
    built = build(PAIRS, "opensora-2.0")
    found = shares(built, run(many(8000, (60, 600, 600)), built))
    left = 0.7 * 0.2 + 0.3 * 0.5
    assert_shares(found, n512_x48=0.7 * 0.8, n512_x16=0.3 * 0.5, n256_x16=left * 0.1 * 0.6)


def test_downgrade_says_the_chance_to_be_moved_and_else_to_be_shortened() -> None:
    built = build(PAIRS, "downgrade")
    found = shares(built, run(many(8000, (60, 600, 600)), built))
    # 0.8 leave 512 at once; of the others 0.3 are shortened, of which half leave.
    left = 0.8 + 0.2 * 0.3 * 0.5
    assert_shares(found, n512_x48=0.2 * 0.7, n512_x16=0.2 * 0.3 * 0.5, n256_x16=left * 0.4 * 0.1)


def test_an_entry_without_a_batch_size_moves_its_clips_on() -> None:
    built = build({"512": {64: (0.0, None), 16: (1.0, 1)}, "256": {16: (1.0, 4)}})
    assert shares(built, run(many(10, (65, 600, 600)), built)) == {"256 ×16": 1.0, "none": 0.0}
    assert shares(built, run(many(10, (40, 600, 600)), built)) == {"512 ×16": 1.0, "none": 0.0}
    moved = build({"512": {64: [1.0, "none"], 16: (0.0, 1)}, "256": {16: (0.0, 4)}}, "downgrade")
    assert shares(moved, run(many(10, (65, 600, 600)), moved)) == {"256 ×16": 1.0, "none": 0.0}
    assert {b.entry for b in built.buckets} == {1, 2}


def test_draws_depend_on_the_clip_its_copy_the_seed_and_the_epoch_alone() -> None:
    built = build({"512": {1: (0.5, 1)}, "256": {1: (0.5, 1)}})
    clips = many(4000, (1, 600, 600))
    first = run(clips, built)
    half = clips.take(np.arange(0, 4000, 2))
    assert np.array_equal(run(half, built).bucket, first.bucket[::2])
    others = [run(clips, built, epoch=1), run(clips, built, seed=2)]
    others.append(run(many(4000, (1, 600, 600), copy=np.ones(4000, dtype=np.int64)), built))
    for other in others:
        both = ((first.bucket >= 0) & (other.bucket >= 0)).mean()
        assert abs(both - 0.75**2) < 0.03
    # Two entries draw apart: half of those that leave the first stay at the second.
    assert_shares(shares(built, first), n512_x1=0.5, n256_x1=0.25)


def test_held_out_clips_have_the_same_bucket_in_every_epoch() -> None:
    built = build({"512": {48: ((0.1, 0.1), 1), 16: (0.0, 1)}, "256": {16: (0.1, 1)}})
    held = many(50, (60, 600, 600), held_out=np.ones(50, dtype=np.bool_))
    for epoch in range(3):
        result = run(held, built, epoch=epoch)
        assert shares(built, result) == {"512 ×48": 1.0, "none": 0.0}
        assert set(result.reason) == {Reason.HELD_OUT}
    short = many(50, (20, 600, 600), held_out=np.ones(50, dtype=np.bool_))
    assert shares(built, run(short, built)) == {"256 ×16": 1.0, "none": 0.0}


REASONS = build({"512": {48: (1.0, 1), 64: (0.0, None)}, "256": {16: (1.0, 1)}, "480p": {1: (0.0, 1)}})


@pytest.mark.parametrize(
    ("shape", "reason", "nearest"),
    [
        ((15, 600, 600), Reason.TOO_SHORT, "256 ×16"),
        ((20, 100, 100), Reason.TOO_SMALL, "256 ×16"),
        ((1, 100, 100), Reason.NO_BUCKET, None),
        ((1, 600, 900), Reason.NO_BUCKET, None),  # no epoch draws it
    ],
)
def test_reasons(shape: tuple[int, int, int], reason: Reason, nearest: str | None) -> None:
    result = run(many(1, shape), REASONS)
    assert (result.bucket[0], Reason(result.reason[0]).label) == (-1, reason.label)
    found = int(result.nearest[0])
    assert (str(REASONS.entries[found]) if found >= 0 else None) == nearest


def test_a_kind_without_entries_has_no_bucket_and_known_reasons_stay() -> None:
    built = build({"256": {16: (1.0, 1)}})
    assert run(many(1, (1, 600, 600)), built).reason[0] == Reason.NO_BUCKET
    clips = many(2, (20, 600, 600), excluded=np.array([Reason.UNREADABLE, Reason.NONE], dtype=np.int8))
    result = run(clips, built)
    assert result.reason.tolist() == [Reason.UNREADABLE, Reason.NONE]
    assert (result.bucket >= 0).tolist() == [False, True]


def test_a_short_clip_of_a_strict_table_is_named() -> None:
    built = build({"256": {16: (1.0, 1)}}, opensora_drop_exact_length=True)
    assert run(many(1, (16, 600, 600)), built).reason[0] == Reason.TOO_SHORT
    assert run(many(1, (17, 600, 600)), built).bucket[0] >= 0
    # 2.0 takes the clip; there is nothing to be compatible with.
    assert (
        run(
            many(1, (16, 600, 600)), build({"256": {16: (1.0, 1)}}, "opensora-2.0", opensora_drop_exact_length=True)
        ).bucket[0]
        >= 0
    )


def test_resolutions_of_equal_pixels_are_tried_as_written() -> None:
    for names in (("2880", "4k"), ("4k", "2880")):
        built = build({"256": {1: (1.0, 1)}, **{name: {1: (1.0, 1)} for name in names}})
        assert [entry.resolution for entry in built.entries] == [*names, "256"]
    lengths = build({"256": {16: (1.0, 1), 64: (1.0, 1), 48: (1.0, 1)}})
    assert [entry.num_frames for entry in lengths.entries] == [64, 48, 16]


def test_names_of_2_0() -> None:
    assert ratios.resolution("256px", computed=False).pixels == 256 * 256
    assert ratios.resolution("240p", computed=True).pixels == 102400
    assert ratios.resolution("240p", computed=False).pixels == 102240
    assert ratios.resolution("2k", computed=True) == ratios.TABLES["2k"]
    one = ratios.resolution("768px_ar16:9", computed=True)
    assert (one.keys, one.sizes) == (("16:9",), ((576, 1024),))
    best = ratios.resolution("256px_max", computed=True)
    assert len(best.sizes) == 1
    every = ratios.resolution("256px", computed=True)
    assert np.prod(best.sizes[0]) == max(np.prod(size) for size in every.sizes)
    assert (256, 256) in every.sizes


@given(st.integers(4, 125), st.sampled_from(["px", "p"]), st.sampled_from([16, 32]))
def test_computed_sizes_are_multiples_near_in_pixels(steps: int, unit: str, multiple: int) -> None:
    found = ratios.resolution(f"{steps * multiple}{unit}", computed=True, multiple=multiple)
    assert len(set(found.keys)) == len(found.keys) == len(found.sizes)
    for (height, width), ratio in zip(found.sizes, found.ratios, strict=True):
        assert height % multiple == width % multiple == 0
        # One step along the shorter side, and the ratio's own rounding.
        assert abs(height * width - found.pixels) <= multiple * max(height, width)
        assert abs(np.log(height / width / ratio)) < multiple / min(height, width) * 3
    height, width = (np.array(side) for side in zip(*found.sizes, strict=True))
    exact = ratios.Resolution("", found.pixels, found.keys, tuple(height / width), found.sizes)
    assert tuple(found.sizes[i] for i in exact.nearest(height, width)) == found.sizes


CLIPS = st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 4000)), min_size=1, max_size=20)


def distances(values: list[float], clips: list[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The nearest ratio of each clip, and the distance of each clip from each ratio as the releases compute it."""
    found = ratios.Resolution("", 1, tuple(map(str, values)), tuple(values), ((1, 1),) * len(values))
    height, width = (np.array(side) for side in zip(*clips, strict=True))
    return found.nearest(height, width), np.array([[abs(h / w - value) for value in values] for h, w in clips])


@given(st.lists(st.integers(5, 2000).map(lambda n: n / 100), min_size=1, max_size=8, unique=True), CLIPS)
def test_the_nearest_ratio_is_the_first_of_the_least_distances(
    values: list[float], clips: list[tuple[int, int]]
) -> None:
    found, far = distances(values, clips)
    assert found.tolist() == far.argmin(axis=1).tolist()


# Rounding makes the last two equally far from 1; no table has such a pair.
@example([2.0, 0.05, 0.05000000000000001], [(1, 1)])
@given(st.lists(st.floats(0.05, 20, allow_nan=False), min_size=1, max_size=8, unique=True), CLIPS)
def test_no_ratio_is_nearer_even_among_ratios_that_rounding_makes_alike(
    values: list[float], clips: list[tuple[int, int]]
) -> None:
    found, far = distances(values, clips)
    assert far[np.arange(len(clips)), found].tolist() == far.min(axis=1).tolist()


@pytest.mark.parametrize(
    ("entries", "field", "said"),
    [
        ({}, "buckets.opensora", "the table is empty"),
        ({"241p_": {1: [1.0, 1]}}, "buckets.opensora", "the suffix of the resolution"),
        ({"256px_ar7:1": {1: [1.0, 1]}}, "buckets.opensora", "_max"),
        ({"255": {1: [1.0, 1]}}, "buckets.opensora", "this resolution is not known"),
        ({"256": {}}, 'buckets.opensora."256"', "has no frame counts"),
        ({"256": {"x": [1.0, 1]}}, 'buckets.opensora."256".x', "not a number of frames"),
        ({"256": {0: [1.0, 1]}}, 'buckets.opensora."256".0', "not a number of frames"),
        ({"256": {16: [1.0]}}, 'buckets.opensora."256".16', "1 value instead of two"),
        ({"256": {16: [1.5, 1]}}, 'buckets.opensora."256".16', "lies in [0, 1]"),
        ({"256": {16: [float("nan"), 1]}}, 'buckets.opensora."256".16', "lies in [0, 1]"),
        ({"256": {16: [True, 1]}}, 'buckets.opensora."256".16', "lies in [0, 1]"),
        ({"256": {16: [[1.0, -0.1], 1]}}, 'buckets.opensora."256".16', "lies in [0, 1]"),
        ({"256": {16: [[1.0], 1]}}, 'buckets.opensora."256".16', "a list of probabilities must have two"),
        ({"256": {1: [[1.0, 0.5], 1]}}, 'buckets.opensora."256".1', "pictures have one length"),
        ({"256": {16: [1.0, 0]}}, 'buckets.opensora."256".16', "not a batch size"),
        ({"256": {16: [1.0, 2.5]}}, 'buckets.opensora."256".16', "not a batch size"),
        ({"256": {16: [1.0, True]}}, 'buckets.opensora."256".16', "not a batch size"),
        ({"256": {16: [0.5, None]}}, 'buckets.opensora."256".16', "the entry has no batch size"),
    ],
)
def test_a_wrong_table_is_explained(entries: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse.parse(parse.normal_form(entries), "opensora-1.2", drop_exact_length=False)
    assert caught.value.field == field
    assert said in str(caught.value)


def test_the_meaning_of_the_probabilities_is_never_guessed() -> None:
    with pytest.raises(ValidationError, match="different releases"):
        build({"256": {1: (1.0, 1)}}, "native")
    for values in ({"probability": "opensora-1.2"}, {"opensora_drop_exact_length": True}):
        with pytest.raises(ValidationError, match=r"add \[buckets.opensora\]"):
            BucketsConfig.model_validate(values)
    with refused("opensora-table-invalid", 'buckets.opensora."256".16'):
        parse.parse({"256": {"16": [0.0, "none"]}}, "downgrade", drop_exact_length=False)


def test_a_recipe_has_one_table() -> None:
    config = BucketsConfig.model_validate({"opensora": {"256": {1: (1.0, 1)}}, "probability": "opensora-1.2"})
    with refused("two-bucket-tables", "bucket"):
        table.build([BucketEntryConfig(resolution="64px", num_frames=1)], config, STRIDE_8)
    with refused("no-bucket", "bucket"):
        table.build([], BucketsConfig(), STRIDE_8)


def test_sizes_that_the_model_cannot_take_are_refused_and_never_changed() -> None:
    config = BucketsConfig.model_validate({"opensora": {"144p": {1: (1.0, 1)}}, "probability": "opensora-1.2"})
    with refused("size-not-a-multiple", "buckets.opensora", says="for example 117 × 312") as caught:
        table.build([], config, STRIDE_8)
    assert '"192px"' in caught.value.remedy
    cured = BucketsConfig.model_validate({"opensora": {"192px": {1: (1.0, 1)}}, "probability": "opensora-1.2"})
    assert table.build([], cured, STRIDE_8).entries[0].pixels == 36864
    frames = BucketsConfig.model_validate({"opensora": {"256": {16: (1.0, 1)}}, "probability": "opensora-1.2"})
    with refused("frame-count-not-taken", 'buckets.opensora."256"', says=r"takes 4n\+1 frames"):
        table.build([], frames, Geometry((4, 8, 8), (1, 2, 2), (4, 1)))


def test_the_denoiser_pads_what_its_patch_leaves_over() -> None:
    config = BucketsConfig.model_validate({"opensora": {"256": {1: (1.0, 7)}}, "probability": "opensora-1.2"})
    built = table.build([], config, Geometry((1, 16, 16), (1, 2, 2)))
    shapes = {b.ratio: (b.shape.height, b.shape.width, b.tokens, b.batch_size) for b in built.buckets}
    assert shapes["0.48"] == (176, 368, 6 * 12, 7)


def test_values_may_be_written_as_toml_or_as_python_has_them() -> None:
    python = {"256": {1: (1.0, 2), 16: ((0.5, 0.1), 1), 64: (0.0, None)}}
    toml = {"256": {"1": [1.0, 2], "16": [[0.5, 0.1], 1], "64": [0.0, "none"]}}
    assert build(python) == build(toml)


def test_short_clips_are_extended_only_where_no_length_takes_them() -> None:
    """Clips too short for the table go to its shortest used length; `opensora_drop_exact_length` loses them as it does others."""
    entries = {"256": {"17": [0.5, 2], "34": [[0.5, 0.5], 1]}, "144p": {"17": [0.0, "none"], "51": [1.0, 1]}}
    short, long = many(50, (9, 300, 300)), many(50, (40, 300, 300))
    for compat in (False, True):
        config = BucketsConfig.model_validate(
            {"opensora": entries, "probability": "opensora-1.2", "opensora_drop_exact_length": compat}
        )
        plain, extended = (table.build([], config, ANY_SIZE).with_short_clips(says) for says in ("reject", "hold"))
        assert np.array_equal(run(long, plain).bucket, run(long, extended).bucket)
        assert Reason.NOT_DRAWN in run(long, extended).reason
        assert set(run(short, plain).reason) == {Reason.TOO_SHORT}
        result = run(short, extended)
        if compat:
            assert set(result.reason) == {Reason.TOO_SHORT}
        else:
            assert set(result.reason) == {Reason.NONE, Reason.NOT_DRAWN}
            taken_by = {str(extended.entries[extended.buckets[b].entry]) for b in result.bucket if b >= 0}
            assert taken_by == {"256 ×17"}
