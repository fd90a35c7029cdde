"""Proposed buckets are a recipe that takes the clips they were proposed for, within the budget."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
from catalog_rows import BAD, PICTURE, VIDEO, rows
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from reelworks.core.shape import Geometry
from reelworks.data.buckets import assign, table
from reelworks.data.buckets.assign import Clips, Reason
from reelworks.data.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.data.buckets.propose import Ladder, frame_counts, of_rows, propose, rungs

HD = {"height": 1080, "width": 1920, "num_frames": 200}
SD = {"height": 500, "width": 888, "num_frames": 60}
PIXEL = Geometry((1, 8, 8), (1, 2, 2))
VIDEO_AUTOENCODER = Geometry((4, 8, 8), (1, 2, 2), (4, 1))


def shapes(proposal):
    return [(e.resolution, e.num_frames) for e in proposal.entries]


def clips(*found):
    """Clips of (frames, height, width); one frame makes a picture."""
    frames, height, width = (np.array(column, dtype=np.int64) for column in zip(*found, strict=True))
    n = len(found)
    return Clips(
        uid=np.arange(n, dtype=np.uint64) * np.uint64(7919),
        copy=np.zeros(n, dtype=np.int64),
        num_frames=frames,
        height=height,
        width=width,
        is_image=frames == 1,
        excluded=np.zeros(n, dtype=np.int8),
        held_out=np.zeros(n, dtype=np.bool_),
    )


def built(proposal, config, geometry):
    return table.build([e.config() for e in proposal.entries], config, geometry)


def test_long_clips_are_shown_large_and_short_or_long_and_small():
    """Where size and length together exceed the budget, each is kept at the other's cost, and both are shown."""
    found = of_rows(rows(*[VIDEO] * 10))
    assert shapes(found) == [("720p", 9), ("256px", 97)]
    assert [e.keep_prob for e in found.entries] == [0.53, 1.0]
    assert [e.get("keep_prob", 1.0) for e in tomllib.loads(found.toml)["bucket"]] == [0.53, 1.0]
    assert "the most frames that fit max_tokens" in found.entries[0].why
    assert "the largest size at which 97 frames fit" in found.entries[1].why
    assert (found.reached, found.clips) == (10, 10)


def test_a_budget_for_all_gives_one_entry():
    found = propose(clips(*[(100, 720, 1280)] * 10), BucketsConfig(max_tokens=200_000), VIDEO_AUTOENCODER)
    assert shapes(found) == [("720p", 97)]
    assert found.entries[0].why == "100% of the videos fill it"
    assert found.entries[0].batch_size == 200_000 // (25 * 3600)


def test_a_split_catalog_gets_sizes_and_lengths_for_both():
    found = of_rows(rows(*[HD] * 7, *[SD] * 3))
    assert shapes(found) == [("720p", 9), ("480p", 17), ("240p", 49), ("256px", 121), ("256px", 49)]
    assert found.reached == 10


def test_pictures_and_videos_have_entries_of_their_own():
    found = of_rows(rows(*[PICTURE] * 5, *[VIDEO] * 5, BAD))
    assert shapes(found) == [("1024px", 1), ("720p", 9), ("256px", 97)]
    assert found.reached == found.clips == 10


@pytest.mark.parametrize("clip", [BAD, {**PICTURE, "height": 10, "width": 10}])
def test_nothing_that_fits_gives_no_entry(clip):
    found = of_rows(rows(clip))
    assert (found.entries, found.reached) == ((), 0)
    assert "bucket" not in tomllib.loads(found.toml)


found_clips = st.lists(
    st.tuples(st.sampled_from([1, 1, 17, 20, 40, 90, 300]), st.integers(64, 2200), st.integers(64, 2200)).filter(
        lambda clip: 0.45 < clip[1] / clip[2] < 2.2
    ),
    min_size=1,
    max_size=40,
)


@given(
    found_clips,
    st.sampled_from([PIXEL, VIDEO_AUTOENCODER, Geometry((17, 8, 8), (1, 2, 2), (17, 0))]),
    st.sampled_from([4000, 32_768, 500_000]),
)
@pytest.mark.slow
def test_nearly_all_clips_have_a_place_within_the_budget(found, geometry, max_tokens):
    """Every micro-batch fits the budget and the model, and where footage has usual shapes all of it is used."""
    config = BucketsConfig(max_tokens=max_tokens, max_batch_size=8)
    proposal = propose(clips(*found), config, geometry)
    made = built(proposal, config, geometry)
    assert all(bucket.tokens * bucket.batch_size <= max_tokens for bucket in made.buckets)
    assert all(1 <= bucket.batch_size <= 8 for bucket in made.buckets)
    assert all(geometry.accepts_frames(entry.num_frames) for entry in made.entries)
    assert proposal.reached == len(found)
    reasons = assign.assign(clips(*found), made, seed=3, epoch=1).reason
    assert (reasons == Reason.NONE).all()


