"""Rates of every kind, constant and variable, frames of equal time, few frames, and animations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

from drills._footage.case import Case, Shop, Words, underlined
from drills._footage.codecs import MPEG2, MPEG4, VP8, VP9, X264, x265

_B2: Words = (*X264, "-bf", "2")
_PLAIN: Words = (*X264, "-bf", "0")
_HEVC: Words = x265(bframes=2)
_RATES = ("1", "15", "24000/1001", "25", "30000/1001", "50", "60000/1001", "120", "240", "480", "1500")


def _rated(words: Words, rate: str, count: int, shop: Shop, path: Path) -> None:
    shop.film(path, words, rate=rate, numbers=range(count))


def _constant() -> Iterator[Case]:
    films: list[tuple[str, Words, str]] = [
        ("h264", _B2, ".mp4 .mkv .mov .ts .flv"),
        ("vp9", VP9, ".webm"),
        ("mpeg4", (*MPEG4, "-bf", "0"), ".avi"),
        ("mjpeg", ("-c:v", "mjpeg", "-q:v", "2", "-pix_fmt", "yuvj420p"), ".avi .mov"),
        ("wmv2", ("-c:v", "wmv2", "-q:v", "2"), ".wmv"),
    ]
    for name, words, suffixes in films:
        for suffix in suffixes.split():
            for rate in _RATES:
                top, _, bottom = rate.partition("/")
                fps = int(top) / int(bottom or 1)
                if fps > 1000 and suffix not in (".mkv", ".webm", ".mp4", ".mov", ".ts"):
                    continue  # several frames a millisecond
                kind = rate.replace("/", "_")
                make = partial(_rated, words, rate, 40)
                yield Case(f"rate_{kind}_{name}{underlined(suffix)}", suffix, make, rate=fps)


def _timed(words: Words, milliseconds: Sequence[int], shop: Shop, path: Path) -> None:
    """Give each frame a time of its own."""
    times = "+".join(f"eq(N,{i})*{time}" for i, time in enumerate(milliseconds))
    filters = f"settb=1/1000,setpts='{times}'"
    kept = ("-fps_mode", "passthrough", "-enc_time_base", "1/1000")
    shop.film(path, (*words, *kept), numbers=range(len(milliseconds)), filters=filters)


def _after(steps: Sequence[int]) -> list[int]:
    return [0, *accumulate(steps)]


# Milliseconds at which frames are shown.
_VARIABLE: dict[str, list[int]] = {
    "phone": _after([33, 33, 34, 42, 50, 33, 66, 33] * 5),
    "slower": _after([17] * 24 + [100] * 12),
    "faster": _after([100] * 12 + [17] * 24),
    "frozen_end": _after([42] * 30 + [8000]),
    "frozen_start": _after([3000] + [42] * 30),
    "frozen_middle": _after([42] * 16 + [4000] + [42] * 16),
    "drops": _after([40, 40, 80, 40, 120] * 7),
    "slides": _after([1000, 2500, 500, 4000, 1500]),
    "screen": _after([16, 250, 16, 16, 900, 33, 16, 400, 16, 16, 50, 700]),
    "jitter": _after([39, 41, 40, 42, 38] * 7),
    "late": [5000 + time for time in _after([40] * 30)],
}


def _variable() -> Iterator[Case]:
    films: list[tuple[str, Words, str]] = [
        ("h264", _B2, ".mp4 .mkv .mov .ts .flv"),
        ("hevc", _HEVC, ".mkv .mp4"),
        ("vp9", VP9, ".webm .mp4"),
        ("vp8", VP8, ".webm"),
        ("plain", _PLAIN, ".mp4 .mkv .3gp"),
        ("wmv2", ("-c:v", "wmv2", "-q:v", "2"), ".wmv"),
    ]
    for name, words, suffixes in films:
        for suffix in suffixes.split():
            for kind, times in _VARIABLE.items():
                yield Case(f"variable_{kind}_{name}{underlined(suffix)}", suffix, partial(_timed, words, times))


def _same_time(words: Words, numbers: Sequence[int], shop: Shop, path: Path) -> None:
    """Give packets the time of the one before."""
    same = "+".join(f"eq(N,{number})" for number in numbers)
    source = shop.film(f"whole{path.suffix}", words)
    shop.copy(source, path, "-bsf:v", f"setts=ts='if({same},PREV_OUTDTS,TS)'")


def _dropped(words: Words, shop: Shop, path: Path) -> None:
    """Leave every fifth frame out, as a camera that cannot follow."""
    filters = "select='not(eq(mod(n,5),3))'"
    shop.film(path, (*words, "-fps_mode", "vfr"), numbers=range(40), filters=filters)


def _pulled_down(suffix: str) -> Words:
    return (*_B2, "-x264-params", "pulldown=32:scenecut=0")


# Animations of pictures: words of the program, containers, and whether it reads them back.
_ANIMATIONS: list[tuple[str, Words, str]] = [
    ("gif", ("-c:v", "gif"), ".gif"),
    ("apng", ("-c:v", "apng", "-f", "apng", "-plays", "0"), ".apng"),
    ("apng_png", ("-c:v", "apng", "-f", "apng"), ".png"),
]
_WEBP: Words = ("-c:v", "libwebp_anim", "-lossless", "1", "-loop", "0")


def cases() -> Iterator[Case]:
    """Yield the cases of times."""
    yield from _constant()
    yield from _variable()
    films: dict[str, tuple[Words, str]] = {
        "h264": (_B2, ".mp4 .mkv .ts .mov .flv .m2ts"),
        "h264_avi": ((*_B2, "-bsf:v", "h264_mp4toannexb"), ".avi"),
        "hevc": (_HEVC, ".mp4 .mkv .ts"),
        "mpeg2": ((*MPEG2, "-bf", "2"), ".mpg .ts .mkv"),
        "mpeg4": ((*MPEG4, "-bf", "2"), ".avi .mp4"),
        "vp9": (VP9, ".webm .mp4"),
        "wmv2": (("-c:v", "wmv2", "-q:v", "2"), ".wmv"),
        "av1": (("-c:v", "libaom-av1", "-crf", "15", "-cpu-used", "8"), ".mp4 .mkv"),
    }
    for name, (words, suffixes) in films.items():
        for suffix in suffixes.split():
            for count in (1, 2, 3):
                yield Case(f"frames_{count}_{name}{underlined(suffix)}", suffix, partial(_rated, words, "24", count))
    for name, words in {"plain": _PLAIN, "vp9": VP9}.items():
        for kind, numbers in {"one": [11], "few": [5, 11, 12, 20], "last": [23], "all": list(range(1, 24))}.items():
            yield Case(f"same_time_{kind}_{name}", ".mkv", partial(_same_time, words, numbers))
    for suffix, words in {".avi": (*MPEG4, "-bf", "0"), ".mp4": _B2, ".mkv": _B2, ".webm": VP9, ".ts": _B2}.items():
        yield Case(f"dropped{underlined(suffix)}", suffix, partial(_dropped, words))
    for suffix in (".mp4", ".ts", ".mkv"):
        yield Case(f"pulldown{underlined(suffix)}", suffix, partial(_rated, _pulled_down(suffix), "24", 40))
    for name, words, suffix in _ANIMATIONS:
        for rate in ("10", "25", "50"):
            yield Case(f"animation_{rate}_{name}", suffix, partial(_rated, words, rate, 20), rate=float(rate))
        times = _after([100, 100, 400, 50, 50, 200, 1000, 100])
        yield Case(f"animation_variable_{name}", suffix, partial(_timed, words, times))
    for rate in ("10", "25"):
        make = partial(_rated, _WEBP, rate, 20)
        yield Case(f"animation_{rate}_webp", ".webp", make, numbers=tuple(range(20)), rate=float(rate))
