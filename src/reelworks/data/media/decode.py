"""Decode files to frames of one exact shape."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray
from PIL import Image

from reelworks.core import units
from reelworks.core.shape import Shape
from reelworks.data.media import display, frame_times, framing, location, pictures, tone_map, video
from reelworks.data.media.augment import NO_AUGMENTATION, Augmentation
from reelworks.data.media.formats import kind_of
from reelworks.data.media.frame_times import FrameTimes
from reelworks.data.media.framing import BICUBIC, CropBox, ResizeFilter
from reelworks.data.media.location import MediaPath
from reelworks.data.media.pictures import WHITE, Color, displayed, over, upright
from reelworks.data.media.reading import MediaError, with_reasons
from reelworks.data.media.video import OpenVideo, progressive

if TYPE_CHECKING:  # processes that only decode start in two thirds of the time without the library of configs
    from reelworks.data.media.config import DataConfig, ShortClips

# Raise it when frames of the same request change: latents that were stored of them are then encoded again.
VERSION = 5
# Open-Sora v1.2 conditions the model on this frame rate for pictures; its published weights expect it.
IMAGE_FPS = 120.0
# Rounding may leave a product such as 25 · (30 / 24) just below an integer.
_EPSILON = 1e-6
_ROUNDING_SECONDS = 0.001  # by which containers may tell a time too late


def frame_step(
    fps: NDArray[Any] | float, config: DataConfig, variable: NDArray[np.bool_] | bool = False
) -> NDArray[np.float64]:
    """Return the source frames from one used frame to the next; at least 1, since no frames are interpolated.

    It is an average for clips of `variable` rate, which a frame rate reads by time, so that frames may come twice.
    """
    if config.frame_rate is None:
        return np.full(np.shape(fps), float(config.frame_interval))
    step = np.asarray(fps, dtype=np.float64) / config.frame_rate
    return np.where(variable, step, np.maximum(step, 1.0))


def shown_fps(
    fps: NDArray[Any] | float, config: DataConfig, variable: NDArray[np.bool_] | bool = False
) -> NDArray[np.float64]:
    """Return the frames per second of what is read of videos, which the model is told."""
    return fps / frame_step(fps, config, variable)


def frames_available(
    num_frames: NDArray[Any], fps: NDArray[Any] | float, config: DataConfig, variable: NDArray[np.bool_] | bool = False
) -> NDArray[np.int64]:
    """Return how many frames a clip has at the configured rate: the most that `frame_indices` can choose."""
    frames = np.asarray(num_frames, dtype=np.float64)
    return np.where(frames > 0, np.ceil((frames - _EPSILON) / frame_step(fps, config, variable)), 0).astype(np.int64)


def frame_indices(
    num_frames: int, wanted: int, step: float, draw: float, short_clips: ShortClips = "reject"
) -> NDArray[np.int64]:
    """Return the indices of `wanted` frames that lie `step` apart, from a randomly drawn first frame on.

    Args:
        num_frames: Frames in the file, at least one.
        step: Source frames from one used frame to the next.
        draw: Number in [0, 1) that chooses among the possible first frames; 0 starts at the beginning.
        short_clips: How a file that is too short continues after its last frame: "hold" repeats that frame,
            "loop" starts over; with "reject", the indices exceed its end.
    """
    span = np.floor(np.arange(wanted) * step + _EPSILON).astype(np.int64)
    room = max(num_frames - int(span[-1]), 1)
    start = min(int(draw * room), room - 1)
    available = int(np.searchsorted(span, num_frames))
    position = np.arange(wanted)
    if short_clips == "hold":
        position = np.minimum(position, available - 1)
    elif short_clips == "loop":
        position %= available
    indices: NDArray[np.int64] = span[position] + start
    return indices


Frames = NDArray[np.uint8]
# Reads frames of a local video, by their numbers from 0: `[T, H, W, 3]` uint8 RGB, in any size of one aspect ratio.
FrameReader = Callable[[str, Sequence[int]], Frames]

# Without accurate rounding, swscale's SIMD paths may round differently from its C path. Without full chroma, it drops
# every other pixel's colour of RGB that it makes less than half as wide, and writes one colour for two pixels.
_ACCURATE = Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.FULL_CHR_H_INP
_NEAREST = ResizeFilter("nearest", "POINT", "NEAREST")


@dataclass(frozen=True)
class AtRate:
    """A frame rate at which a clip is read whose own is variable: frame i is the one that is shown at i / fps.

    Attributes:
        fps: Frames per second.
        count: Frames that the clip has at this rate.
        clock: File whose times count, for a companion of such a clip; None for the file itself.
        clock_id: Fingerprint of that file.
    """

    fps: float
    count: int
    clock: MediaPath | None = field(default=None, compare=False)
    clock_id: str = ""


class FrameTicks(NamedTuple):
    """Frames in a file, by their times in ticks."""

    ticks: tuple[int, ...]  # of the frames to return, in their order
    # Of all frames from one before them with which a decoder can begin to one behind them, by which their order is checked.
    around: tuple[int, ...]
    end: int | None = None  # of the frame behind the clip, if it is a range with one


@dataclass(frozen=True)
class Request:
    """A request to read one clip, with every random choice already drawn."""

    path: MediaPath
    is_image: bool
    shape: Shape  # of the frames to return
    step: float = 1.0  # source frames from one used frame to the next
    first_frame_draw: float = 0.0  # number in [0, 1) that chooses the first frame
    # Numbers in [0, 1) that choose the crop along height and width; 0.5 is the centre.
    crop_draw: tuple[float, float] = (0.5, 0.5)
    short_clips: ShortClips = "reject"
    # Shape of the clip as scanned, by which frames and crop are chosen, so that a clip and its companions show the same
    # frames and region; None for the file's own. A companion picture is used for every frame.
    measures: Shape | None = None
    # Height and width as scanned; a file of another size has changed, or a trusted list was wrong. None for any size.
    size: tuple[int, int] | None = None
    # Whether it is a mask, which is resized by nearest neighbour, keeps colour values, and is black where it is transparent.
    nearest: bool = False
    resize: ResizeFilter = BICUBIC  # unless `nearest`
    alpha_color: Color = WHITE  # background of transparent pixels, unless `nearest`
    augmentation: Augmentation = NO_AUGMENTATION
    first_frame: int = 0  # number in its file of the clip's first frame
    num_frames: int | None = None  # frames of a clip that is a range of its file; None for a whole file
    decoder: FrameReader | None = None  # of videos; None for PyAV
    whole: bool = False  # whether the whole frame is shown, with white at two sides, in place of a crop
    at_rate: AtRate | None = None  # for a clip of variable rate, in place of `step`
    thinned: int = 0  # frames of which only as many as `shape` has are read, evenly spread; 0 reads all
    # Place of the frames, if the catalog knows it; otherwise all packets are read to find it.
    frame_ticks: FrameTicks | None = None

    @property
    def resize_filter(self) -> ResizeFilter:
        """Filter of resizing."""
        return _NEAREST if self.nearest else self.resize

    @property
    def background(self) -> Color:
        """Colour over which transparent pixels are blended: what nobody painted on a mask does not count."""
        return (0, 0, 0) if self.nearest else self.alpha_color

    def cover(self, height: int, width: int) -> tuple[int, int]:
        """Return the size to which a file of this size is resized before it is cropped or placed on white."""
        if self.size is not None and self.size != (height, width):
            listed = "{1} × {0}".format(*self.size)
            raise MediaError(f"the file has {width} × {height} pixels, but was scanned or listed with {listed}")
        size = (height, width) if self.measures is None else (self.measures.height, self.measures.width)
        return (framing.inside if self.whole else framing.cover)(*size, self.shape.height, self.shape.width)

    def crop_offsets(self, height: int, width: int) -> tuple[int, int]:
        """Return the first row and column of the crop in a resized frame of this size."""
        down, across = self.crop_draw
        rows = framing.crop_offset(height, self.shape.height, down)
        return rows, framing.crop_offset(width, self.shape.width, across)

    def crop_box(self, source: Shape) -> CropBox:
        """Return where the crop of a file of the size of `source` lies."""
        shape, read = self.shape, self.augmentation.read_shape(self.shape)
        height, width = framing.cover(source.height, source.width, read.height, read.width)
        top = framing.crop_offset(height, read.height, self.crop_draw[0]) + (read.height - shape.height) // 2
        left = framing.crop_offset(width, read.width, self.crop_draw[1]) + (read.width - shape.width) // 2
        if self.augmentation.flip:
            left = width - shape.width - left
        return CropBox(source.height, source.width, height, width, top, left)


def load(request: Request) -> Frames:
    """Read frames `[T, H, W, 3]`, uint8 RGB, of a clip or picture; transient storage errors are retried after a pause.

    Frames are as a player shows them: turned and mirrored as metadata say, with square pixels, deinterlaced, in SDR and
    sRGB, and blended over `alpha_color`.

    Raises:
        MediaError: The file is missing or damaged, or has fewer frames than requested.
    """
    wanted, request = request, replace(request, shape=request.augmentation.read_shape(request.shape))
    frames = with_reasons(request.path, lambda path: _load(replace(request, path=path)))
    expected = (request.shape.num_frames, request.shape.height, request.shape.width, 3)
    if frames.shape != expected:
        raise MediaError(f"decoded to frames of shape {frames.shape} instead of {expected}")
    return wanted.augmentation.apply(frames, wanted.shape, nearest=wanted.nearest)


def _load(request: Request) -> Frames:
    if request.is_image:
        return _load_image(request)
    if kind_of(request.path.name) == "image":
        return _load_animation(request)
    return _load_video(request) if request.decoder is None else _by_reader(request, request.decoder)


def _load_image(request: Request) -> Frames:
    with location.opened(request.path) as file, pictures.picture(file) as opened:
        opened.seek(pictures.shown_frames(opened)[0])
        opened.load()
        frame = _resize(opened, request)[None]
    return frame if request.measures is None else np.repeat(frame, request.shape.num_frames, axis=0)


def _load_animation(request: Request) -> Frames:
    with location.opened(request.path) as file, pictures.picture(file) as opened:
        shown = pictures.shown_frames(opened)
        wanted, converted = _chosen(request, len(shown), lambda: pictures.starts_seconds(opened)).tolist(), {}
        for i in sorted(set(wanted)):
            opened.seek(shown[i])
            opened.load()
            converted[i] = _resize(opened, request)
    return np.stack([converted[i] for i in wanted])


def _by_reader(request: Request, read: FrameReader) -> Frames:
    """Return frames that a function read, resized and cropped as those of other decoders."""
    assert request.num_frames is not None  # by which frames are chosen
    total = request.first_frame + request.num_frames
    wanted = _chosen(request, total, lambda: _seconds(request.path)).tolist()
    frames = np.asarray(read(str(request.path), wanted))
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[0] != len(wanted) or frames.shape[3] != 3:
        raise MediaError(f"the decoder returned {frames.dtype} {frames.shape}, not uint8 ({len(wanted)}, H, W, 3)")
    return np.stack([_resize(Image.fromarray(frame), request) for frame in np.ascontiguousarray(frames)])


def _resize(opened: Image.Image, request: Request) -> Frames:
    def resize(image: Image.Image) -> Image.Image:
        (height, width), pillow = request.cover(image.height, image.width), request.resize_filter.pillow
        if (width, height) == image.size:
            return image
        if pillow is not None:
            return image.resize((width, height), Image.Resampling[pillow])
        frame = av.VideoFrame.from_ndarray(np.asarray(image), format="rgb24")
        return Image.fromarray(_scaled(VideoReformatter(), frame, (height, width), "rgb24", request))

    image = displayed(opened, request.background, resize, convert_profile=not request.nearest)
    return _crop(np.asarray(image), request)


def _scaled(
    reformatter: VideoReformatter, frame: av.VideoFrame, size: tuple[int, int], pixel_format: str, request: Request
) -> Any:
    """Return the pixels of a frame in this format, resized to this height and width by a request's filter."""
    return reformatter.reformat(
        frame,
        width=size[1],
        height=size[0],
        format=pixel_format,
        interpolation=Interpolation[request.resize_filter.swscale] | _ACCURATE,
        src_colorspace=display.assumed_matrix(frame),
        threads=1,  # clips are decoded in parallel
    ).to_ndarray()


