"""The frames that come back are exactly those asked for, as a viewer sees them."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from pathlib import Path

import av
import media_makers as files
import numpy as np
import pytest
from av.stream import Disposition

from reelworks.core.shape import Shape
from reelworks.data.media import decode, probe, video
from reelworks.data.media.decode import Request, load
from reelworks.data.media.reading import MediaError

FRAMES = 36


def request(path: Path, frames: int = 5, size: tuple[int, int] = (16, 16), **choices: object) -> Request:
    return Request(path, False, Shape(frames, *size), **choices)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files.write(tmp_path_factory.mktemp("media") / "a.mp4", files.numbered(FRAMES), options={"bf": "2"})


@pytest.mark.parametrize(
    ("step", "draw", "numbers"),
    [
        (1, 0.0, [0, 1, 2, 3, 4]),
        (1, 0.999, [31, 32, 33, 34, 35]),
        (3, 0.0, [0, 3, 6, 9, 12]),
        (3, 0.5, [12, 15, 18, 21, 24]),
        (2.5, 0.0, [0, 2, 5, 7, 10]),
        (1.25, 0.4, [12, 13, 14, 15, 17]),
        (8.75, 0.999, [0, 8, 17, 26, 35]),
    ],
)
def test_the_frames_asked_for_come_back(clip: Path, step: float, draw: float, numbers: list[int]) -> None:
    wanted = request(clip, size=(24, 24), step=step, first_frame_draw=draw)
    frames = load(wanted)
    assert (frames.shape, frames.dtype) == ((5, 24, 24, 3), np.uint8)
    assert files.numbers(frames) == numbers


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("a.mkv", "libx264", {"g": "10", "bf": "3"}),
        ("a.mov", "libx265", {"x265-params": "log-level=none:keyint=10"}),
        ("a.webm", "libvpx-vp9", {"g": "10", "deadline": "realtime", "cpu-used": "8"}),
        ("a.avi", "mpeg4", {"g": "12", "bf": "2", "qmax": "2"}),  # seeks past the key frame
        ("a.avi", "libx264", {"g": "10", "bf": "2"}),
        ("a.mpg", "mpeg2video", {"g": "12", "bf": "2", "qmax": "2"}),
        ("a.m4v", "mpeg4", {"g": "12", "bf": "2", "qmax": "2"}),  # a bare stream
        ("a.mkv", "ffv1", {}),
    ],
)
def test_every_container_gives_the_right_frames(tmp_path: Path, name: str, codec: str, options: dict[str, str]) -> None:
    path = files.write(tmp_path / name, files.numbered(FRAMES), codec=codec, options=options)
    with av.open(str(path)) as container:
        decoded = [frame.to_ndarray(format="rgb24", threads=1) for frame in container.decode(video=0)]
    assert len(decoded) == FRAMES
    for draw in (0.0, 0.6, 0.999):
        expected = decode.frame_indices(FRAMES, 8, 2.5, draw)
        frames = load(request(path, 8, (32, 32), step=2.5, first_frame_draw=draw))
        assert files.differ(frames, np.stack([decoded[i] for i in expected])) < 0.6
        assert np.abs(np.array(files.numbers(frames)) - expected).max() <= 1  # the codecs' own error


def test_frames_of_a_variable_rate_are_counted_not_timed(tmp_path: Path) -> None:
    times = [0, 40, 80, 500, 520, 530, 1000, 1700, 1740, 1780]
    path = files.write(tmp_path / "a.mp4", files.numbered(10), times_ms=times)
    assert files.numbers(load(request(path, 5, (24, 24), step=2))) == [0, 2, 4, 6, 8]


def test_frames_hidden_by_an_edit_list_are_not_read(clip: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.mp4"
    options = {"avoid_negative_ts": "disabled"}
    with av.open(str(clip)) as opened, av.open(str(cut), "w", options=options) as container:
        stream = opened.streams.video[0]
        copied = container.add_stream_from_template(stream)
        step = int(1 / (stream.average_rate * stream.time_base))
        for packet in opened.demux(stream):
            if packet.dts is not None:
                packet.pts, packet.dts, packet.stream = packet.pts - 7 * step, packet.dts - 7 * step, copied
                container.mux(packet)
    assert files.numbers(load(request(cut, 3, (24, 24)))) == [7, 8, 9]


@pytest.mark.parametrize("clockwise", [90, 180, 270])
def test_phone_videos_stand_upright(tmp_path: Path, clockwise: int) -> None:
    shown = files.quarters(48, 64)
    stored = np.rot90(shown, clockwise // 90)  # a player turns it back, clockwise
    path = files.write(tmp_path / "a.mp4", [np.ascontiguousarray(stored)] * 2, options={"crf": "4"})
    files.rotate(path, clockwise)
    frames = load(request(path, 2, (48, 64)))
    assert files.differ(frames[1], shown) < 4
    assert files.differ(load(request(path, 1, (24, 32)))[0], shown[::2, ::2]) < 8


def test_a_wide_frame_is_cut_where_the_draw_says(tmp_path: Path) -> None:
    wide = np.repeat(np.linspace(0, 250, 96).astype(np.uint8)[None, :, None], 32, axis=0).repeat(3, axis=2)
    path = files.write(tmp_path / "a.mkv", [wide], codec="ffv1", pixel_format="yuv444p")
    left, centre, right = (
        load(request(path, 1, (32, 32), crop_draw=(0.5, draw)))[0].mean() for draw in (0.0, 0.5, 0.999)
    )
    np.testing.assert_allclose([left, centre, right], [40.8, 125, 209], atol=2)


@pytest.mark.parametrize(
    ("codec", "pixel_format", "size"),
    [("libx265", "yuv420p10le", (46, 62)), ("ffv1", "yuv420p10le", (47, 63)), ("ffv1", "yuv420p", (47, 63))],
)
def test_the_same_clip_gives_the_same_bytes(
    tmp_path: Path, codec: str, pixel_format: str, size: tuple[int, int]
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (3, *size, 3), dtype=np.uint8)
    options = {"x265-params": "log-level=none"} if codec == "libx265" else {}
    path = files.write(tmp_path / "a.mkv", noise, codec=codec, pixel_format=pixel_format, options=options)
    fill = np.random.default_rng(1)
    for target in (size, (16, 16), (31, 45)):
        digests = set()
        for _ in range(20):
            # Memory that others have written to: what is never initialised then differs.
            others = [np.full(int(n), n % 251, np.uint8) for n in fill.integers(10, 60_000, 40)]
            digests.add(hashlib.sha256(load(request(path, 3, target)).tobytes()).hexdigest())
            del others
        assert len(digests) == 1, target


def test_ten_bits_keep_their_greys(tmp_path: Path) -> None:
    options = {"x265-params": "log-level=none", "crf": "4"}
    path = files.write(
        tmp_path / "a.mp4", files.numbered(4), codec="libx265", pixel_format="yuv420p10le", options=options
    )
    assert files.differ(load(request(path, 4, (32, 32))), files.numbered(4)) < 1.5


def test_transparent_video_lies_over_white(tmp_path: Path) -> None:
    rgba = np.zeros((32, 32, 4), dtype=np.uint8)
    rgba[:, 16:] = (200, 0, 0, 255)
    path = files.write(tmp_path / "a.mov", [rgba] * 2, codec="qtrle", pixel_format="argb")
    frame = load(request(path, 1, (32, 32)))[0]
    assert files.differ(frame[:, :14], np.full((32, 14, 3), 255, np.uint8)) < 1
    assert files.differ(frame[:, 18:], np.broadcast_to(np.uint8([200, 0, 0]), (32, 14, 3))) < 1


def test_a_cover_picture_is_no_film(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        sound = container.add_stream("aac", rate=8000)
        cover = container.add_stream("png", rate=1)
        cover.width, cover.height, cover.pix_fmt = 16, 16, "rgb24"
        cover.disposition = Disposition.attached_pic
        picture = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")
        container.mux(cover.encode(picture))
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        silence.sample_rate = 8000
        container.mux(sound.encode(silence))
        container.mux(sound.encode(None))
    with pytest.raises(MediaError, match="no video stream that can be decoded"):
        load(request(path, 1))


def test_a_picture_beside_a_film_is_not_shown_though_it_is_larger(tmp_path: Path) -> None:
    film, path = files.write(tmp_path / "film.mkv", files.numbered(4)), tmp_path / "a.mkv"
    with av.open(str(film)) as read, av.open(str(path), "w") as container:
        still = container.add_stream("mjpeg", rate=1)
        still.width, still.height, still.pix_fmt = 640, 480, "yuvj420p"
        shown = container.add_stream_from_template(read.streams.video[0])
        still.disposition = shown.disposition = Disposition.default
        picture = av.VideoFrame.from_ndarray(np.zeros((480, 640, 3), np.uint8), format="rgb24")
        container.mux([*still.encode(picture), *still.encode(None)])
        for packet in read.demux(read.streams.video[0]):
            if packet.dts is not None:
                packet.stream = shown
                container.mux(packet)
    with video.opened(path) as opened:
        assert (opened.has_others, opened.size) == (False, files.numbered(4)[0].shape[:2])


def test_too_few_frames(clip: Path) -> None:
    with pytest.raises(MediaError, match="the file has 36 frames, 37 are needed"):
        load(request(clip, 37, first_frame_draw=0.999))
    with pytest.raises(MediaError, match="the file has 36 frames, 41 are needed"):
        load(request(clip, 5, step=10, first_frame_draw=0.9))


def test_a_clip_cut_short(clip: Path, tmp_path: Path) -> None:
    whole = clip.read_bytes()
    (tmp_path / "a.mp4").write_bytes(whole[: len(whole) // 2])  # without its index, which comes last
    with pytest.raises(MediaError, match="InvalidDataError"):
        load(request(tmp_path / "a.mp4"))
    noise = np.random.default_rng(0).integers(0, 256, (12, 64, 64, 3), dtype=np.uint8)
    fast = files.write(tmp_path / "fast.mp4", noise, container_options={"movflags": "faststart"})
    fast.write_bytes(fast.read_bytes()[: fast.stat().st_size // 2])
    assert len(load(request(fast, 2))) == 2
    with pytest.raises(MediaError, match=r"the file has \d frames, 12 are needed"):
        load(request(fast, 12))


@pytest.mark.parametrize("text", ["ffconcat version 1.0\nfile real.mp4\n", "#EXTM3U\n#EXTINF:1,\nreal.mp4\n"])
def test_a_playlist_in_disguise_opens_nothing(clip: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "real.mp4").write_bytes(clip.read_bytes())
    (tmp_path / "a.mp4").write_text(text, encoding="utf-8")
    with pytest.raises(MediaError, match=r"does not match the extension|InvalidDataError"):
        load(request(tmp_path / "a.mp4"))


def test_what_is_no_video(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"")
    with pytest.raises(MediaError, match=r"^No such file or directory$"):
        load(request(tmp_path / "none.mp4"))
    with pytest.raises(MediaError, match="Error"):
        load(request(tmp_path / "a.mp4"))


def test_a_video_of_an_unknown_codec_is_told_as_one_that_is_not_decoded(clip: Path, tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(clip.read_bytes().replace(b"avc1", b"zzz9"))
    with av.open(str(tmp_path / "a.mp4")) as container:
        assert [stream.codec_context for stream in container.streams.video] == [None]
    with pytest.raises(MediaError, match="no video stream that can be decoded"):
        load(request(tmp_path / "a.mp4"))


@pytest.mark.parametrize("clockwise", [0, 90, 180])
def test_a_video_that_changes_its_size_midway_is_scaled_to_that_of_its_beginning(
    clockwise: int, tmp_path: Path
) -> None:
    """As players show it, and as the scan has measured it; turned as its beginning is."""
    both = tmp_path / "both.mov"
    with av.open(str(both), "w") as container:
        for width, height in ((96, 64), (48, 32)):
            frame = np.full((height, width, 3), 30, np.uint8)
            frame[: height // 2, : width // 2] = 220
            part = files.write(tmp_path / f"{width}.mov", [frame] * 8, codec="mjpeg", pixel_format="yuvj420p")
            with av.open(str(part)) as opened:
                stream = container.streams.video[0] if container.streams else None
                stream = stream or container.add_stream_from_template(opened.streams.video[0])
                for number, packet in enumerate(packet for packet in opened.demux(video=0) if packet.dts is not None):
                    packet.stream, packet.time_base = stream, Fraction(1, 24)
                    packet.pts = packet.dts = number + (8 if width == 48 else 0)
                    container.mux(packet)
    if clockwise:
        files.rotate(both, clockwise)
    found = probe.probe(both)
    assert (found.height, found.width) == ((96, 64) if clockwise == 90 else (64, 96))
    assert found.num_frames == 16
    request = Request(both, False, Shape(found.num_frames, 32, 32), size=(found.height, found.width))
    frames = decode.load(request)
    first, last = frames[0].astype(int), frames[-1].astype(int)
    assert abs(first - last).mean() < 6
    assert abs(first - np.rot90(last)).mean() > 20
