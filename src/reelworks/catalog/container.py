"""Do the boxes of a media file end where the file ends?

Demuxers treat a file that was cut short like one that is simply over. The containers themselves say
how long they are, so a few header bytes tell exactly how much is missing, without tolerances.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

# Top-level boxes of ISO/IEC 14496-12 and QuickTime. Other words after the last box are junk that some
# cameras append, and no size is read out of junk.
_MP4_BOXES = frozenset(
    b"ftyp moov mdat free skip wide moof mfra sidx ssix styp uuid meta pdin udta emsg prft pnot".split()
)
_EBML_HEADER, _MATROSKA_SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"


def missing_bytes(path: Path) -> int:
    """Count the bytes that a container announces beyond the file's end.

    Understands MP4 and QuickTime, Matroska and WebM, and AVI; other containers announce nothing and
    give 0, as do files whose length was left open by a live recorder.
    """
    size = path.stat().st_size
    with path.open("rb") as f:
        head = f.read(12)
        if head[4:8] in _MP4_BOXES:
            end = _mp4_end(f, size)
        elif head[:4] == _EBML_HEADER:
            end = _matroska_end(f)
        elif head[:4] == b"RIFF" and head[8:12] == b"AVI ":
            end = _avi_end(head)
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
    header_length = _ebml_size(f)
    if header_length is None:
        return 0
    f.seek(header_length, 1)
    if f.read(4) != _MATROSKA_SEGMENT:
        return 0
    length = _ebml_size(f)
    return 0 if length is None else f.tell() + length


def _ebml_size(f: BinaryIO) -> int | None:
    """Read a variable-length size (RFC 8794, section 6); None where it is unknown or broken."""
    first = f.read(1)
    if not first or first[0] == 0:
        return None
    num_bytes = 9 - first[0].bit_length()
    value_bits = 7 * num_bytes
    value = int.from_bytes(first + f.read(num_bytes - 1), "big") & ((1 << value_bits) - 1)
    return None if value == (1 << value_bits) - 1 else value


def _avi_end(head: bytes) -> int:
    length = int.from_bytes(head[4:8], "little")
    # Unclosed files say 0 or all ones; an odd chunk's padding byte may be absent.
    return 0 if length in (0, 0xFFFFFFFF) else 8 + length - length % 2
