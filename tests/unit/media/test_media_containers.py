"""What a container says of a video beside its streams is read without trust in its sizes and places."""

from __future__ import annotations

import io
from pathlib import Path

import media_makers as files
import pytest

from reelworks.data.media import containers, probe
from reelworks.data.media.containers import ShownArea

SEEK_TO_TRACKS = bytes.fromhex("53ab 84 1654ae6b 53ac")
CROP = ShownArea(top=2, left=0, height=30, width=32)


class Patience(io.BytesIO):
    """A file that is read a thousand times at most."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        assert self.reads < 1000, "the file is read without an end"
        return super().read(size)


def element(ident: str, *content: bytes) -> bytes:
    inside = b"".join(content)
    return bytes.fromhex(ident) + (1 << 56 | len(inside)).to_bytes(8, "big") + inside


def matroska(place: int | None, *, tracks_last: bool) -> tuple[bytes, int]:
    """A file whose frames of 32 by 32 pixels are cropped at the top, and the place of its tracks in the segment.

    `place` is the one that it states, None for the right one.
    """
    video = element("e0", element("b0", b"\x20"), element("ba", b"\x20"), element("54bb", b"\x02"))
    tracks = element("1654ae6b", element("ae", element("83", b"\x01"), video))
    cluster = element("1f43b675", bytes(64))

    def seek_head(to: int) -> bytes:
        entry = element("4dbb", element("53ab", bytes.fromhex("1654ae6b")), element("53ac", to.to_bytes(8, "big")))
        return element("114d9b74", entry)

    right = len(seek_head(0)) + (len(cluster) if tracks_last else 0)
    parts = (cluster, tracks) if tracks_last else (tracks, cluster)
    head = seek_head(right if place is None else place)
    return element("1a45dfa3") + element("18538067", head, *parts), right


@pytest.mark.parametrize("place", [None, 0, 1, 40, 130, 150, 2**40, 2**64 - 1])
def test_a_crop_is_found_wherever_matroska_says_that_its_tracks_are(place: int | None) -> None:
    area = containers.shown_area(Patience(matroska(place, tracks_last=False)[0]), "matroska,webm", 0, 0)
    assert area == CROP


@pytest.mark.parametrize("place", [0, 1, 2**40, 2**64 - 1])
def test_tracks_behind_the_frames_are_found_by_their_place_alone(place: int) -> None:
    right, at = matroska(None, tracks_last=True)
    assert at > 64
    assert containers.shown_area(Patience(right), "matroska,webm", 0, 0) == CROP
    wrong = Patience(matroska(place, tracks_last=True)[0])
    assert containers.shown_area(wrong, "matroska,webm", 0, 0) is None


@pytest.mark.parametrize("name", ["a.mkv", "a.webm"])
def test_a_wrong_place_of_tracks_changes_nothing(tmp_path: Path, name: str) -> None:
    codec = "libvpx" if name == "a.webm" else "libx264"
    path = files.write_video(tmp_path / name, codec=codec)
    found, data = probe.probe(path), bytearray(path.read_bytes())
    at = data.index(SEEK_TO_TRACKS) + len(SEEK_TO_TRACKS) + 1
    length = data[at - 1] & 0x7F
    data[at : at + length] = bytes(length)
    assert containers.shown_area(Patience(data), "matroska,webm", 0, 0) is None
    path.write_bytes(data)
    assert files.decoded_frames(path) == found.num_frames
    assert probe.probe(path) == found


def test_a_last_box_may_be_as_long_as_the_file(tmp_path: Path) -> None:
    path = files.write_video(tmp_path / "a.mp4")
    found, data = probe.probe(path), bytearray(path.read_bytes())
    at = data.rindex(b"moov")
    data[at - 4 : at] = bytes(4)
    path.write_bytes(data)
    assert files.decoded_frames(path) == found.num_frames
    assert probe.probe(path) == found


@pytest.mark.parametrize("area", [ShownArea(0, 0, 640, 640), ShownArea(2, 0, 32, 32), ShownArea(-1, 0, 16, 16)])
def test_a_window_that_does_not_lie_in_the_frames_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, area: ShownArea
) -> None:
    path = files.write(tmp_path / "a.mkv", files.numbered(2))
    whole = probe.probe(path)
    monkeypatch.setattr(containers, "shown_area", lambda *_: area)
    assert probe.probe(path) == whole
    assert files.decoded_frames(path) == 2


def box(kind: bytes, *content: bytes) -> bytes:
    inside = b"".join(content)
    return (8 + len(inside)).to_bytes(4, "big") + kind + inside


@pytest.mark.parametrize("version", [0, 1])
def test_a_clean_aperture_is_that_of_the_track(version: int) -> None:
    """Of two tracks with one each; times of 64 bits, of version 1, move the number of a track."""

    def track(number: int, height: int) -> bytes:
        times = bytes(16 if version else 8)
        aperture = [24, 1, height, 1, 0, 1, 2, 1]
        clap = box(b"clap", *(n.to_bytes(4, "big") for n in aperture))
        sizes = (32).to_bytes(2, "big") + (40).to_bytes(2, "big")
        entry = box(b"avc1", bytes(24), sizes, bytes(50), clap)
        stsd = box(b"stsd", bytes(8), entry)
        header = box(b"tkhd", bytes([version, 0, 0, 0]), times, number.to_bytes(4, "big"), bytes(60))
        return box(b"trak", header, box(b"mdia", box(b"minf", box(b"stbl", stsd))))

    file = Patience(box(b"ftyp", b"isom") + box(b"moov", track(1, 20), track(2, 30)))
    area = containers.shown_area(file, "mov,mp4,m4a,3gp,3g2,mj2", 2, 0)
    assert area == ShownArea(top=7, left=4, height=30, width=24)
