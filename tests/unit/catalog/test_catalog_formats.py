"""Every file of a folder is a clip that decodes to the frames it has, or a row with its reason, or a sidecar."""

from __future__ import annotations

import os
import shutil
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import av
import media_makers as media
import numpy as np
import places
import pytest
from PIL import Image

from reelworks.core import system
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan.scan import ScanResult, scan_sources
from reelworks.data.catalog.store import companions
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.catalog.store.summary import summarise
from reelworks.data.media import formats, pictures, probe, video
from reelworks.data.media.decode import Request, load

SIZE = (48, 64)
CONTAINERS = {
    "a.3gp": "mpeg4", "b.3gp": "libx264", "a.3g2": "mpeg4", "a.wmv": "wmv2", "a.asf": "msmpeg4v3", "a.flv": "flv",
    "b.flv": "libx264", "a.ts": "libx264", "a.m2ts": "libx264", "a.mts": "mpeg2video", "a.vob": "mpeg2video",
    "a.mxf": "mpeg2video", "a.ogv": "libvpx",
}  # fmt: skip


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_have_exact_counts_and_frames(tmp_path: Path, name: str) -> None:
    clip = media.write(tmp_path / name, media.numbered(9, SIZE), codec=CONTAINERS[name], rate=25)
    found = probe.probe(clip)
    assert (found.kind, found.num_frames, found.height, found.width) == ("video", 9, *SIZE)
    assert found.num_frames == media.decoded_frames(clip)
    assert found.fps == pytest.approx(25, rel=1e-3)
    shown = load(Request(clip, False, Shape(3, *SIZE), step=2.0, first_frame_draw=0.99))
    assert media.numbers(shown) == [4, 6, 8]


def write_animation(path: Path, durations: list[int], **options: object) -> Path:
    first, *others = [Image.fromarray(frame) for frame in media.numbered(len(durations), (24, 32))]
    first.save(path, save_all=True, append_images=others, duration=durations, **options)
    return path


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png", "a.apng", "a.avif"])
def test_animations_are_clips(tmp_path: Path, name: str) -> None:
    even = write_animation(tmp_path / name, [40] * 7)
    found = probe.probe(even)
    assert (found.kind, found.num_frames, found.height, found.width) == ("video", 7, 24, 32)
    assert (found.fps, found.duration_seconds, found.variable_fps) == (25, pytest.approx(0.28), False)
    shown = load(Request(even, False, Shape(3, 24, 32), step=2.0, first_frame_draw=0.99))
    assert media.numbers(shown) == [2, 4, 6]
    looped = load(Request(even, False, Shape(9, 24, 32), short_clips="loop"))
    assert media.numbers(looped) == [*range(7), 0, 1]
    first = load(Request(even, True, Shape(1, 24, 32)))
    assert media.numbers(first) == [0]


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png"])
def test_uneven_animations_have_a_variable_rate(tmp_path: Path, name: str) -> None:
    found = probe.probe(write_animation(tmp_path / name, [100, 100, 50, 200, 150]))
    assert found.variable_fps
    assert found.duration_seconds == pytest.approx(0.6)
    assert found.fps == pytest.approx(5 / 0.6)


def test_frames_without_a_duration_last_as_in_browsers(tmp_path: Path) -> None:
    assert probe.probe(write_animation(tmp_path / "a.gif", [0, 0, 0])).fps == 10


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png", "a.avif", "a.tif"])
def test_one_frame_or_pages_are_a_picture(tmp_path: Path, name: str) -> None:
    pages = 3 if name == "a.tif" else 1
    found = probe.probe(write_animation(tmp_path / name, [40] * pages))
    assert (found.kind, found.num_frames, found.fps) == ("image", 1, 0)


def test_the_picture_for_other_viewers_is_no_frame_of_an_animated_png(tmp_path: Path) -> None:
    clip = write_animation(tmp_path / "a.png", [40] * 5, default_image=True)
    assert probe.probe(clip).num_frames == 4
    assert media.numbers(load(Request(clip, False, Shape(4, 24, 32)))) == [1, 2, 3, 4]


