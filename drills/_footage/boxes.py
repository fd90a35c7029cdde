"""Change what containers say of their film, byte by byte, where the ffmpeg program has no option for it, or ignores it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

_MATRICES = {0: (1, 0, 0, 1), 1: (0, 1, -1, 0), 2: (-1, 0, 0, -1), 3: (0, -1, 1, 0)}
_ENTRIES = {
    b"stsd": 16,
    b"avc1": 86,
    b"hvc1": 86,
    b"mp4v": 86,
    b"apcn": 86,
    b"apch": 86,
    b"vp09": 86,
    b"av01": 86,
    b"jpeg": 86,
}
TRACK = (b"moov", b"trak")
SAMPLE_ENTRY = (*TRACK, b"mdia", b"minf", b"stbl", b"stsd")


def _boxes(data: bytes, path: Sequence[bytes], number: int = 0) -> list[int]:
    """Return where the boxes of a path begin, of the track with this number."""
    at, end, found = 0, len(data), []
    for name in path:
        skipped = 0
        while True:
            assert at < end, f"there is no box {name!r}"
            size, kind = struct.unpack(">I4s", data[at : at + 8])
            if kind == name and (name != b"trak" or skipped == number):
                break
            skipped += kind == name
            at += size or end - at
        found.append(at)
        end = at + size
        at += _ENTRIES.get(name, 8)
    return found


def add_box(file: Path, path: Sequence[bytes], name: bytes, content: bytes, track: int = 0) -> None:
    """Append a box to that of a path; the film's data must come first, since what follows is moved."""
    data = bytearray(file.read_bytes())
    box = struct.pack(">I4s", 8 + len(content), name) + content
    parents = _boxes(bytes(data), path, track)
    end = parents[-1] + struct.unpack(">I", data[parents[-1] : parents[-1] + 4])[0]
    data[end:end] = box
    for at in parents:
        data[at : at + 4] = struct.pack(">I", struct.unpack(">I", data[at : at + 4])[0] + len(box))
    file.write_bytes(data)


def crop_mp4(file: Path, entry: bytes, width: int, height: int, right: int = 0, down: int = 0) -> None:
    """Write a clean aperture of this size, whose centre lies so many pixels right of and below that of the frames."""
    add_box(file, (*SAMPLE_ENTRY, entry), b"clap", struct.pack(">IIIIiIiI", width, 1, height, 1, right, 1, down, 1))


def shape_pixels(file: Path, entry: bytes, wide: int, high: int) -> None:
    """Write the shape of pixels into the container alone."""
    add_box(file, (*SAMPLE_ENTRY, entry), b"pasp", struct.pack(">II", wide, high))


def turn(file: Path, quarters: int, *, mirrored: bool = False, track: int = 0) -> None:
    """Write into the track's header that frames are shown turned clockwise, from left to right mirrored before."""
    data = bytearray(file.read_bytes())
    a, b, c, d = _MATRICES[quarters % 4]
    if mirrored:
        a, b = -a, -b
    start = _boxes(bytes(data), (*TRACK, b"tkhd"), track)[-1] + 48
    data[start : start + 36] = struct.pack(">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
    file.write_bytes(data)


def disable(file: Path, track: int) -> None:
    """Mark a track as one that is not to be shown."""
    data = bytearray(file.read_bytes())
    data[_boxes(bytes(data), (*TRACK, b"tkhd"), track)[-1] + 11] &= 0xFE
    file.write_bytes(data)


def edit(file: Path, edits: Sequence[tuple[float, float]]) -> None:
    """Replace the edit list: seconds that each edit lasts, and seconds of the film where it begins, -1 for nothing."""
    data = bytearray(file.read_bytes())
    scale = _scale(data, (b"moov", b"mvhd"))
    media = _scale(data, (*TRACK, b"mdia", b"mdhd"))
    entries = [
        struct.pack(">IiHH", round(seconds * scale), -1 if begin < 0 else round(begin * media), 1, 0)
        for seconds, begin in edits
    ]
    content = struct.pack(">II", 0, len(edits)) + b"".join(entries)
    lists = struct.pack(">I4s", 16 + len(content), b"edts") + struct.pack(">I4s", 8 + len(content), b"elst") + content
    try:
        *parents, at = _boxes(bytes(data), (*TRACK, b"edts"))
        size = struct.unpack(">I", data[at : at + 4])[0]
    except AssertionError:
        *parents, at = _boxes(bytes(data), (*TRACK, b"mdia"))
        size = 0
    data[at : at + size] = lists
    for parent in parents:
        data[parent : parent + 4] = struct.pack(
            ">I", struct.unpack(">I", data[parent : parent + 4])[0] + len(lists) - size
        )
    file.write_bytes(data)


def _scale(data: bytearray, path: Sequence[bytes]) -> int:
    at = _boxes(bytes(data), path)[-1]
    assert data[at + 8] == 0, "times of 64 bits"
    return int(struct.unpack(">I", data[at + 20 : at + 24])[0])


# Matroska: a number of an element, its size as a number of one to eight bytes, its content.
_SEGMENT, _TRACKS, _ENTRY, _VIDEO = b"\x18\x53\x80\x67", b"\x16\x54\xae\x6b", b"\xae", b"\xe0"
CROPS = {"bottom": b"\x54\xaa", "top": b"\x54\xbb", "left": b"\x54\xcc", "right": b"\x54\xdd"}
DISPLAY = {"display_width": b"\x54\xb0", "display_height": b"\x54\xba"}


def crop_mkv(file: Path, **pixels: int) -> None:
    """Write how many pixels of each side are not shown, and the size of display, into a file without an index (`live`)."""
    data = bytearray(file.read_bytes())
    added = b"".join((CROPS | DISPLAY)[side] + b"\x84" + value.to_bytes(4, "big") for side, value in pixels.items())
    at = 0
    parents = []
    for name in (_SEGMENT, _TRACKS, _ENTRY, _VIDEO):
        at, content = _element(data, at, name)
        parents.append(at + len(name))
        end, at = content + _size(data, at + len(name))[0], content
    data[end:end] = added
    for position in parents[1:]:  # the segment's size is unknown
        size, length = _size(data, position)
        data[position : position + length] = _sized(size + len(added), length)
    file.write_bytes(data)


def _element(data: bytearray, at: int, name: bytes) -> tuple[int, int]:
    """Return where an element begins, and its content, among those from a place on."""
    while data[at : at + len(name)] != name:
        at += next(n + 1 for n in range(4) if data[at] & 0x80 >> n)
        size, length = _size(data, at)
        at += length + size
    return at, at + len(name) + _size(data, at + len(name))[1]


def _size(data: bytearray, at: int) -> tuple[int, int]:
    length = next(n + 1 for n in range(8) if data[at] & 0x80 >> n)
    return int.from_bytes(data[at : at + length], "big") & (1 << 7 * length) - 1, length


def _sized(size: int, length: int) -> bytes:
    assert size < (1 << 7 * length) - 1, "the element has no room for its new size"
    return (size | 1 << 7 * length).to_bytes(length, "big")
