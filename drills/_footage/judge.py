"""Judge what Reelworks makes of a film by what the program shows, or by how it was made where the program cannot know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numbered_frames as drawn
import numpy as np
from numbered_frames import Frame, Frames
from numpy.typing import NDArray

from drills._footage import program
from drills._footage.case import Case
from drills._footage.program import ProgramError, Shown
from reelworks.core.shape import Shape
from reelworks.data.media import decode
from reelworks.data.media.reading import MediaError

RIGHT, WRONG, REFUSED, NOT_MADE = "right", "wrong", "refused_clearly", "not_made"
_CORNER = 12.0  # levels by which the middle of a flat quadrant may differ between two versions of one conversion
_RATE = 0.03
_COLORED = 60.0  # levels between quadrants
_MOST_SHOWN = 48  # numbers in a message
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What a film came to, and why."""

    outcome: str
    why: str = ""
    oracle: str = "ffmpeg"


class _Times(NamedTuple):
    """When frames are shown, as far as a film tells."""

    fps: float  # mean
    steady: bool
    uneven: bool
    slowest: float
    fastest: float


def judge(case: Case, path: Path, row: Row | None) -> Verdict:
    """Compare the row of a scan, and the frames that are decoded by it, with what is shown."""
    oracle = "ffmpeg" if case.numbers is None else "by construction"
    try:
        shown = _reference(case, path)
    except ProgramError as error:
        return Verdict(NOT_MADE, f"ffmpeg does not show what it made: {error}")
    if row is None:
        return Verdict(WRONG, "the scan has no row for it", oracle)
    if row["error"]:
        return replace(_refused(case, shown, f"refused: {row['error']}"), oracle=oracle)
    return replace(_compare(case, path, row, shown), oracle=oracle)


def _reference(case: Case, path: Path) -> Shown:
    if case.numbers is None:
        shown = program.show(path, stream=case.stream, decoder=case.decoder)
        made_up = next((i for i, frame in enumerate(shown.frames) if _is_drawn(frame)), 0) if shown.complaints else 0
        return replace(shown, frames=shown.frames[made_up:], seconds=shown.seconds[made_up:])
    frames = case.drawn()
    return Shown(frames, np.array(case.seconds if case.seconds else [np.nan] * len(frames)))


def _is_drawn(frame: Frame) -> bool:
    """Return whether a frame has colours, which those lack that older decoders make up where others are missing."""
    return bool(np.ptp(drawn.corners(frame), axis=0).max() > _COLORED)


def _refused(case: Case, shown: Shown, why: str) -> Verdict:
    """Tell a refusal that is right, since no player shows the whole film or for a reason that was decided, from others."""
    if case.refused:
        return Verdict(REFUSED, f"{why} ({case.refused})")
    if shown.complaints:
        return Verdict(REFUSED, f"{why} (ffmpeg: {shown.complaints[0]})")
    return Verdict(WRONG, f"{why}, while ffmpeg shows {len(shown.frames)} frames without complaint")


def _compare(case: Case, path: Path, row: Row, shown: Shown) -> Verdict:
    differences = []
    count, size = row["num_frames"], (row["width"], row["height"])
    if count != len(shown.frames):
        differences.append(f"{count} frames instead of {len(shown.frames)}")
    sizes = _sizes(shown)
    if size not in sizes and not any(
        abs(size[0] - w) + abs(size[1] - h) <= 1 for w, h in sizes if shown.pixel_shape != 1
    ):
        differences.append(f"{size[0]} × {size[1]} instead of {' or '.join(f'{w} × {h}' for w, h in sizes)}")
    differences += _wrong_times(case, row, shown)
    if size == shown.frames[0].shape[1::-1] and all(frame.shape == shown.frames[0].shape for frame in shown.frames):
        wanted = np.stack(shown.frames)
    elif case.numbers is None:
        scaled = program.show(path, stream=case.stream, decoder=case.decoder, size=size).frames
        wanted = np.stack(scaled[len(scaled) - len(shown.frames) :])
    else:
        return Verdict(WRONG, "; ".join(differences))
    try:
        differences += _wrong_frames(case, _read(path, row, size), wanted)
        differences += _wrong_windows(case, path, row, size, wanted)
    except MediaError as error:
        if not differences:
            return _refused(case, shown, f"decoding fails: {error}")
        differences.append(f"decoding fails: {error}")
    return Verdict(WRONG, "; ".join(differences)) if differences else Verdict(RIGHT)


def _sizes(shown: Shown) -> list[tuple[int, int]]:
    """Return widths and heights with square pixels: either side may be what changes, since frames may have been turned."""
    height, width = shown.frames[0].shape[:2]
    ratio = shown.pixel_shape
    wide, high = (max(1, round(width * ratio)), height), (width, max(1, round(height / ratio)))
    return list(dict.fromkeys((wide, high)))


