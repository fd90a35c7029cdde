"""Open a video as players do: choose its stream, decode it, cut off what the container says is not to be shown, and make whole
frames of fields.

Files are measured and decoded through this module alone, so that the catalog counts the frames that training reads.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import groupby
from typing import Any, BinaryIO, NamedTuple

import av
from av.filter import Graph
from av.stream import Disposition

from reelworks.data.media import containers, location
from reelworks.data.media.containers import ShownArea
from reelworks.data.media.formats import ProbeError
from reelworks.data.media.location import MediaPath

# Containers that are opened, whatever the extension. Playlists are not allowed: they could make the decoder
# open other files or the network.
_CONTAINERS = "mov,matroska,avi,mpeg,mpegts,mpegvideo,flv,asf,ogg,mxf,m4v,h264,hevc"
# Largest frame that is decoded, as large as the largest picture that Pillow reads: a hostile file of some bytes
# may state any size, whose memory a decoder would take.
_MOST_PIXELS = 178_956_970
_NOT_SHOWN = Disposition.attached_pic | Disposition.still_image | Disposition.timed_thumbnails
# Decoders that read the transparency of WebM, which lies beside the stream; the default ones do not see it.
_WITH_ALPHA = {"vp8": "libvpx", "vp9": "libvpx-vp9"}

_ALPHA_IN_PALETTE = {"png", "apng", "gif"}  # palettes of other codecs have zeros in its place


class OpenVideo(NamedTuple):
    """An open video and the stream of it that players show."""

    path: MediaPath
    container: av.container.InputContainer
    stream: av.VideoStream
    crop: ShownArea | None  # part of stored frames that is shown; None for all
    has_others: bool  # whether it has other streams of moving pictures

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the part of stored frames that is shown, before they are turned."""
        return (self.stream.height, self.stream.width) if self.crop is None else (self.crop.height, self.crop.width)

    @property
    def has_alpha(self) -> bool:
        """Whether transparency lies beside the stream."""
        return self.stream.metadata.get("alpha_mode") == "1" and self.stream.codec_context.name in _WITH_ALPHA

    def frames(self, packets: Iterator[av.Packet[Any]] | None = None) -> Iterator[av.VideoFrame]:
        """Yield the frames that a decoder gives from the place of the container on, in its order, cropped.

        Packets before the first frame that refer to others which are not there are passed over, as players do.
        """
        decoder: Any = self.stream.codec_context
        if self.has_alpha:
            decoder = av.CodecContext.create(_WITH_ALPHA[decoder.name], "r")
            _prepare(decoder)
        packets = self.container.demux(self.stream) if packets is None else packets
        cropped = None if self.crop is None else _Cropping(self.crop)
        for frame in decoded(decoder, packets, lambda packet: not packet.is_keyframe):
            if frame.format.name == "pal8" and self.stream.codec_context.name not in _ALPHA_IN_PALETTE:
                frame = frame.reformat(format="rgb24", threads=1)
            yield frame if cropped is None else cropped(frame)

    def seek(self, tick: int) -> None:
        """Go to the key frame at or before a time, as far as the container finds it."""
        self.container.seek(tick, stream=self.stream, backward=True)

    def __enter__(self) -> OpenVideo:
        return self

    def __exit__(self, *_: object) -> None:
        self.container.close()


def decoded(
    decoder: Any, packets: Iterator[av.Packet[Any]], is_passed_over: Callable[[av.Packet[Any]], bool]
) -> Iterator[Any]:
    """Yield the frames that a decoder gives of packets; of those before the first frame, some may be of no use to it.

    Raises:
        av.error.InvalidDataError: It cannot decode a packet that is not to be passed over.
    """
    began = False
    for packet in packets:
        if not packet.size and packet.dts is not None:  # a frame that was dropped, which would end the decoding
            continue
        try:
            found = decoder.decode(packet if packet.size else None)
        except av.error.InvalidDataError:
            if began or not is_passed_over(packet):
                raise
            continue
        began = began or bool(found)
        yield from found


def opened(path: MediaPath, file: BinaryIO | None = None) -> OpenVideo:
    """Open a video, without access to other files or addresses that it may refer to.

    Args:
        file: The same file, if it is open already.

    Raises:
        ProbeError: It is no video, or has no stream of moving pictures that can be decoded.
    """
    container = _opened(path, _CONTAINERS, "not a video: the content does not match the extension", file)
    try:
        streams = [s for s in container.streams.video if not s.disposition & _NOT_SHOWN and s.codec_context is not None]
        if not streams:
            raise ProbeError("no video stream that can be decoded")
        if len(streams) > 1:
            streams = _by_preference(path, streams)
        stream = streams[0]
        _prepare(stream.codec_context)
        with location.opened(path) if file is None else nullcontext(file) as header:
            number = container.streams.video.index(stream)
            crop = containers.shown_area(header, container.format.name, stream.id, number)
    except BaseException:
        container.close()
        raise
    fits = crop is not None and crop.fits(stream.height, stream.width)
    return OpenVideo(path, container, stream, crop if fits else None, len(streams) > 1)


