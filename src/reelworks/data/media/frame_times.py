"""Tell which frames a video has, and when each is shown, so that one is found exactly, whatever its rate and container.

The frames of a video are those that a decoder gives from the file's start, in the order in which it gives them. Reading the
packets tells them without decoding where a packet is a frame and has the time at which that is shown. Where this may not
hold, frames are decoded: the first few of a film that was cut between its key frames, or all where packets have no times,
equal ones, or those of several recordings that were joined.

Some frames of a video are sought: the times tell from which key frames, and whether a decoder then gives those that are meant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import islice
from typing import Any, NamedTuple

import av
import numpy as np
from numpy.typing import NDArray

from reelworks.core.arrays import F64, I64, Mask
from reelworks.data.media import video
from reelworks.data.media.formats import ProbeError
from reelworks.data.media.location import MediaPath
from reelworks.data.media.video import OpenVideo

DECODING_TIMES = {"avi", "asf"}  # containers that have times of decoding alone
_IN_ORDER = {"vp8", "vp9"}  # codecs whose frames are shown in the order of packets; so are those without references
# Codecs of which every packet may be a key frame; of others with references, flags that say so are wrong.
_ALL_KEYS = {"h264", "hevc", "vvc", "av1", "vp8", "vp9", "mpeg1video", "mpeg2video", "mpeg4", "vc1", "ffv1", "png"}
_NEVER = np.iinfo(np.int64).min  # in place of a time that the container does not have
_STREAMS = {"mpegts", "mpeg"}  # formats of streams that may be put behind each other
# A longer step of such a stream is the place where another recording was joined: where a packet is flagged, and elsewhere.
_FLAGGED_JUMP_SECONDS, _JUMP_SECONDS = 1.0, 10.0

Ticks = NDArray[np.int64]


class FrameTimes(NamedTuple):
    """Times of the frames of a video in order, in ticks since the stream's zero."""

    ticks: Ticks  # ascending; numbers from 0 if the container has no usable times
    keys: I64  # indices of the frames that a decoder can begin with, ascending
    tick_seconds: float
    declared_fps: Fraction | None
    timed: bool  # whether `ticks` are times
    # Whether frames are sought by these times; they are counted from the file's start otherwise.
    sought: bool = True
    # Whether the times may be those of decoding, so that the order in which frames come is to be checked.
    doubted: bool = False
    labels: Ticks | None = None  # times by which packets are sought, if others than those at which frames are shown
    hidden: int = 0  # number of frames that are stored and not shown: by an edit list, or since others are missing
    cut: bool = False  # whether frames at the start are hidden because those that they refer to are missing

    @property
    def sought_at(self) -> Ticks:
        """Ticks of frames by which their packets are sought."""
        return self.ticks if self.labels is None else self.labels

    @property
    def seconds(self) -> F64:
        """Seconds from the first frame to each frame."""
        return np.asarray((self.ticks - self.ticks[0]) * self.tick_seconds)

    def end_seconds(self) -> float:
        """Return the end of the last frame, which lasts as long as the one before."""
        seconds = self.seconds
        last = seconds[-1] - seconds[-2] if len(seconds) > 1 else 1 / float(self.declared_fps or 1)
        return float(seconds[-1] + last)


class Packets:
    """Notes of the packets of a video, in the order of decoding.

    Attributes:
        pts, dts: Times of presentation and of decoding, None where the container has none.
        is_key: Whether a decoder can begin with the packet.
        is_shown: False if an edit list hides the frame.
        corrupt: Numbers of packets that are flagged as incomplete.
        last_duration: Ticks of the frame that is shown last; 0 if unknown.
    """

    def __init__(self) -> None:
        self.pts: list[int | None] = []
        self.dts: list[int | None] = []
        self.is_key: list[bool] = []
        self.is_shown: list[bool] = []
        self.corrupt: list[int] = []
        self.last_duration = 0

    def noting(
        self, packets: Iterator[av.Packet[Any]], see: Callable[[av.Packet[Any]], None] | None = None
    ) -> Iterator[av.Packet[Any]]:
        """Yield packets, each of which is noted before, and seen if it is a key frame."""
        latest: int | None = None
        for packet in packets:
            if packet.size:
                pts, is_key = packet.pts, packet.is_keyframe
                if packet.is_corrupt:
                    self.corrupt.append(len(self.pts))
                self.pts.append(pts)
                self.dts.append(packet.dts)
                self.is_key.append(is_key)
                self.is_shown.append(not packet.is_discard)
                if latest is None or pts is None or pts >= latest:
                    latest, self.last_duration = pts, packet.duration or 0
                if is_key and see is not None:
                    see(packet)
            yield packet


def read(path: MediaPath) -> FrameTimes:
    """Read the frame times of a file; raise `ProbeError` if it has no frames."""
    with video.opened(path) as opened:
        return of_video(opened)