@given(found_clips)
@pytest.mark.slow
def test_no_entry_takes_all_clips_that_others_could_show(found):
    """An entry above others leaves clips to them: only the last of its kind has keep_prob 1."""
    proposal = propose(clips(*found), BucketsConfig(), PIXEL)
    for is_image in (True, False):
        chances = [e.keep_prob for e in proposal.entries if (e.num_frames == 1) == is_image]
        assert all(0 < chance < 1 for chance in chances[:-1])
        assert chances[-1:] in ([], [1.0])


def test_a_model_of_a_coarse_multiple_has_sizes_of_that_multiple():
    geometry = Geometry((1, 32, 32), (1, 2, 2))
    found = propose(clips((1, 70, 70), (1, 900, 900)), BucketsConfig(), geometry)
    assert shapes(found) == [("768px", 1), ("64px", 1)]


def test_a_budget_below_the_smallest_clip_is_told():
    with refused("token-limit-too-low", "buckets.max_tokens", says="at least 5") as caught:
        propose(clips((5, 100, 100)), BucketsConfig(max_tokens=4), PIXEL)
    assert (caught.value.field, caught.value.value) == ("buckets.max_tokens", 4)


def test_the_budget_holds_for_every_aspect_ratio():
    """Sizes of one entry differ in tokens; the one that has most decides."""
    config = BucketsConfig(max_tokens=2700)
    found = propose(clips(*[(1, 256, 256)] * 500), config, PIXEL)
    tokens = built(found, config, PIXEL).tokens()
    assert found.entries[0].batch_size == 2700 // tokens.max() < 2700 // tokens.min()


def test_sizes_that_the_model_rounds_to_the_same_are_one_rung():
    ladder = Ladder.from_steps(
        (64, 80, 96, 128), BucketsConfig(aspect_ratios=["1:1"]), Geometry((1, 32, 32), (1, 2, 2))
    )
    assert ladder.names == ("64px", "96px")
    assert [ladder.tokens(rung, 1) for rung in range(2)] == [1, 4]


def test_what_suits_is_not_what_clips_could_be_enlarged_to():
    """With `upscale` the same entries are proposed: sizes are those that clips have."""
    found = clips(*[(1, side, side) for side in (1100, 560, 300)] * 5)
    plain, enlarged = (propose(found, BucketsConfig(upscale=upscale), PIXEL) for upscale in (False, True))
    assert shapes(plain) == shapes(enlarged) == [("1024px", 1), ("512px", 1), ("256px", 1)]
    assert [e.keep_prob for e in plain.entries] == [e.keep_prob for e in enlarged.entries]


@pytest.mark.parametrize(("upscale", "size"), [(True, "1024px"), (False, "768px")])
def test_clips_of_nearly_the_area_of_a_size_fill_it_where_they_may_be_enlarged(upscale, size):
    found = propose(clips(*[(1, 1000, 1000)] * 5), BucketsConfig(upscale=upscale), PIXEL)
    assert shapes(found) == [(size, 1)]


@pytest.mark.parametrize("stride", [8, 24, 96, 160])
def test_any_multiple_of_a_model_will_do(stride):
    found = propose(clips((1, 2000, 2000), (30, 2000, 2000)), BucketsConfig(), Geometry((1, stride, stride), (1, 2, 2)))
    assert found.reached == 2


def test_clips_left_out_have_no_say():
    found = clips(*[(1, 512, 512)] * 3, (1, 2000, 2000))
    found.excluded[3] = Reason.NO_CAPTION
    proposal = propose(found, BucketsConfig(), PIXEL)
    assert shapes(proposal) == [("512px", 1)]
    assert proposal.clips == 3


@pytest.mark.slow
def test_a_sample_speaks_for_many():
    """More clips than are looked at: the same entries, and every clip counted."""
    once = [(1, 512, 512), (1, 1024, 1024)]
    few, many = (propose(clips(*once * n), BucketsConfig(max_batch_size=1), PIXEL) for n in (50, 200_000))
    assert few.entries == many.entries
    assert (few.reached, many.reached) == (100, 400_000)


@pytest.mark.parametrize("wanted", [[VIDEO], [HD, SD], [PICTURE, SD, SD], [{**SD, "num_frames": 3}]])
def test_the_toml_is_a_bucket_table(wanted):
    read = tomllib.loads(of_rows(rows(*wanted)).toml)
    entries = [BucketEntryConfig.model_validate(entry) for entry in read["bucket"]]
    assert table.build(entries, BucketsConfig(), PIXEL).entries


@pytest.mark.parametrize(
    ("highest", "chosen"),
    [([2] * 10, [2]), ([2] * 5 + [0] * 5, [2, 0]), ([2] * 99 + [0], [2]), ([2, 1, 0] * 3, [2, 1, 0]), ([-1], [])],
)
def test_rungs_are_what_nearly_all_reach_and_what_keeps_most(highest, chosen):
    assert rungs(np.array(highest), np.log([1.0, 4.0, 16.0]), 3) == chosen


def test_lengths_are_those_that_the_model_takes():
    assert frame_counts(PIXEL).tolist() == [2, 5, 9, 17, 33, 49, 65, 81, 97, 121]
    assert frame_counts(Geometry((17, 8, 8), (1, 2, 2), (17, 0))).tolist() == [17, 34, 51, 68, 85, 119]
