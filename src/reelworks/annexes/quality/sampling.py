"""Decode a clip once for all measures: a few frames at full size, runs of neighbours at a small size, and its sound.

All frames of a clip of at most `MOST_FRAMES` are read at the small size; of a longer one as many in evenly spaced runs, each
of which is sought. The small size has 96 px at the longer side.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray
from PIL import Image

from reelworks.annexes.quality import picture, registry
from reelworks.annexes.quality.measure import CatalogMeasure, Measure, SampledClip, Still
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.data.media import decode, display, location, reading, sound
from reelworks.data.media.decode import Request
from reelworks.data.media.formats import kind_of
from reelworks.data.media.framing import FILTERS
from reelworks.data.media.location import MediaPath
from reelworks.data.media.pictures import upright
from reelworks.data.media.reading import MediaError

MOST_FRAMES, RUNS = 600, 12
STILLS = 3
_SMALL_PX = 96
_NO_FRAMES = np.zeros((0, 1, 1), dtype=np.float32)
_SAMPLE_RATE, _MOST_SECONDS = 48_000, 120.0
# Stills, frames at the small size, and the numbers of these in the file.
_Read: TypeAlias = tuple[list[NDArray[np.uint8]], NDArray[np.float32], NDArray[np.int64]]


class MeasureRequest(NamedTuple):
    """A request to apply measures, by their entries, to one clip, of which nothing is decoded yet."""

    clip: SampledClip
    first_frame: int
    has_sound: bool
    measures: tuple[str, ...]
    pictures_px: int = 0  # the shorter side of the frames that networks see; 0 for none
    scanned: tuple[int, int, str] | None = None  # size in bytes, time of change in ns, and fingerprint of the file


class Measurement(NamedTuple):
    """Values of a clip by the label under which they are kept, and the problems of measures that have none."""

    values: dict[str, float | bytes]
    problems: tuple[str, ...] = ()
    missing_on: str = ""  # name of the node of a cluster that does not see the file
    pictures: NDArray[np.uint8] | None = None  # frames that networks see, `[T, H, W, 3]`


def measure(request: MeasureRequest) -> Measurement:
    """Apply measures to a clip; any problem with it, or in a measure, costs that clip the values and no more.

    A file with another content than the scan saw has no values, which would be kept for that content.
    """
    found = None if _has_changed(request) else _measured(request)
    if found is None or _has_changed(request):  # or while it was read
        return failed(request, "the file has changed since it was scanned; scan again")
    return found


def _has_changed(request: MeasureRequest) -> bool:
    try:
        return request.scanned is not None and not location.is_as_scanned(request.clip.path, *request.scanned)
    except OSError:
        return False  # why it cannot be read is told by who reads it


def _measured(request: MeasureRequest) -> Measurement:
    measures: list[Measure] = []
    values: dict[str, float | bytes] = {}
    problems: list[str] = []
    for entry in request.measures:
        try:
            measures.append(registry.instance(entry))
        except UserError:
            raise
        except Exception as error:  # as that of weights which are not there
            problems.append(f"{entry}: {type(error).__name__}: {error}")
    pictures = None
    for of_sound in (False, True):  # sound that cannot be read costs no value of frames
        group = [one for one in measures if ("sound" in one.reads) == of_sound]
        for_network = frozenset(["stills"] if request.pictures_px and not of_sound else [])
        if not group and not for_network:
            continue
        try:
            clip = sample(request, for_network | {what for measure in group for what in measure.reads})
        except MediaError as error:
            problems.append(f"sound: {error}" if of_sound else str(error))
            continue
        for one in group:
            try:
                found = one.features(clip) if isinstance(one, CatalogMeasure) else one.values(clip)
                values |= registry.by_label(type(one), found)
            except Exception as error:  # a class of a user may raise anything
                problems.append(f"{one.name}: {type(error).__name__}: {error}")
        if for_network:
            pictures = np.stack([_shrunk(still.rgb[still.active], request.pictures_px) for still in clip.stills])
    unseen = bool(problems) and not values and pictures is None and location.is_missing(request.clip.path)
    return Measurement(values, tuple(problems), socket.gethostname() if unseen else "", pictures)


def failed(request: MeasureRequest, reason: str) -> Measurement:
    """Return the result for a clip on which the decoder crashed or hung."""
    return Measurement({}, (reason,))


def _shrunk(rgb: NDArray[np.uint8], shorter_px: int) -> NDArray[np.uint8]:
    """Return a frame whose shorter side is at most so long, so that little is sent between processes."""
    scale = shorter_px / min(rgb.shape[:2])
    if scale >= 1:
        return np.ascontiguousarray(rgb)
    size = max(round(rgb.shape[1] * scale), 1), max(round(rgb.shape[0] * scale), 1)
    return np.asarray(Image.fromarray(rgb).resize(size, Image.Resampling.BICUBIC))


def sample(request: MeasureRequest, reads: frozenset[str]) -> SampledClip:
    """Decode what measures read of a clip.

    Raises:
        MediaError: It cannot be read.
    """
    return reading.with_reasons(request.clip.path, lambda path: _sample(request, path, reads))


def _sample(request: MeasureRequest, path: MediaPath, reads: frozenset[str]) -> SampledClip:
    clip, first, length = request.clip, request.first_frame, request.clip.num_frames
    whole = Request(path, clip.is_image, Shape(1, clip.height, clip.width), resize=FILTERS["area"])
    frames: list[NDArray[np.uint8]] = []
    small = _NO_FRAMES
    numbers = np.zeros(0, dtype=np.int64)
    if not reads.isdisjoint(("stills", "runs")):
        runs = _runs(first, length) if "runs" in reads else []
        count = min(STILLS, length)
        middles = [first + (2 * i + 1) * length // (2 * count) for i in range(count)]  # of equal parts
        stills = middles if "stills" in reads else []
        if clip.is_image:
            frames = [decode.load(whole)[0]] if stills else []
        else:
            read = _animation if kind_of(path.name) == "image" else _video
            frames, small, numbers = read(whole, stills, runs)
    shown = tuple(Still(frame) for frame in frames)
    if shown:
        active = picture.find_active(shown)
        for still in shown:
            still.active = active
    return replace(
        clip,
        path=path,
        stills=shown,
        runs=small,
        is_next=np.diff(numbers) == 1,
        samples=_sound(request, whole) if "sound" in reads and request.has_sound else None,
        sample_rate=_SAMPLE_RATE,
        shared={},
    )


def _runs(first: int, count: int) -> list[range]:
    """Return the runs of frames that are read at the small size, by their numbers in the file."""
    if count <= MOST_FRAMES:
        return [range(first, first + count)]
    length = MOST_FRAMES // RUNS
    starts = [first + (count - length) * i // (RUNS - 1) for i in range(RUNS)]
    return [range(start, start + length) for start in starts]


def _video(whole: Request, stills: Sequence[int], runs: Sequence[range]) -> _Read:
    to_rgb, to_small = decode.ToRgb(whole), _ToSmall()
    large: dict[int, NDArray[np.uint8]] = {}
    small: dict[int, NDArray[np.uint8]] = {}
    in_runs, wanted = {n for run in runs for n in run}, set(stills)

    def use(number: int, frame: Any, shown: tuple[int, int]) -> None:
        if number in in_runs:
            small[number] = to_small(frame, shown)
        if number in wanted:
            large[number] = to_rgb(frame, shown)

    alone = [range(n, n + 1) for n in stills if n not in in_runs]  # so that each is sought once
    decode.visit(whole.path, sorted([*runs, *alone], key=lambda run: run.start), use)
    numbers = np.array(sorted(small), dtype=np.int64)
    stacked = np.stack([small[n] for n in numbers.tolist()]).astype(np.float32) if small else _NO_FRAMES
    return [np.ascontiguousarray(large[n]) for n in stills], stacked, numbers


class _ToSmall:
    """Makes small luma frames, as a player shows them but for their range of brightness."""

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()
        self._size: tuple[int, int] | None = None
        self._orientation = 1

    def __call__(self, frame: Any, shown: tuple[int, int]) -> NDArray[np.uint8]:
        if self._size is None:  # of the whole clip
            self._size, self._orientation = _small_size(*shown), display.orientation(frame)
        height, width = self._size
        pixels: Any = self._reformatter.reformat(
            frame, width=width, height=height, format="gray", interpolation=Interpolation.AREA, threads=1
        ).to_ndarray()
        return np.ascontiguousarray(upright(pixels, self._orientation))


def _small_size(height: int, width: int) -> tuple[int, int]:
    scale = min(_SMALL_PX / max(height, width), 1.0)
    return max(round(height * scale), 1), max(round(width * scale), 1)


def _animation(whole: Request, stills: Sequence[int], runs: Sequence[range]) -> _Read:
    height, width = _small_size(whole.shape.height, whole.shape.width)
    small = [decode.load(_of(whole, Shape(len(run), height, width), run.start)) for run in runs]
    large = [decode.load(_of(whole, whole.shape, number))[0] for number in stills]
    luma = [Still(frame).luma for run in small for frame in run]
    stacked = np.stack(luma).astype(np.float32) if luma else _NO_FRAMES
    return large, stacked, np.array([number for run in runs for number in run], dtype=np.int64)


def _of(whole: Request, shape: Shape, first: int) -> Request:
    return replace(whole, shape=shape, first_frame=first, num_frames=shape.num_frames)


def _sound(request: MeasureRequest, whole: Request) -> NDArray[np.int16]:
    clip = request.clip
    seconds = min(clip.num_frames / clip.fps if clip.fps else _MOST_SECONDS, _MOST_SECONDS)
    first = _of(whole, whole.shape, request.first_frame)
    return sound.load(sound.SoundRequest(first, _SAMPLE_RATE, 2, max(round(seconds * _SAMPLE_RATE), 1)))
