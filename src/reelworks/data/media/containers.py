"""Read what containers say of a video beside its streams: the part of frames that is to be shown, and the length of the file.

FFmpeg's library reads Matroska's PixelCrop and `clap` of MP4 and QuickTime, and leaves it to its caller to apply them; PyAV does
not show them.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from fractions import Fraction
from typing import BinaryIO, NamedTuple

_MOST_BYTES = 64 << 20  # of the header of a file of many hours
_EBML = 0x1A45DFA3
_SEGMENT, _CLUSTER, _TRACKS, _TRACK, _TRACK_TYPE, _VIDEO = 0x18538067, 0x1F43B675, 0x1654AE6B, 0xAE, 0x83, 0xE0
_SEEK_HEAD, _SEEK, _SEEK_ID, _SEEK_POSITION = 0x114D9B74, 0x4DBB, 0x53AB, 0x53AC
_WIDTH, _HEIGHT, _BOTTOM, _TOP, _LEFT, _RIGHT = 0xB0, 0xBA, 0x54AA, 0x54BB, 0x54CC, 0x54DD
_IS_VIDEO = 1
# Top-level boxes of ISO/IEC 14496-12 and QuickTime. Anything else after the last box is data that some
# cameras append, and its first bytes are not a size.
_MP4_BOXES = frozenset(
    b"ftyp moov mdat free skip wide moof mfra sidx ssix styp uuid meta pdin udta emsg prft pnot".split()
)
_ENTRY_BYTES = 78  # of a visual sample entry before its boxes (ISO/IEC 14496-12, section 12.1.3)


class ShownArea(NamedTuple):
    """A part of stored frames, in pixels."""

    top: int
    left: int
    height: int
    width: int

    def fits(self, height: int, width: int) -> bool:
        """Return whether it lies in frames of this size, and is not all of them."""
        inside = min(self.top, self.left) >= 0 and min(self.height, self.width) > 0
        inside = inside and self.top + self.height <= height and self.left + self.width <= width
        return inside and (self.height, self.width) != (height, width)


def shown_area(file: BinaryIO, container: str, track_id: int, number: int) -> ShownArea | None:
    """Return the part of frames that is shown; None if the container says nothing of it.

    Args:
        file: The open file.
        container: FFmpeg's name of its format.
        track_id: Identity of the track in MP4 and QuickTime.
        number: Number of the track among those of pictures, in Matroska.
    """
    names = container.split(",")
    if "matroska" not in names and "mov" not in names:
        return None
    return _matroska(file, number) if "matroska" in names else _mp4(file, track_id)


def _mp4(file: BinaryIO, track_id: int) -> ShownArea | None:
    moov = top_box(file, b"moov")
    if b"clap" not in moov:  # as in nearly all files
        return None
    for kind, trak in boxes(moov):
        if kind != b"trak":
            continue
        tkhd = box(trak, b"tkhd")
        if int.from_bytes(tkhd[20:24] if tkhd[:1] == b"\1" else tkhd[12:16], "big") == track_id:
            stsd = box(trak, b"mdia", b"minf", b"stbl", b"stsd")
            entry = next((data for _, data in boxes(stsd[8:])), b"")
            clap = box(entry[_ENTRY_BYTES:], b"clap")
            width, height = (int.from_bytes(entry[at : at + 2], "big") for at in (24, 26))
            return _clean_aperture(clap, height, width) if len(clap) >= 32 else None
    return None


def box(data: bytes, *path: bytes) -> bytes:
    """Return the content of the first box at a path; nothing if there is none."""
    for name in path:
        data = next((inside for kind, inside in boxes(data) if kind == name), b"")
    return data


def _top_boxes(file: BinaryIO, size: int) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield the top-level boxes of MP4: kind, place, bytes of the header and of all; these are 0 for "to the end of the file"."""
    at = 0
    while at + 8 <= size:
        file.seek(at)
        header = file.read(16)
        length, kind = struct.unpack_from(">I4s", header)
        skip = 16 if length == 1 else 8
        length = int.from_bytes(header[8:], "big") if length == 1 else length
        yield kind, at, skip, length
        if length < 8:
            return
        at += length


