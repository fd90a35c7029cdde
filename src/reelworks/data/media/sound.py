"""Decode the sound of a clip: the samples from its first frame on, at the rate of a sound encoder.

Frames and sound share the times of their container. The sound of a clip begins at the time of its first used frame,
wherever in the file that is, and goes on at its natural speed. A clip whose frames do not (slower than the rate at which
they are shown, or unevenly spaced and not read by time) is left out by `data.loader.eligibility`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import av
import numpy as np
from av.audio.resampler import AudioResampler
from numpy.typing import NDArray

from reelworks.core.shape import Shape
from reelworks.data.media import decode, frame_times, reading, video
from reelworks.data.media.decode import Request
from reelworks.data.media.formats import is_sound, kind_of
from reelworks.data.media.location import MediaPath
from reelworks.data.media.reading import MediaError

# Raise it when samples of the same request change; see `training.encoding.request_key`.
VERSION = 2
Samples = NDArray[np.int16]
_PREROLL_SECONDS = 0.5  # decoders of lossy sound need what lies before
# Timestamps in milliseconds are rounded; what is farther off is a gap in the sound, or a clock that drifts.
_JITTER_SECONDS = 0.02


@dataclass(frozen=True)
class SoundSpec:
    """Settings by which the sound of clips is read for a model.

    Attributes:
        sample_rate: Samples per second.
        channels: 1 or 2; sound in mono is copied to both, and more than two channels are mixed.
        samples_per_latent: Samples per latent frame of sound.
        frame_rate: Frames per second at which clips are read.
        missing: What becomes of clips without sound: left out, or trained as silent.
    """

    sample_rate: int
    channels: int
    samples_per_latent: int
    frame_rate: float
    missing: Literal["leave_out", "silent"] = "leave_out"

    @property
    def latents_per_second(self) -> float:
        """Latent frames of sound per second."""
        return self.sample_rate / self.samples_per_latent

    def latents(self, num_frames: int) -> int:
        """Return the latent frames of the sound of a clip with so many frames."""
        return max(round(num_frames / self.frame_rate * self.latents_per_second), 1)

    def most_samples(self, num_frames: int) -> int:
        """Return the most samples of a sound beside a clip with so many frames, which ends with it."""
        return int(num_frames / self.frame_rate * self.sample_rate)

    def samples_of(self, seconds: float) -> int:
        """Return the samples of a sound of this duration; one of rounding counts as none."""
        return max(math.ceil(seconds * self.sample_rate - 1e-3), 1)

    def samples(self, num_frames: int) -> int:
        """Return the samples of the sound of a clip with so many frames."""
        return self.latents(num_frames) * self.samples_per_latent

    def request(self, clip: Request, num_samples: int, *, silence: bool = False) -> SoundRequest:
        """Return the request for so many samples of a clip's sound."""
        return SoundRequest(clip, self.sample_rate, self.channels, num_samples, silence)

    def request_alone(self, path: MediaPath, num_samples: int) -> SoundRequest:
        """Return the request for so many samples of a file from its beginning."""
        return self.request(Request(path, is_image=False, shape=Shape(1, 1, 1)), num_samples)


@dataclass(frozen=True)
class SoundRequest:
    """A request to read the sound of a clip.

    Attributes:
        clip: The request for its frames, of which the first one says where the sound begins.
        num_samples: Samples of each channel to return; where the file has no more, they are zeros.
        silence: Whether a file without sound has zeros too; it is refused otherwise.
    """

    clip: Request
    sample_rate: int
    channels: int
    num_samples: int
    silence: bool = False

    @property
    def path(self) -> MediaPath:
        """The file."""
        return self.clip.path

    @property
    def shape(self) -> Shape:
        """Samples as frames of one pixel."""
        return Shape(self.num_samples, 1, 1)


def load(request: SoundRequest) -> Samples:
    """Read the samples `[S, channels]` of a clip, or of a sound alone from its beginning.

    Transient storage errors are retried after a pause.

    Raises:
        MediaError: The file is missing or damaged, has fewer frames than requested, or has no sound.
    """
    if is_sound(request.path.name):
        return load_track(request)
    return reading.with_reasons(request.clip.path, lambda path: _read(replace(request.clip, path=path), request))


def _read(clip: Request, request: SoundRequest) -> Samples:
    silent = np.zeros((request.num_samples, request.channels), dtype=np.int16)
    span = None if kind_of(clip.path.name) == "image" else _span_seconds(clip)
    if span is None:
        if request.silence:
            return silent
        raise MediaError("the file has no sound that can be decoded")
    start, end = span
    heard = int(min(request.num_samples, (end - start) * request.sample_rate + 0.5))
    part = replace(request, num_samples=heard)
    with video.opened(clip.path) as opened:
        read = _segments(opened.container, part, start, seeks=start > _PREROLL_SECONDS)
    if read is None:  # the container found a place after the start
        with video.opened(clip.path) as opened:
            read = _segments(opened.container, part, start, seeks=False)
    _placed(read, silent[:heard])
    return silent


