"""Files of several streams of pictures: which of them players show is known by the way they were made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from drills._footage import boxes
from drills._footage.case import Case, Shop, Words, underlined
from drills._footage.codecs import MPEG2, MPEG4, X264

_B2: Words = (*X264, "-bf", "2")
_SMALL, _LARGE = (64, 48), (128, 96)
_JPEG: Words = ("-c:v", "mjpeg", "-q:v", "2", "-pix_fmt", "yuvj420p")
_PNG: Words = ("-c:v", "png")
_DISPOSITION = "-disposition:v:{}"


def _two(first: Path, second: Path, words: Words, shop: Shop, path: Path) -> None:
    shop.copy(first, path, "-map", "0:v", "-map", "1:v", *words, before=("-i", second))


def _still(shop: Shop, words: Words = _JPEG, size: tuple[int, int] = _SMALL, count: int = 1) -> Path:
    return shop.film("still.mov", words, numbers=range(200, 200 + count), size=size)


def _preview(shop: Shop, words: Words = _B2) -> Path:
    return shop.film("preview.mp4", words, numbers=range(100, 124), size=_SMALL)


def _main(shop: Shop, words: Words = _B2) -> Path:
    return shop.film("main.mp4", words)


def _join(parts: list[Path], words: Words, shop: Shop, path: Path) -> None:
    """Put the first streams of several films into one file, in this order."""
    inputs = [word for part in parts[:-1] for word in ("-i", part)]
    maps = [word for number in range(len(parts)) for word in ("-map", f"{number}:v:0")]
    shop.copy(parts[-1], path, *maps, *words, before=inputs)


Parts = Callable[[Shop], list[Path]]
_OFF = ("-disposition:v:0", "0", "-disposition:v:1", "0")


def _second(*added: str) -> Words:
    return ("-disposition:v:0", "0", "-disposition:v:1", "+".join(("default", *added)))


def _first() -> Words:
    return ("-disposition:v:0", "default", "-disposition:v:1", "0")


# Parts in the order of the file, what the program is told of them, the stream that is shown, and the containers.
_FILES: dict[str, tuple[Parts, Words, int, str]] = {
    "thumbnail_first": (lambda s: [_still(s), _main(s)], _OFF, 1, ".mov .mkv .mp4"),
    "thumbnail_last": (lambda s: [_main(s), _still(s)], _OFF, 0, ".mov .mkv .mp4"),
    "thumbnail_png_first": (lambda s: [_still(s, _PNG), _main(s)], _OFF, 1, ".mov .mkv .mp4"),
    "thumbnail_large_first": (lambda s: [_still(s, _JPEG, (256, 192)), _main(s)], _OFF, 1, ".mov .mkv .mp4"),
    "thumbnail_default": (lambda s: [_still(s), _main(s)], _first(), 1, ".mov .mkv"),
    "cover_first": (lambda s: [_still(s), _main(s)], ("-disposition:v:0", "attached_pic"), 0, ".mp4 .m4v"),
    "cover_last": (lambda s: [_main(s), _still(s)], ("-disposition:v:1", "attached_pic"), 0, ".mp4 .m4v"),
    "cover_large": (
        lambda s: [_main(s), _still(s, _JPEG, (256, 192))],
        ("-disposition:v:1", "attached_pic"),
        0,
        ".mp4",
    ),
    "preview_first": (lambda s: [_preview(s), _main(s)], _OFF, 1, ".mkv .ts .mpg .avi .wmv"),
    "preview_last": (lambda s: [_main(s), _preview(s)], _OFF, 0, ".mkv .mp4 .mov .ts .avi"),
    "default_second": (lambda s: [_preview(s), _main(s)], _second(), 1, ".mkv .mp4 .mov"),
    "default_small_second": (lambda s: [_main(s), _preview(s)], _second(), 1, ".mkv"),
    "default_first_of_two": (lambda s: [_main(s), _preview(s)], _first(), 0, ".mkv .mp4"),
    "other_codec_first": (lambda s: [_preview(s, (*MPEG4, "-bf", "2")), _main(s)], _second(), 1, ".mkv .mp4 .mov"),
    "three": (lambda s: [_still(s), _preview(s), _main(s)], _OFF, 2, ".mkv .mov"),
    "mpeg2_two": (lambda s: [_preview(s, (*MPEG2, "-bf", "2")), _main(s, (*MPEG2, "-bf", "2"))], (), 1, ".ts .mpg"),
}
_AVI: Words = ("-bsf:v", "h264_mp4toannexb")


def _several(parts: Parts, words: Words, shop: Shop, path: Path) -> None:
    _join(parts(shop), words, shop, path)


def _disabled(parts: Parts, track: int, shop: Shop, path: Path) -> None:
    """Mark a track as disabled, which is not shown whatever its size."""
    _join(parts(shop), (), shop, path)
    boxes.disable(path, track)


def _cover_mkv(shop: Shop, path: Path) -> None:
    """Attach a picture to a film, as makers of Matroska files do."""
    cover = shop.folder / "cover.jpg"
    shop.film("cover.jpg", (*_JPEG, "-frames:v", "1"), numbers=[200])
    types = ("-attach", cover, "-metadata:s:t", "mimetype=image/jpeg", "-metadata:s:t", "filename=cover.jpg")
    shop.copy(_main(shop), path, *types)


def _sound_first(shop: Shop, path: Path) -> None:
    sound = ("-f", "lavfi", "-i", "sine=d=1")
    shop.copy(_main(shop), path, "-map", "0:a", "-map", "1:v", "-c:a", "aac", before=sound)


def _timecode(shop: Shop, path: Path) -> None:
    shop.copy(_main(shop), path, "-timecode", "01:00:00:00")


def cases() -> Iterator[Case]:
    """Yield the cases of several streams."""
    for name, (parts, words, stream, suffixes) in _FILES.items():
        for suffix in suffixes.split():
            more = _AVI if suffix == ".avi" else ()
            make = partial(_several, parts, (*words, *more))
            yield Case(f"streams_{name}{underlined(suffix)}", suffix, make, stream=stream)
    small_off: Parts = lambda s: [_preview(s), _main(s)]  # noqa: E731
    large_off: Parts = lambda s: [_main(s), _preview(s)]  # noqa: E731
    for suffix in (".mp4", ".mov"):
        yield Case(f"streams_first_disabled{underlined(suffix)}", suffix, partial(_disabled, small_off, 0), stream=1)
        yield Case(f"streams_large_disabled{underlined(suffix)}", suffix, partial(_disabled, large_off, 0), stream=1)
        yield Case(f"streams_last_disabled{underlined(suffix)}", suffix, partial(_disabled, large_off, 1))
        yield Case(f"streams_timecode{underlined(suffix)}", suffix, _timecode)
        yield Case(f"streams_sound_first{underlined(suffix)}", suffix, _sound_first)
    yield Case("streams_cover_mkv", ".mkv", _cover_mkv)