def top_box(file: BinaryIO, name: bytes) -> bytes:
    """Return the content of the first top-level box of this kind; nothing if there is none."""
    for kind, at, skip, length in _top_boxes(file, file.seek(0, io.SEEK_END)):
        if kind == name:
            file.seek(at + skip)
            return file.read(min(length - skip, _MOST_BYTES) if length >= skip else _MOST_BYTES)
    return b""


def boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield kind and content of the boxes in data."""
    at = 0
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        if length < 8:
            return
        yield kind, data[at + 8 : at + length]
        at += length


def _clean_aperture(clap: bytes, height: int, width: int) -> ShownArea | None:
    """Return the clean aperture, which lies around the centre of the frame with an offset (section 12.1.4)."""
    numbers = struct.unpack_from(">IIIIiIiI", clap)
    if 0 in numbers[1::2]:
        return None
    wide, high, across, down = (Fraction(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True))
    left, top = (width - wide) / 2 + across, (height - high) / 2 + down
    return ShownArea(round(top), round(left), round(high), round(wide))


def _matroska(file: BinaryIO, number: int) -> ShownArea | None:
    end, start, elsewhere = file.seek(0, io.SEEK_END), file.seek(0), 0
    for ident, size in _elements(file):
        at = file.tell()
        if ident == _SEGMENT:  # whose size a live recorder leaves open
            start = at
        elif ident != _CLUSTER and size is not None:
            if ident == _TRACKS:
                return _of_track(file.read(min(size, _MOST_BYTES)), number)
            if ident == _SEEK_HEAD:
                elsewhere = start + _place_of_tracks(file.read(min(size, _MOST_BYTES)))
            file.seek(at + size)
        elif at < elsewhere < end:  # an editor may have moved them there; a wrong place may lead back
            file.seek(elsewhere)
        else:
            break
    return None


def _place_of_tracks(seek_head: bytes) -> int:
    for ident, seek in _children(seek_head):
        entry = dict(_children(seek)) if ident == _SEEK else {}
        if entry.get(_SEEK_ID) == _TRACKS.to_bytes(4, "big"):
            return int.from_bytes(entry.get(_SEEK_POSITION, b""), "big")
    return 0


def _of_track(tracks: bytes, number: int) -> ShownArea | None:
    videos = [track for ident, track in _children(tracks) if ident == _TRACK and _is_video(track)][number:]
    settings = (dict(_children(data)) for track in videos[:1] for ident, data in _children(track) if ident == _VIDEO)
    found = next(settings, {})
    width, height, bottom, top, left, right = (
        int.from_bytes(found.get(ident, b""), "big") for ident in (_WIDTH, _HEIGHT, _BOTTOM, _TOP, _LEFT, _RIGHT)
    )
    return ShownArea(top, left, height - top - bottom, width - left - right) if bottom or top or left or right else None


def _is_video(track: bytes) -> bool:
    return any(ident == _TRACK_TYPE and int.from_bytes(data, "big") == _IS_VIDEO for ident, data in _children(track))


def _children(data: bytes) -> Iterator[tuple[int, bytes]]:
    file = io.BytesIO(data)
    for ident, size in _elements(file):
        if size is None:
            return
        yield ident, file.read(size)


def _elements(file: BinaryIO) -> Iterator[tuple[int, int | None]]:
    """Yield identity and size of EBML elements (RFC 8794), None for an unknown size; the caller moves behind each."""
    while True:
        ident, size = _ebml_number(file, keep_marker=True), _ebml_number(file)
        if ident is None:
            return
        yield ident, size


def _ebml_number(file: BinaryIO, *, keep_marker: bool = False) -> int | None:
    """Read a number of variable length (RFC 8794, section 4); None if it is unknown or invalid."""
    first = file.read(1)
    if not first or not first[0]:
        return None
    length = 9 - first[0].bit_length()
    value, bits = int.from_bytes(first + file.read(length - 1), "big"), 7 * length
    if keep_marker:
        return value
    value &= (1 << bits) - 1
    return None if value == (1 << bits) - 1 else value


def png_chunks(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield kind and length of the chunks of a PNG before its end, with the file at the content of each."""
    at = 8
    while True:
        file.seek(at)
        header = file.read(8)
        if len(header) < 8 or not header[4:].isalpha() or header[4:] == b"IEND":
            return
        length, kind = struct.unpack(">I4s", header)
        yield kind, length
        at += 12 + length


