"""A probe tells what a decoder would deliver, or why it would deliver nothing."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import media_makers as media
import numpy as np
import pytest
from av.stream import Disposition
from PIL import Image

from reelworks.data.media import probe

CONTAINERS = {
    "clip.mp4": {},
    "clip.MOV": {"codec": "mpeg4"},
    "clip.m4v": {"container_options": {"movflags": "faststart"}},
    "clip.mkv": {},
    "clip.webm": {"codec": "libvpx-vp9"},
    "clip.avi": {"codec": "mpeg4"},
    "clip.mpg": {"codec": "mpeg2video", "rate": 25},
}
WITH_KNOWN_END = [name for name in CONTAINERS if name != "clip.mpg"]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for name, how in CONTAINERS.items():
        media.write_video(folder / name, num_frames=11, **how)
    return folder


@pytest.mark.parametrize("name", CONTAINERS)
def test_measures_what_a_decoder_delivers(clips: Path, name: str) -> None:
    found = probe.probe(clips / name)
    rate = CONTAINERS[name].get("rate", 24)
    assert found.kind == "video"
    assert found.num_frames == media.decoded_frames(clips / name) == 11
    assert (found.width, found.height, found.rotation) == (64, 48, 0)
    assert found.fps == pytest.approx(rate, rel=1e-6)
    assert found.duration_seconds == pytest.approx(11 / rate, rel=1e-6)
    assert (found.pixel_format, found.bit_depth) == ("yuv420p", 8)
    assert not found.variable_fps
    assert not found.has_alpha


@pytest.mark.parametrize("name", WITH_KNOWN_END)
def test_finds_every_truncation(clips: Path, tmp_path: Path, name: str) -> None:
    whole = (clips / name).read_bytes()
    cut = tmp_path / name
    for length in {*range(1, len(whole), max(1, len(whole) // 40)), len(whole) - 1}:
        cut.write_bytes(whole[:length])
        with pytest.raises(probe.ProbeError, match=r"truncated|damaged|no (video|frame)"):
            probe.probe(cut)


def test_junk_behind_the_last_box_is_no_truncation(clips: Path, tmp_path: Path) -> None:
    longer = tmp_path / "clip.mp4"
    longer.write_bytes((clips / "clip.mp4").read_bytes() + b"\xff\xff\xff\xffSEFT and more")
    assert probe.probe(longer).num_frames == 11


def test_an_overwritten_start_is_found(clips: Path, tmp_path: Path) -> None:
    damaged = bytearray((clips / "clip.avi").read_bytes())
    start = damaged.index(b"movi")
    damaged[start + 12 : start + 400] = bytes(388)
    (tmp_path / "clip.avi").write_bytes(damaged)
    with pytest.raises(probe.ProbeError):
        probe.probe(tmp_path / "clip.avi")


def test_variable_frame_rate(tmp_path: Path) -> None:
    times = [0, 40, 80, 200, 240, 300, 500, 540]
    found = probe.probe(media.write_video(tmp_path / "a.mp4", times_ms=times))
    assert found.variable_fps
    assert found.num_frames == 8
    assert found.duration_seconds == pytest.approx(0.58, abs=0.03)
    assert found.fps == pytest.approx(8 / found.duration_seconds)


def test_ntsc_rate_is_exact(tmp_path: Path) -> None:
    found = probe.probe(media.write_video(tmp_path / "a.mkv", rate=Fraction(30000, 1001)))
    assert found.fps == pytest.approx(30000 / 1001, rel=1e-6)
    assert not found.variable_fps


@pytest.mark.parametrize(("clockwise", "size"), [(90, (48, 64)), (180, (64, 48)), (270, (48, 64))])
def test_rotation_is_applied_to_the_size(tmp_path: Path, clockwise: int, size: tuple[int, int]) -> None:
    clip = media.write_video(tmp_path / "a.mp4", num_frames=2)
    media.rotate(clip, clockwise)
    found = probe.probe(clip)
    assert (found.width, found.height) == size
    assert found.rotation == clockwise


def test_frames_hidden_by_an_edit_list_are_not_counted(tmp_path: Path) -> None:
    whole, cut = media.write_video(tmp_path / "whole.mp4"), tmp_path / "cut.mp4"
    media.hide_first_frames(whole, cut, 3)
    assert probe.probe(cut).num_frames == media.decoded_frames(cut) == 5


def test_ten_bits(tmp_path: Path) -> None:
    clip = media.write_video(tmp_path / "a.mp4", codec="libx265", pixel_format="yuv420p10le", num_frames=3)
    found = probe.probe(clip)
    assert (found.codec, found.pixel_format, found.bit_depth) == ("hevc", "yuv420p10le", 10)


@pytest.mark.parametrize(
    ("name", "codec", "pixel_format"), [("a.mov", "qtrle", "argb"), ("a.webm", "libvpx-vp9", "yuva420p")]
)
def test_transparent_video(tmp_path: Path, name: str, codec: str, pixel_format: str) -> None:
    clip = media.write_video(tmp_path / name, codec=codec, pixel_format=pixel_format, num_frames=2)
    assert probe.probe(clip).has_alpha


def test_one_frame(tmp_path: Path) -> None:
    found = probe.probe(media.write_video(tmp_path / "a.mp4", num_frames=1))
    assert (found.kind, found.num_frames, found.fps) == ("video", 1, 24.0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "zero bytes"), (b"I am no film.\n" * 50, "damaged: Invalid data"), (b"ftyp", "damaged")],
)
def test_files_that_are_no_video(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: bytes, reason: str
) -> None:
    (tmp_path / "a.mp4").write_bytes(content)
    with pytest.raises(probe.ProbeError, match=reason):
        probe.probe(tmp_path / "a.mp4")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("with_cover", [False, True])
def test_sound_is_no_video_even_with_a_cover_picture(tmp_path: Path, with_cover: bool) -> None:
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        sound = container.add_stream("aac", rate=8000)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        silence.sample_rate = 8000
        if with_cover:
            cover = container.add_stream("png", rate=1)
            cover.width, cover.height, cover.pix_fmt = 16, 16, "rgb24"
            cover.disposition = Disposition.attached_pic
            picture = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")
            container.mux(cover.encode(picture))
        container.mux(sound.encode(silence))
        container.mux(sound.encode(None))
    with pytest.raises(probe.ProbeError, match="no video stream"):
        probe.probe(tmp_path / "a.mp4")


def test_a_playlist_in_disguise_opens_nothing(clips: Path, tmp_path: Path) -> None:
    (tmp_path / "real.mp4").write_bytes((clips / "clip.mp4").read_bytes())
    (tmp_path / "a.mp4").write_text("ffconcat version 1.0\nfile real.mp4\n", encoding="utf-8")
    assert media.decoded_frames(tmp_path / "a.mp4") == 11, "a careless reader follows it"
    with pytest.raises(probe.ProbeError, match="does not match the extension"):
        probe.probe(tmp_path / "a.mp4")


def test_unknown_extension_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(probe.ProbeError, match=r"not a video or picture: \.xyz"):
        probe.probe(tmp_path / "a.xyz")
    for name in ("a.png", "a.mp4", "a.wav"):
        with pytest.raises(probe.ProbeError, match=r"^No such file"):
            probe.probe(tmp_path / name)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_to_the_size(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = tmp_path / "a.JPG"
    Image.new("RGB", (40, 30)).save(picture, format="JPEG", exif=exif)
    found = probe.probe(picture)
    assert (found.width, found.height) == ((40, 30) if orientation < 5 else (30, 40))
    assert found.rotation == [0, 0, 180, 180, 270, 90, 90, 270][orientation - 1]
    assert (found.kind, found.num_frames, found.fps, found.codec) == ("image", 1, 0.0, "jpeg")


@pytest.mark.parametrize(
    ("name", "mode", "bits", "alpha"),
    [
        ("a.png", "RGB", 8, False),
        ("a.png", "RGBA", 8, True),
        ("a.png", "1", 1, False),
        ("a.png", "I;16", 16, False),
        ("a.webp", "RGBA", 8, True),
        ("a.bmp", "RGB", 8, False),
        ("a.jpeg", "L", 8, False),
    ],
)
def test_modes_of_pictures(tmp_path: Path, name: str, mode: str, bits: int, alpha: bool) -> None:
    picture = tmp_path / name
    Image.fromarray(np.eye(6, dtype=np.uint16)).save(picture) if mode == "I;16" else Image.new(mode, (6, 6), 1).save(
        picture
    )
    found = probe.probe(picture)
    assert (found.bit_depth, found.has_alpha, found.width) == (bits, alpha, 6)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp", "a.bmp"])
def test_truncated_pictures_are_found(tmp_path: Path, name: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    for share in (0.1, 0.5, 0.9):
        (tmp_path / name).write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(probe.ProbeError, match="damaged"):
            probe.probe(tmp_path / name)


def test_a_picture_too_large_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = media.write_picture(tmp_path / "large.png", size=(30, 30))
    allowed = media.write_picture(tmp_path / "allowed.png", size=(13, 10))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(probe.ProbeError, match="too many pixels"):
        probe.probe(large)
    assert probe.probe(allowed).width == 13
