"""A clip is decoded as a player shows it, whatever its tags; the catalog knows the size and the peculiarity."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
import zlib
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import av.filter
import media_makers as media
import numpy as np
import odd_media as odd
import pytest
from av.video.reformatter import ColorPrimaries, ColorRange, ColorTrc
from numpy.typing import NDArray
from PIL import Image, ImageCms, PngImagePlugin

from reelworks.core.shape import Shape
from reelworks.data.media import framing, pictures, probe, tone_map
from reelworks.data.media.decode import Frames, Request, load

BT709, BT601, YCGCO, BT2020 = 1, 5, 8, 9
LIMITED, FULL = ColorRange.MPEG, ColorRange.JPEG
RED_GREEN_BLUE = ((200, 40, 60), (30, 180, 90), (70, 50, 210))
# Weights of red and blue in luma, from the recommendations of these names.
WEIGHTS = {BT601: (0.299, 0.114), BT709: (0.2126, 0.0722), BT2020: (0.2627, 0.0593)}


def ycc(rgb: tuple[int, int, int], matrix: int, full: bool) -> list[int]:
    """Luma and chroma of 8 bits, by the definitions."""
    red, green, blue = (value / 255 for value in rgb)
    kr, kb = WEIGHTS[matrix]
    luma = kr * red + (1 - kr - kb) * green + kb * blue
    chroma = [(blue - luma) / (2 - 2 * kb), (red - luma) / (2 - 2 * kr)]
    if full:
        return [round(255 * luma), *(round(128 + 255 * c) for c in chroma)]
    return [round(16 + 219 * luma), *(round(128 + 224 * c) for c in chroma)]


def first(path: Path, height: int, width: int) -> Frames:
    """The first frame, of this size."""
    return load(Request(path, False, Shape(1, height, width)))[0]


@pytest.mark.parametrize("matrix", [BT601, BT709, BT2020])
@pytest.mark.parametrize("color_range", [LIMITED, FULL])
def test_colors_follow_the_stated_matrix_and_range(tmp_path: Path, matrix: int, color_range: ColorRange) -> None:
    tags = {"colorspace": matrix, "color_range": color_range}
    frames = [odd.flat(*ycc(rgb, matrix, color_range == FULL)) for rgb in RED_GREEN_BLUE]
    clip = odd.write_planes(tmp_path / "a.mkv", frames, tags=tags)
    found = probe.probe(clip)
    assert found.color_matrix == {BT601: "bt601", BT709: "bt709", BT2020: "bt2020"}[matrix]
    assert found.full_range == (color_range == FULL)
    shown = load(Request(clip, False, Shape(3, 32, 48)))
    for frame, rgb in zip(shown, RED_GREEN_BLUE, strict=True):
        assert np.abs(frame.astype(int) - rgb).max() <= 3


@pytest.mark.parametrize(("size", "assumed"), [((32, 48), BT601), ((720, 64), BT709), ((64, 1280), BT709)])
def test_a_matrix_that_is_not_stated_depends_on_the_size(tmp_path: Path, size: tuple[int, int], assumed: int) -> None:
    rgb = RED_GREEN_BLUE[0]
    clip = odd.write_planes(tmp_path / "a.mkv", [odd.flat(*ycc(rgb, assumed, False), size=size)])
    assert probe.probe(clip).color_matrix == ""
    assert np.abs(first(clip, *size).astype(int) - rgb).max() <= 3


@pytest.mark.parametrize(
    ("codec", "options", "down", "right"),
    [
        ("libx264", {"qp": "0"}, 0.5, 0.0),
        ("libx264", {"qp": "0", "x264-params": "chromaloc=2"}, 0.0, 0.0),
        ("libx265", {"x265-params": "log-level=none:lossless=1:bframes=0:frame-threads=1:pools=none"}, 0.5, 0.0),
        ("mpeg2video", {"qmin": "1", "qmax": "1"}, 0.5, 0.0),
        ("mpeg1video", {"qmin": "1", "qmax": "1"}, 0.5, 0.5),
    ],
    ids=["h264", "h264 top left", "hevc", "mpeg2", "mpeg1"],
)
@pytest.mark.parametrize("scale", [1, 2])
def test_chroma_lies_where_the_codec_puts_it(
    tmp_path: Path, codec: str, options: dict[str, str], down: float, right: float, scale: int
) -> None:
    """Of a grating of colours along each axis, of which a sample of chroma lies so many pixels behind that of luma."""
    size, period = 96, 16
    offset = {"across": right, "along": down}
    frames = []
    for axis in offset:
        wave = 128 + 80 * np.sin(2 * np.pi * (2 * np.arange(size // 2) + offset[axis]) / period)
        red = np.tile(wave.round().astype(np.uint8), (size // 2, 1))
        luma, blue = np.full((size, size), 128, np.uint8), np.full((size // 2,) * 2, 128, np.uint8)
        frames.append([luma, blue, red if axis == "across" else red.T])
    clip = odd.write_planes(tmp_path / "a.mkv", frames, codec=codec, pixel_format="yuv420p", options=options)
    shown = load(Request(clip, False, Shape(2, size // scale, size // scale))).astype(float)
    for frame, turned in zip(shown, (False, True), strict=True):
        redness = (frame[..., 0] - frame[..., 1]).mean(axis=1 if turned else 0)
        at = np.arange(len(redness)) * scale + (scale - 1) / 2  # centres of pixels
        phase = np.angle((redness * np.exp(-2j * np.pi * at / period)).sum() / -1j)
        assert abs(phase) * period / (2 * np.pi) < 0.05, "pixels beside the luma"


def test_a_matrix_that_cannot_be_converted_is_a_reason(tmp_path: Path) -> None:
    clip = odd.write_planes(tmp_path / "a.mkv", [odd.flat(90, 100, 110)], tags={"colorspace": YCGCO})
    with pytest.raises(probe.ProbeError, match="matrix 8"):
        probe.probe(clip)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_pixels_that_are_not_square(tmp_path: Path, name: str) -> None:
    picture = media.quarters(48, 64)
    planes = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv444p").to_ndarray()
    clip = odd.write_planes(
        tmp_path / name, [list(planes)], codec="libx264", pixel_aspect_ratio=Fraction(3, 2), options={"qp": "0"}
    )
    found = probe.probe(clip)
    assert (found.height, found.width, found.pixel_aspect_ratio) == (48, 96, 1.5)
    assert media.differ(first(clip, 48, 96), media.quarters(48, 96)) < 3


def test_an_implausible_shape_of_pixels_is_a_reason(tmp_path: Path) -> None:
    clip = odd.write_planes(
        tmp_path / "a.mp4", [odd.flat(90, 128, 128)], codec="libx264", pixel_aspect_ratio=Fraction(1, 12)
    )
    with pytest.raises(probe.ProbeError, match="1:12 is not plausible"):
        probe.probe(clip)


# EXIF orientation of each display matrix (a, b, c, d): x' = ax + cy, y' = bx + dy.
MATRICES = {
    (1, 0, 0, 1): 1, (-1, 0, 0, 1): 2, (-1, 0, 0, -1): 3, (1, 0, 0, -1): 4,
    (0, 1, 1, 0): 5, (0, 1, -1, 0): 6, (0, -1, -1, 0): 7, (0, -1, 1, 0): 8,
}  # fmt: skip


@pytest.mark.parametrize("signs", MATRICES)
def test_display_matrices_turn_and_mirror_as_exif_does(tmp_path: Path, signs: tuple[int, int, int, int]) -> None:
    picture = media.quarters(48, 64)
    clip = media.write(tmp_path / "a.mov", [picture], codec="qtrle", pixel_format="rgb24")
    a, b, c, d = (sign << 16 for sign in signs)
    media.set_matrix(clip, a, b, c, d)
    exif = Image.Exif()
    exif[0x0112] = MATRICES[signs]
    Image.fromarray(picture).save(tmp_path / "a.png", exif=exif)
    expected, found = probe.probe(tmp_path / "a.png"), probe.probe(clip)
    for name in ("height", "width", "rotation", "mirrored"):
        assert getattr(found, name) == getattr(expected, name)
    size = (found.height, found.width)
    by_pillow = load(Request(tmp_path / "a.png", True, Shape(1, *size)))[0]
    np.testing.assert_array_equal(first(clip, *size), by_pillow)


def test_a_hidden_and_delayed_start(tmp_path: Path) -> None:
    """An edit list hides three frames; a transport stream starts at 1.4 s."""
    frames = media.numbered(9, (48, 64))
    whole = media.write(tmp_path / "whole.mp4", frames)
    media.hide_first_frames(whole, tmp_path / "cut.mp4", 3)
    late = media.write(tmp_path / "late.ts", frames)
    found = probe.probe(tmp_path / "cut.mp4")
    assert (found.num_frames, found.hidden_frames, probe.probe(whole).hidden_frames) == (6, 3, 0)
    assert probe.probe(late).num_frames == 9
    with av.open(str(late)) as container:
        assert container.streams.video[0].start_time > 0
    for clip, numbers in ((tmp_path / "cut.mp4", range(3, 9)), (late, range(9))):
        assert media.numbers(load(Request(clip, False, Shape(len(numbers), 48, 64)))) == list(numbers)


def fields(n: int) -> list[odd.Planes]:
    """Frames of a bar that moves between the two fields of a frame, top field first."""
    frames = []
    for i in range(n):
        luma = np.full((64, 96), 40, np.uint8)
        for field in (0, 1):
            left = 4 * (2 * i + field)
            luma[field::2, left : left + 24] = 200
        frames.append([luma, np.full((32, 48), 128, np.uint8), np.full((32, 48), 128, np.uint8)])
    return frames


def combing(frame: Frames) -> float:
    """Mean difference of neighbouring rows."""
    return float(np.abs(np.diff(frame[..., 0].astype(int), axis=0)).mean())


@pytest.fixture(scope="module", params=["mpeg2video", "libx264"])
def interlaced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"flags": "+ildct+ilme", "top": "1", "g": "4", "b": "4M"}
    if request.param == "libx264":
        options = {"flags": "+ildct+ilme", "x264-params": "interlaced=1:tff=1:keyint=4:qp=8"}
    path = tmp_path_factory.mktemp("interlaced") / "a.mkv"
    return odd.write_planes(path, fields(9), codec=request.param, pixel_format="yuv420p", options=options)


def test_interlaced_frames_are_rebuilt_the_same_from_any_start(interlaced: Path) -> None:
    found = probe.probe(interlaced)
    assert (found.interlaced, found.num_frames) == (True, 9)
    with av.open(str(interlaced)) as container:
        woven = [frame.to_ndarray(format="rgb24", threads=1) for frame in container.decode(video=0)]
    whole = load(Request(interlaced, False, Shape(9, 64, 96)))
    assert all(combing(shown) < combing(stored) / 4 for shown, stored in zip(whole, woven, strict=True))
    for start in range(8):
        part = load(Request(interlaced, False, Shape(2, 64, 96), first_frame_draw=(start + 0.5) / 8))
        np.testing.assert_array_equal(part, whole[start : start + 2])


@pytest.mark.parametrize("sizes", [((64, 96), (32, 48)), ((32, 48), (64, 96))], ids=["smaller", "larger"])
def test_fields_are_rebuilt_within_frames_of_one_size(tmp_path: Path, sizes: tuple[tuple[int, int], ...]) -> None:
    """Recordings that were joined are rebuilt as FFmpeg rebuilds each alone, frame for frame, and scaled to the first one."""
    joined, options = tmp_path / "joined.ts", {"flags": "+ildct+ilme", "top": "1", "g": "4", "b": "4M"}
    for i, (height, width) in enumerate(sizes):
        frames = [
            [plane[: len(plane) * height // 64, : plane.shape[1] * width // 96] for plane in f] for f in fields(9)
        ]
        part = odd.write_planes(
            tmp_path / f"{i}.ts", frames, codec="mpeg2video", pixel_format="yuv420p", options=options
        )
        with joined.open("ab") as file:
            file.write(part.read_bytes())
    with av.open(str(joined)) as container:
        decoded = list(container.decode(video=0))
    alone = [rebuilt([frame for frame in decoded if (frame.height, frame.width) == size]) for size in sizes]
    expected = [frame.to_ndarray(format="rgb24", threads=1) for frame in (*alone[0], *alone[1])]
    found = probe.probe(joined)
    assert (found.interlaced, found.num_frames, found.notes.count(probe.RESIZED)) == (True, len(expected), 1)
    for shown, frame in zip(load(Request(joined, False, Shape(len(expected), *sizes[0]))), expected, strict=True):
        scaled = np.asarray(Image.fromarray(frame).resize(sizes[0][::-1], Image.Resampling.BICUBIC))
        assert media.differ(shown, scaled) < 3


def rebuilt(frames: list[av.VideoFrame]) -> list[av.VideoFrame]:
    graph = av.filter.Graph()
    source = graph.add_buffer(
        width=frames[0].width, height=frames[0].height, format=frames[0].format, time_base=Fraction(1, 25)
    )
    graph.link_nodes(
        source, graph.add("bwdif", "mode=send_frame:deint=interlaced"), graph.add("buffersink")
    ).configure()
    for frame in (*frames, None):
        graph.vpush(frame)
    return [graph.vpull() for _ in frames]


def test_progressive_video_is_not_called_interlaced(tmp_path: Path) -> None:
    assert not probe.probe(media.write_video(tmp_path / "a.mp4")).interlaced


TRANSFERS = {"pq": ColorTrc.SMPTE2084, "hlg": ColorTrc.ARIB_STD_B67}


def hdr_clip(path: Path, transfer: str, codes: NDArray[np.float64]) -> Path:
    """A clip in BT.2020 of 10 bits whose frames are grey, of these code values in [0, 1]."""
    frames = [odd.flat(round(64 + 876 * code), 512, 512, dtype=np.uint16) for code in codes]
    tags = {"colorspace": BT2020, "color_range": LIMITED, "color_primaries": ColorPrimaries.BT2020}
    tags["color_trc"] = TRANSFERS[transfer]
    return odd.write_planes(path, frames, pixel_format="yuv444p10le", tags=tags)


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_hdr_is_tone_mapped(tmp_path: Path, transfer: str) -> None:
    """Greys stay grey and in order; black is black; light of a tenth of SDR's white is kept as it is."""
    codes = np.linspace(0, 1, 12)
    clip = hdr_clip(tmp_path / "a.mkv", transfer, codes)
    found = probe.probe(clip)
    assert (found.hdr, found.bit_depth, found.color_matrix) == (transfer, 10, "bt2020")
    shown = load(Request(clip, False, Shape(12, 32, 48))).astype(int)
    assert np.ptp(shown, axis=(1, 2, 3)).max() <= 1
    greys = shown[:, 16, 24, 1]
    assert greys[0] == 0
    assert greys[-1] == 255
    assert (np.diff(greys) >= 0).all()
    to_light = tone_map.pq_to_light if transfer == "pq" else tone_map.hlg_to_light
    light = to_light(np.repeat(codes[:, None], 3, axis=1))[:, 1]
    dark = light < 0.1 * tone_map.SDR_WHITE
    expected = 255 * (light[dark] / tone_map.SDR_WHITE) ** (1 / 2.4)
    np.testing.assert_allclose(greys[dark], expected, atol=2)


