from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from refused import refused

from reelworks.core.shape import Shape
from reelworks.data.media import decode, framing
from reelworks.data.media.config import DataConfig
from reelworks.data.media.decode import FrameTicks, Request
from reelworks.data.media.frame_times import FrameTimes

draws = st.floats(0, 1, exclude_max=True)
configs = st.one_of(
    st.builds(DataConfig, frame_interval=st.integers(1, 7)),
    st.builds(DataConfig, fps=st.sampled_from([1.0, 8.0, 10.0, 15.0, 24.0, 29.97])),
)


@example(2500, 30_000 / 1001, DataConfig(fps=12.0), 0.5)  # whose quotient is rounded up from 1001
@given(st.integers(1, 300), st.sampled_from([5.0, 12.5, 23.976, 24.0, 29.97, 30.0, 60.0]), configs, draws)
def test_a_clip_offers_the_most_frames_that_can_be_read(
    num_frames: int, fps: float, config: DataConfig, draw: float
) -> None:
    step = float(decode.frame_step(fps, config))
    offered = int(decode.frames_available(np.array(num_frames), fps, config))
    for wanted in {1, (offered + 1) // 2, offered}:
        indices = decode.frame_indices(num_frames, wanted, step, draw)
        assert len(indices) == wanted
        assert indices[0] >= 0
        assert indices[-1] < num_frames
        assert (np.diff(indices) >= 1).all()
    assert decode.frame_indices(num_frames, offered + 1, step, draw)[-1] >= num_frames


@given(st.integers(1, 60), st.integers(1, 90), st.sampled_from([1.0, 1.25, 2.5, 3.0]), draws)
def test_a_short_clip_is_held_or_starts_over(num_frames: int, wanted: int, step: float, draw: float) -> None:
    """A file that is long enough is read as ever; of a short one each frame is shown, then the last or all again."""
    plain, held, looped = (
        decode.frame_indices(num_frames, wanted, step, draw, rule) for rule in ("reject", "hold", "loop")
    )
    request = Request(Path("a.mp4"), False, Shape(wanted, 32, 32), step=step, first_frame_draw=draw)
    assert decode.is_short(request, num_frames) == (plain[-1] >= num_frames)
    if plain[-1] < num_frames:
        assert np.array_equal(held, plain)
        assert np.array_equal(looped, plain)
        return
    inside = plain[plain < num_frames]
    n = len(inside)
    assert np.array_equal(held[:n], inside)
    assert np.array_equal(looped[:n], inside)
    assert (held[n:] == inside[-1]).all()
    assert np.array_equal(looped[n:], looped[:-n])


def test_steps_follow_interval_or_rate_and_never_make_frames_up() -> None:
    fps = np.array([60.0, 24.0, 12.0])
    assert decode.frame_step(fps, DataConfig(frame_interval=3)).tolist() == [3, 3, 3]
    assert decode.frame_step(fps, DataConfig(fps=24.0)).tolist() == [2.5, 1, 1]
    assert decode.frames_available(np.array([0, 1, 7, 9]), 60.0, DataConfig(fps=24.0)).tolist() == [0, 1, 3, 4]


def test_the_draw_reaches_every_first_frame_evenly() -> None:
    first = [int(decode.frame_indices(10, 4, 2, draw)[0]) for draw in np.arange(400) / 400]
    assert np.bincount(first).tolist() == [100, 100, 100, 100]


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 300), st.integers(1, 300), draws)
def test_a_frame_is_resized_to_just_cover_and_cut_inside(
    height: int, width: int, target_height: int, target_width: int, draw: float
) -> None:
    h, w = framing.cover(height, width, target_height, target_width)
    assert h == target_height or w == target_width
    assert h >= target_height
    assert w >= target_width
    assert abs(h / height - w / width) <= 1 / min(height, width) + 1e-9
    for size, target in ((h, target_height), (w, target_width)):
        assert 0 <= framing.crop_offset(size, target, draw) <= size - target


@pytest.mark.parametrize(
    ("first", "interlaced", "key"), [(0, False, 0), (11, False, 0), (12, False, 12), (13, False, 12), (12, True, 0)]
)
def test_decoding_begins_with_the_nearest_key_frame(first: int, interlaced: bool, key: int) -> None:
    """Before the clip, or before the frame whose fields complete its first one."""
    times = FrameTimes(10 * np.arange(36), np.array([0, 12, 24]), 0.1, None, True)
    request = Request(Path("a.mp4"), False, Shape(2, 8, 8), first_frame=first, num_frames=2)
    around = tuple(range(10 * key, 10 * (first + 3), 10))
    assert decode.find_ticks(request, times, interlaced=interlaced) == FrameTicks(
        (10 * first, 10 * first + 10), around, 10 * first + 20
    )


def test_a_crop_of_half_is_the_centre() -> None:
    assert [framing.crop_offset(20, 10, draw) for draw in (0, 0.5, 0.999)] == [0, 5, 10]


def test_one_rate_only() -> None:
    with refused("rate-and-interval", "frame_interval"):
        DataConfig(fps=8.0, frame_interval=2)
