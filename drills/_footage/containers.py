"""Ways in which containers lay out one film: fragments, edit lists, copies from other containers, sound beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from drills._footage import boxes, packed
from drills._footage.case import Case, Shop, Words, underlined
from drills._footage.codecs import MPEG2, MPEG4, VP8, VP9, X264, X264_DEFAULT, x265

B3: Words = (*X264, "-bf", "3", "-b_strategy", "0")
PLAIN: Words = (*X264, "-bf", "0")
_HEVC: Words = (*x265(bframes=3, **{"open-gop": 0}), "-tag:v", "hvc1")
_FILMS: dict[str, Words] = {"b3": B3, "plain": PLAIN, "hevc": _HEVC}

# Layouts of MP4 and MOV, by the words of the muxer.
_LAYOUTS: dict[str, Words] = {
    "fragmented": ("-movflags", "frag_keyframe+empty_moov+default_base_moof"),
    "fragments_of_frames": ("-movflags", "frag_every_frame+empty_moov"),
    "fragments_delayed": ("-movflags", "frag_keyframe+delay_moov"),
    "cmaf": ("-movflags", "cmaf+frag_keyframe+empty_moov"),
    "dash": ("-movflags", "dash+frag_keyframe+delay_moov+global_sidx"),
    "faststart": ("-movflags", "faststart"),
    "negative_offsets": ("-movflags", "negative_cts_offsets"),
    "no_edit_list": ("-use_editlist", "0"),
    "later": ("-output_ts_offset", "5"),
    "timescale": ("-video_track_timescale", "600"),
    "timescale_coarse": ("-video_track_timescale", "24"),
}
_MATROSKA: dict[str, Words] = {
    "live": ("-live", "1"),
    "small_clusters": ("-cluster_time_limit", "100"),
    "index_first": ("-cues_to_front", "1"),
    "later": ("-output_ts_offset", "5"),
    "no_index": ("-write_crc32", "0", "-dash", "1"),
}


def _film(words: Words, more: Words, shop: Shop, path: Path) -> None:
    shop.film(path, (*words, *more))


def _changed(words: Words, change: Callable[[bytes], bytes], more: Words, shop: Shop, path: Path) -> None:
    path.write_bytes(change(shop.film(f"whole{path.suffix}", (*words, *more)).read_bytes()))


def _endless(data: bytes) -> bytes:
    """Say of the last box, the film's data, that it lasts to the end of the file."""
    at = data.rindex(b"mdat") - 4
    return data[:at] + bytes(4) + data[at + 4 :]


def _edited(words: Words, edits: Sequence[tuple[float, float]], shop: Shop, path: Path) -> None:
    shop.film(path, words, numbers=range(48))
    boxes.edit(path, edits)


# Seconds that each edit lasts, and where it begins; B-frames delay the film of `b3` by two frames of 24.
_EDITS: dict[str, Sequence[tuple[float, float]]] = {
    "begins_later": [(1.0, 0.75)],
    "begins_between": [(1.0, 0.77)],
    "ends_earlier": [(0.75, 0.0)],
    "delayed": [(0.5, -1.0), (2.0, 0.0)],
    "delayed_and_cut": [(0.5, -1.0), (1.0, 0.5)],
    "swapped": [(1.0, 1.0), (1.0, 0.0)],
    "two_parts": [(0.5, 0.25), (0.5, 1.25)],
    "twice": [(0.5, 0.5), (0.5, 0.5)],
    "three_parts": [(0.25, 0.0), (0.25, 0.75), (0.25, 1.5)],
}


_TIMES = ("-fflags", "+genpts")  # without which films from containers without times of showing are refused


def _copied(words: Words, first: str, more: Words, shop: Shop, path: Path) -> None:
    source = shop.film(f"source{first}", words, numbers=range(36))
    shop.copy(source, path, *more, before=_TIMES)


def _copied_twice(words: Words, chain: Sequence[str], shop: Shop, path: Path) -> None:
    source = shop.film(f"source{chain[0]}", words, numbers=range(36))
    for suffix in chain[1:]:
        source = shop.copy(source, f"next{suffix}", before=_TIMES)
    shop.copy(source, path, before=_TIMES)


_DECODING_TIMES = {".avi", ".wmv"}  # the program guesses when a frame from these is shown
_ANNEXB = ("-bsf:v", "h264_mp4toannexb")
# Films in a container, and those into which they are copied.
_COPIES: list[tuple[str, Words, str, str]] = [
    ("h264", (*X264_DEFAULT, *_ANNEXB), ".avi", ".mkv .mp4 .mov .ts .flv .wmv"),
    ("h264", X264_DEFAULT, ".avi", ".mkv .mp4 .avi"),
    ("h264", X264_DEFAULT, ".mp4", ".mkv .ts .flv .avi .asf .mpg .mxf .mov .3gp .f4v .m2ts"),
    ("h264", X264_DEFAULT, ".mkv", ".mp4 .ts .flv .avi .asf .mov"),
    ("h264", X264_DEFAULT, ".ts", ".mp4 .mkv .flv .avi .mov .asf"),
    ("h264", X264_DEFAULT, ".flv", ".mp4 .mkv .ts .avi"),
    ("h264", X264_DEFAULT, ".wmv", ".mp4 .mkv .ts .avi"),
    ("h264", X264_DEFAULT, ".mpg", ".mp4 .mkv .ts"),
    ("hevc", x265(bframes=3), ".mkv", ".mp4 .ts .mov"),
    ("hevc", x265(bframes=3), ".ts", ".mp4 .mkv .mov"),
    ("hevc", (*x265(bframes=3), "-bsf:v", "hevc_mp4toannexb", "-tag:v", "HEVC"), ".avi", ".mkv .mp4 .ts"),
    ("mpeg4", (*MPEG4, "-bf", "2"), ".avi", ".mkv .mp4 .mov .wmv .ts"),
    ("mpeg4", (*MPEG4, "-bf", "2"), ".mp4", ".avi .mkv .wmv"),
    ("mpeg4", (*MPEG4, "-bf", "2"), ".mkv", ".avi .mp4"),
    ("mpeg2", (*MPEG2, "-bf", "2"), ".mpg", ".ts .mkv .mp4 .avi .mov .mxf .vob"),
    ("mpeg2", (*MPEG2, "-bf", "2"), ".ts", ".mpg .mkv .mp4 .avi .mov"),
    ("mpeg2", (*MPEG2, "-bf", "2"), ".avi", ".mkv .mp4 .ts"),
    ("vp9", VP9, ".webm", ".mp4 .mkv .avi"),
    ("vp8", VP8, ".webm", ".mkv .avi .ogv"),
]
_SOUND: dict[str, Words] = {
    ".mp4": ("-c:a", "aac"),
    ".mov": ("-c:a", "pcm_s16le"),
    ".mkv": ("-c:a", "libvorbis", "-ac", "2"),
    ".avi": ("-c:a", "mp2"),
    ".wmv": ("-c:a", "wmav2"),
    ".flv": ("-c:a", "aac"),
    ".ts": ("-c:a", "aac"),
    ".mpg": ("-c:a", "mp2"),
    ".m2ts": ("-c:a", "ac3"),
}