def _wrong_times(case: Case, row: Row, shown: Shown) -> list[str]:
    """Compare rate, length and evenness with the times that ffmpeg tells, or the rate at which the film was made.

    Either is right: after a cut, and in containers that have times of decoding alone, ffmpeg guesses some.
    """
    if case.guessed:
        return []
    known = [] if case.rate is None else [_Times(case.rate, True, False, case.rate, case.rate)]
    if (told := _told_times(shown)) is not None:
        known.append(told)
    return min((_against(times, row, len(shown.frames)) for times in known), key=len, default=[])


def _against(times: _Times, row: Row, count: int) -> list[str]:
    found, wrong = row["fps"], []
    if not times.uneven and abs(found / times.fps - 1) > max(_RATE, 1 / count**2):
        wrong.append(f"{found:.5g} fps instead of {times.fps:.5g}")
    if times.uneven and not times.slowest * 0.9 <= found <= times.fastest * 1.1:
        wrong.append(f"{found:.5g} fps outside of {times.slowest:.5g} to {times.fastest:.5g}")
    if times.steady and row["variable_fps"]:
        wrong.append("called of variable rate, while times are even")
    if times.uneven and not row["variable_fps"]:
        wrong.append("called of constant rate, while times are uneven")
    if not times.uneven and row["num_frames"] == count:
        length = count / times.fps
        if abs(row["duration_seconds"] - length) > max(_RATE * length, 1 / times.fps):
            wrong.append(f"{row['duration_seconds']:.5g} s instead of {length:.5g}")
    return wrong


def _told_times(shown: Shown) -> _Times | None:
    seconds: NDArray[np.float64] = shown.seconds
    steps = np.diff(seconds)
    if len(seconds) < 3 or len(seconds) != len(shown.frames) or not (steps >= 0).all() or seconds[-1] <= seconds[0]:
        return None
    step = (seconds[-1] - seconds[0]) / (len(seconds) - 1)
    off = np.abs(seconds - seconds[0] - step * np.arange(len(seconds))).max()
    # Containers round times to milliseconds, or to ticks of 1/90000 s and the like.
    steady, uneven = off <= 0.00101 + 0.02 * step, off > 0.003 + 0.6 * step
    return _Times(1 / step, bool(steady), bool(uneven), 1 / float(steps.max()), 1 / max(float(steps.min()), 1e-4))


def _read(path: Path, row: Row, size: tuple[int, int], **choice: Any) -> Frames:
    count = choice.pop("count", row["num_frames"])
    shape = Shape(count, size[1], size[0])
    return decode.load(decode.Request(path=path, is_image=row["kind"] == "image", shape=shape, **choice))


def _wrong_frames(case: Case, found: Frames, wanted: Frames) -> list[str]:
    """Compare all frames: their order by what they look like and by their numbers, then their colours."""
    wrong = []
    ours, theirs = drawn.numbers(found), drawn.numbers(wanted)
    if ours != theirs:
        wrong.append(f"frames {_some(ours)} instead of {_some(theirs)}")
    pairs = list(zip(found, wanted, strict=False))
    far = max(drawn.differ(a, b) for a, b in pairs)
    off = max(float(np.abs(drawn.corners(a) - drawn.corners(b)).max()) for a, b in pairs)
    if ours == theirs and far > case.tolerance:
        wrong.append(f"pixels differ by {far:.1f} levels on average")
    if off > _CORNER + max(case.tolerance - 3, 0):
        wrong.append(f"colours of quadrants differ by {off:.0f} levels")
    return wrong


def _wrong_windows(case: Case, path: Path, row: Row, size: tuple[int, int], wanted: Frames) -> list[str]:
    """Read a few frames from the middle, the last, and every third: what is sought is what is decoded from the start."""
    count = row["num_frames"]
    if count != len(wanted) or count < 3:
        return []
    first, few = count // 2, min(4, count - count // 2)
    ways = {
        f"the range {first}:{first + few}": (
            {"first_frame": first, "num_frames": few, "count": few},
            np.arange(first, first + few),
        ),
        "the last frame": ({"first_frame_draw": 0.999, "count": 1}, np.array([count - 1])),
        "every second frame": ({"step": 2.0, "count": (count + 1) // 2}, np.arange(0, count, 2)),
    }
    wrong = []
    for name, (choice, indices) in ways.items():
        found, right = _read(path, row, size, **choice), wanted[indices]
        far = max(drawn.differ(a, b) for a, b in zip(found, right, strict=True))
        if drawn.numbers(found) != drawn.numbers(right) or far > case.tolerance:
            wrong.append(f"{name}: {_some(drawn.numbers(found))} instead of {_some(drawn.numbers(right))}")
    return wrong


def _some(numbers: Sequence[int]) -> str:
    """Return numbers as text, in which runs are told by their ends."""
    parts: list[str] = []
    at = 0
    while at < len(numbers):
        end = at
        while end + 1 < len(numbers) and numbers[end + 1] == numbers[end] + 1:
            end += 1
        parts.append(f"{numbers[at]}…{numbers[end]}" if end - at > 1 else ", ".join(map(str, numbers[at : end + 1])))
        at = end + 1
    return ", ".join(parts[:_MOST_SHOWN])