def test_a_cut_animation_is_damaged(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (4, 40, 40, 3), dtype=np.uint8)
    first, *others = map(Image.fromarray, noise)
    for name in ("a.webp", "a.png", "a.gif"):
        first.save(tmp_path / name, save_all=True, append_images=others, duration=40)
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) * 6 // 10])
        with pytest.raises(probe.ProbeError, match="damaged"):
            probe.probe(tmp_path / name)


@pytest.mark.parametrize("share", [0.2, 0.5])
@pytest.mark.parametrize(
    "suffix", ["webp", "lossless.webp", "avif", "heic", "png", "apng", "gif", "jpg", "progressive.jpg", "metadata.jpg"]
)
def test_a_picture_whose_end_is_zeros_is_damaged(tmp_path: Path, suffix: str, share: float) -> None:
    """As a copy that was broken off in a file that had its length already."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (96, 128, 3), dtype=np.uint8))
    whole = save_picture(noise, tmp_path / f"a.{suffix}")
    assert probe.probe(whole).width == 128
    content = whole.read_bytes()
    kept = int(len(content) * (0.8 if suffix == "png" else share))  # checksums tell it to the end
    whole.write_bytes(content[:kept].ljust(len(content), b"\0"))
    with pytest.raises(probe.ProbeError, match="damaged"):
        probe.probe(whole)


@pytest.mark.parametrize("suffix", ["webp", "avif", "heic", "jpg"])
def test_zeros_behind_the_pixels_damage_nothing(tmp_path: Path, suffix: str) -> None:
    """As padding in EXIF, in a box `free` that states it, and behind the end of a JPEG, where cameras put clips."""
    import pillow_heif

    pillow_heif.register_heif_opener()
    noise, exif = Image.fromarray(np.random.default_rng(0).integers(0, 256, (96, 128, 3), dtype=np.uint8)), Image.Exif()
    exif[0xEA1C] = b"\x1c\xea" + b"\0" * 60_000
    path = tmp_path / f"a.{suffix}"
    noise.save(path, exif=exif)
    assert probe.probe(path).width == 128
    path.write_bytes(path.read_bytes() + struct.pack(">I4s", 5008, b"free") + b"\0" * 5000)
    assert probe.probe(path).width == 128


def test_chunks_of_a_png_without_pixels_damage_nothing(tmp_path: Path) -> None:
    """A wrong checksum of a text, an end that is missing, data behind it; as libpng and browsers show such pictures."""
    whole = save_picture(Image.new("RGB", (8, 8), "red"), tmp_path / "a.png").read_bytes()
    pixels, end = whole[:-12], whole[-12:]
    text = struct.pack(">I", 3) + b"tEXta\0b" + bytes(4)
    behind = struct.pack(">I", 3) + b"IDATabc" + bytes(4)
    for content in (pixels + text + end, pixels + text, pixels, whole + behind):
        (tmp_path / "a.png").write_bytes(content)
        assert probe.probe(tmp_path / "a.png").width == 8


@pytest.mark.parametrize("suffix", ["webp", "lossless.webp", "fast.webp", "avif", "heic", "png"])
@pytest.mark.parametrize("detail", [0, 40])
def test_a_flat_picture_is_whole(tmp_path: Path, suffix: str, detail: int) -> None:
    """In some formats its end is zeros, perhaps of all that is black, white or below the detail."""
    pixels = np.full((700, 700, 3), 255, np.uint8)
    pixels[:detail] = np.random.default_rng(0).integers(0, 256, (detail, 700, 3))
    assert probe.probe(save_picture(Image.fromarray(pixels), tmp_path / f"a.{suffix}")).width == 700


def save_picture(picture: Image.Image, path: Path) -> Path:
    """Save a picture in the format, and by the way, that the suffixes of its name tell."""
    import pillow_heif

    if path.suffix == ".heic":
        pillow_heif.from_pillow(picture).save(path)
    elif path.suffix == ".apng":
        picture.save(path, "PNG", save_all=True, append_images=[picture.rotate(180)])
    else:
        ways: dict[str, dict[str, Any]] = {
            ".fast": {"lossless": True, "method": 0, "quality": 0},
            ".lossless": {"lossless": True},
            ".progressive": {"progressive": True},
            ".metadata": {"comment": b"\xff\xd9", "icc_profile": b"\xff\xda\xff\xd9"},  # ends within metadata
        }
        picture.save(path, **next((way for name, way in ways.items() if name in path.suffixes), {}))
    return path


@pytest.fixture
def heic(tmp_path: Path) -> Path:
    import pillow_heif

    picture = Image.fromarray(media.quarters(64, 96))
    pillow_heif.from_pillow(picture).save(tmp_path / "a.heic", quality=-1)
    return tmp_path / "a.heic"


def test_heic_is_read_under_any_name(heic: Path) -> None:
    renamed = heic.rename(heic.with_suffix(".jpg"))  # as some phones export
    shutil.copy(renamed, heic)
    for path in (renamed, heic):
        assert (probe.probe(path).codec, probe.probe(path).width) == ("heif", 96)
        assert media.differ(load(Request(path, True, Shape(1, 64, 96)))[0], media.quarters(64, 96)) < 6


def test_heic_without_its_package_names_it(heic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures._heif.cache_clear()
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(probe.ProbeError, match="need the package pillow-heif"):
        probe.probe(heic)
    heic.with_suffix(".txt").write_text("quarters", encoding="utf-8")
    assert scan(heic.parent)[0].bad == 1
    monkeypatch.undo()
    assert scan(heic.parent)[0].bad == 0  # the package was installed meanwhile


OTHERS = {
    "shot.psd": "a format that is not read, to be converted to MP4 or PNG first: .psd",
    "sound.MP3": "sound without pictures: .mp3",
    "more.zip": "an archive, which is not unpacked: .zip",
    "photo.nef": "raw data of a camera, to be developed to TIFF or PNG first: .nef",
    "film.mp4.part": "an unfinished download: .part",
    "thing.xyz": "not a video or picture: .xyz",
    "blob": "the name has no extension",
}
SIDECARS = ("a.txt", "a.caption", "a.npz", "meta.json", "list.csv", "README", "notes.md", ".hidden.psd")


def scan(folder: Path) -> tuple[ScanResult, Catalog]:
    result = scan_sources([Source("d", folder)], folder.parent / "catalog", workers=2)
    return result, Catalog.open(folder.parent / "catalog")


def test_other_files_are_rows_with_a_reason_and_sidecars_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    media.write_picture(folder / "a.png")
    for name in (*OTHERS, *SIDECARS):
        (folder / name).write_text("text", encoding="utf-8")
    result, catalog = scan(folder)
    rows = catalog.live().to_table().to_pylist()
    assert {row["path"]: row["error"] for row in rows} == {**OTHERS, "a.png": None}
    assert {row["kind"] for row in rows if row["error"]} == {"other"}
    assert (result.found, result.bad) == (8, 7)
    assert len(result.notes) == 1
    assert all(f"{extension} (1)" in result.notes[0] for extension in (".npz", ".json", "no extension"))
    assert ".caption" not in result.notes[0]
    summary = summarise(catalog.live())
    assert (summary.clips, summary.bad, dict(summary.by_kind)) == (8, 7, {"image": 1})
    assert dict(summary.bad_reasons)["sound without pictures"] == 1
    again, _ = scan(folder)
    assert (again.unchanged, again.version) == (8, 1)


def test_known_suffixes_do_not_overlap() -> None:
    sets = formats._SUFFIXES.values()
    assert sum(map(len, sets)) == len(frozenset().union(*sets))
    assert all(name.startswith(".") and name == name.lower() for names in sets for name in names)


def test_another_file_beside_a_companion_is_no_second_companion(tmp_path: Path) -> None:
    for name in ("clips", "edges"):
        (tmp_path / name).mkdir()
        media.write_picture(tmp_path / name / "a.png")
    (tmp_path / "edges" / "a.psd").write_text("layers", encoding="utf-8")
    sources = [
        Source("clips", tmp_path / "clips"),
        *companions.sources(Source("clips", tmp_path / "clips"), {"control": str(tmp_path / "edges")}),
    ]
    scan_sources(sources, tmp_path / "catalog", workers=1)
    rows = Catalog.open(tmp_path / "catalog").live()
    found = companions.find(companions.without(rows), rows, "control", {"clips": "edges"})
    assert found.problem.tolist() == [companions.Problem.NONE]


def test_odd_names_and_links(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    media.write_picture(folder / "two\nlines.png")
    media.write_picture(folder / "a.png")
    places.link(folder / "loop.mp4", "pool.mp4")
    places.link(folder / "pool.mp4", "loop.mp4")
    places.link(folder / "inside", folder)
    os.close(os.open(os.fsencode(folder) + b"/caf\xe9.mp4", os.O_CREAT))
    places.pipe(folder / "pipe.mp4")
    _, catalog = scan(folder)
    reasons = {row["path"]: row["error"] for row in catalog.live().to_table().to_pylist()}
    assert reasons == {
        "a.png": None,
        "two\nlines.png": None,
        "loop.mp4": "cannot be read: Too many levels of symbolic links",
        "pool.mp4": "cannot be read: Too many levels of symbolic links",
        "caf\\xe9.mp4": "file name is not UTF-8",
        "pipe.mp4": "not a regular file",
    }


@pytest.mark.skipif(places.MAY_ALL, reason="no rights keep this user from reading")
def test_an_unreadable_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "locked").mkdir(parents=True)
    media.write_picture(folder / "a.png")
    (folder / "locked").chmod(0)
    try:
        with pytest.raises(UserError, match="locked cannot be read"):
            scan(folder)
    finally:
        (folder / "locked").chmod(0o755)


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    parts = [struct.pack(">I", len(d)) + name + d + struct.pack(">I", zlib.crc32(name + d)) for name, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def peak_bytes() -> int:
    return system.peak_bytes()


@pytest.fixture(scope="module")
def squeezed() -> bytes:
    """64 MB of zeros."""
    squeezer = zlib.compressobj(1)
    return b"".join(squeezer.compress(bytes(1 << 20)) for _ in range(64)) + squeezer.flush()


@pytest.mark.parametrize("bomb", ["pixels", "text", "profile"])
def test_a_png_bomb_takes_no_memory(tmp_path: Path, squeezed: bytes, bomb: str) -> None:
    """A picture of 40,000 pixels each way, and one with a text or a profile that inflates to 64 MB."""
    side = 40_000 if bomb == "pixels" else 8
    head = (b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    middle = {"pixels": [], "text": [(b"zTXt", b"a\0\0" + squeezed)], "profile": [(b"iCCP", b"a\0\0" + squeezed)]}
    rows = squeezed if bomb == "pixels" else zlib.compress(bytes(9 * 8))
    path = tmp_path / "a.png"
    path.write_bytes(png(head, *middle[bomb], (b"IDAT", rows), (b"IEND", b"")))
    before = peak_bytes()
    try:
        reason = probe.probe(path).icc_profile
    except probe.ProbeError as error:
        reason = str(error)
    expected = {"pixels": "too many pixels", "text": "damaged: Decompressed", "profile": ""}
    assert reason.startswith(expected[bomb])
    assert peak_bytes() - before < 40e6


def test_a_video_that_states_a_huge_frame_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = media.write_video(tmp_path / "a.mp4")
    monkeypatch.setattr(video, "_MOST_PIXELS", 1000)
    with pytest.raises(probe.ProbeError, match=r"too many pixels|damaged"):
        probe.probe(clip)


def test_a_video_without_frames_is_a_reason(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.height, stream.width, stream.pix_fmt = 32, 32, "yuv420p"
        container.start_encoding()
    with pytest.raises(probe.ProbeError, match=r"no (frame|video)|damaged"):
        probe.probe(tmp_path / "a.mkv")


def test_pictures_of_32_bits_are_a_reason(tmp_path: Path) -> None:
    Image.new("F", (8, 8), 0.5).save(tmp_path / "a.tif")
    with pytest.raises(probe.ProbeError, match="32 bits"):
        probe.probe(tmp_path / "a.tif")


def test_postscript_in_disguise_starts_no_program(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n")
    with pytest.raises(probe.ProbeError, match="not a picture of a known format"):
        probe.probe(tmp_path / "a.png")