@pytest.mark.slow
@pytest.mark.parametrize("transfer", TRANSFERS)
def test_hdr_colors_below_the_knee_are_those_of_ffmpeg(tmp_path: Path, transfer: str) -> None:
    """FFmpeg's scaler converts with its own code; where light is not compressed, both give the same colours."""
    values = np.random.default_rng(1).integers((150, 480, 480), (380, 544, 544), (24, 3)).astype(np.uint16)
    planes = [np.broadcast_to(np.repeat(plane, 2), (32, 48)) for plane in values.T]  # a stripe for each colour
    tags = {"colorspace": BT2020, "color_range": LIMITED, "color_primaries": ColorPrimaries.BT2020}
    tags["color_trc"] = TRANSFERS[transfer]
    clip = odd.write_planes(tmp_path / "a.mkv", [planes], pixel_format="yuv444p10le", tags=tags)
    to_sdr = {"dst_color_trc": ColorTrc.BT709, "dst_color_primaries": ColorPrimaries.BT709}
    with av.open(str(clip)) as container:
        frame = next(container.decode(video=0))
        reference = frame.reformat(format="rgb24", threads=1, **to_sdr).to_ndarray()[0, ::2].astype(int)
    shown = first(clip, 32, 48)[0, ::2].astype(int)
    inside = (shown.min(axis=1) > 8) & (shown.max(axis=1) < 150)  # in the gamut of BT.709, and not compressed
    assert inside.sum() >= 12
    off = np.abs(shown[inside] - reference[inside])
    assert off.max() <= 8  # FFmpeg interpolates in a table
    assert off.mean() < 1.5


