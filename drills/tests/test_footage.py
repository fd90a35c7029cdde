"""Films as people have them are scanned and decoded as a player shows them; `python -m drills.footage` has hundreds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numbered_films as films
import pytest
from numbered_films import B2, B3, HEVC_OPEN, OPEN, PLAIN, QUALITY, X264

import reelworks as rw
from drills._footage import boxes, packed, program
from drills._footage.case import Case
from drills._footage.judge import RIGHT, WRONG, judge

ALL = range(24)
LONG = range(48)
SMALL, LARGE = (64, 48), (128, 96)
VP9 = {"crf": "8", "deadline": "realtime", "cpu-used": "8"}
_TOLERANCE = 8.0  # levels on average, of lossy codecs at the edges of colours


def case(name: str, make: Any, numbers: Any = ALL, **known: Any) -> Case:
    """A film whose file is named, written by a function of its path."""
    path = Path(name)
    known = {"rate": 24.0, "tolerance": _TOLERANCE, **known}
    return Case(path.stem, path.suffix, lambda shop, path: make(path), numbers=tuple(numbers), **known)


def _coded(codec: str, options: dict[str, str], **more: Any) -> Any:
    return lambda path: films.write(path, ALL, codec, options, **more)


def _cut(codec: str, options: dict[str, str], suffix: str, path: Path, *, skipped: int | None = None) -> None:
    """Copy a film from its second key frame on, or from some packet on where no decoder can begin."""
    source = films.write(path.with_name(f".{path.stem}{suffix}"), LONG, codec, options)
    films.copy(source, path, first=films.second_key(source) if skipped is None else skipped)


def _joined(
    codec: str, options: dict[str, str], path: Path, *, size: tuple[int, int] = (128, 96), later: int = 0
) -> None:
    first = films.write(path.with_name(f".{path.stem}-a.ts"), ALL, codec, options)
    second = films.write(path.with_name(f".{path.stem}-b.ts"), range(24, 48), codec, options, size=size)
    if later:
        shifted = path.with_name(f".{path.stem}-c.ts")
        second = films.copy(second, shifted, times=lambda number, time: time + 90_000 * later)
    films.join(path, first, second)


def _streams(
    first: range, second: range, sizes: list[tuple[int, int]], path: Path, *, still: bool = False, **how: Any
) -> None:
    parts = [path.with_name(f".{path.stem}-{i}.mov") for i in (0, 1)]
    jpeg = {"codec": "mjpeg", "options": {"qmin": "2", "qmax": "2"}, "pixel_format": "yuvj420p"}
    films.write(parts[0], first, size=sizes[0], **(jpeg if still else {"options": B3}))
    films.write(parts[1], second, size=sizes[1], options=B3)
    films.together(path, *parts, **how)


def _disabled(path: Path) -> None:
    _streams(ALL, range(100, 124), [LARGE, LARGE], path, defaults=(0, 1))
    boxes.disable(path, 0)


def _same_times(path: Path) -> None:
    source = films.write(path.with_name(f".{path.stem}.mkv"), ALL, options=PLAIN)
    last = [0]

    def times(number: int, time: int) -> int:
        last[0] = last[0] if number in (5, 11, 12, 20) else time
        return last[0]

    films.copy(source, path, times=times)


def _packed(path: Path) -> None:
    packed.pack(films.write(path.with_name(f".{path.name}"), ALL, "mpeg4", {**QUALITY, "bf": "1"}), path)


def _crop(path: Path, **pixels: int) -> None:
    films.write(path, ALL, options=B3, muxer={"live": "1"})
    boxes.crop_mkv(path, **pixels)


def _aperture(path: Path, quarters: int = 0) -> None:
    films.write(path, ALL, options=B3)
    boxes.crop_mp4(path, b"avc1", 80, 72, -8, -4)
    if quarters:
        boxes.turn(path, quarters)


def _edited(path: Path) -> None:
    films.write(path, LONG, options=PLAIN)
    boxes.edit(path, [(1.0, 1.0), (1.0, 0.0)])


MILLISECONDS = [40 * i for i in range(12)] + [480 + 120 * i for i in range(12)]
TIMED = {"milliseconds": MILLISECONDS, "options": PLAIN}


def over_white(frame: Any) -> Any:
    return program.over_white(films.half_transparent(films.drawn.number(frame)))


ALPHA = {"pixel_format": "yuva420p", "picture": films.half_transparent}
CASES = [
    case("avi_h264_b3.avi", _coded("libx264", B3)),
    case("avi_h264_default.avi", _coded("libx264", {"crf": "8"})),
    case("avi_mpeg4.avi", _coded("mpeg4", B2)),
    case("avi_packed.avi", _packed),
    case("avi_mpeg1.avi", _coded("mpeg1video", B2)),
    case("asf_h264.asf", _coded("libx264", B3)),
    case("wmv_mpeg2.wmv", _coded("mpeg2video", B2)),
    case("mxf_h264.mxf", _coded("libx264", B3, rate=25), rate=25.0),
    case("mpg_mpeg2.mpg", _coded("mpeg2video", B2)),
    case(
        "mkv_pyramid.mkv", _coded("libx264", {**X264, "bf": "7", "b_strategy": "0", "x264-params": "b-pyramid=normal"})
    ),
    case("two_frames.avi", lambda path: films.write(path, range(2), options=B3), range(2)),
    case("one_frame.mkv", lambda path: films.write(path, range(1), options=B3), range(1)),
    case("cut_open_h264.mkv", partial(_cut, "libx264", OPEN, ".mkv"), range(12, 48)),
    case("cut_open_h264.ts", partial(_cut, "libx264", OPEN, ".ts"), range(12, 48)),
    case("cut_open_hevc.mkv", partial(_cut, "libx265", HEVC_OPEN, ".mkv"), range(12, 48)),
    case("cut_mpeg2.ts", partial(_cut, "mpeg2video", B2, ".ts"), range(12, 48)),
    case("begun_h264.ts", partial(_cut, "libx264", B3, ".ts", skipped=16), range(24, 48)),
    case("begun_mpeg2.mkv", partial(_cut, "mpeg2video", QUALITY, ".mkv", skipped=16), range(24, 48)),
    case("joined_h264.ts", partial(_joined, "libx264", B3), LONG),
    case("joined_mpeg2.ts", partial(_joined, "mpeg2video", B2), LONG),
    case("joined_later.ts", partial(_joined, "libx264", PLAIN, later=30), LONG),
    case("joined_other_size.ts", partial(_joined, "libx264", PLAIN, size=(192, 144)), LONG),
    case("thumbnail_first.mov", partial(_streams, range(200, 201), ALL, [SMALL, LARGE], still=True)),
    case("preview_first.mkv", partial(_streams, range(100, 124), ALL, [SMALL, LARGE])),
    case("default_second.mkv", partial(_streams, range(100, 124), ALL, [LARGE, LARGE], defaults=(1,))),
    case("first_disabled.mp4", _disabled, range(100, 124)),
    case("same_times.mkv", _same_times, rate=None),
    case("fps_480.mkv", _coded("libx264", PLAIN, rate=480), rate=480.0),
    case("fps_1500.mkv", _coded("libx264", PLAIN, rate=1500), rate=1500.0),
    case(
        "variable.mp4",
        lambda path: films.write(path, ALL, **TIMED),
        seconds=tuple(t / 1000 for t in MILLISECONDS),
        rate=None,
    ),
    case("crop_bars.mkv", partial(_crop, top=12, bottom=12), view=films.cropped(top=12, bottom=12)),
    case("crop_left.mkv", partial(_crop, left=32), view=films.cropped(left=32)),
    case("aperture.mp4", _aperture, view=films.cropped(16, 8, 32, 16)),
    case("aperture_turned.mov", partial(_aperture, quarters=1), view=films.cropped(16, 8, 32, 16, quarters=1)),
    case("alpha_vp9.webm", _coded("libvpx-vp9", {**VP9, "auto-alt-ref": "0"}, **ALPHA), view=over_white),
    case("alpha_vp8.webm", _coded("libvpx", {**VP9, "b": "2M", "auto-alt-ref": "0"}, **ALPHA), view=over_white),
    case("two_edits.mp4", _edited, [*range(24, 48), *range(24)]),
    case("fragmented.mp4", _coded("libx264", B3, muxer={"movflags": "frag_keyframe+empty_moov"})),
    # Its header states another matrix than that by which the frames were converted.
    case("cannot_be_sought.mkv", _coded("vc2", {"strict": "-1", "b": "60M"}, pixel_format="yuv422p"), tolerance=20.0),
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("films")
    for each in CASES:
        each.make(None, folder / each.file)
    for part in folder.glob(".*"):
        part.unlink()
    table = rw.Catalog.scan(folder, to=tmp_path_factory.mktemp("catalog"), workers=1).table
    return {row["path"]: (folder / row["path"], row) for row in table.to_pylist()}


@pytest.mark.parametrize("film", CASES, ids=lambda film: film.file)
@pytest.mark.quick_cases(3)
def test_a_film_is_read_as_a_player_shows_it(film: Case, rows: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    verdict = judge(film, *rows[film.file])
    assert verdict.outcome == RIGHT, verdict.why


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({"numbers": (1, 0, *range(2, 24))}, "frames 0…23 instead of 1, 0, 2…23"),
        ({"numbers": tuple(range(23))}, "24 frames instead of 23"),
        ({"view": films.cropped(left=32)}, "128 × 96 instead of 96 × 96"),
        ({"view": films.cropped(quarters=2)}, "colours of quadrants differ"),
        ({"rate": 30.0}, "24 fps instead of 30"),
        ({"rate": None, "seconds": tuple(TIMED["milliseconds"])}, "called of constant rate"),
    ],
)
def test_the_judge_finds_what_differs(known: dict[str, Any], told: str, rows: Any) -> None:
    film = next(each for each in CASES if each.file == "mkv_pyramid.mkv")
    verdict = judge(replace(film, **known), *rows[film.file])
    assert verdict.outcome == WRONG
    assert told in verdict.why