def sound(path: MediaPath) -> av.container.InputContainer:
    """Open a file of sound, or a video, in the same way."""
    return _opened(path, f"{_CONTAINERS},wav,mp3,flac,aac", "neither a file of sound nor a video")


def sound_track(container: av.container.InputContainer) -> av.AudioStream | None:
    """Return the track of sound that is read: the first one that can be decoded; None if there is none."""
    return next((track for track in container.streams.audio if track.codec_context is not None), None)


def _opened(path: MediaPath, formats: str, otherwise: str, file: BinaryIO | None = None) -> av.container.InputContainer:
    options = {"protocol_whitelist": "file,subfile", "format_whitelist": formats}
    try:
        return av.open(location.ffmpeg_url(path, is_open=file is not None), options=options, metadata_errors="replace")
    except av.error.ArgumentError:  # EINVAL: a known format that is not among these
        raise ProbeError(otherwise) from None


def _prepare(decoder: Any) -> None:
    decoder.thread_count = 1  # files are read in parallel, so decoder threads would only compete
    decoder.options = {"max_pixels": str(_MOST_PIXELS)}


def _by_preference(path: MediaPath, streams: list[av.VideoStream]) -> list[av.VideoStream]:
    """Return streams without stills, which have one packet whether or not they are marked, the one that players show first."""
    with _opened(path, _CONTAINERS, "") as container:
        counts = Counter(packet.stream_index for packet in container.demux(container.streams.video) if packet.size)

    def preference(stream: av.VideoStream) -> tuple[bool, int, int]:
        return bool(stream.disposition & Disposition.default), stream.width * stream.height, counts[stream.index]

    return sorted([s for s in streams if counts[s.index] > 1] or streams, key=preference, reverse=True)


Numbered = tuple[int, av.VideoFrame]  # a frame with its time or number


def progressive(frames: Iterable[Numbered]) -> Iterator[Numbered]:
    """Yield frames in order, one for one, each interlaced one rebuilt from its fields and those of its neighbours.

    Frames that are not marked as interlaced pass unchanged. A rebuilt frame comes after its successor was read. Neighbours
    have the same size and format, since a filter takes others for its own: it reads memory beyond smaller ones.
    """
    for _, alike in groupby(frames, lambda numbered: _kind(numbered[1])):
        yield from _rebuilt(alike)


def _rebuilt(frames: Iterable[Numbered]) -> Iterator[Numbered]:
    graph: Graph | None = None
    waiting: deque[int] = deque()
    for key, frame in frames:
        if graph is None and not frame.interlaced_frame:
            yield key, frame
            continue
        graph = graph or _filtered(frame, "bwdif", "mode=send_frame:deint=interlaced")
        waiting.append(key)
        graph.vpush(frame)
        yield from _finished(graph, waiting)
    if graph is not None:
        graph.vpush(None)
        yield from _finished(graph, waiting)


def _kind(frame: av.VideoFrame) -> tuple[int, int, str]:
    """Return what all frames that a filter is given have in common."""
    return frame.width, frame.height, frame.format.name


def _filtered(frame: av.VideoFrame, name: str, settings: str) -> Graph:
    """Return a filter for frames like this one."""
    graph = Graph()
    graph.threads = 1  # clips are decoded in parallel
    source = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base, name="source"
    )
    graph.link_nodes(source, graph.add(name, settings), graph.add("buffersink")).configure()
    return graph


def _finished(graph: Graph, waiting: deque[int]) -> Iterator[Numbered]:
    while waiting:
        try:
            frame = graph.vpull()
        except (av.error.BlockingIOError, av.error.EOFError):
            return
        yield waiting.popleft(), frame


class _Cropping:
    """Cuts frames to the part that is shown, without a copy of the pixels."""

    def __init__(self, crop: ShownArea) -> None:
        self._settings = f"{crop.width}:{crop.height}:{crop.left}:{crop.top}"
        self._graph, self._of = Graph(), (0, 0, "")

    def __call__(self, frame: av.VideoFrame) -> Any:
        """Return the part of a frame that is shown."""
        if _kind(frame) != self._of:
            self._graph, self._of = _filtered(frame, "crop", self._settings), _kind(frame)
        self._graph.vpush(frame)
        return self._graph.vpull()
