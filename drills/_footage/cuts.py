"""Films that were cut or joined without being encoded anew, and streams that begin or break somewhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from drills._footage.case import LONG, Case, Shop, Words, underlined
from drills._footage.codecs import MPEG2, MPEG4, VP9, X264, X264_DEFAULT, x265

_CLOSED = "open-gop=0:scenecut=0"
_OPEN = "open-gop=1:scenecut=0"
_HVC1 = ("-tag:v", "hvc1")
PACKET = 188  # bytes of a packet of a transport stream

# Films that are cut: their words, and the containers of the pieces.
SOURCES: dict[str, tuple[Words, str]] = {
    "h264_closed": ((*X264, "-bf", "2", "-x264-params", _CLOSED), ".mp4 .mkv .mov .ts .flv"),
    "h264_open": ((*X264, "-bf", "3", "-b_strategy", "0", "-x264-params", _OPEN), ".mp4 .mkv .mov .ts .m2ts"),
    "h264_plain": ((*X264, "-bf", "0"), ".mp4 .mkv .ts .avi"),
    "hevc_closed": (x265(bframes=2, **{"open-gop": 0}), ".mp4 .mkv .ts"),
    "hevc_open": (x265(bframes=3, **{"open-gop": 1, "scenecut": 0}), ".mp4 .mkv .mov .ts"),
    "mpeg2": ((*MPEG2, "-bf", "2"), ".ts .mpg .mkv .vob .mp4"),
    "mpeg2_closed": ((*MPEG2, "-bf", "2", "-flags", "+cgop", "-sc_threshold", "1000000000"), ".ts .mpg"),
    "mpeg4": ((*MPEG4, "-bf", "2"), ".mp4 .mkv .avi"),
    "vp9": ((*VP9, "-g", "12"), ".webm .mkv .mp4"),
}
_SOURCE_SUFFIX = {
    ".avi": ".avi",
    ".ts": ".ts",
    ".m2ts": ".ts",
    ".mpg": ".mpg",
    ".vob": ".mpg",
    ".flv": ".mp4",
    ".mov": ".mp4",
}
_PIECE = {".m2ts": "mpegts", ".ts": "mpegts", ".mkv": "matroska", ".mpg": "mpeg", ".vob": "vob"}


def _long(shop: Shop, words: Words, suffix: str) -> Path:
    """Return a film of many frames in a container that pieces of this suffix are cut from."""
    suffix = _SOURCE_SUFFIX.get(suffix, suffix)
    added: Words = ()
    if suffix == ".avi" and "libx264" in words:
        added = ("-bsf:v", "h264_mp4toannexb")
    if suffix == ".mp4" and "libx265" in words:
        added = _HVC1
    return shop.film(f"long{suffix}", (*words, *added), numbers=range(LONG))


def _cut(words: Words, suffix: str, before: Words, after: Words, shop: Shop, path: Path) -> None:
    shop.copy(_long(shop, words, suffix), path, *after, *_tag(words, suffix), before=before)


def _tag(words: Words, suffix: str) -> Words:
    return _HVC1 if "libx265" in words and suffix in (".mp4", ".mov") else ()


# What is asked of the program before and after the name of the source.
CUTS: dict[str, tuple[Words, Words]] = {
    "cut_early": (("-ss", "0.62"), ("-t", "1.2")),
    "cut_late": (("-ss", "1.3"), ("-t", "0.9")),
    "cut_copyts": (("-ss", "0.9"), ("-copyts",)),
    "cut_after": ((), ("-ss", "0.7", "-t", "1.0")),  # begins where no key frame is
    "cut_end": ((), ("-t", "0.84")),  # ends between frames that refer to each other
    "cut_frames": ((), ("-frames:v", "19")),
}


def _segment(words: Words, suffix: str, number: int, reset: int, shop: Shop, path: Path) -> None:
    source = _long(shop, words, suffix)
    pieces = f"piece-%d{suffix}"
    options = ("-f", "segment", "-segment_time", "0.6", "-reset_timestamps", reset)
    shop.copy(source, pieces, *options, *_tag(words, suffix), *_format(suffix))
    (shop.folder / (pieces % number)).rename(path)


def _format(suffix: str) -> Words:
    return ("-segment_format", _PIECE[suffix]) if suffix in _PIECE else ()


def _tail(words: Words, suffix: str, share: float, header: int, shop: Shop, path: Path) -> None:
    """Leave the first part of a stream's bytes out, as of a recording that begins somewhere."""
    data = _long(shop, (*words, *_MPEGTS) if suffix == ".ts" else words, suffix).read_bytes()
    unit = PACKET if suffix == ".ts" else 2048
    at = int(len(data) * share) // unit * unit
    path.write_bytes(data[: header * unit] + data[at:])


_MPEGTS = ("-mpegts_flags", "+resend_headers")