def of_video(opened: OpenVideo) -> FrameTimes:
    """Read the frame times of a video that is at its start."""
    packets = Packets()
    deque(packets.noting(opened.container.demux(opened.stream)), maxlen=0)
    return of_packets(opened, packets)


def of_packets(opened: OpenVideo, packets: Packets) -> FrameTimes:
    """Return the frame times of a video whose packets were read; decode it as far as they do not tell.

    Raises:
        ProbeError: No frame is shown.
    """
    if not any(packets.is_shown):
        raise ProbeError("the file has no frames")
    times = [pts for pts in packets.pts if pts is not None]
    if len(times) == len(packets.pts) and packets.is_key[0] and all(packets.is_shown):  # as in nearly all files
        ordered = sorted(times)
        if ordered[0] == times[0] and len(set(ordered)) == len(ordered) and not _is_joined(opened, packets):
            ticks = np.array(ordered, dtype=np.int64)
            keys = np.searchsorted(ticks, [pts for pts, is_key in zip(times, packets.is_key, strict=True) if is_key])
            return _sought(opened, packets, ticks, keys, in_order=ordered == times)
    return _odd(opened, packets)


def _odd(opened: OpenVideo, packets: Packets) -> FrameTimes:
    """Return the frame times of a video in which packets and frames may differ."""
    stamps = np.array([_NEVER if pts is None else pts for pts in packets.pts], dtype=np.int64)
    is_key, is_shown = np.array(packets.is_key, dtype=np.bool_), np.array(packets.is_shown, dtype=np.bool_)
    shown = np.sort(stamps[is_shown & (stamps != _NEVER)])
    if _is_joined(opened, packets) or _lack_times(stamps, is_key) or (shown[1:] == shown[:-1]).any():
        return _counted(opened, packets)
    is_lost = _lost(opened, stamps, is_key, is_shown)
    is_shown &= ~is_lost
    ticks = np.sort(stamps[is_shown])
    if not len(ticks):
        raise ProbeError("no frame can be decoded")
    if ticks[0] == _NEVER:
        return _counted(opened, packets)
    keys = np.searchsorted(ticks, np.sort(stamps[is_shown & is_key]))
    in_order = bool((stamps[1:] > stamps[:-1]).all())
    return _sought(opened, packets, ticks, keys, in_order=in_order)._replace(cut=bool(is_lost.any()))


def _sought(opened: OpenVideo, packets: Packets, ticks: Ticks, keys: Ticks, *, in_order: bool) -> FrameTimes:
    """Return the times of frames that are sought by them."""
    shown = _decoding_times(opened, packets, len(ticks))
    codec = opened.stream.codec_context.codec
    if all(packets.is_key) and not codec.intra_only and codec.name not in _ALL_KEYS:
        keys = keys[:1]
    return FrameTimes(
        ticks if shown is None else shown,
        np.sort(keys),
        _tick_seconds(opened),
        _rate(opened),
        timed=True,
        sought=opened.stream.codec_context.pix_fmt != "pal8",  # whose palette may lie at the start alone
        doubted=in_order and _may_reorder(opened),
        labels=None if shown is None else ticks,
        hidden=len(packets.pts) - len(ticks),
    )


def _tick_seconds(opened: OpenVideo) -> float:
    return float(opened.stream.time_base or Fraction(1, 1000))


def _decoding_times(opened: OpenVideo, packets: Packets, count: int) -> Ticks | None:
    """Return when frames are shown in a container of times of decoding, of which players take one after the other."""
    if opened.container.format.name not in DECODING_TIMES:
        return None
    times = [dts for dts, is_shown in zip(packets.dts, packets.is_shown, strict=True) if is_shown and dts is not None]
    return np.sort(np.array(times, dtype=np.int64)) if len(times) == count else None


def _rate(opened: OpenVideo) -> Fraction | None:
    rate = opened.stream.average_rate
    return rate if rate and rate > 0 else None


def _may_reorder(opened: OpenVideo) -> bool:
    """Return whether a decoder may give frames in another order than that of packets."""
    decoder = opened.stream.codec_context
    if decoder.reorder_depth > 0:
        return True
    in_order = decoder.codec.intra_only or decoder.name in _IN_ORDER
    return not in_order and opened.container.format.name in DECODING_TIMES


def _lack_times(stamps: Ticks, is_key: Mask) -> bool:
    """Return whether packets have no time other than those at the start whose frames were cut off."""
    begun = stamps > stamps[np.argmax(is_key)]
    return bool((stamps[int(np.argmax(begun)) if begun.any() else 0 :] == _NEVER).any())


def _is_joined(opened: OpenVideo, packets: Packets) -> bool:
    """Return whether times begin anew on the way, as where transport streams were put behind each other."""
    may = opened.container.format.name in _STREAMS
    return may and (bool((_steps(opened, packets) < 0).any()) or _jumps(opened, packets))


def _jumps(opened: OpenVideo, packets: Packets) -> bool:
    most = _FLAGGED_JUMP_SECONDS if packets.corrupt else _JUMP_SECONDS
    return opened.container.format.name in _STREAMS and bool((_steps(opened, packets) > most).any())