def test_pq_and_hlg_are_the_curves_of_bt_2100() -> None:
    """The values are those of ITU-R BT.2408-7, tables 1 and 2: reference white is at 58 % of PQ and 75 % of HLG."""
    assert tone_map.light_to_pq(203.0) == pytest.approx(0.58, abs=0.001)
    assert tone_map.light_to_pq(10_000.0) == pytest.approx(1)
    assert tone_map.light_to_pq(1000.0) == pytest.approx(0.7518, abs=0.0005)
    light = np.geomspace(0.01, 10_000, 50)
    np.testing.assert_allclose(tone_map.pq_to_light(tone_map.light_to_pq(light)), light, rtol=1e-3)
    assert tone_map.hlg_to_light(np.full(3, 0.75))[0] == pytest.approx(203, abs=1)
    assert tone_map.hlg_to_light(np.ones(3))[0] == pytest.approx(1000, rel=1e-3)


def test_the_eetf_keeps_what_is_dark_and_ends_at_white() -> None:
    light = np.linspace(0, 1000, 200)
    mapped = tone_map.eetf(light)
    np.testing.assert_allclose(mapped[light < 80], light[light < 80], rtol=1e-3, atol=1e-3)
    assert (np.diff(mapped) > -1e-3).all()
    assert mapped[-1] == pytest.approx(tone_map.SDR_WHITE, rel=1e-3)
    assert tone_map.eetf(np.array([4000.0]))[0] == pytest.approx(tone_map.SDR_WHITE, rel=1e-3)