def _joined(words: Words, first: Words, second: Words, shop: Shop, path: Path) -> None:
    """Put two transport streams behind each other, as `cat` does."""
    parts = []
    for number, more in enumerate((first, second)):
        numbers = range(24 * number, 24 * number + 24)
        parts.append(shop.film(f"part{number}.ts", (*words, *more), numbers=numbers).read_bytes())
    path.write_bytes(b"".join(parts))


def _joined_sizes(words: Words, filters: str, shop: Shop, path: Path) -> None:
    """Join streams of which the second has another size, or another shape of pixels."""
    first = shop.film("part0.ts", words, numbers=range(24))
    second = shop.film("part1.ts", words, numbers=range(24, 48), filters=filters)
    path.write_bytes(first.read_bytes() + second.read_bytes())


def _lost(words: Words, stream: int, count: int, shop: Shop, path: Path) -> None:
    """Lose packets in the middle of a transport stream, of its pictures (0) or of its sound (1)."""
    sound = ("-c:a", "aac")
    data = shop.film("whole.ts", (*words, *sound), numbers=range(48), sound=True).read_bytes()
    packets = [data[at : at + PACKET] for at in range(0, len(data), PACKET)]
    of_stream = [i for i, p in enumerate(packets) if (p[1] & 0x1F) << 8 | p[2] == 0x100 + stream]
    lost = set(of_stream[len(of_stream) // 2 :][:count])
    path.write_bytes(b"".join(packet for i, packet in enumerate(packets) if i not in lost))


def _shifted(words: Words, suffix: str, offset: str, shop: Shop, path: Path) -> None:
    shop.copy(shop.film(f"whole{suffix}", words, numbers=range(48)), path, "-output_ts_offset", offset)


def cases() -> Iterator[Case]:
    """Yield the cases of films that were cut and joined."""
    for name, (words, suffixes) in SOURCES.items():
        for suffix in suffixes.split():
            for cut, (before, after) in CUTS.items():
                make = partial(_cut, words, suffix, before, after)
                # Pieces in AVI begin with packets of nothing.
                yield Case(f"{cut}_{name}{underlined(suffix)}", suffix, make, rate=24.0 if suffix == ".avi" else None)
            if suffix in (".mp4", ".mov", ".mkv", ".ts", ".webm", ".mpg"):
                for number, reset in ((1, 1), (2, 0)):
                    make = partial(_segment, words, suffix, number, reset)
                    yield Case(f"segment{number}_{name}{underlined(suffix)}", suffix, make)
    yield from _streams()


def _streams() -> Iterator[Case]:
    b2 = (*X264, "-bf", "2")
    coded: dict[str, Words] = {
        "h264": b2,
        "hevc": x265(bframes=2),
        "mpeg2": (*MPEG2, "-bf", "2"),
        "plain": (*X264, "-bf", "0"),
    }
    for name, words in coded.items():
        for share in (0.3, 0.62):
            for header in (0, 3):
                kind = "begun_after_header" if header else "begun"
                yield Case(f"{kind}_{share:g}_{name}", ".ts", partial(_tail, words, ".ts", share, header))
        yield Case(f"joined_{name}", ".ts", partial(_joined, words, (), ()), rate=24.0)
        yield Case(f"joined_later_{name}", ".ts", partial(_joined, words, (), ("-output_ts_offset", "7.3")), rate=24.0)
        yield Case(
            f"joined_much_later_{name}", ".ts", partial(_joined, words, (), ("-output_ts_offset", "30")), rate=24.0
        )
        yield Case(f"joined_earlier_{name}", ".ts", partial(_joined, words, ("-output_ts_offset", "9"), ()), rate=24.0)
        yield Case(f"lost_sound_{name}", ".ts", partial(_lost, words, 1, 1))
        for kind, count in (("lost_pictures", 1), ("lost_more", 6)):
            why = "packets of the pictures are lost"
            yield Case(f"{kind}_{name}", ".ts", partial(_lost, words, 0, count), refused=why)
        yield Case(f"time_wraps_{name}", ".ts", partial(_shifted, words, ".ts", "95442.4"))
        yield Case(f"begins_late_{name}", ".ts", partial(_shifted, words, ".ts", "3600"))
        yield Case(f"begins_late_{name}_mkv", ".mkv", partial(_shifted, words, ".mkv", "3600"))
    yield Case("begun_0.4_mpg", ".mpg", partial(_tail, (*MPEG2, "-bf", "2"), ".mpg", 0.4, 0))
    for name, filters in {"size": "scale=96:128", "larger": "scale=192:144", "pixels": "setsar=2"}.items():
        for codec in ("h264", "mpeg2", "hevc"):
            make = partial(_joined_sizes, coded[codec], filters)
            # The decoder loses the frame before the change of size; frames are scaled to the first size.
            lost = {23} if codec == "mpeg2" and name != "pixels" else set[int]()
            numbers = tuple(number for number in range(48) if number not in lost)
            yield Case(f"joined_other_{name}_{codec}", ".ts", make, numbers=numbers, rate=24.0, tolerance=8.0)
    yield Case("joined_default", ".ts", partial(_joined, X264_DEFAULT, (), ()), rate=24.0)
