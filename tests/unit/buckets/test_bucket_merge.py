"""A clip that filled one bucket fills the one that it is merged into."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reelworks.core.shape import Geometry
from reelworks.data.buckets import assign, table
from reelworks.data.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.data.buckets.table import BucketTable

GEOMETRY = Geometry(stride=(1, 8, 8), patch=(1, 2, 2))


def build(*entries: dict[str, object], **values: object) -> BucketTable:
    configs = [BucketEntryConfig.model_validate(entry) for entry in entries]
    return table.build(configs, BucketsConfig.model_validate(values), GEOMETRY)


def arrows(built: BucketTable) -> dict[str, str]:
    to = assign.targets(built).tolist()
    return {built.buckets[i].name: built.buckets[t].name for i, t in enumerate(to) if t >= 0}


def test_a_bucket_merges_into_the_next_lower_one_of_its_kind() -> None:
    built = build(
        {"resolution": "256px", "num_frames": [1, 17, 33]},
        {"resolution": "128px", "num_frames": [1, 17]},
        aspect_ratios=["1:1"],
    )
    assert arrows(built) == {
        "256px 1:1 ×33": "256px 1:1 ×17",
        "256px 1:1 ×17": "128px 1:1 ×17",
        "256px 1:1 ×1": "128px 1:1 ×1",
    }


def test_shapes_stay_near_and_unused_entries_take_none() -> None:
    built = build(
        {"resolution": "256px", "num_frames": 1},
        {"resolution": "192px", "num_frames": 1, "keep_prob": 0.0},
        {"resolution": "128px", "num_frames": 1},
        aspect_ratios=["16:9", "1:1", "9:16"],
    )
    ratios = ("16:9", "1:1", "9:16")
    assert arrows(built) == {f"{px}px {r} ×1": f"128px {r} ×1" for px in (256, 192) for r in ratios}
    apart = build({"resolution": "256x256", "num_frames": 1}, {"resolution": "64x256", "num_frames": 1}, max_crop=0.5)
    assert arrows(apart) == {}


resolutions = st.sampled_from(["64px", "96px", "128px", "256px", "144x256", "256x144"])
entries = st.lists(
    st.tuples(resolutions, st.sampled_from([1, 9, 17]), st.sampled_from([0.0, 0.5, 1.0])),
    min_size=1,
    unique_by=lambda entry: entry[:2],
)


@given(entries, st.sampled_from([0.1, 0.5]))
def test_what_fills_a_bucket_fills_its_target(chosen: list[tuple[str, int, float]], max_crop: float) -> None:
    rows = [{"resolution": r, "num_frames": f, "keep_prob": p} for r, f, p in chosen]
    built = build(*rows, max_crop=max_crop)
    to = assign.targets(built)
    for index in np.flatnonzero(to >= 0).tolist():
        bucket, target = built.buckets[index], built.buckets[to[index]]
        assert to[index] > index
        assert (bucket.shape.num_frames == 1) == (target.shape.num_frames == 1)
        assert target.shape.num_frames <= bucket.shape.num_frames
        assert target.shape.height <= bucket.shape.height
        assert target.shape.width <= bucket.shape.width
        assert assign.kept(bucket, target) >= 1 - max_crop - 1e-9  # a share that rounding may lose
        assert built.entries[target.entry].keep_prob > 0
