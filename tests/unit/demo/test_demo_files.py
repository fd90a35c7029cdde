"""Every good file decodes to what its caption says, and every bad one is bad in the way its name says."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, ImageOps
from refused import refused

from reelworks.demo import judge, make, scenes, writers
from reelworks.demo.make import DemoSummary

DECODERS = {"libx264": "h264", "libx265": "hevc", "libvpx-vp9": "vp9", "libsvtav1": "av1"}


def _decoded(path: Path) -> list[av.VideoFrame]:
    with av.open(str(path)) as container:
        return list(container.decode(video=0))


def _shown_video(path: Path) -> np.ndarray:
    """frames_THWC as a player shows them; FFmpeg counts rotation counterclockwise."""
    frames = _decoded(path)
    stored_THWC = np.stack([frame.to_ndarray(format="rgb24", threads=1) for frame in frames])
    return np.rot90(stored_THWC, frames[0].rotation // 90, axes=(1, 2))


def _shown_picture(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))[None]


def _centre(frame_HWC: np.ndarray, name: str) -> np.ndarray:
    """Mean (x, y) of the pixels close to a palette colour."""
    distance_HW = np.abs(frame_HWC.astype(int) - scenes.COLOURS[name]).sum(axis=2)
    y, x = np.nonzero(distance_HW < 90)
    return np.array([x.mean(), y.mean()])


def _caption(path: Path) -> list[str]:
    return path.with_suffix(".txt").read_text(encoding="utf-8").split()


@pytest.fixture(scope="module")
def shown(whole_demo: DemoSummary) -> dict[str, np.ndarray]:
    """Frames of every good file by name."""
    videos = {name: _shown_video(whole_demo.folder / name) for name in whole_demo.videos}
    return videos | {name: _shown_picture(whole_demo.folder / name) for name in whole_demo.pictures}


@pytest.mark.slow
def test_counts(whole_demo: DemoSummary) -> None:
    assert (len(whole_demo.videos), len(whole_demo.pictures), len(whole_demo.bad)) == (312, 36, 8)
    assert whole_demo.total_bytes < 10e6


def test_every_good_file_has_a_caption(demo: DemoSummary) -> None:
    files = [path for path in demo.folder.iterdir() if path.suffix != ".txt"]
    assert {path.name for path in files} == {*demo.videos, *demo.pictures, *demo.bad}
    captions = {path.stem for path in demo.folder.glob("*.txt")}
    assert captions == {path.stem for path in files} - {"bad-no-caption"}


@pytest.mark.slow
def test_every_good_file_shows_what_its_caption_says(whole_demo: DemoSummary, shown: dict[str, np.ndarray]) -> None:
    for name, frames in shown.items():
        caption = _caption(whole_demo.folder / name)
        frames = frames[::-3][::-1]  # every third, as all take three times as long
        direction = caption[4] if "moves" in caption else None
        assert judge.judge(frames) == (caption[1], caption[2], direction, caption[-2]), name


def test_every_video_moves_as_its_caption_says(demo: DemoSummary) -> None:
    for name in demo.videos:
        _, colour_name, _, _, direction, *_ = _caption(demo.folder / name)
        first, *_, last = _shown_video(demo.folder / name)
        travel = _centre(last, colour_name) - _centre(first, colour_name)
        step = np.array(scenes.DIRECTIONS[direction])
        assert travel @ step > 15, name
        assert abs(travel @ step[::-1]) < 2, name


@pytest.mark.slow
def test_files_show_the_scene_as_drawn_after_rotation_and_exif(shown: dict[str, np.ndarray]) -> None:
    for item in [*scenes.videos(0), *scenes.pictures(0)]:
        drawn = scenes.frames(item.scene)
        assert shown[item.name].shape == drawn.shape, item.name
        first_and_last = shown[item.name][[0, -1]].astype(int) - drawn[[0, -1]]
        # Compression and chroma at half resolution stay below 4; a wrong turn starts at 9.
        assert np.abs(first_and_last).mean() < 5, item.name


def written(demo: DemoSummary) -> list[scenes.Video]:
    return [video for video in scenes.videos(0) if video.name in demo.videos]


def test_codecs_containers_and_pixel_formats(demo: DemoSummary) -> None:
    for video in written(demo):
        with av.open(str(demo.folder / video.name)) as container:
            stream = container.streams.video[0]
            assert stream.codec_context.codec.canonical_name == DECODERS[video.format.codec]
            assert stream.codec_context.pix_fmt == video.format.pix_fmt
    counts = Counter((DECODERS[video.format.codec], Path(video.name).suffix) for video in scenes.videos(0))
    assert counts == {
        ("h264", ".mp4"): 136,
        ("h264", ".mov"): 32,
        ("hevc", ".mp4"): 40,
        ("vp9", ".webm"): 48,
        ("av1", ".mp4"): 28,
        ("av1", ".webm"): 28,
    }
    suffixes = Counter(Path(name).suffix for name in demo.pictures)
    assert suffixes == {".png": 14, ".jpg": 14, ".webp": 8}


def test_frame_times_are_kept(demo: DemoSummary) -> None:
    assert sum(video.format.variable for video in scenes.videos(0)) == 20
    picked = [v for v in written(demo) if v.format.variable or v.scene.fps.denominator > 1]
    assert len({video.format for video in picked}) > 5
    for video in picked:
        times = [frame.time for frame in _decoded(demo.folder / video.name)]
        expected = [float(pts * video.scene.time_base) for pts in video.scene.pts]
        assert times == pytest.approx(expected, abs=0.00051), video.name  # WebM counts milliseconds


def test_rotation_is_metadata_and_frames_are_stored_turned(demo: DemoSummary) -> None:
    rotated = [video for video in scenes.videos(0) if video.format.rotation]
    assert sorted(video.format.rotation for video in rotated) == 4 * [90] + 4 * [180] + 4 * [270]
    for video in written(demo):
        frame = _decoded(demo.folder / video.name)[0]
        assert (-frame.rotation) % 360 == video.format.rotation
        turned = video.format.rotation in (90, 270)
        stored = (frame.height, frame.width) if turned else (frame.width, frame.height)
        assert stored == (video.scene.width, video.scene.height)


def test_odd_pictures(demo: DemoSummary) -> None:
    orientations, modes = [], []
    for name in demo.pictures:
        with Image.open(demo.folder / name) as image:
            orientations.append(image.getexif().get(0x0112, 1))
            modes.append(image.mode)
            if image.mode == "RGBA":
                assert image.getchannel("A").getextrema() == (0, 255)
    assert sorted(o for o in orientations if o != 1) == [3, 6, 8]
    assert Counter(modes) == {"RGB": 34, "RGBA": 1, "P": 1}


@pytest.mark.parametrize("name", ["bad-truncated.mp4", "bad-zero-bytes.mp4", "bad-text-not-video.mp4"])
def test_unreadable_videos_are_unreadable(demo: DemoSummary, name: str) -> None:
    with pytest.raises(av.FFmpegError):
        _decoded(demo.folder / name)


def test_other_bad_files_are_bad_as_named(demo: DemoSummary) -> None:
    folder = demo.folder
    with Image.open(folder / "bad-truncated-picture.jpg") as image, pytest.raises(OSError, match="truncated"):
        image.load()
    assert b"moov" not in (folder / "bad-truncated.mp4").read_bytes()
    assert (folder / "bad-zero-bytes.mp4").stat().st_size == 0
    assert len(_decoded(folder / "bad-three-frames.mp4")) == 3
    assert _shown_picture(folder / "bad-8x8-px.png").shape == (1, 8, 8, 3)
    assert len(_decoded(folder / "bad-no-caption.mp4")) == len(_decoded(folder / "bad-empty-caption.mp4")) == 24
    assert not (folder / "bad-no-caption.txt").exists()
    assert (folder / "bad-empty-caption.txt").read_bytes() == b""
    assert set(demo.bad) == {bad.name for bad in make.BAD}


def test_the_same_scene_gives_the_same_bytes_without_a_sound(
    demo: DemoSummary, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kinds = {video.format: video for video in written(demo)}
    assert len(kinds) >= 10
    for video in kinds.values():
        writers.write_video(tmp_path / video.name, video)
        assert (tmp_path / video.name).read_bytes() == (demo.folder / video.name).read_bytes(), video.name
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform != "linux", reason="schedules threads in another way")
def test_writing_leaves_the_priority_of_the_thread_as_it_was(tmp_path: Path) -> None:
    """SVT-AV1 raises it to real time for root, whose other threads would inherit it."""
    before = os.sched_getscheduler(0)
    video = next(video for video in scenes.videos(0) if video.format.codec == "libsvtav1")
    writers.write_video(tmp_path / video.name, video)
    assert os.sched_getscheduler(0) == before
    assert {os.sched_getscheduler(int(thread.name)) for thread in Path("/proc/self/task").iterdir()} == {before}


def _stop(name: str) -> None:
    raise RuntimeError(f"enough after {name}")


def test_its_own_earlier_output_is_written_again(demo: DemoSummary, tmp_path: Path) -> None:
    folder = shutil.copytree(demo.folder, tmp_path / "demo")
    first = folder / demo.videos[0]
    before = first.read_bytes()
    first.write_bytes(b"torn")
    (folder / ".hidden").write_text("left alone", encoding="utf-8")
    with pytest.raises(RuntimeError, match=f"enough after {first.name}"):
        make.make(folder, on_file=_stop)
    assert first.read_bytes() == before
    assert (folder / ".hidden").read_text(encoding="utf-8") == "left alone"


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday.mp4").write_bytes(b"mine")
    with refused("demo-folder-in-use", "DIR", says=r"holiday\.mp4.*remedy: choose an empty folder"):
        make.make(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.mp4"]


def test_another_seeds_output_is_refused(demo: DemoSummary) -> None:
    with refused("demo-folder-in-use", "DIR"):
        make.make(demo.folder, seed=1)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("", encoding="utf-8")
    with refused("demo-folder-in-use", "DIR"):
        make.make(tmp_path / "demo")
    with refused("file-unwritable", "DIR"):
        make.make(tmp_path / "demo" / "below")


def test_a_missing_encoder_is_named() -> None:
    with refused("encoder-missing", "av", says="no encoder libnothing"):
        writers.check_encoders(["libx264", "libnothing"])