def webp_chunks(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, place and length of the chunks of a WebP that hold pixels."""
    at = 12
    while True:
        file.seek(at)
        header = file.read(8)
        if len(header) < 8:
            return
        kind, length = struct.unpack("<4sI", header)
        if kind in (b"VP8 ", b"VP8L", b"ANMF"):
            yield kind, at + 8, length
        at += 8 + length + length % 2


def jpeg_without_end(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, place and length of the pixels of a JPEG that ends with zeros and not by a marker (ITU-T T.81, B.1.1)."""
    file.seek(-1, io.SEEK_END)
    if file.read(1) != b"\0":  # as nearly all, which are not read for it
        return
    file.seek(2)
    while len(marker := file.read(4)) == 4 and marker[0] == 0xFF != marker[1]:
        if marker[1] == 0xDA:
            at, pixels = file.tell(), file.read()
            if b"\xff\xd9" not in pixels:
                yield marker[:2], at, len(pixels)
            return
        file.seek(int.from_bytes(marker[2:], "big") - 2, 1)


def coded_items(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, place and length of the coded pictures and tiles of HEIF (ISO/IEC 14496-12, sections 8.11.3 and 8.11.6)."""
    meta = top_box(file, b"meta")[4:]
    listed, table = box(meta, b"iinf"), io.BytesIO(box(meta, b"iloc"))
    kinds = dict[int, bytes]()
    for _, infe in boxes(listed[8 if listed[:1] > b"\0" else 6 :]):
        end = 8 if infe[:1] > b"\2" else 6
        kinds[int.from_bytes(infe[4:end], "big")] = infe[end + 2 : end + 6]

    def number(num_bytes: int) -> int:
        return int.from_bytes(table.read(num_bytes), "big")

    version, _, sizes, more = number(1), number(3), number(1), number(1)
    number(4 if version == 2 else 2)
    while table.tell() < table.getbuffer().nbytes:
        kind = kinds.get(number(4 if version == 2 else 2), b"")
        is_in_file = not version or number(2) & 15 == 0
        number(2)
        base, num_extents = number(more >> 4), number(2)
        for _ in range(num_extents):
            number(more & 15 if version else 0)
            at, length = base + number(sizes >> 4), number(sizes & 15)
            if is_in_file and kind in (b"av01", b"hvc1"):
                yield kind, at, length


def stated_bytes(file: BinaryIO, size: int) -> int:
    """Return the length that the container of a file of this size states, from where the file is open.

    Supports MP4 and QuickTime, Matroska and WebM, and AVI; the result is 0 for other containers, which state no
    length, and for files whose length a live recorder left open.
    """
    head = file.read(12)
    if head[4:8] in _MP4_BOXES:
        return _mp4_end(file, size)
    if head[:4] == _EBML.to_bytes(4, "big"):
        return _matroska_end(file)
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        length = int.from_bytes(head[4:8], "little")
        # Unclosed files state 0 or all ones; an odd chunk's padding byte may be absent.
        return 0 if length in (0, 0xFFFFFFFF) else 8 + length - length % 2
    return 0


def _mp4_end(file: BinaryIO, size: int) -> int:
    end = 0
    for kind, at, _, length in _top_boxes(file, size):
        if kind not in _MP4_BOXES or length < 8:
            break
        end = at + length
    return end


def _matroska_end(file: BinaryIO) -> int:
    file.seek(0)
    for ident, size in _elements(file):  # the header, and what follows it
        if size is None or ident not in (_EBML, _SEGMENT):
            return 0
        if ident == _SEGMENT:
            return file.tell() + size
        file.seek(size, 1)
    return 0
