from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from refused import refused

from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry, Shape
from reelworks.data.buckets import sizes, table
from reelworks.data.buckets.config import BucketEntryConfig, BucketsConfig, parse_ratio

GEOMETRY = Geometry(stride=(1, 8, 8), patch=(1, 2, 2))


def entry(resolution: str = "256px", num_frames: int | list[int] = 17, **values: object) -> BucketEntryConfig:
    return BucketEntryConfig.model_validate({"resolution": resolution, "num_frames": num_frames, **values})


def build(*entries: BucketEntryConfig, geometry: Geometry = GEOMETRY, **values: object) -> table.BucketTable:
    return table.build(entries, BucketsConfig.model_validate(values), geometry)


@given(
    pixels=st.integers(16 * 16, 2048 * 2048),
    ratio=st.floats(0.3, 3.5),
    multiple=st.sampled_from([(8, 8), (16, 16), (32, 16), (64, 64)]),
)
def test_sizes_are_multiples_and_none_is_nearer(pixels: int, ratio: float, multiple: tuple[int, int]) -> None:
    def distance(height: int, width: int) -> float:
        return abs(math.log(height * width / pixels)) + abs(math.log(width / height / ratio))

    height, width = sizes.nearest_size(pixels, ratio, multiple)
    assert height % multiple[0] == width % multiple[1] == 0
    assert height > 0
    assert width > 0
    near = itertools.product((-multiple[0], 0, multiple[0]), (-multiple[1], 0, multiple[1]))
    others = [(height + dh, width + dw) for dh, dw in near if height + dh > 0 and width + dw > 0]
    assert distance(height, width) <= min(distance(*other) for other in others) + 1e-9