def _chosen(request: Request, total: int, seconds: Callable[[], NDArray[np.float64]]) -> NDArray[np.int64]:
    """Return the numbers of the requested frames in a file that has this many; raise `MediaError` if it has too few.

    `seconds` returns when each frame of the file is shown.
    """
    count = _count(request, total)
    indices, rate = _places(request, count), request.at_rate
    if rate is not None:
        times = (seconds() if rate.clock is None else _seconds(rate.clock))[request.first_frame :][:count]
        indices = np.searchsorted(times - times[0], indices / rate.fps + _ROUNDING_SECONDS, side="right") - 1
    indices += request.first_frame
    if indices.max() >= total:
        raise MediaError(f"the file has {units.plural(total, 'frame')}, {int(indices.max()) + 1} are needed")
    return indices


def _count(request: Request, total: int) -> int:
    """Return how many frames the clip of a request has, of those of its file."""
    whole = total if request.measures is None else request.measures.num_frames
    return whole if request.num_frames is None else request.num_frames


def _places(request: Request, count: int) -> NDArray[np.int64]:
    """Return the numbers of the requested frames among those of the clip, or among those that it has at its rate."""
    wanted, step, most = _pace(request, count)
    places = frame_indices(most, wanted, step, request.first_frame_draw, request.short_clips)
    if request.thinned:
        places = places[np.linspace(0, wanted - 1, request.shape.num_frames).round().astype(np.int64)]
    if places.max() >= most and (request.num_frames is not None or request.at_rate is not None):
        raise MediaError(f"the clip has {units.plural(most, 'frame')}, {int(places.max()) + 1} are needed")
    return places