def load_track(request: SoundRequest) -> Samples:
    """Read the samples `[S, channels]` of a file of sound or a video from its beginning; its frames do not matter.

    Raises:
        MediaError: The file is missing or damaged, or has no sound.
    """
    return reading.with_reasons(request.clip.path, lambda path: _read_track(path, request))


def _read_track(path: MediaPath, request: SoundRequest) -> Samples:
    with video.sound(path) as container:
        track = video.sound_track(container)
        if track is None:
            raise MediaError("the file has no sound that can be decoded")
        read = _segments(container, request, (container.start_time or 0) / av.time_base, seeks=False)
    return _placed(read, np.zeros((request.num_samples, request.channels), dtype=np.int16))


def _placed(read: list[tuple[int, Samples]] | None, silent: Samples) -> Samples:
    """Copy runs of samples to their places in silence."""
    assert read is not None, "reading from the beginning seeks nothing"
    for at, samples in read:
        first, last = max(at, 0), min(at + len(samples), len(silent))
        if last > first:
            silent[first:last] = samples[first - at : last - at]
    return silent


def _span_seconds(clip: Request) -> tuple[float, float] | None:
    """Return `decode.span_seconds` of a clip; None if its file has no sound."""
    with video.opened(clip.path) as opened:
        if video.sound_track(opened.container) is None:
            return None
        tick = None if opened.container.format.name in frame_times.DECODING_TIMES else opened.stream.time_base
        if clip.frame_ticks is not None and clip.at_rate is None and tick is not None:
            ticks, _, end = clip.frame_ticks
            is_held = len(set(ticks)) < len(ticks)
            return float(min(ticks) * tick), math.inf if end is None or not is_held else float(end * tick)
        times = frame_times.of_video(opened)
        if not times.timed:
            raise MediaError("its frames have no times, by which the sound would be found")
        return decode.span_seconds(clip, times)


def _segments(container: Any, request: SoundRequest, start: float, *, seeks: bool) -> list[tuple[int, Samples]] | None:
    """Return runs of samples with the number of their first one; None if seeking missed the start."""
    rate, end = request.sample_rate, start + request.num_samples / request.sample_rate
    track: Any = video.sound_track(container)  # a file without one was told before
    track.codec_context.thread_count = 1
    if seeks and track.time_base is not None:
        container.seek(int((start - _PREROLL_SECONDS) / track.time_base), stream=track, backward=True)
    runs: list[_Gapless] = []
    # Containers may be sought to the middle of a frame of sound; whether a file is damaged shows from its start.
    for seconds, frame in _timed(video.decoded(track.codec_context, container.demux(track), lambda _: seeks)):
        if not runs and seeks and seconds > start:
            return None
        if seconds >= end:
            break
        if not runs or not runs[-1].continues(seconds, frame):
            runs.append(_Gapless(request, round((seconds - start) * rate), seconds, frame))
        runs[-1].add(frame)
    return [run.end() for run in runs] if runs or not seeks else None


def _timed(frames: Iterator[Any]) -> Iterator[tuple[float, Any]]:
    """Yield frames with their times in seconds; one without a time follows the one before it."""
    following = 0.0
    for frame in frames:
        seconds = following if frame.pts is None else float(frame.pts * frame.time_base)
        yield seconds, frame
        following = seconds + frame.samples / frame.sample_rate


class _Gapless:
    """Frames of sound without a gap, resampled as one piece."""

    def __init__(self, request: SoundRequest, at: int, seconds: float, frame: Any) -> None:
        self._at, self._began, self._read = at, seconds, 0
        self._channels = request.channels
        self._kind = _kind(frame)
        self._mixed = 1 if frame.layout.nb_channels == 1 else request.channels
        self._resampler = AudioResampler("s16", "mono" if self._mixed == 1 else "stereo", request.sample_rate)
        self._parts: list[Samples] = []

    def continues(self, seconds: float, frame: Any) -> bool:
        """Whether a frame at this time is the next one of the same kind."""
        expected = self._began + self._read / frame.sample_rate
        return abs(seconds - expected) <= _JITTER_SECONDS and _kind(frame) == self._kind

    def add(self, frame: Any) -> None:
        """Add the next frame."""
        self._read += frame.samples
        frame.pts = None  # the place of the whole run is known
        self._keep(self._resampler.resample(frame))

    def end(self) -> tuple[int, Samples]:
        """Return the number of the first sample, and the samples `[S, channels]`."""
        self._keep(self._resampler.resample(None))
        samples = np.concatenate(self._parts) if self._parts else np.zeros((0, self._mixed), dtype=np.int16)
        return self._at, np.repeat(samples, self._channels // self._mixed, axis=1)

    def _keep(self, frames: list[Any]) -> None:
        self._parts += [frame.to_ndarray().reshape(-1, self._mixed) for frame in frames]


def _kind(frame: Any) -> tuple[str, str, int]:
    return frame.format.name, frame.layout.name, frame.sample_rate
