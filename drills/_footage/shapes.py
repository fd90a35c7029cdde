"""Turned, mirrored and cropped frames, pixels that are not square, odd sizes, transparency, fields, and animations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path

import numbered_frames as drawn
import numpy as np
from numbered_frames import SIZE, Frame
from PIL import Image

from drills._footage import boxes
from drills._footage.case import Case, Shop, Words, underlined
from drills._footage.codecs import MPEG2, MPEG4, VP8, VP9, X264, x265

_B2: Words = (*X264, "-bf", "2")
_HEVC: Words = (*x265(bframes=2), "-tag:v", "hvc1")
_NUMBERS = tuple(range(24))
_LOSSY = 8.0  # levels on average by which encoded frames differ from drawn ones, at the edges of colours above all


def _turned(words: Words, quarters: int, mirrored: bool, wide: int, high: int, shop: Shop, path: Path) -> None:
    shop.film(path, words, filters=f"setsar={wide}/{high}")
    boxes.turn(path, quarters, mirrored=mirrored)


def _turns() -> Iterator[Case]:
    for name, words in {"h264": _B2, "hevc": _HEVC, "mpeg4": (*MPEG4, "-bf", "2")}.items():
        for suffix in (".mp4", ".mov"):
            for quarters in range(4):
                for mirrored in (False, True):
                    for wide, high in ((1, 1), (2, 1), (3, 4)):
                        if (name != "h264" and (wide, high) == (3, 4)) or (quarters, mirrored, wide) == (0, False, 1):
                            continue
                        kind = f"{90 * quarters}{'_mirrored' if mirrored else ''}_pixels_{wide}_{high}"
                        make = partial(_turned, words, quarters, mirrored, wide, high)
                        yield Case(f"turned_{kind}_{name}{underlined(suffix)}", suffix, make)


def _pixels(words: Words, filters: str, more: Words, shop: Shop, path: Path) -> None:
    shop.copy(shop.film(f"whole{path.suffix}", words, filters=filters), path, *more)


def _anamorphic() -> Iterator[Case]:
    """Pixels whose shape is told by the stream, by the container, or by both otherwise."""
    mpeg2 = (*MPEG2, "-bf", "2")
    films: list[tuple[str, Words, str]] = [
        ("h264", _B2, ".mp4 .mkv .ts .avi .flv .mov"),
        ("mpeg2", mpeg2, ".mpg .ts .mkv .mxf"),
        ("mpeg4", (*MPEG4, "-bf", "2"), ".avi .mp4 .mkv"),
        ("vp9", VP9, ".webm .mp4"),
        ("prores", ("-c:v", "prores_ks"), ".mov"),
        ("ffv1", ("-c:v", "ffv1"), ".mkv .avi"),
    ]
    for name, words, suffixes in films:
        for suffix in suffixes.split():
            annexb = ("-bsf:v", "h264_mp4toannexb") if name == "h264" and suffix == ".avi" else ()
            rate = ("-r", "25") if suffix == ".mxf" else ()
            for kind, filters, more in (
                ("wide", "setsar=16/11", ()),
                ("narrow", "setsar=8/9", ()),
                ("container", "setsar=1", ("-aspect", "2")),
                ("both", "setsar=2", ("-aspect", "4/3")),
            ):
                make = partial(_pixels, (*words, *annexb, *rate), filters, more)
                yield Case(f"pixels_{kind}_{name}{underlined(suffix)}", suffix, make)


# --- crops by the container: the program shows whole frames before version 7.1, so that views are constructed


def _crop(shown: Frame, left: int, top: int, right: int, bottom: int) -> Frame:
    height, width = shown.shape[:2]
    return shown[top : height - bottom, left : width - right]


def _view(shown: Frame, crop: tuple[int, int, int, int], quarters: int, mirrored: bool, ratio: Fraction) -> Frame:
    """Return a frame as a player shows it: cropped, stretched to square pixels, mirrored and turned."""
    found = _crop(shown, *crop)
    if ratio != 1:
        size = (round(found.shape[1] * ratio), found.shape[0])
        found = np.asarray(Image.fromarray(found).resize(size, Image.Resampling.BICUBIC))
    return drawn.turned(found, quarters + 4 * mirrored)


Crop = tuple[int, int, int, int]  # pixels at the left, top, right and bottom
_CROPS: dict[str, Crop] = {
    "bars": (0, 12, 0, 12),
    "sides": (16, 0, 16, 0),
    "left": (32, 0, 0, 0),
    "right": (0, 0, 16, 0),
    "top": (0, 16, 0, 0),
    "bottom": (0, 0, 0, 8),
    "all": (16, 8, 32, 16),
}


def _clap(
    words: Words, entry: bytes, crop: Crop, quarters: int, mirrored: bool, ratio: Fraction, shop: Shop, path: Path
) -> None:
    shop.film(path, words, filters=f"setsar={ratio.numerator}/{ratio.denominator}")
    left, top, right, bottom = crop
    width, height = SIZE[0] - left - right, SIZE[1] - top - bottom
    boxes.crop_mp4(path, entry, width, height, (left - right) // 2, (top - bottom) // 2)
    boxes.turn(path, quarters, mirrored=mirrored)


def _clapped() -> Iterator[Case]:
    films: list[tuple[str, Words, bytes, str]] = [
        ("h264", _B2, b"avc1", ".mp4 .mov"),
        ("hevc", _HEVC, b"hvc1", ".mp4 .mov"),
        ("mpeg4", (*MPEG4, "-bf", "2"), b"mp4v", ".mp4"),
        ("prores", ("-c:v", "prores_ks", "-profile:v", "1"), b"apcs", ".mov"),
        ("vp9", VP9, b"vp09", ".mp4"),
    ]
    for name, words, entry, suffixes in films:
        for suffix in suffixes.split():
            for kind, crop in _CROPS.items():
                yield _cropped(f"clap_{kind}_{name}", suffix, partial(_clap, words, entry), crop)
    for kind in ("bars", "all"):
        for quarters in (1, 2, 3):
            for mirrored in (False, True):
                for ratio in (Fraction(1), Fraction(2)):
                    make = partial(_clap, _B2, b"avc1")
                    name = f"clap_{kind}_{90 * quarters}{'_mirrored' * mirrored}_pixels_{ratio}"
                    yield _cropped(name, ".mp4", make, _CROPS[kind], quarters, mirrored, ratio)


def _cropped(
    name: str,
    suffix: str,
    make: Callable[..., object],
    crop: Crop,
    quarters: int = 0,
    mirrored: bool = False,
    ratio: Fraction = Fraction(1),
) -> Case:
    choice = (crop, quarters, mirrored, ratio)
    view = partial(_view, crop=crop, quarters=quarters, mirrored=mirrored, ratio=ratio)
    made = partial(make, *choice)
    return Case(f"{name}{underlined(suffix)}", suffix, made, numbers=_NUMBERS, view=view, rate=24.0, tolerance=_LOSSY)


def _pixel_crop(
    words: Words, crop: Crop, quarters: int, mirrored: bool, ratio: Fraction, shop: Shop, path: Path
) -> None:
    """Let the program mkvpropedit write the crop, with the size of display that belongs to it."""
    shop.film(path, words)
    left, top, right, bottom = crop
    settings = dict(zip(("left", "top", "right", "bottom"), crop, strict=True))
    sets = [word for side, value in settings.items() if value for word in ("--set", f"pixel-crop-{side}={value}")]
    width, height = round((SIZE[0] - left - right) * ratio), SIZE[1] - top - bottom
    sets += ["--set", f"display-width={width}", "--set", f"display-height={height}", "--set", "display-unit=0"]
    shop.tool("mkvpropedit", "-q", path, "--edit", "track:v1", *sets)


def _inserted(words: Words, crop: Crop, quarters: int, mirrored: bool, ratio: Fraction, shop: Shop, path: Path) -> None:
    """Write the crop alone, byte by byte, into a file without an index."""
    shop.film(path, (*words, "-live", "1"))
    settings = dict(zip(("left", "top", "right", "bottom"), crop, strict=True))
    boxes.crop_mkv(path, **{side: value for side, value in settings.items() if value})


def _matroska() -> Iterator[Case]:
    films: list[tuple[str, Words, str]] = [
        ("h264", _B2, ".mkv"),
        ("hevc", x265(bframes=2), ".mkv"),
        ("vp9", VP9, ".webm .mkv"),
        ("mpeg2", (*MPEG2, "-bf", "2"), ".mkv"),
        ("ffv1", ("-c:v", "ffv1"), ".mkv"),
    ]
    for name, words, suffixes in films:
        for suffix in suffixes.split():
            for kind, crop in _CROPS.items():
                yield _cropped(f"crop_{kind}_{name}", suffix, partial(_pixel_crop, words), crop)
            yield _cropped(f"crop_alone_{name}", suffix, partial(_inserted, words), _CROPS["bars"])
    for kind in ("bars", "all"):
        ratio = Fraction(3, 2)
        yield _cropped(f"crop_{kind}_pixels", ".mkv", partial(_pixel_crop, _B2), _CROPS[kind], ratio=ratio)


def _rolled(words: Words, crop: Crop, quarters: int, mirrored: bool, ratio: Fraction, shop: Shop, path: Path) -> None:
    """Let the film be turned by the angle of a projection, counter-clockwise."""
    _pixel_crop(words, crop, 0, False, ratio, shop, path)
    degrees = {1: -90, 2: 180, 3: 90}[quarters]
    roll = ("--set", "projection-type=0", "--set", f"projection-pose-roll={degrees}")
    shop.tool("mkvpropedit", "-q", path, "--edit", "track:v1", *roll)


def _rolls() -> Iterator[Case]:
    for kind, crop in {"whole": (0, 0, 0, 0), "bars": _CROPS["bars"]}.items():
        for quarters in (1, 2, 3):
            yield _cropped(f"rolled_{kind}_{90 * quarters}", ".mkv", partial(_rolled, _B2), crop, quarters)


# --- sizes, transparency, fields


def _sized(words: Words, size: tuple[int, int], shop: Shop, path: Path) -> None:
    shop.film(path, words, size=size)


_ODD: list[tuple[str, Words, str]] = [
    ("ffv1", ("-c:v", "ffv1", "-pix_fmt", "yuv420p"), ".mkv"),
    ("vp9", VP9, ".webm"),
    ("vp8", VP8, ".webm"),
    ("h264_444", (*X264, "-pix_fmt", "yuv444p"), ".mp4"),
    ("h264_rgb", ("-c:v", "libx264rgb", "-crf", "8"), ".mkv"),
    ("hevc_444", (*x265(), "-pix_fmt", "yuv444p"), ".mkv"),
    ("mpeg4", (*MPEG4, "-bf", "2"), ".avi"),
    ("mpeg2", (*MPEG2, "-bf", "2"), ".mpg"),
    ("mjpeg", ("-c:v", "mjpeg", "-q:v", "2", "-pix_fmt", "yuvj420p"), ".avi"),
    ("png", ("-c:v", "png"), ".mov"),
    ("theora", ("-c:v", "libtheora", "-q:v", "9"), ".ogv"),
    ("raw", ("-c:v", "rawvideo", "-pix_fmt", "yuv420p"), ".avi"),
    ("wmv2", ("-c:v", "wmv2", "-q:v", "2"), ".wmv"),
    ("prores", ("-c:v", "prores_ks"), ".mov"),
    ("av1", ("-c:v", "libaom-av1", "-crf", "15", "-cpu-used", "8"), ".mp4"),
]
_SIZES = {"99x77": (99, 77), "130x98": (130, 98), "96x129": (96, 129), "200x64": (200, 64)}


def _transparent(words: Words, shop: Shop, path: Path) -> None:
    alpha = "if(lt(X,W/3),0,if(lt(X,2*W/3),128,255))"
    shop.film(path, words, filters=f"format=gbrap,geq=r='r(X,Y)':g='g(X,Y)':b='b(X,Y)':a='{alpha}'")


_ALPHA: list[tuple[str, Words, str, str | None]] = [
    ("vp9", (*VP9, "-pix_fmt", "yuva420p", "-auto-alt-ref", "0"), ".webm .mkv", "libvpx-vp9"),
    ("vp8", (*VP8, "-pix_fmt", "yuva420p", "-auto-alt-ref", "0"), ".webm .mkv", "libvpx"),
    ("prores", ("-c:v", "prores_ks", "-profile:v", "4444", "-pix_fmt", "yuva444p10le"), ".mov .mkv", None),
    ("ffv1", ("-c:v", "ffv1", "-pix_fmt", "bgra"), ".mkv .avi", None),
    ("ffv1_420", ("-c:v", "ffv1", "-pix_fmt", "yuva420p"), ".mkv", None),
    ("png", ("-c:v", "png", "-pix_fmt", "rgba"), ".mov .avi", None),
    ("qtrle", ("-c:v", "qtrle", "-pix_fmt", "argb"), ".mov", None),
    ("utvideo", ("-c:v", "utvideo", "-pix_fmt", "gbrap"), ".avi", None),
    ("huffyuv", ("-c:v", "huffyuv", "-pix_fmt", "bgra"), ".avi", None),
    ("raw", ("-c:v", "rawvideo", "-pix_fmt", "bgra"), ".avi", None),
    ("magicyuv", ("-c:v", "magicyuv", "-pix_fmt", "gbrap"), ".avi", None),
]


def _fields(words: Words, filters: str, size: tuple[int, int], rate: str, shop: Shop, path: Path) -> None:
    shop.film(path, words, filters=filters, size=size, rate=rate)


_LACED: Words = ("-flags", "+ildct+ilme")
_INTERLACED: list[tuple[str, Words, str, str]] = [
    ("mpeg2", (*MPEG2, "-bf", "2", *_LACED), ".mpg .ts .mkv .mxf .mov", "25"),
    ("h264", (*_B2, *_LACED), ".mp4 .ts .mkv .mov", "25"),
    ("mpeg4", (*MPEG4, *_LACED), ".avi .mp4", "25"),
    ("prores", ("-c:v", "prores_ks", *_LACED), ".mov", "25"),
    ("ffv1", ("-c:v", "ffv1"), ".mkv", "25"),
    ("hevc", x265(bframes=2, interlace=1), ".mp4 .mkv", "25"),
]


def cases() -> Iterator[Case]:
    """Yield the cases of shapes."""
    yield from _turns()
    yield from _anamorphic()
    yield from _clapped()
    yield from _matroska()
    yield from _rolls()
    for name, words, suffix in _ODD:
        for kind, size in _SIZES.items():
            yield Case(f"size_{kind}_{name}", suffix, partial(_sized, words, size))
    for name, words, suffixes, decoder in _ALPHA:
        for suffix in suffixes.split():
            yield Case(f"alpha_{name}{underlined(suffix)}", suffix, partial(_transparent, words), decoder=decoder)
    for name, words, suffixes, rate in _INTERLACED:
        for suffix in suffixes.split():
            for order in ("tff", "bff"):
                filters = f"setfield={order}"
                flags = (
                    ("-x264-params", f"{order}=1")
                    if name == "h264"
                    else ("-field_order", "tt" if order == "tff" else "bb")
                )
                make = partial(_fields, (*words, *flags), filters, SIZE, rate)
                yield Case(f"fields_{order}_{name}{underlined(suffix)}", suffix, make)