def _pace(request: Request, count: int) -> tuple[int, float, int]:
    """Return how many frames are wanted, how far apart, and of how many that the clip has at its rate."""
    rate, wanted = request.at_rate, request.thinned or request.shape.num_frames
    return (wanted, request.step, count) if rate is None else (wanted, 1.0, rate.count)


def is_short(request: Request, total: int) -> bool:
    """Return whether `short_clips` decides about frames of a clip whose file has this many."""
    wanted, step, most = _pace(request, _count(request, total))
    return int((wanted - 1) * step + _EPSILON) >= most


def span_seconds(request: Request, times: FrameTimes) -> tuple[float, float]:
    """Return the time in its container from which the frames of a request are shown, and the end of a range that is held."""
    ticks, places = times.ticks, _places(request, _count(request, len(times.ticks)))
    first, last = request.first_frame + int(places.min()), request.first_frame + (request.num_frames or len(ticks))
    is_held = len(np.unique(places)) < len(places) and last < len(ticks)
    end = float(ticks[last] * times.tick_seconds) if is_held else math.inf
    if request.at_rate is None:
        return float(ticks[first] * times.tick_seconds), end
    return float(ticks[request.first_frame] * times.tick_seconds + int(places.min()) / request.at_rate.fps), end


def _seconds(path: MediaPath) -> NDArray[np.float64]:
    """Return when each frame of a video or animation is shown."""
    with location.local(path) as here:
        if kind_of(here.name) == "video":
            return frame_times.read(here).seconds
        with location.opened(here) as file, pictures.picture(file) as opened:
            return pictures.starts_seconds(opened)


