"""Tell how many bytes a video lacks, by the length that its container states."""

from __future__ import annotations

from typing import BinaryIO

from reelworks.data.media.container_crop import ebml_number

# Top-level boxes of ISO/IEC 14496-12 and QuickTime. Anything else after the last box is data that some
# cameras append, and its first bytes are not a size.
_MP4_BOXES = frozenset(
    b"ftyp moov mdat free skip wide moof mfra sidx ssix styp uuid meta pdin udta emsg prft pnot".split()
)
_EBML_HEADER, _MATROSKA_SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"


def missing_bytes(file: BinaryIO, size: int) -> int:
    """Return how many bytes are missing from a file of this size, by the length that its container states.

    Supports MP4 and QuickTime, Matroska and WebM, and AVI; the result is 0 for other containers, which state no
    length, and for files whose length a live recorder left open.
    """
    head = file.read(12)
    if head[4:8] in _MP4_BOXES:
        end = _mp4_end(file, size)
    elif head[:4] == _EBML_HEADER:
        end = _matroska_end(file)
    elif head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        length = int.from_bytes(head[4:8], "little")
        # Unclosed files state 0 or all ones; an odd chunk's padding byte may be absent.
        end = 0 if length in (0, 0xFFFFFFFF) else 8 + length - length % 2
    else:
        end = 0
    return max(0, end - size)


def _mp4_end(f: BinaryIO, size: int) -> int:
    position = 0
    while position + 8 <= size:
        f.seek(position)
        header = f.read(16)
        length, box = int.from_bytes(header[:4], "big"), header[4:8]
        if length == 1:
            length = int.from_bytes(header[8:16], "big")
        if box not in _MP4_BOXES or length < 8:  # length 0 means "to the end of the file"
            break
        position += length
    return position


def _matroska_end(f: BinaryIO) -> int:
    f.seek(4)
    header_length = ebml_number(f)
    if header_length is None:
        return 0
    f.seek(header_length, 1)
    if f.read(4) != _MATROSKA_SEGMENT:
        return 0
    length = ebml_number(f)
    return 0 if length is None else f.tell() + length
