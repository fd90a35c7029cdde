"""Sizes of a common token count: few counts, none far from the budget, and no ratio pays more than the stated crop."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from reelworks.core.shape import Geometry
from reelworks.data.buckets import families, graphs, sizes, table
from reelworks.data.buckets.config import DEFAULT_ASPECT_RATIOS, BucketEntryConfig, BucketsConfig, parse_ratio

GEOMETRY = Geometry(stride=(4, 8, 8), patch=(1, 2, 2), frame_rule=(4, 1))
RATIOS = tuple(parse_ratio(text) for text in DEFAULT_ASPECT_RATIOS)


def build(*resolutions: str, num_frames: int | list[int] = 17, **values: object) -> table.BucketTable:
    entries = [BucketEntryConfig(resolution=name, num_frames=num_frames) for name in resolutions]
    return table.build(entries, BucketsConfig.model_validate(values), GEOMETRY)


def counts(resolution: str, multiple: int, max_crop: float) -> set[int]:
    found = families.sizes_of(resolution, RATIOS, (multiple, multiple), max_crop)
    return {height * width // multiple**2 for height, width in found}


@settings(max_examples=60)
@given(
    resolution=st.one_of(
        st.integers(96, 1440).map(lambda side: f"{side}px"), st.integers(96, 1080).map(lambda lines: f"{lines}p")
    ),
    ratios=st.lists(st.floats(0.3, 3.5), min_size=1, max_size=9, unique=True),
    multiple=st.sampled_from([(8, 8), (16, 16), (32, 16), (32, 32)]),
    max_crop=st.sampled_from([0.0, 0.05, 0.1, 0.3]),
)
def test_sizes_keep_their_bounds(
    resolution: str, ratios: list[float], multiple: tuple[int, int], max_crop: float
) -> None:
    """Sizes are multiples; each is within the bounds of area and crop, or is the size without families."""
    pixels, _ = sizes.pixel_budget(resolution)
    found = families.sizes_of(resolution, tuple(ratios), multiple, max_crop)
    assert len(found) == len(ratios)
    for ratio, (height, width) in zip(ratios, found, strict=True):
        assert height % multiple[0] == width % multiple[1] == 0
        within_area = abs(height * width / pixels - 1) <= families.AREA_TOLERANCE + 1e-9
        within_crop = families.lost((height, width), ratio) <= max_crop + 1e-8
        free = sizes.size_at(resolution, ratio, multiple)
        assert (within_area and within_crop) or (height, width) == free


@pytest.mark.parametrize("multiple", [8, 16, 32])
@pytest.mark.parametrize("resolution", ["360p", "480p", "720p", "1080p", "256px", "512px", "768px", "1024px"])
def test_fewer_token_counts_the_more_may_be_cropped(resolution: str, multiple: int) -> None:
    free = {math.prod(sizes.size_at(resolution, ratio, (multiple, multiple))) for ratio in RATIOS}
    numbers = [len(counts(resolution, multiple, crop)) for crop in (0.05, 0.1, 0.2)]
    assert len(free) >= numbers[0] >= numbers[1] >= numbers[2]
    assert numbers[1] <= 3


@pytest.mark.parametrize(
    ("resolution", "multiple"),
    [("480p", 16), ("720p", 16), ("1080p", 16), ("360p", 16), ("768px", 16), ("480p", 8), ("720p", 8), ("720p", 32)],
)
def test_the_usual_resolutions_have_one_count_for_all_nine_ratios(resolution: str, multiple: int) -> None:
    assert len(counts(resolution, multiple, 0.1)) == 1


@pytest.mark.parametrize("others", [(), RATIOS])
@pytest.mark.parametrize("multiple", [8, 16, 32])
def test_footage_of_the_format_still_fills_its_size(multiple: int, others: tuple[float, ...]) -> None:
    """Neither side exceeds that of the format, upright, wide and square, whatever the other ratios ask for."""
    formats = [(f"{n}p", n, ratio) for n in (240, 360, 480, 720, 1080) for ratio in (16 / 9, 9 / 16)]
    formats += [(f"{n}px", n, 1.0) for n in (384, 512, 640, 768, 1024)]
    for resolution, side, ratio in formats:
        (height, width), *_ = families.sizes_of(resolution, (ratio, *others), (multiple, multiple), 0.05)
        assert height <= side * max(1 / ratio, 1), (resolution, ratio)
        assert width <= side * max(ratio, 1), (resolution, ratio)


def test_a_table_has_one_count_for_all_ratios_of_an_entry() -> None:
    """Nine aspect ratios and three lengths: three graphs."""
    built = build("720p", num_frames=[1, 17, 49], token_families=True)
    for entry in range(3):
        assert len({built.buckets[i].tokens for i in built.of_entry(entry)}) == 1
    full = [1] * len(built.buckets)
    assert len(graphs.choose(built, full, GEOMETRY, 32, by_shape=False).compiled) == 3
    free = build("720p", num_frames=[1, 17, 49])
    assert len(graphs.choose(free, [1] * 27, GEOMETRY, 32, by_shape=False).compiled) == 9


def test_without_families_sizes_are_the_nearest_ones() -> None:
    for off in ({}, {"token_families": False}, {"token_families": False, "token_family_crop": 0.5}):
        shapes = [(b.shape.height, b.shape.width) for b in build("480p", **off).buckets]
        assert shapes == [sizes.size_at("480p", ratio, (16, 16)) for ratio in RATIOS]


def test_a_single_size_and_a_table_of_open_sora_keep_theirs() -> None:
    (only,) = build("480x848", token_families=True).buckets
    assert (only.shape.height, only.shape.width) == (480, 848)
    with pytest.raises(ValidationError, match=r"buckets\.token_families = True: .* keeps its sizes"):
        BucketsConfig.model_validate({"opensora": {"240p": {"1": [1.0, 2]}}, "token_families": True})


def test_the_graphs_with_the_most_tokens_are_chosen_and_others_run_without() -> None:
    built = build("360p", "720p", num_frames=[1, 17], token_families=True)
    full = [0 if bucket.entry == 1 else 10 for bucket in built.buckets]  # no picture of 720p
    chosen = graphs.choose(built, full, GEOMETRY, 2, by_shape=False)
    largest = graphs.key(built.buckets[0], 1, GEOMETRY, by_shape=False)
    assert chosen.compiled[0] == largest
    assert len(chosen.compiled) == 2
    assert {built.buckets[i].entry for i in chosen.eager} == {3}
    by_shape = graphs.choose(built, full, GEOMETRY, 99, by_shape=True)
    assert len(by_shape.compiled) == len({built.buckets[i].shape for i, n in enumerate(full) if n})
