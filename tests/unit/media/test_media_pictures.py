from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import av
import media_makers as files
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageOps, PngImagePlugin, UnidentifiedImageError

from reelworks.core.shape import Shape
from reelworks.data.media import probe
from reelworks.data.media.decode import Frames, Request, load
from reelworks.data.media.formats import ProbeError
from reelworks.data.media.reading import MediaError


def read(path: Path, size: tuple[int, int]) -> Frames:
    frames = load(Request(path, True, Shape(1, *size)))
    assert (frames.shape, frames.dtype) == ((1, *size, 3), np.uint8)
    return frames[0]


@pytest.mark.parametrize("suffix", ["png", "bmp", "webp", "jpg"])
def test_a_picture_of_its_own_size_is_left_alone(tmp_path: Path, suffix: str) -> None:
    picture = files.quarters(48, 64)
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(picture).save(path, **({"quality": 100} if suffix in ("jpg", "webp") else {}))
    assert files.differ(read(path, (48, 64)), picture) <= (0 if suffix in ("png", "bmp") else 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "a.jpg"
    Image.fromarray(files.quarters(32, 48)).save(path, exif=exif, quality=100, subsampling=0)
    with Image.open(path) as stored:
        shown = np.asarray(ImageOps.exif_transpose(stored))
    assert np.array_equal(read(path, shown.shape[:2]), shown)


@pytest.mark.parametrize("name", ["a.jpg", "a.webp", "a.avif", "a.png"])
@pytest.mark.parametrize("exif", [None, 1, 3])
def test_an_orientation_in_xmp_alone_turns_nothing(tmp_path: Path, name: str, exif: int | None) -> None:
    """As in browsers; programs that turned the pixels leave it there."""
    tags, info = Image.Exif(), PngImagePlugin.PngInfo()
    if exif is not None:
        tags[0x0112] = exif
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    info.add_itxt("XML:com.adobe.xmp", xmp.decode())
    how = {"pnginfo": info} if name == "a.png" else {"xmp": xmp, "quality": 100}
    Image.fromarray(files.quarters(32, 48)).save(tmp_path / name, exif=tags, dpi=(72, 72), **how)
    assert probe.probe(tmp_path / name).rotation == (180 if exif == 3 else 0)
    stored = files.quarters(32, 48)[::-1, ::-1] if exif == 3 else files.quarters(32, 48)
    assert files.differ(read(tmp_path / name, (32, 48)), stored) < 6


@pytest.mark.parametrize("exif", [b"Exif\0\0broken", b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01", b"x" * 40])
def test_a_broken_exif_block_costs_nothing(tmp_path: Path, exif: bytes) -> None:
    path = tmp_path / "a.jpg"
    Image.fromarray(files.quarters(32, 32)).save(path, exif=exif, quality=100, subsampling=0)
    assert files.differ(read(path, (32, 32)), files.quarters(32, 32)) < 3


def _half_clear(mode: str) -> Image.Image:
    rgba = np.zeros((16, 16, 4), dtype=np.uint8)
    rgba[:, 8:] = (90, 90, 90, 255)
    image = Image.fromarray(rgba)
    if mode == "P":
        image = Image.fromarray((rgba[..., 3] // 255).astype(np.uint8), "L").convert("P")
        image.putpalette([0, 0, 0, 90, 90, 90])
        image.info["transparency"] = 0
        return image
    return image.convert(mode)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_clear_is_white(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.png"
    _half_clear(mode).save(path)
    picture = read(path, (16, 16))
    assert (picture[:, :8] == 255).all()
    assert (picture[:, 8:] == 90).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
@pytest.mark.parametrize("alpha", [0, 254, 255])
def test_a_channel_of_opacity_is_no_transparency(tmp_path: Path, mode: str, alpha: int) -> None:
    """As pictures of a screen have one, all of which is opaque."""
    rgba = np.full((16, 16, 4), 255, np.uint8)
    rgba[3, 4] = 90, 90, 90, alpha
    if mode == "P":
        Image.fromarray((rgba[..., 0] // 255).astype(np.uint8)).convert("P").save(
            tmp_path / "a.png", transparency=bytes([alpha, 255])
        )
    else:
        Image.fromarray(rgba).convert(mode).save(tmp_path / "a.png")
    assert probe.probe(tmp_path / "a.png").has_alpha == (alpha < 255)


def test_sixteen_bits_of_grey_are_scaled(tmp_path: Path) -> None:
    grey = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(grey).save(tmp_path / "a.png")
    assert np.array_equal(read(tmp_path / "a.png", (16, 16))[..., 1], grey >> 8)


@pytest.mark.parametrize("mode", ["L", "1", "CMYK"])
def test_other_colours_become_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new("RGB", (16, 16), "white").convert(mode).save(path)
    assert (read(path, (16, 16)) >= 254).all()


def test_odd_sizes_are_covered_and_cut_in_the_middle(tmp_path: Path) -> None:
    Image.fromarray(files.quarters(51, 101)).save(tmp_path / "a.png")
    picture = read(tmp_path / "a.png", (16, 16))
    corners = [picture[y, x] for y in (2, 13) for x in (2, 13)]
    wanted = [(220, 20, 20), (20, 220, 20), (20, 20, 220), (230, 230, 230)]
    assert max(files.differ(a, np.uint8(b)) for a, b in zip(corners, wanted, strict=True)) < 12
    assert read(tmp_path / "a.png", (53, 7)).shape == (53, 7, 3)


@pytest.mark.parametrize("primary", [0, 1, 2])
def test_of_several_pictures_in_heic_the_primary_one_is_shown(tmp_path: Path, primary: int) -> None:
    """As Pillow shows it, and the catalog has its size."""
    import pillow_heif

    pillow_heif.register_heif_opener()
    pictures = pillow_heif.HeifFile()
    for i, color in enumerate(((200, 0, 0), (0, 200, 0), (0, 0, 200))):
        pictures.add_from_pillow(Image.new("RGB", (64, 48 + 16 * i), color))
    pictures.save(tmp_path / "a.heic", primary_index=primary, quality=100)
    with Image.open(tmp_path / "a.heic") as opened:
        shown = np.asarray(opened)
    assert shown[0, 0].argmax() == primary
    found = probe.probe(tmp_path / "a.heic")
    assert (found.kind, found.height, found.width) == ("image", *shown.shape[:2])
    assert np.array_equal(read(tmp_path / "a.heic", shown.shape[:2]), shown)


@pytest.mark.parametrize("kind", ["compressed text", "international text", "profile"])
def test_long_texts_and_profiles_of_a_png_are_no_damage(tmp_path: Path, kind: str) -> None:
    """As generators of pictures write them, which keep their whole workflow in it."""
    path, text, written = tmp_path / "a.png", "x" * (12 << 20), PngImagePlugin.PngInfo()
    if kind != "profile":
        add = written.add_text if kind == "compressed text" else written.add_itxt
        add("workflow", text, zip=True)
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes() + text.encode()
    picture = Image.fromarray(files.quarters(16, 16))
    picture.save(path, pnginfo=written, icc_profile=profile if kind == "profile" else None)
    assert probe.probe(path).num_frames == 1
    assert np.array_equal(read(path, (16, 16)), files.quarters(16, 16))


def test_large_pictures_warn_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(8)]
    for path in paths:
        Image.fromarray(files.quarters(40, 40)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # warned of from here on, refused from 2000 on
    with ThreadPoolExecutor(4) as threads:
        for picture in threads.map(lambda path: read(path, (40, 40)), paths * 4):
            assert np.array_equal(picture, files.quarters(40, 40))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 700)
    with pytest.raises(MediaError, match="too many pixels"):
        read(paths[0], (40, 40))


def test_damaged_pictures_are_told(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for name in ("a.png", "a.jpg", "a.webp", "a.bmp"):
        path = tmp_path / name
        Image.fromarray(noise).save(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(MediaError):
            read(path, (16, 16))
    (tmp_path / "text.png").write_text("no picture", encoding="utf-8")
    with pytest.raises(MediaError, match="not a picture"):
        read(tmp_path / "text.png", (16, 16))
    with pytest.raises(MediaError, match=r"^No such file or directory$"):
        read(tmp_path / "none.png", (16, 16))
    spoilt = bytearray((tmp_path / "a.bmp").read_bytes()[:54])
    (tmp_path / "head.bmp").write_bytes(spoilt)
    with pytest.raises(MediaError):
        read(tmp_path / "head.bmp", (16, 16))


def _tiff(path: Path, samples: NDArray[Any], sample_format: int = 1, **tags: int) -> Path:
    """Write samples [H, W, C] as a TIFF without compression; its formats are 1 unsigned, 2 signed, 3 floating."""
    height, width, channels = samples.shape
    fields = {256: width, 257: height, 258: 8 * samples.itemsize, 259: 1, 262: 2 if channels > 1 else 1, 273: 512}
    fields |= {277: channels, 278: height, 279: samples.nbytes, 284: 1, 339: sample_format}
    fields |= {_TAGS[name]: value for name, value in tags.items()}
    data, parts = samples.tobytes(), 1
    if fields[258] == 12:  # two samples are three bytes, the upper bits first
        pairs = samples.reshape(-1, 2).astype(np.uint32)
        data = b"".join(int(first << 12 | second).to_bytes(3, "big") for first, second in pairs)
    if fields[284] == 2:
        data, parts = samples.transpose(2, 0, 1).tobytes(), channels
    fields[279] = len(data) // parts
    entries, values = b"", b""
    for tag, value in fields.items():
        count = channels if tag in (258, 339) else parts if tag in (273, 279) else 1
        kind = 4 if tag in (273, 279) else 3
        if count > 1:  # they lie behind the entries
            several = [512 + i * fields[279] for i in range(count)] if tag == 273 else [value] * count
            entries += struct.pack("<HHII", tag, kind, count, 256 + len(values))
            values += struct.pack(f"<{count}{'I' if kind == 4 else 'H'}", *several)
        else:
            entries += struct.pack("<HHII", tag, kind, 1, value)
    head = b"II*\0" + struct.pack("<IH", 8, len(fields)) + entries + bytes(4)
    path.write_bytes(head.ljust(256, b"\0") + values.ljust(256, b"\0") + data)
    return path


_TAGS = {"bits": 258, "photometric": 262, "planes": 284}


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize(
    ("channels", "tags"), [(1, {}), (3, {}), (1, {"photometric": 0}), (3, {"planes": 2}), (1, {"bits": 12})], ids=str
)
def test_a_tiff_is_read_as_ffmpeg_reads_it_or_is_refused(
    tmp_path: Path, channels: int, dtype: type[np.uint8], tags: dict[str, int]
) -> None:
    """By the kinds of their samples, some of which Pillow opens and reads wrong."""
    dtype = np.uint16 if "bits" in tags else dtype
    levels = np.random.default_rng(0).integers(0, 1 << tags.get("bits", 8 * dtype().itemsize), (32, 48, channels))
    path = _tiff(tmp_path / "a.tif", levels.astype(dtype), **tags)
    with av.open(str(path)) as container:
        wanted = next(container.decode(video=0)).to_ndarray(format="rgb24")
    if dtype == np.uint16 and tags:
        with pytest.raises(ProbeError, match="12 bits, or of 16 bits by planes or with 0 as white"):
            probe.probe(path)
        with pytest.raises(MediaError, match="12 bits, or of 16 bits"):
            read(path, (32, 48))
    else:
        assert np.abs(read(path, (32, 48)).astype(int) - wanted).max() <= 1


def test_a_tiff_of_pixels_that_are_not_read_is_not_called_damaged_alone(tmp_path: Path) -> None:
    path = _tiff(tmp_path / "floats.tif", np.full((8, 8, 3), 0.5, np.float32), 3)
    with pytest.raises(UnidentifiedImageError):
        Image.open(path)
    with pytest.raises(ProbeError, match="known format, or of a kind that Pillow does not read"):
        probe.probe(path)
    with pytest.raises(ProbeError, match=r"or with a sign \(L\)"):
        probe.probe(_tiff(tmp_path / "bytes.tif", np.full((8, 8, 1), 100, np.int8), 2))
    path = _tiff(tmp_path / "signed.tif", np.full((8, 8, 1), 30000, np.int16), 2)
    with Image.open(path) as opened:
        assert (opened.mode, opened.getpixel((0, 0))) == ("I", 30000)
    with pytest.raises(ProbeError, match=r"of 32 bits or with a sign \(I\)"):
        probe.probe(path)


def test_an_animation_whose_frames_have_no_palette_of_their_own_is_read(tmp_path: Path) -> None:
    """As Pillow writes grey frames behind a first one with a palette; what it says of their alpha is an AssertionError."""
    levels = np.random.default_rng(0).integers(0, 255, (4, 40, 40)).astype(np.uint8)
    first, *others = map(Image.fromarray, levels)
    first.convert("P").save(tmp_path / "a.gif", save_all=True, append_images=others)
    measured = probe.probe(tmp_path / "a.gif")
    assert (measured.kind, measured.num_frames) == ("video", 4)
    read = load(Request(tmp_path / "a.gif", is_image=False, shape=Shape(4, 40, 40)))
    assert np.abs(read.astype(int) - levels[..., None]).max() <= 1
