"""Find videos whose frames change their size or the shape of their pixels on the way, by the headers of key frames.

Players scale such frames to the size that the video has at its start, and so do scans and training.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import av
from av.bitstream import BitStreamFilterContext

from reelworks.data.media import video
from reelworks.data.media.video import OpenVideo

# Streams that repeat their headers, and codecs whose headers FFmpeg finds in the packets of such streams.
_STREAMS = {"mpegts", "mpeg", "avi", "h264", "hevc", "mpegvideo"}
_WITH_HEADERS = {"h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4", "vc1", "av1"}


class HeaderWatch:
    """Compares the headers of a video's key frames."""

    def __init__(self, opened: OpenVideo) -> None:
        self._codec, self._first = opened.stream.codec_context.name, b""
        self._differs = False
        in_band = opened.container.format.name in _STREAMS and self._codec in _WITH_HEADERS
        self._filter = BitStreamFilterContext("extract_extradata", opened.stream) if in_band else None

    def see(self, packet: av.Packet[Any]) -> None:
        """Compare the header of a key frame's packet, if it has one."""
        if header := self._header(packet):
            self._first = self._first or header
            self._differs = self._differs or header != self._first

    def _header(self, packet: av.Packet[Any]) -> bytes:
        if self._codec == "vp8":  # RFC 6386, section 9.1
            return bytes(memoryview(packet)[3:10])
        if self._codec == "vp9":  # the uncompressed header, up to the size of the frame
            start = bytes(memoryview(packet)[1:9])
            return start[:7] + bytes([start[7] & 0xF0]) if len(start) == 8 else b""
        if self._filter is not None:
            copy = av.Packet(bytes(packet))  # the filter takes it
            copy.is_keyframe = True
            with suppress(av.error.InvalidDataError):  # as of H.264 that was copied from MP4 as it is
                packet = next(iter(self._filter.filter(copy)), packet)
        return bytes(packet.get_sidedata("new_extradata")) if packet.has_sidedata("new_extradata") else b""

    def has_other_sizes(self, opened: OpenVideo) -> bool:
        """Return whether frames have several sizes or shapes of pixels, for which all are decoded if headers differ."""
        if not self._differs:
            return False
        with video.opened(opened.path) as again:
            decoder = again.stream.codec_context
            return len({(frame.height, frame.width, decoder.sample_aspect_ratio) for frame in again.frames()}) > 1