def _with_sound(words: Words, sound: Words, suffix: str, shop: Shop, path: Path) -> None:
    source = shop.film(f"sound{suffix}", (*words, *sound), sound=True)
    shop.copy(source, path)


def _delayed(words: Words, seconds: str, shop: Shop, path: Path) -> None:
    """Let the sound begin, and the pictures later."""
    source = shop.film("whole.mp4", words)
    sound = ("-f", "lavfi", "-i", "sine=d=4", "-itsoffset", seconds)
    shop.copy(source, path, "-map", "0:a", "-map", "1:v", "-c:a", "aac", before=sound)


def _packed(more: Words | None, shop: Shop, path: Path) -> None:
    """Pack frames as DivX did, and copy that with further words of the program if there are some."""
    source = shop.film("source.avi", (*MPEG4, "-bf", "1"), numbers=range(36))
    if more is None:
        packed.pack(source, path)
    else:
        shop.copy(packed.pack(source, shop.folder / "packed.avi"), path, *more, before=_TIMES)


def cases() -> Iterator[Case]:
    """Yield the cases of layouts."""
    for film, words in _FILMS.items():
        for name, more in _LAYOUTS.items():
            for suffix in (".mp4", ".mov"):
                yield Case(f"{name}_{film}{underlined(suffix)}", suffix, partial(_film, words, more))
        for name, more in _MATROSKA.items():
            yield Case(f"{name}_{film}_mkv", ".mkv", partial(_film, words, more))
        for name, edits in _EDITS.items():
            yield Case(f"edit_{name}_{film}", ".mp4", partial(_edited, words, edits))
        yield Case(f"endless_data_{film}", ".mp4", partial(_changed, words, _endless, ("-movflags", "faststart")))
        yield Case(f"rubbish_behind_{film}", ".mp4", partial(_changed, words, lambda data: data + b"\x93u8!" * 999, ()))
        yield Case(f"zeros_behind_{film}", ".mp4", partial(_changed, words, lambda data: data + bytes(8192), ()))
        for seconds in ("0.5", "2.5"):
            for suffix in (".mp4", ".mkv", ".ts"):
                yield Case(f"delayed_{seconds}_{film}{underlined(suffix)}", suffix, partial(_delayed, words, seconds))
    for name, words, first, suffixes in _COPIES:
        kind = "_annexb" if "h264_mp4toannexb" in words else ""
        for suffix in suffixes.split():
            more = ("-tag:v", "hvc1") if name == "hevc" and suffix in (".mp4", ".mov") else ()
            make = partial(_copied, words, first, more)
            whole, guessed = f"copied_{name}{kind}{underlined(first)}{underlined(suffix)}", first in _DECODING_TIMES
            yield Case(whole, suffix, make, rate=24.0, guessed=guessed)
    for chain in (
        (".mp4", ".avi"),
        (".avi", ".mkv"),
        (".ts", ".mp4"),
        (".wmv", ".mkv"),
        (".mkv", ".flv"),
        (".mp4", ".ts"),
    ):
        for suffix in (".mp4", ".mkv"):
            name = f"copied_twice{''.join(map(underlined, chain))}{underlined(suffix)}"
            guessed = not _DECODING_TIMES.isdisjoint(chain)
            yield Case(name, suffix, partial(_copied_twice, X264_DEFAULT, chain), rate=24.0, guessed=guessed)
    yield Case("packed_avi", ".avi", partial(_packed, None), rate=24.0)
    for name, more in {"packed": (), "unpacked": ("-bsf:v", "mpeg4_unpack_bframes")}.items():
        for suffix in (".avi", ".mkv", ".mp4"):
            make = partial(_packed, more)
            yield Case(f"{name}_copied{underlined(suffix)}", suffix, make, rate=24.0, guessed=True)
    for suffix, sound in _SOUND.items():
        for film, words in (("default", X264_DEFAULT), ("mpeg4", (*MPEG4, "-bf", "2"))):
            if film == "mpeg4" and suffix in (".flv", ".mpg", ".m2ts"):
                continue
            yield Case(
                f"sound_{film}{underlined(suffix)}", suffix, partial(_with_sound, words, sound, suffix), rate=24.0
            )
