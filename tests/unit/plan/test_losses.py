"""What a plan does not show adds up, clip by clip, to what is cut and skipped."""

from __future__ import annotations

import numpy as np
import prepare_files as made
import pytest

from reelworks.core import results
from reelworks.data.loader import decode_requests
from reelworks.data.media import decode
from reelworks.data.media.decode import load
from reelworks.training.plan import discarded


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("losses")
    made.picture(path / "data" / "fits.png", (48, 64))
    made.picture(path / "data" / "wide.png", (48, 90))
    made.clip(path / "data" / "long.mp4", 40)
    made.clip(path / "data" / "even.mp4", 9)
    made.clip(path / "data" / "short.mp4", 4)
    return path


def summed(folder, **data):
    opened = made.opened(made.recipe(folder, data={"num_workers": 0, **data}))
    return opened, results.as_json(discarded.losses(opened, opened.plan(opened.plan_spec(1, 1), 0)))


def test_the_share_cut_away_is_what_lies_outside_the_window(folder):
    data, told = summed(folder)
    (bucket,) = (b.shape for b in data.table.buckets if b.name == "48px 4:3 ×1")
    scale = bucket.height / 48
    kept = bucket.height * bucket.width / (48 * 90 * scale**2)
    assert told["crop"]["worst"][0]["path"] == "data/wide.png"
    assert told["crop"]["worst"][0]["lost"] == pytest.approx(1 - kept)
    entries = discarded.planned(data.plan(data.plan_spec(1, 1), 0))
    lost = discarded.lost_shares(data, data.rows_at(entries.ordinal), entries.bucket)
    assert told["crop"]["mean"] == pytest.approx(lost.mean())
    by_clip = np.array([one["lost"] for one in told["crop"]["worst"]])
    assert by_clip.sum() == pytest.approx(lost.sum())


def test_frames_seen_are_counted_for_videos_at_the_rate_they_are_read(folder):
    _, told = summed(folder)
    frames = told["frames"]
    assert (frames["trained"], frames["there"]) == (9 + 9, 40 + 9)
    assert frames["less_than_half"] == 1
    assert [(one["path"], one["trained"], one["there"]) for one in frames["longest"]] == [("data/long.mp4", 9, 40)]
    _, told = summed(folder, frame_interval=4)  # 10 frames are left of the long one, too few of the others
    assert (told["frames"]["trained"], told["frames"]["there"]) == (9, 10)
    assert told["frames"]["less_than_half"] == 0


def test_a_repeated_clip_is_named_once(folder):
    dataset = [{"path": str(folder / "data"), "repeats": 3}]
    data = made.opened(made.recipe(folder, dataset=dataset))
    told = results.as_json(discarded.losses(data, data.plan(data.plan_spec(1, 1), 0)))
    assert told["frames"]["trained"] == 3 * (9 + 9)
    assert told["frames"]["less_than_half"] == len(told["frames"]["longest"]) == 1


@pytest.mark.parametrize(
    ("rule", "numbers"), [("hold", [0, 1, 2, 3, 3, 3, 3, 3, 3]), ("loop", [0, 1, 2, 3, 0, 1, 2, 3, 0])]
)
def test_a_short_clip_is_planned_counted_and_read(folder, rule, numbers):
    """It stands in the bucket that is longer than it, and its last frame stays or it starts over."""
    data, told = summed(folder, short_clips=rule)
    plan = data.plan(data.plan_spec(1, 1), 0)
    assert (plan.planned, told["short_clips"]) == (5, 1)
    assert told["frames"]["trained"] == 9 + 9 + 4
    row = data.rows.path.to_pylist().index("short.mp4")
    place = int(np.flatnonzero(plan.uid == data.rows.uid[row])[0])
    bucket = int(plan.bucket[place])
    rows = np.array([row])
    words = decode_requests.clip_hash(data, rows, np.zeros(1, np.int64), epoch=0)
    (request,) = decode_requests.decode_requests(data, rows, words, bucket)
    frames = load(request)
    assert frames.shape[0] == 9
    assert all(np.array_equal(frames[i], frames[number]) for i, number in enumerate(numbers))
    assert not np.array_equal(frames[0], frames[1])
    assert decode.frame_indices(4, 9, 1.0, 0.9, rule).tolist() == numbers


def test_rejecting_short_clips_is_another_plan(folder):
    specs = {summed(folder, short_clips=rule)[0].plan_spec(1, 1).digest() for rule in ("reject", "hold", "loop")}
    assert len(specs) == 3


def test_an_epoch_of_pictures_has_no_frames_to_tell(tmp_path):
    made.picture(tmp_path / "data" / "a.png", (48, 64))
    _, told = summed(tmp_path)
    assert (told["frames"]["there"], told["frames"]["by_bucket"], told["short_clips"]) == (0, [], 0)
    assert told["crop"]["by_bucket"][0]["mean"] == told["crop"]["mean"]
