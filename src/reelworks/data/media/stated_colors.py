"""Tell the colours that pictures state without an ICC profile: AVIF, HEIF and PNG by numbers, and PNG by chromaticities."""

from __future__ import annotations

import io
import struct
from typing import Any, BinaryIO, NamedTuple

from reelworks.data.media import containers

# Numbers of ISO/IEC 23091-2 of what is converted.
_PRIMARIES = {9: "bt2020", 12: "p3"}
_TRANSFERS = {16: "pq", 18: "hlg"}
_UNSTATED = 2
# Red, green and blue as x and y, in ten thousandths.
_CHROMATICITIES = {(6800, 3200, 2650, 6900, 1500, 600): 12, (7080, 2920, 1700, 7970, 1310, 460): 9}


class StatedColors(NamedTuple):
    """Colours of a picture: the names of its primaries, and of its transfer function if it is HDR; "" for those of sRGB.

    HDR that states no primaries has those of BT.2020.
    """

    primaries: str = ""
    transfer: str = ""


def of_picture(file: BinaryIO, picture_format: str | None, info: dict[str | tuple[int, int], Any]) -> StatedColors:
    """Return the colours that an open picture with this format and `info` of Pillow states; others than those known count as sRGB."""
    at, numbers = file.tell(), (_UNSTATED, _UNSTATED)
    if picture_format == "PNG":
        # A chunk sRGB counts in place of chromaticities, and cICP in place of all (PNG, 3rd edition, section 4.3).
        corners = () if "srgb" in info else info.get("chromaticity", ())[2:]
        numbers = (_CHROMATICITIES.get(tuple(round(10_000 * value) for value in corners), _UNSTATED), _UNSTATED)
        for kind, _ in containers.png_chunks(file):
            if kind == b"cICP" and len(stated := file.read(2)) == 2:
                numbers = (stated[0], stated[1])
            if kind in (b"cICP", b"IDAT"):
                break
    elif picture_format in ("AVIF", "HEIF"):
        numbers = _of_primary_item(containers.top_box(file, b"meta")[4:])
    file.seek(at)
    return of_numbers(*numbers)


def of_numbers(primaries: int, transfer: int) -> StatedColors:
    """Return the colours that numbers of ISO/IEC 23091-2 tell."""
    hdr = _TRANSFERS.get(transfer, "")
    return StatedColors(_PRIMARIES.get(primaries, _PRIMARIES[9] if hdr and primaries == _UNSTATED else ""), hdr)


def _of_primary_item(meta: bytes) -> tuple[int, int]:
    """Return the numbers of primaries and transfer of the picture that is shown (ISO/IEC 23008-12, sections 6.5.5 and 9.3)."""
    primary = int.from_bytes(containers.box(meta, b"pitm")[4:], "big")
    table = io.BytesIO(containers.box(meta, b"iprp", b"ipma"))
    properties = list(containers.boxes(containers.box(meta, b"iprp", b"ipco")))

    def number(num_bytes: int) -> int:
        return int.from_bytes(table.read(num_bytes), "big")

    version_flags = number(4)
    table.seek(8)
    while table.tell() < table.getbuffer().nbytes:
        item, place_bytes = number(4 if version_flags >> 24 else 2), 1 + (version_flags & 1)
        places = [number(place_bytes) & ((1 << 8 * place_bytes - 1) - 1) for _ in range(number(1))]
        for kind, data in (properties[place - 1] for place in places if 0 < place <= len(properties)):
            if item == primary and kind == b"colr" and data[:4] == b"nclx":
                first, second = struct.unpack_from(">HH", data, 4)
                return first, second
    return _UNSTATED, _UNSTATED
