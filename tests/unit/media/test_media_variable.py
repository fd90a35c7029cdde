"""With a rate asked for, frame i of a clip of variable rate is the one that is shown at i / fps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import media_makers as media
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from reelworks.core.shape import Shape
from reelworks.data.media import decode, frame_times, probe
from reelworks.data.media.config import DataConfig
from reelworks.data.media.decode import AtRate, Request
from reelworks.data.media.reading import MediaError

PHONE = [0, 33, 66, 133, 200, 233, 300, 400, 433, 466, 500, 600, 1400, 1433, 1466, 1500]  # it waits, with a frozen part
FPS = 16.0


def shown_at(times_ms: list[int], fps: float, wanted: int) -> list[int]:
    """Return the numbers of the frames that are on the screen at 0, 1 / fps, 2 / fps … seconds."""
    return [max(n for n, t in enumerate(times_ms) if t - times_ms[0] <= 1000 * i / fps + 1) for i in range(wanted)]


def request(path: Path, times_ms: list[int], wanted: int, **changes: object) -> Request:
    found = probe.probe(path)
    count = decode.frames_available(np.array(found.num_frames), found.fps, DataConfig(fps=FPS), True)
    return replace(
        Request(path, False, Shape(wanted, found.height, found.width), at_rate=AtRate(FPS, int(count))), **changes
    )


@given(
    st.lists(st.sampled_from([16, 17, 33, 42, 66, 200, 900]), min_size=2, max_size=40),
    st.sampled_from([4.0, 8.0, 16.0, 24.0, 30.0]),
)
def test_as_many_frames_are_there_as_the_clip_lasts(steps: list[int], fps: float) -> None:
    times = np.cumsum([0, *steps[:-1]])
    found = probe.measure(len(times), times, steps[-1], frame_times.Fraction(1, 1000), None)
    if found.variable_fps:
        count = int(decode.frames_available(np.array(len(times)), found.fps, DataConfig(fps=fps), True))
        assert (count - 1) / fps < found.duration_seconds <= count / fps + 1e-5
        told = found.fps / float(decode.frame_step(found.fps, DataConfig(fps=fps), True))
        assert told == pytest.approx(fps), "the rate that the model is told is that of the frames"


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_frames_of_a_video_are_those_that_are_shown(tmp_path: Path, name: str) -> None:
    path = media.write_video(tmp_path / name, num_frames=len(PHONE), times_ms=PHONE)
    assert probe.probe(path).variable_fps
    assert media.numbers(decode.load(request(path, PHONE, 20))) == shown_at(PHONE, FPS, 20)


def test_frames_of_an_animation_are_those_that_are_shown(tmp_path: Path) -> None:
    lasts = [20, 20, 20, 200, 500, 20, 20, 300]
    frames = [Image.fromarray(frame) for frame in media.numbered(len(lasts))]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:], duration=lasts, loop=0, disposal=2)
    times = np.cumsum([0, *lasts[:-1]]).tolist()
    wanted = request(tmp_path / "a.gif", times, 15)
    assert media.numbers(decode.load(wanted)) == shown_at(times, FPS, 15)


def test_a_range_begins_with_its_own_first_frame(tmp_path: Path) -> None:
    path = media.write_video(tmp_path / "a.mp4", num_frames=len(PHONE), times_ms=PHONE)
    part = replace(request(path, PHONE, 6), first_frame=5, num_frames=8, at_rate=AtRate(FPS, 12))
    assert media.numbers(decode.load(part)) == [5 + n for n in shown_at(PHONE[5:13], FPS, 6)]
    with pytest.raises(MediaError, match="the clip has 12 frames, 13 are needed"):
        decode.load(replace(part, shape=replace(part.shape, num_frames=13)))


def test_a_companion_goes_with_the_times_of_its_clip(tmp_path: Path) -> None:
    clip = media.write_video(tmp_path / "a.mp4", num_frames=len(PHONE), times_ms=PHONE)
    control = media.write_video(tmp_path / "b.mp4", num_frames=len(PHONE))
    wanted = request(clip, PHONE, 20, first_frame_draw=0.6)
    assert wanted.at_rate is not None
    of_control = replace(wanted, path=control, at_rate=replace(wanted.at_rate, clock=clip))
    assert media.numbers(decode.load(of_control)) == media.numbers(decode.load(wanted))


def test_a_thinned_request_has_frames_of_the_whole(tmp_path: Path) -> None:
    path = media.write_video(tmp_path / "a.mp4", num_frames=len(PHONE), times_ms=PHONE)
    whole = request(path, PHONE, 13, first_frame_draw=0.4)
    few = replace(whole, shape=replace(whole.shape, num_frames=4), thinned=13)
    assert media.numbers(decode.load(few)) == [media.numbers(decode.load(whole))[i] for i in (0, 4, 8, 12)]


def test_sound_begins_when_the_first_frame_is_to_be_seen(tmp_path: Path) -> None:
    path = media.write_video(tmp_path / "a.mp4", num_frames=len(PHONE), times_ms=PHONE)
    times = frame_times.read(path)
    late = request(path, PHONE, 4, first_frame_draw=0.999)
    assert late.at_rate is not None
    assert decode.span_seconds(late, times)[0] == pytest.approx((late.at_rate.count - 4) / FPS)
    assert decode.span_seconds(replace(late, at_rate=None), times)[0] == pytest.approx(PHONE[-4] / 1000, abs=0.001)
