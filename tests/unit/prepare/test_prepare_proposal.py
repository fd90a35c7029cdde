"""Proposed buckets are a recipe that takes the clips they were proposed for."""

from __future__ import annotations

import tomllib

import pytest
from catalog_rows import BAD, PICTURE, VIDEO, rows

from reelworks.buckets import table
from reelworks.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.core.shape import Geometry
from reelworks.prepare.proposal import propose

HD = {"height": 1080, "width": 1920, "num_frames": 200}
SD = {"height": 500, "width": 888, "num_frames": 60}


def shapes(proposal):
    return [(e.resolution, e.num_frames) for e in proposal.entries]


def test_one_size_and_length_give_one_entry():
    found = propose(rows(*[VIDEO] * 10))
    assert shapes(found) == [("720p", 97)]
    assert found.entries[0].why == "720p: 100% of 10 videos fill it; 100% of these have 97 frames"
    assert (found.reached, found.clips) == (10, 10)


def test_a_split_catalog_gets_what_most_and_what_nearly_all_fill():
    found = propose(rows(*[HD] * 7, *[SD] * 3))
    assert shapes(found) == [("720p", 121), ("480p", 121), ("480p", 49)]
    assert found.reached == 10
    assert [e.batch_size for e in found.entries] == [1, 2, 5]


def test_pictures_and_videos_have_entries_of_their_own():
    found = propose(rows(*[PICTURE] * 5, *[VIDEO] * 5, BAD))
    assert shapes(found) == [("1024px", 1), ("720p", 97)]
    assert found.reached == found.clips == 10


def test_clips_smaller_than_every_entry_are_enlarged():
    found = propose(rows(*[{**PICTURE, "height": 20, "width": 20}] * 3))
    assert found.upscale
    assert found.reached == 3
    assert tomllib.loads(found.to_toml())["buckets"] == {"upscale": True}


def test_nothing_readable_gives_no_entry():
    found = propose(rows(BAD))
    assert (found.entries, found.clips, found.upscale) == ((), 0, False)
    assert "bucket" not in tomllib.loads(found.to_toml())


@pytest.mark.parametrize("clips", [[VIDEO], [HD, SD], [PICTURE, SD, SD], [{**SD, "num_frames": 3}]])
def test_the_toml_is_a_bucket_table(clips):
    read = tomllib.loads(propose(rows(*clips)).to_toml())
    entries = [BucketEntryConfig.model_validate(entry) for entry in read["bucket"]]
    assert table.build(entries, BucketsConfig(), Geometry((1, 8, 8), (1, 2, 2))).entries
