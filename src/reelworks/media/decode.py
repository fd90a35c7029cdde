"""Decode files to frames of one exact shape, here or in workers that are killed if they hang on a clip."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from av.video.reformatter import Interpolation
from numpy.typing import NDArray
from PIL import Image

from reelworks.catalog import frame_times, probe
from reelworks.catalog.frame_times import FrameTimes
from reelworks.core import retry
from reelworks.core.shape import Shape
from reelworks.core.worker_pool import WorkerDied, WorkerHung, WorkerPool
from reelworks.media.config import DataConfig, ShortClips

# Open-Sora v1.2 conditions the model on this frame rate for pictures; its published weights expect it.
IMAGE_FPS = 120.0
# Rounding may leave a product such as 25 · (30 / 24) just below an integer.
_EPSILON = 1e-6


def frame_step(fps: NDArray[Any] | float, config: DataConfig) -> NDArray[np.float64]:
    """Return the source frames from one used frame to the next; at least 1, since no frames are interpolated."""
    if config.frame_rate is None:
        return np.full(np.shape(fps), float(config.frame_interval))
    return np.maximum(np.asarray(fps, dtype=np.float64) / config.frame_rate, 1.0)


def frames_available(num_frames: NDArray[Any], fps: NDArray[Any] | float, config: DataConfig) -> NDArray[np.int64]:
    """Return how many frames a clip has at the configured rate: the most that `frame_indices` can choose."""
    frames = np.asarray(num_frames, dtype=np.float64)
    return np.where(frames > 0, np.ceil((frames - _EPSILON) / frame_step(fps, config)), 0).astype(np.int64)


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


def cover(height: int, width: int, target_height: int, target_width: int) -> tuple[int, int]:
    """Return the size, height and width, to which a frame is resized so that it just covers the target."""
    scale = max(target_height / height, target_width / width)
    return max(round(height * scale), target_height), max(round(width * scale), target_width)


def crop_offset(size: int, target: int, draw: float) -> int:
    """Return the first pixel of a crop along one axis; a draw of 0.5 is the centre."""
    return min(int(draw * (size - target + 1)), size - target)


Frames = NDArray[np.uint8]

# Without accurate rounding, swscale's SIMD paths may round differently from its C path.
_RESIZE = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
_RESIZE_NEAREST = Interpolation.POINT | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT

# Transposition that turns a picture of each EXIF orientation upright; 1 is upright already.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class MediaError(Exception):
    """A file cannot provide the requested frames; the message is the reason."""


class Spot(NamedTuple):
    """Frames in a file, by their times in ticks."""

    ticks: tuple[int, ...]  # of the frames to return, in their order
    key_tick: int  # of a frame before them with which a decoder can begin


@dataclass(frozen=True)
class Request:
    """A request to read one clip, with every random choice already drawn."""

    path: Path
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
    nearest: bool = False  # whether to resize by nearest neighbour, without interpolation
    first_frame: int = 0  # number in its file of the clip's first frame
    num_frames: int | None = None  # frames of a clip that is a range of its file; None for a whole file
    spot: Spot | None = None  # place of the frames, if the catalog knows it; otherwise all packets are read to find it

    def cover(self, height: int, width: int) -> tuple[int, int]:
        """Return the size to which a file of this size is resized before the crop."""
        size = (height, width) if self.measures is None else (self.measures.height, self.measures.width)
        return cover(*size, self.shape.height, self.shape.width)


def load(request: Request) -> Frames:
    """Read frames `[T, H, W, 3]`, uint8 RGB, of a clip or picture; transient storage errors are retried after a pause.

    Frames are as displayed: rotation metadata and EXIF orientation are applied, and transparency is blended over white.

    Raises:
        MediaError: The file is missing or damaged, or has fewer frames than requested.
    """
    try:
        frames = retry.with_retries(lambda: _load_image(request) if request.is_image else _load_video(request))
    except (MediaError, probe.ProbeError) as error:
        raise MediaError(str(error)) from None
    except FileNotFoundError:
        raise MediaError("No such file or directory") from None
    except Exception as error:  # decoders raise nearly anything on damaged input
        if retry.is_transient(error):
            raise MediaError(f"I/O error, {len(retry.WAITS_SECONDS) + 1} tries: {error}") from error
        raise MediaError(f"{type(error).__name__}: {error}") from error
    expected = (request.shape.num_frames, request.shape.height, request.shape.width, 3)
    if frames.shape != expected:
        raise MediaError(f"decoded to frames of shape {frames.shape} instead of {expected}")
    return frames


def _load_image(request: Request) -> Frames:
    with request.path.open("rb") as file, probe.picture(file) as opened:
        opened.load()
        orientation = probe.orientation(opened)
        image = opened.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else opened.copy()
    image = _to_rgb(image)
    height, width = request.cover(image.height, image.width)
    if (width, height) != image.size:
        resampling = Image.Resampling.NEAREST if request.nearest else Image.Resampling.BICUBIC
        image = image.resize((width, height), resampling)
    frame = _crop(np.asarray(image), request)[None]
    return frame if request.measures is None else np.repeat(frame, request.shape.num_frames, axis=0)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        # Pillow would clip 16 bits to 8, which leaves all but the darkest pixels white.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, (255, 255, 255, 255)), rgba)
    return image.convert("RGB")


def spot(request: Request, times: FrameTimes) -> Spot:
    """Find the frames of a request in a file with these frame times; raise `MediaError` if it has too few."""
    total, wanted = len(times.ticks), request.shape.num_frames
    whole = total if request.measures is None else request.measures.num_frames
    count = whole if request.num_frames is None else request.num_frames
    indices = frame_indices(count, wanted, request.step, request.first_frame_draw, request.short_clips)
    if request.num_frames is not None and indices.max() >= count:
        raise MediaError(f"the clip has {count} frames, {int(indices.max()) + 1} are needed")
    indices += request.first_frame
    if indices.max() >= total:
        raise MediaError(f"the file has {total} frames, {int(indices.max()) + 1} are needed")
    before = times.keys[times.keys <= indices[0]]
    return Spot(tuple(times.ticks[indices].tolist()), int(times.ticks[before[-1] if len(before) else indices[0]]))


def _load_video(request: Request) -> Frames:
    if request.spot is not None:
        with probe.video(request.path) as container:
            converted = _seek(container, request.spot, request)
        if len(converted) == len(set(request.spot.ticks)):
            return np.stack([converted[tick] for tick in request.spot.ticks])
    with probe.video(request.path) as container:
        times = frame_times.of_stream(container, probe.stream(container))
        found = spot(request, times)
        needed = set(found.ticks)
        converted = _seek(container, found, request) if times.timed else {}
    if len(converted) < len(needed):  # AVI files and raw streams may seek past the needed key frame
        with probe.video(request.path) as container:
            converted = _collect(container, times.timed, needed, request)
    if missing := len(needed) - len(converted):
        raise MediaError(f"{missing} of {len(needed)} frames could not be decoded")
    return np.stack([converted[tick] for tick in found.ticks])


def _seek(container: Any, place: Spot, request: Request) -> dict[int, Frames]:
    """Convert the frames from the key frame before them on, as far as the container finds that."""
    container.seek(place.key_tick, stream=probe.stream(container), backward=True)
    return _collect(container, True, set(place.ticks), request)


def _collect(container: Any, timed: bool, keys: set[int], request: Request) -> dict[int, Frames]:
    """Convert the frames of these times in ticks, or numbers, until all are converted or the file ends."""
    converted: dict[int, Frames] = {}
    for number, frame in enumerate(container.decode(probe.stream(container))):
        key = frame.pts if timed else number
        if key in keys:
            converted.setdefault(key, _convert(frame, request))
        if len(converted) == len(keys):
            break
    return converted


def _convert(frame: Any, request: Request) -> Frames:
    """Resize and convert colours in one pass, then rotate and crop."""
    quarter_turns = round(frame.rotation / 90) % 4
    turned = quarter_turns % 2 == 1
    shown = (frame.width, frame.height) if turned else (frame.height, frame.width)
    height, width = request.cover(*shown)
    if turned:
        height, width = width, height
    transparent = any(component.is_alpha for component in frame.format.components)
    pixels = frame.reformat(
        width=width,
        height=height,
        format="rgba" if transparent else "rgb24",
        interpolation=_RESIZE_NEAREST if request.nearest else _RESIZE,
    ).to_ndarray()
    return _crop(np.rot90(_over_white(pixels) if transparent else pixels, quarter_turns), request)


def _over_white(rgba: Frames) -> Frames:
    colour, alpha = rgba[..., :3].astype(np.uint16), rgba[..., 3:].astype(np.uint16)
    return ((colour * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


def _crop(frame: Frames, request: Request) -> Frames:
    top = crop_offset(frame.shape[0], request.shape.height, request.crop_draw[0])
    left = crop_offset(frame.shape[1], request.shape.width, request.crop_draw[1])
    return frame[top : top + request.shape.height, left : left + request.shape.width]


BLACK = 16  # of 255: darker values count as 0, since codecs leave noise in black areas
EMPTY = "the loss mask is black in every frame and pixel used of the clip"


def counts(mask_THWC: NDArray[np.uint8]) -> bool:
    """Return whether any pixel of a mask counts in the loss."""
    return bool((mask_THWC.mean(axis=-1) >= BLACK).any())


_THREADS = 2
_PATIENCE_SECONDS = 5.0
# A process may be killed from outside, e.g. for memory; a clip is blamed only if every attempt dies.
_ATTEMPTS = 3


@dataclass(frozen=True)
class Failure:
    """Reason why a clip could not be decoded."""

    reason: str


class DecodePool:
    """Decodes clips in the background, in threads or in processes.

    Args:
        num_workers: Spawned processes; 0 uses two threads of this process.
        timeout_seconds: Seconds that a process may spend on one clip before it is killed and the clip fails.
            A thread cannot be killed: with 0 workers, a decoder that hangs is waited for.
    """

    def __init__(self, num_workers: int, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._threads = ThreadPoolExecutor(num_workers or _THREADS, thread_name_prefix="decode")
        self._processes = WorkerPool() if num_workers else None

    def submit(self, request: Request) -> Future[Frames | Failure]:
        """Queue a clip; one that hangs, or whose process dies in every attempt, results in a `Failure`."""
        return self._threads.submit(_read if self._processes is None else self._read_in_process, request)

    def _read_in_process(self, request: Request) -> Frames | Failure:
        assert self._processes is not None
        for _ in range(_ATTEMPTS):
            try:
                return self._processes.call(_read, request, self.timeout_seconds)
            except WorkerHung:
                return Failure(f"decoding took more than {self.timeout_seconds:g} s and was stopped")
            except WorkerDied:
                continue
        return Failure("the decoder crashed on it")

    def close(self) -> None:
        """Stop the workers: drop queued clips, and kill a process that hangs in a decoder."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._processes is not None:
            self._processes.close(_PATIENCE_SECONDS)
        self._threads.shutdown()


def _read(request: Request) -> Frames | Failure:
    """Decode one clip; return a file's failure as a value, so that it never stops a worker."""
    try:
        return load(request)
    except MediaError as error:
        return Failure(str(error))