@pytest.mark.parametrize(
    ("text", "pixels", "size"),
    [
        ("480p", 480 * 480 * 16 // 9, None),
        ("512px", 512 * 512, None),
        ("480x854", 480 * 854, (480, 854)),
        ("1p", 1, None),
    ],
)
def test_resolutions(text: str, pixels: int, size: tuple[int, int] | None) -> None:
    assert sizes.pixel_budget(text) == (pixels, size)


@pytest.mark.parametrize("text", ["16385px", "1000000000px", "12300p", "99999x99999"])
def test_more_pixels_than_any_footage(text: str) -> None:
    """The mistake is told as one of the resolution, not of what follows from it."""
    assert sizes.pixel_budget("16384px") == (16384**2, None)
    with refused("resolution-too-large", "bucket.resolution", says="more pixels than 16384 × 16384") as caught:
        build(entry(text))
    assert (caught.value.field, caught.value.value) == ("bucket.resolution", text)


@pytest.mark.parametrize("text", ["480P", "p", "480x", "480x854x3", "0p", "0x64", "-4p", "4.5p", ""])
def test_what_is_no_resolution(text: str) -> None:
    with refused("unknown-resolution", "bucket.resolution") as caught:
        build(entry(text))
    assert (caught.value.field, caught.value.value) == ("bucket.resolution", text)


def test_entries_stand_by_pixels_then_frames_descending() -> None:
    built = build(entry("256px", [1, 17]), entry("480p", 1), entry("360p", [9, 33], batch_size=[4, 1]))
    order = [(e.resolution, e.num_frames) for e in built.entries]
    assert order == [("480p", 1), ("360p", 33), ("360p", 9), ("256px", 17), ("256px", 1)]
    assert [e.batch_size for e in built.entries] == [1, 1, 4, 1, 1]
    assert [b for i in range(5) for b in built.of_entry(i)] == list(range(len(built.buckets)))
    assert built.batch_sizes().tolist() == [b.batch_size for b in built.buckets]


@given(st.integers(144, 2160), st.sampled_from([(8, 8), (16, 16), (32, 16), (64, 64)]), st.booleans())
def test_footage_of_a_format_fills_the_resolution_of_its_name(
    lines: int, multiple: tuple[int, int], upright: bool
) -> None:
    """At 16:9 and 9:16 no size named by lines is larger than that format, nor a multiple smaller than need be."""
    most = (lines * 16 / 9, lines) if upright else (lines, lines * 16 / 9)
    size = sizes.size_at(f"{lines}p", 9 / 16 if upright else 16 / 9, multiple)
    for side, limit, step in zip(size, most, multiple, strict=True):
        assert side % step == 0
        assert limit - 2 * step < side <= limit


@pytest.mark.parametrize(
    ("resolution", "ratio", "size"),
    [
        ("1080p", 16 / 9, (1072, 1920)),
        ("720p", 16 / 9, (720, 1280)),
        ("480p", 16 / 9, (480, 848)),
        ("480p", 1.785, (480, 848)),
        ("1440px", 16 / 9, (1088, 1920)),
    ],
)
def test_sizes_at_16_9(resolution: str, ratio: float, size: tuple[int, int]) -> None:
    """Named lines are reached and never exceeded; other resolutions stay nearest to their pixels."""
    assert sizes.size_at(resolution, ratio, (16, 16)) == size


def test_buckets_of_an_entry_are_distinct_sizes_near_its_budget() -> None:
    built = build(entry("256px", 17))
    assert len({b.shape for b in built.buckets}) == len(built.buckets) == 9
    for bucket in built.buckets:
        assert bucket.shape.num_frames == 17
        assert bucket.tokens == GEOMETRY.tokens(bucket.shape)
        assert abs(math.log(bucket.shape.height * bucket.shape.width / 256**2)) < 0.15
        assert abs(math.log(bucket.shape.width / bucket.shape.height / parse_ratio(bucket.ratio))) < 0.15
    coarse = build(entry("32px", 1))  # nine ratios, but multiples of 16 leave few sizes
    assert len({b.shape for b in coarse.buckets}) == len(coarse.buckets) < 9


def test_one_exact_size_is_one_bucket() -> None:
    (bucket,) = build(entry("48x64", 9, batch_size=2)).buckets
    assert bucket.shape == Shape(9, 48, 64)
    assert bucket.name == "48x64 64:48 ×9"


def test_upright_and_wide_sizes_of_one_area_stand_side_by_side() -> None:
    built = build(entry("48x64"), entry("64x48"))
    assert [b.shape for b in built.buckets] == [Shape(17, 48, 64), Shape(17, 64, 48)]
    assert built.entries[0].hash_words != built.entries[1].hash_words


@pytest.mark.parametrize(
    ("entries", "field", "said"),
    [
        ([], "bucket", "has no bucket"),
        ([entry("256px", 17), entry("256px", [1, 17])], "bucket", "remove one"),
        ([entry("48x64"), entry("48x64")], "bucket", "remove one"),
        ([entry("64x64"), entry("64px")], "bucket", "remove one"),
        ([entry("480x854")], "bucket.resolution", 'use "480x848"'),
    ],
)
def test_tables_that_cannot_be(entries: list[BucketEntryConfig], field: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        build(*entries)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("rule", "frames", "remedy"),
    [((4, 1), 6, "use 5 or 9"), ((8, 1), 3, "use 1 or 9"), ((8, 0), 3, "use 1 or 8"), ((17, 0), 51, None)],
)
def test_frame_counts_obey_the_model(rule: tuple[int, int], frames: int, remedy: str | None) -> None:
    geometry = Geometry((1, 8, 8), (1, 2, 2), rule)
    if remedy is None:
        assert build(entry(num_frames=frames), geometry=geometry).entries[0].num_frames == frames
        return
    with pytest.raises(UserError, match=remedy) as caught:
        build(entry(num_frames=frames), geometry=geometry)
    assert (caught.value.field, caught.value.value) == ("bucket.num_frames", frames)


@pytest.mark.parametrize(
    ("values", "field", "value", "remedy"),
    [
        ({"num_frames": 0}, "num_frames", 0, "at least 1"),
        ({"num_frames": [17, -17]}, "num_frames", -17, "at least 1"),
        ({"num_frames": []}, "num_frames", [], "list at least one"),
        ({"num_frames": [1, 17], "batch_size": [4]}, "batch_size", [4], "list 2"),
        ({"num_frames": [1, 17], "keep_prob": [0.5, 0.5, 1.0]}, "keep_prob", [0.5, 0.5, 1.0], "list 2"),
        ({"batch_size": 0}, "batch_size", 0, "from 1 to 65536"),
        ({"batch_size": 10**12}, "batch_size", 10**12, "from 1 to 65536"),
        ({"num_frames": [1, 17], "batch_size": [4, 0]}, "batch_size", 0, "from 1 to 65536"),
        ({"keep_prob": 1.5}, "keep_prob", 1.5, "from 0 to 1"),
        ({"num_frames": [1, 17], "keep_prob": [0.5, -0.1]}, "keep_prob", -0.1, "from 0 to 1"),
        ({"num_frames": [1, 17], "sequence_degree": [1, 0]}, "sequence_degree", 0, "at least 1"),
    ],
)
def test_entries_that_cannot_be(values: dict[str, object], field: str, value: object, remedy: str) -> None:
    """An impossible entry is told by its key, the value and what to write."""
    with pytest.raises(ValidationError) as caught:
        entry(**values)
    (told,) = (problem["ctx"]["error"] for problem in caught.value.errors())
    assert isinstance(told, UserError)
    assert (told.field, told.value) == (f"bucket.{field}", value)
    assert remedy in told.remedy


@pytest.mark.parametrize("chance", [math.nan, math.inf, [math.nan, 0.5]])
def test_chances_are_finite(chance: float | list[float]) -> None:
    """NaN, which no comparison refuses, is no chance."""
    with pytest.raises(ValidationError, match="finite"):
        entry(num_frames=[1, 17], keep_prob=chance)


@pytest.mark.parametrize(
    "ratio",
    [
        "16/9", "0:1", "16:9:4", "-16:9", "wide", "", "nan:1", "1:nan", "inf:1", "inf:inf", "1:inf", "1e308:1e-308",
        "20.1:1", "1:20.1",
    ],
)  # fmt: skip
def test_ratios_that_cannot_be(ratio: str) -> None:
    with refused("aspect-ratio-invalid", "aspect_ratios") as caught:
        BucketsConfig(aspect_ratios=["16:9", ratio])
    assert caught.value.value == ratio


def test_at_least_one_ratio_is_named() -> None:
    with refused("wrong-number-of-values", "aspect_ratios", says="give at least 1"):
        BucketsConfig(aspect_ratios=[])


@pytest.mark.parametrize(("text", "ratio"), [("16:9", 16 / 9), ("2.39:1", 2.39), ("20:1", 20), ("1:20", 0.05)])
def test_ratios_that_can_be(text: str, ratio: float) -> None:
    assert parse_ratio(text) == ratio
