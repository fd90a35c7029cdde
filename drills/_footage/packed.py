"""Pack frames of MPEG-4 into AVI as DivX did: a packet with a frame and the one that is shown before it, then one of nothing."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av

_FRAME = b"\0\0\1\xb6"  # begins a coded frame; two bits behind it tell its type
_NOTHING = _FRAME + b"\x7f"  # a frame that is not coded
_BY_DIVX = b"\0\0\1\xb2DivX503b1393p\0"  # tells decoders of packed frames


def pack(source: Path, path: Path) -> Path:
    """Copy a film of MPEG-4 with at most one frame out of order at a time into AVI, packed."""
    with av.open(str(source)) as opened:
        stream = opened.streams.video[0]
        tick = 1 / Fraction(stream.average_rate or 24)
        frames = [bytes(packet) for packet in opened.demux(stream) if packet.size]
        at = frames[0].index(_FRAME)
        frames[0] = frames[0][:at] + _BY_DIVX + frames[0][at:]
        with av.open(str(path), "w") as container:
            copied = container.add_stream_from_template(stream)
            for number, data in enumerate(_packed(frames)):
                packet = av.Packet(data)
                packet.stream, packet.pts, packet.dts, packet.time_base = (
                    copied,
                    number,
                    number,
                    tick,
                )
                packet.is_keyframe = _type(data) == "I"
                container.mux(packet)
    return path


def _type(data: bytes) -> str:
    return "IPBS"[data[data.index(_FRAME) + 4] >> 6]


def _packed(frames: list[bytes]) -> list[bytes]:
    found, number = [], 0
    while number < len(frames):
        if [_type(data) for data in frames[number : number + 2]] in (["P", "B"], ["I", "B"]):
            found += [frames[number] + frames[number + 1], _NOTHING]
            number += 2
        else:
            found.append(frames[number])
            number += 1
    return found