def find_ticks(request: Request, times: FrameTimes, *, interlaced: bool) -> FrameTicks:
    """Find the frames of a request in a file with these frame times; raise `MediaError` if it has too few."""
    indices = _chosen(request, len(times.ticks), lambda: times.seconds)
    (key, last), *_ = frame_times.key_frames([_span(indices)], times, interlaced=interlaced)
    end = math.inf if request.num_frames is None else request.first_frame + request.num_frames
    return FrameTicks(
        tuple(times.sought_at[indices].tolist()),
        tuple(times.sought_at[key : last + 2].tolist()),
        int(times.sought_at[int(end)]) if end < len(times.sought_at) else None,
    )


def _span(indices: NDArray[np.int64]) -> range:
    return range(int(indices.min()), int(indices.max()) + 1)


def _load_video(request: Request) -> Frames:
    convert = ToRgb(request)
    converted: dict[int, Frames] = {}
    if request.frame_ticks is not None:
        found = _at_ticks(request.path, request.frame_ticks, convert)
        if found is not None:
            return found

    def use(number: int, frame: Any, shown: tuple[int, int]) -> None:
        converted[number] = convert(frame, shown)

    with video.opened(request.path) as opened:
        times = frame_times.of_video(opened)
        indices = _chosen(request, len(times.ticks), lambda: times.seconds)
        numbers = indices.tolist()
        _visit(opened, times, [_span(indices)], set(numbers), use)
    return np.stack([converted[number] for number in numbers])