def test_primaries_of_bt_2020_become_those_of_bt_709() -> None:
    """The green of BT.709, given in BT.2020 (columns of BT.2087's M1), is pure green again; white stays white."""
    green = np.array([0.3293, 0.9195, 0.0880]) ** (1 / 2.4) * 65535
    codes = np.round([[green, [65535, 65535, 65535]]]).astype(np.uint16)
    shown = tone_map.to_sdr(codes, "", "bt2020")[0].astype(int)
    assert np.abs(shown - [[0, 255, 0], [255, 255, 255]]).max() <= 8
    assert shown[1].min() >= 254


def stating(path: Path, pixels: NDArray[np.uint8], primaries: int, transfer: int) -> Path:
    """A picture that states its colours by these numbers of ISO/IEC 23091-2, and has no ICC profile; an animation for .avifs."""
    import pillow_heif

    numbers, picture = bytes([primaries, transfer]), Image.fromarray(pixels)
    if path.suffix == ".png":
        picture.save(path)
        chunk = b"cICP" + numbers + b"\0\1"
        chunk = struct.pack(">I", 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        path.write_bytes(path.read_bytes().replace(data := path.read_bytes()[8:33], data + chunk, 1))
        return path
    if path.suffix == ".heic":
        pillow_heif.from_pillow(picture).save(path, quality=-1)
    else:
        others = [picture] * 2 if path.suffix == ".avifs" else []
        picture.save(path, "AVIF", quality=100, subsampling="4:4:4", save_all=bool(others), append_images=others)
    content = bytearray(path.read_bytes())
    at = content.index(b"nclx")
    content[at + 4 : at + 8] = bytes([0, numbers[0], 0, numbers[1]])
    path.write_bytes(content)
    return path


def linear(codes: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(codes <= 0.04045, codes / 12.92, ((codes + 0.055) / 1.055) ** 2.4)


def srgb(light: NDArray[np.float64]) -> NDArray[np.float64]:
    light = light.clip(0, 1)
    return np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)


def xyz(*corners: tuple[float, float]) -> NDArray[np.float64]:
    """The matrix from linear light of primaries at x and y to CIE XYZ, with the white of D65."""
    columns = np.array([(x / y, 1, (1 - x - y) / y) for x, y in (*corners, (0.3127, 0.3290))]).T
    return columns[:, :3] * np.linalg.solve(columns[:, :3], columns[:, 3])


SRGB = xyz((0.64, 0.33), (0.30, 0.60), (0.15, 0.06))
GAMUTS = {12: xyz((0.68, 0.32), (0.265, 0.69), (0.15, 0.06)), 9: xyz((0.708, 0.292), (0.17, 0.797), (0.131, 0.046))}


@pytest.mark.parametrize("suffix", ["png", "avif", "avifs", "heic"])
@pytest.mark.parametrize("primaries", GAMUTS)
def test_a_wide_gamut_that_a_picture_states_is_converted(tmp_path: Path, suffix: str, primaries: int) -> None:
    """As chromaticities and the curve of sRGB say, in float64; the catalog names it, and masks keep their numbers."""
    colors = np.array([(200, 60, 60), (60, 200, 60), (60, 60, 200), (128, 128, 128)], np.uint8)
    pixels = np.repeat(np.repeat(colors[None], 16, axis=1), 32, axis=0)
    path = stating(tmp_path / f"a.{suffix}", pixels, primaries, 13)
    found = probe.probe(path)
    assert (found.hdr, pictures.is_srgb(found.icc_profile)) == ("", False)
    wanted = 255 * srgb(linear(colors / 255) @ (np.linalg.inv(SRGB) @ GAMUTS[primaries]).T)
    request = Request(path, found.kind == "image", Shape(found.num_frames, 32, 64))
    shown = load(request)[-1, 16, 8::16]
    # Saturated colours of the others are coded with loss.
    assert np.abs(shown - wanted).max() < (2 if suffix == "png" else 10)
    kept = load(replace(request, nearest=True))[-1, 16, 8::16]
    assert np.abs(kept.astype(int) - colors).max() < 4


def test_p3_that_a_video_states_is_converted(tmp_path: Path) -> None:
    """As that of pictures, but with the gamma of BT.1886."""
    colors = np.array([(200, 60, 60), (60, 200, 60), (128, 128, 128)])
    frames = [odd.flat(*ycc((red, green, blue), BT709, full=True)) for red, green, blue in colors.tolist()]
    tags = {"colorspace": BT709, "color_range": FULL, "color_primaries": ColorPrimaries.SMPTE432}
    shown = load(Request(odd.write_planes(tmp_path / "a.mkv", frames, tags=tags), False, Shape(3, 32, 48)))[:, 16, 24]
    light = (colors / 255) ** 2.4 @ (np.linalg.inv(SRGB) @ GAMUTS[12]).T
    assert np.abs(shown - 255 * light.clip(0, 1) ** (1 / 2.4)).max() < 5


def test_chromaticities_of_a_png_are_a_gamut(tmp_path: Path) -> None:
    """As cICP states it; those of sRGB are none."""
    pixels = np.full((8, 8, 3), (60, 200, 60), np.uint8)
    wanted = load(Request(stating(tmp_path / "a.png", pixels, 12, 13), True, Shape(1, 8, 8)))
    for red, is_p3 in ((0.68, True), (0.64, False)):
        corners = (
            0.3127,
            0.3290,
            red,
            0.32 if is_p3 else 0.33,
            *((0.265, 0.69) if is_p3 else (0.30, 0.60)),
            0.15,
            0.06,
        )
        info = PngImagePlugin.PngInfo()
        info.add(b"cHRM", struct.pack(">8I", *(round(100_000 * value) for value in corners)))
        Image.fromarray(pixels).save(tmp_path / "b.png", pnginfo=info)
        shown = load(Request(tmp_path / "b.png", True, Shape(1, 8, 8)))
        assert np.array_equal(shown[0], wanted[0] if is_p3 else pixels)
        info.add(b"sRGB", b"\0")  # which counts in place of chromaticities
        Image.fromarray(pixels).save(tmp_path / "b.png", pnginfo=info)
        assert np.array_equal(load(Request(tmp_path / "b.png", True, Shape(1, 8, 8)))[0], pixels)


@pytest.mark.parametrize("suffix", ["png", "avif", "heic"])
@pytest.mark.parametrize(("transfer", "number"), [("pq", 16), ("hlg", 18)])
def test_hdr_that_a_picture_states_is_that_of_such_a_video(
    tmp_path: Path, suffix: str, transfer: str, number: int
) -> None:
    codes = np.array([30, 80, 130, 190])
    pixels = np.broadcast_to(np.repeat(codes, 12)[None, :, None], (32, 48, 3)).astype(np.uint8)
    path = stating(tmp_path / f"a.{suffix}", pixels, 9, number)
    found = probe.probe(path)
    assert (found.hdr, found.icc_profile) == (transfer, "")
    shown = load(Request(path, True, Shape(1, 32, 48)))[0, 16, 6::12]
    video = load(Request(hdr_clip(tmp_path / "a.mkv", transfer, codes / 255), False, Shape(4, 32, 48)))[:, 16, 24]
    assert np.abs(shown.astype(int) - video).max() <= (2 if suffix == "png" else 6)


@pytest.mark.parametrize(
    "text", [b"w\0" + b"x" * 70_000, b"w\0the IDAT chunk", b"w\0PQ by cICP, see", b"x" * 65_486 + b"cICP"]
)
def test_colors_that_a_png_states_are_in_a_chunk_of_their_own(tmp_path: Path, text: bytes) -> None:
    """Whatever the texts before it have, as workflows of generators that are longer than the start of a file."""
    path = stating(tmp_path / "a.png", np.full((8, 8, 3), 90, np.uint8), 12, 13)
    head, tail = path.read_bytes()[:33], path.read_bytes()[33:]
    chunk = struct.pack(">I", len(text)) + b"tEXt" + text + struct.pack(">I", zlib.crc32(b"tEXt" + text))
    path.write_bytes(head + chunk + tail)
    assert probe.probe(path).icc_profile == "Display P3"


def test_colors_are_converted_at_the_size_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a picture as of a video: a picture of 45 MP would take gigabytes in floats."""
    sizes, to_sdr = list[tuple[int, ...]](), tone_map.to_sdr
    monkeypatch.setattr(tone_map, "to_sdr", lambda codes, *how: sizes.append(codes.shape) or to_sdr(codes, *how))
    path = stating(tmp_path / "a.png", np.full((512, 768, 3), 130, np.uint8), 9, 16)
    for resize in (framing.FILTERS["bicubic"], framing.FILTERS["area"]):
        assert len(np.unique(load(Request(path, True, Shape(1, 32, 48), resize=resize)))) == 1
    assert sizes == [(32, 48, 3)] * 2


def wide_profile() -> bytes:
    """The profile of a made-up display: sRGB with red and green exchanged, so that conversion shows."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    red, green = data.index(b"rXYZ"), data.index(b"gXYZ")
    data[red : red + 4], data[green : green + 4] = b"gXYZ", b"rXYZ"
    at = data.index("sRGB".encode("utf-16-be"))
    data[at : at + 8] = "Odd ".encode("utf-16-be")
    return bytes(data)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif", "a.webp", "a.avif", "a.heic"])
def test_a_color_profile_is_converted_to_srgb(tmp_path: Path, name: str) -> None:
    import pillow_heif

    pillow_heif.register_heif_opener()
    picture = Image.new("RGB", (64, 64), (210, 30, 40))
    picture.save(tmp_path / name, icc_profile=wide_profile(), quality=100)
    found = probe.probe(tmp_path / name)
    assert (found.kind, found.height, found.width) == ("image", 64, 64)
    assert found.icc_profile.startswith("Odd")
    shown = load(Request(tmp_path / name, True, Shape(1, 64, 64)))[0].astype(int)
    assert np.abs(shown[8:-8, 8:-8] - [30, 210, 40]).max() <= 8
    mask = load(Request(tmp_path / name, True, Shape(1, 64, 64), nearest=True))[0].astype(int)
    assert np.abs(mask[8:-8, 8:-8] - [210, 30, 40]).max() <= 8, "numbers of masks are kept"


def test_profiles_that_cannot_be_used_change_nothing(tmp_path: Path) -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for i, profile in enumerate((b"no profile", srgb, srgb[:200])):
        Image.new("RGB", (8, 8), (210, 30, 40)).save(tmp_path / f"{i}.png", icc_profile=profile)
        shown = load(Request(tmp_path / f"{i}.png", True, Shape(1, 8, 8)))
        np.testing.assert_array_equal(shown[0, 0, 0], (210, 30, 40))
    Image.new("L", (8, 8), 77).save(tmp_path / "grey.png", icc_profile=srgb)
    assert probe.probe(tmp_path / "grey.png").icc_profile == ""
    assert (load(Request(tmp_path / "grey.png", True, Shape(1, 8, 8))) == 77).all()


def profile_of_curve(curve: bytes, name: str = "sRGB curve") -> bytes:
    """Pillow's profile of sRGB, of which all channels have another curve and the name is this one of ten letters."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    at = data.index("sRGB built".encode("utf-16-be"))
    data[at : at + 20] = name.encode("utf-16-be")
    for i in range(int.from_bytes(data[128:132], "big")):
        entry = 132 + 12 * i
        if data[entry : entry + 4] in (b"rTRC", b"gTRC", b"bTRC"):
            data[entry + 4 : entry + 12] = len(data).to_bytes(4, "big") + len(curve).to_bytes(4, "big")
    data[:4] = (len(data) + len(curve)).to_bytes(4, "big")
    return bytes(data + curve)


def curve_of(exponent: float) -> bytes:
    return b"curv" + bytes(4) + (1).to_bytes(4, "big") + round(exponent * 256).to_bytes(2, "big")


def curve_as_a_table(entries: int) -> bytes:
    """The curve of IEC 61966-2-1 as profiles of version 2 have it."""
    codes = np.linspace(0, 1, entries)
    light = np.where(codes <= 0.04045, codes / 12.92, ((codes + 0.055) / 1.055) ** 2.4)
    return b"curv" + bytes(4) + entries.to_bytes(4, "big") + np.round(light * 65535).astype(">u2").tobytes()


@pytest.mark.parametrize("curve", [curve_of(1), curve_of(1.8), curve_of(2.2)], ids=["linear", "1.8", "2.2"])
def test_a_profile_is_srgb_by_its_colors_and_not_by_its_name(tmp_path: Path, curve: bytes) -> None:
    picture = Image.fromarray(media.quarters(32, 32) // 5)
    picture.save(tmp_path / "a.png", icc_profile=profile_of_curve(curve))
    with Image.open(tmp_path / "a.png") as stored:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(stored.info["icc_profile"]))
        expected = ImageCms.profileToProfile(stored, profile, ImageCms.createProfile("sRGB"))
    assert expected is not None
    assert media.differ(np.asarray(expected), np.asarray(picture)) > 1
    np.testing.assert_array_equal(load(Request(tmp_path / "a.png", True, Shape(1, 32, 32)))[0], np.asarray(expected))
    assert not pictures.is_srgb(probe.probe(tmp_path / "a.png").icc_profile)


@pytest.mark.parametrize("entries", [1024, 4096, 64])
def test_a_rounded_profile_of_srgb_changes_nothing(tmp_path: Path, entries: int) -> None:
    picture = Image.fromarray(media.quarters(32, 32) // 2)
    picture.save(tmp_path / "a.png", icc_profile=profile_of_curve(curve_as_a_table(entries)))
    np.testing.assert_array_equal(load(Request(tmp_path / "a.png", True, Shape(1, 32, 32)))[0], np.asarray(picture))
    name = probe.probe(tmp_path / "a.png").icc_profile
    assert name.startswith("sRGB curve")
    assert pictures.is_srgb(name)


@pytest.mark.parametrize("color", [(255, 255, 255), (0, 128, 255)])
def test_transparency_shows_the_background(tmp_path: Path, color: tuple[int, int, int]) -> None:
    half = np.zeros((8, 8, 4), np.uint8)
    half[..., 0], half[..., 3] = 200, 51  # a fifth of it covers
    half[:4, :, 3] = 0
    Image.fromarray(half).save(tmp_path / "a.png")
    media.write(tmp_path / "a.mov", [half], codec="qtrle", pixel_format="argb")
    covered = np.array(color) * 0.8 + np.array([200, 0, 0]) * 0.2
    for name in ("a.png", "a.mov"):
        request = Request(tmp_path / name, name == "a.png", Shape(1, 8, 8), alpha_color=color)
        shown = load(request)[0].astype(int)
        np.testing.assert_array_equal(shown[:4], np.broadcast_to(color, (4, 8, 3)))
        assert np.abs(shown[4:] - covered).max() <= 1


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="FFmpeg's program is not installed")
@pytest.mark.parametrize("matrix", [BT601, BT709])
def test_size_and_colors_are_those_of_ffmpeg(tmp_path: Path, matrix: int) -> None:
    tags = {"colorspace": matrix, "color_range": LIMITED}
    clip = odd.write_planes(tmp_path / "a.mkv", [odd.flat(120, 90, 170)], tags=tags, pixel_aspect_ratio=Fraction(4, 3))
    command = ["ffmpeg", "-v", "error", "-i", str(clip), "-vf", "scale=iw*sar:ih", "-pix_fmt", "rgb24"]
    raw = subprocess.run([*command, "-f", "rawvideo", "-"], capture_output=True, check=True).stdout
    found = probe.probe(clip)
    reference = np.frombuffer(io.BytesIO(raw).getvalue(), np.uint8).reshape(found.height, found.width, 3)
    assert media.differ(first(clip, found.height, found.width), reference) < 2