def _steps(opened: OpenVideo, packets: Packets) -> F64:
    """Return the seconds from each packet to the next one, in the order of decoding."""
    times = [dts for dts in packets.dts if dts is not None]
    return np.asarray(np.diff(times) * _tick_seconds(opened), dtype=np.float64)


def _lost(opened: OpenVideo, stamps: Ticks, is_key: Mask, is_shown: Mask) -> Mask:
    """Return which frames no decoder gives: those before the first key frame, as far as they refer to others."""
    first_key = int(stamps[np.argmax(is_key)]) if is_key.any() else int(stamps[-1])
    early = is_shown & (stamps < first_key)
    if is_key[0] and not early.any():
        return early
    given: list[int] = []
    with video.opened(opened.path) as again:
        for frame in again.frames():
            given.append(_NEVER if frame.pts is None else frame.pts)
            if given[-1] >= first_key:
                break
    return is_shown & (stamps < max(given, default=np.iinfo(np.int64).max)) & ~np.isin(stamps, given)


def _counted(opened: OpenVideo, packets: Packets) -> FrameTimes:
    """Return the times of frames that are counted by decoding all of them."""
    with video.opened(opened.path) as again:
        given = [frame.pts for frame in again.frames()]
    if not given:
        raise ProbeError("no frame can be decoded")
    ticks = _decoding_times(opened, packets, len(given))
    if ticks is None and None not in given:
        ticks = np.array(given, dtype=np.int64)
    rate, keys = _rate(opened), np.zeros(1, dtype=np.int64)
    hidden = max(len(packets.pts) - len(given), 0)
    if ticks is not None and (ticks[1:] >= ticks[:-1]).all() and not _jumps(opened, packets):
        return FrameTimes(ticks, keys, _tick_seconds(opened), rate, timed=True, sought=False, hidden=hidden)
    numbers = np.arange(len(given))
    return FrameTimes(numbers, keys, float(1 / (rate or 1)), rate, timed=False, sought=False, hidden=hidden)


_TRIED = 64  # frames in which an order that is not that of times shows


def have_order(opened: OpenVideo, times: FrameTimes) -> bool:
    """Return whether frames come in the order of their times, for which the first are decoded where these may be others.

    Those of other containers are rarely wrong, and prove so where they are read.
    """
    if not times.doubted or times.labels is None:
        return times.sought
    with video.opened(opened.path) as again:
        given = [frame.pts for frame in islice(again.frames(), _TRIED)]
    return bool(given == times.sought_at[: len(given)].tolist())


def are_whole(opened: OpenVideo, packets: Packets) -> bool:
    """Return whether every frame decodes without an error and none is missing beside a packet flagged as incomplete.

    The flag is no proof: the packets of transport streams that were put behind each other have it too.
    """
    if not packets.corrupt:
        return True
    if _has_gap(opened, packets):
        return False
    with video.opened(opened.path) as again:
        again.stream.codec_context.options = again.stream.codec_context.options | {"err_detect": "explode"}
        with suppress(av.error.InvalidDataError):
            return not any(frame.is_corrupt for frame in again.frames())
    return False


def _has_gap(opened: OpenVideo, packets: Packets) -> bool:
    """Return whether frames are missing where a packet is incomplete: what follows it comes later than usual."""
    if None in packets.dts:
        return True
    steps = _steps(opened, packets)
    usual = np.median(steps[steps > 0]) if (steps > 0).any() else 0.0
    is_gap = (steps > 1.5 * usual) & (steps <= _FLAGGED_JUMP_SECONDS)
    return any(is_gap[max(at - 1, 0) : at + 3].any() for at in packets.corrupt)


class WrongTimesError(Exception):
    """Frames come in another order than that of their times, or from another place than was sought."""


def frames_by_time(opened: OpenVideo, ticks: NDArray[np.int64], key: int) -> Iterator[tuple[int, Any]]:
    """Yield frames with their numbers from a key frame on, as long as a decoder gives them at these ticks."""
    number = key
    for frame in opened.frames():
        if frame.pts is not None and frame.pts < ticks[key]:  # of an earlier key frame, or before this one in time
            continue
        if frame.pts != ticks[number]:
            raise WrongTimesError
        yield number, frame
        number += 1
        if number == len(ticks):
            return


def key_frames(runs: Sequence[range], times: FrameTimes, *, interlaced: bool) -> list[tuple[int, int]]:
    """Return the key frames to begin with and the last frame that is needed from each, for ascending runs."""
    found: list[tuple[int, int]] = []
    for run in runs:
        first = max(run.start - 1, 0) if interlaced else run.start  # fields are completed by those of the frame before
        before = times.keys[times.keys <= first]
        key, last = int(before[-1]) if len(before) else 0, run.stop - 1
        if found and key <= found[-1][1]:  # the decoder comes by
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((key, last))
    return found