def _at_ticks(path: MediaPath, place: FrameTicks, convert: ToRgb) -> Frames | None:
    """Return the frames at these ticks; None if they are not there."""
    converted: dict[int, Frames] = {}
    ticks = np.array(place.around, dtype=np.int64)
    with contextlib.suppress(frame_times.WrongTimesError, av.error.FFmpegError), video.opened(path) as opened:
        shown, wanted = display.size(opened), set(place.ticks)
        opened.seek(place.around[0])
        for number, frame in progressive(frame_times.frames_by_time(opened, ticks, 0)):
            if place.around[number] in wanted:
                converted[place.around[number]] = convert(frame, shown)
        if len(converted) == len(wanted):
            return np.stack([converted[tick] for tick in place.ticks])
    return None


Use = Callable[[int, Any, tuple[int, int]], None]


def visit(path: MediaPath, runs: Sequence[range], use: Use) -> None:
    """Call `use(number, frame, shown)` for frames of a local video, in ascending runs of consecutive ones that are sought.

    `shown` is the height and width of the video before it is turned; a frame is valid during the call. Of a video whose
    times prove to be wrong on the way, all frames are given again.

    Raises:
        MediaError: The file has fewer frames, or some of these cannot be decoded.
    """
    with video.opened(path) as opened:
        times = frame_times.of_video(opened)
        if max(run.stop for run in runs) > len(times.ticks):
            raise MediaError(
                f"the file has {units.plural(len(times.ticks), 'frame')}, {max(run.stop for run in runs)} are needed"
            )
        _visit(opened, times, runs, {number for run in runs for number in run}, use)


def _visit(opened: OpenVideo, times: FrameTimes, runs: Sequence[range], wanted: set[int], use: Use) -> None:
    """Use the wanted frames of runs; if they do not come in the order of their times, by counting from the start."""
    shown, left = display.size(opened), set(wanted)

    def take(frames: Iterable[tuple[int, Any]], last: int) -> None:
        for number, frame in progressive(frames):
            if number in left:
                left.remove(number)
                use(number, frame, shown)
            if number >= last:
                break

    # Some decoders cannot begin at a key frame.
    with contextlib.suppress(frame_times.WrongTimesError, av.error.FFmpegError):
        interlaced = display.may_be_interlaced(opened.stream)
        for key, last in frame_times.key_frames(runs, times, interlaced=interlaced) if times.sought else ():
            opened.seek(int(times.sought_at[key]))
            take(frame_times.frames_by_time(opened, times.sought_at[: last + 2], key), last + times.doubted)
        if not left:
            return
    left |= wanted
    with video.opened(opened.path) as again:
        take(enumerate(again.frames()), max(wanted))
    if left:
        raise MediaError(f"{len(left)} of {len(wanted)} frames could not be decoded")


class ToRgb:
    """Makes RGB frames of a request's shape: resizes and converts colours in one pass, then turns and crops."""

    def __init__(self, request: Request) -> None:
        self._request, self._reformatter = request, VideoReformatter()

    def __call__(self, frame: Any, shown: tuple[int, int]) -> Frames:
        """Convert one frame of a video that has this height and width as shown, before it is turned."""
        request, orientation = self._request, display.orientation(frame)
        turned = orientation in (5, 6, 7, 8)
        height, width = request.cover(*(shown[::-1] if turned else shown))
        if turned:
            height, width = width, height
        transparent = any(component.is_alpha for component in frame.format.components)
        primaries, transfer = display.stated_colors(frame)
        high_range = (transfer or primaries) and not request.nearest
        pixel_format = "rgb48le" if high_range else "rgba" if transparent else "rgb24"
        pixels = _scaled(self._reformatter, frame, (height, width), pixel_format, request)
        if high_range:
            pixels = tone_map.to_sdr(pixels, transfer, primaries)
        elif transparent:
            pixels = over(pixels, request.background)
        return _crop(upright(pixels, orientation), request)


def _crop(frame: Frames, request: Request) -> Frames:
    shape = request.shape
    if not request.whole:
        top, left = request.crop_offsets(*frame.shape[:2])
        return frame[top : top + shape.height, left : left + shape.width]
    (height, width), placed = frame.shape[:2], np.full((shape.height, shape.width, 3), WHITE, np.uint8)
    top, left = (shape.height - height) // 2, (shape.width - width) // 2
    placed[top : top + height, left : left + width] = frame
    return placed


BLACK = 16  # of 255: darker values count as 0, since codecs leave noise in black areas
EMPTY = "the loss mask is black in every frame and pixel used of the clip"


def has_white_area(mask_THWC: NDArray[np.uint8]) -> bool:
    """Return whether any pixel of a mask counts in the loss."""
    return bool((mask_THWC.mean(axis=-1) >= BLACK).any())
