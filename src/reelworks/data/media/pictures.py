"""Open pictures and animations, read what their metadata says, and convert them to what a viewer shows.

Shown pictures are upright, in sRGB, without transparency.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from io import BytesIO
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageCms, PngImagePlugin, UnidentifiedImageError

from reelworks.data.media import tone_map
from reelworks.data.media.formats import ProbeError
from reelworks.data.media.stated_colors import StatedColors, of_picture

Color = tuple[int, int, int]
WHITE: Color = (255, 255, 255)

_SRGB = ImageCms.createProfile("sRGB")
# Transposition that turns a picture of each EXIF orientation upright; 1 is upright already.
_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Formats that are opened, whatever the extension; Pillow knows others, one of which would start Ghostscript.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "AVIF")
_ANIMATED = ("GIF", "WEBP", "PNG", "AVIF")  # other files of several pictures, such as TIFF, have pages
_PROFILE_NAME_LETTERS = 60
_NOT_SRGB = " (not sRGB)"
_STATED = "stated colors"  # key of `Image.info`
_GAMUTS = {"p3": "Display P3", "bt2020": "BT.2020"}
_QUIET = threading.Lock()  # warning filters are global to the process, and many threads open pictures
# Browsers show frames of 10 ms and less for 100 ms: old encoders wrote 0 where they meant "the usual rate".
_SHORTEST_MS, _USUAL_MS = 10.0, 100.0
# Most bytes of a text or profile of a PNG, beyond which Pillow refuses the picture; workflows that generators of
# pictures keep there may be longer than its 1 MB.
PngImagePlugin.MAX_TEXT_CHUNK = 16 << 20


def picture(file: BinaryIO) -> Image.Image:
    """Open a picture without reading its pixels; raise `ProbeError` for other files, decompression bombs and unread kinds."""
    head = file.read(12)
    file.seek(0)
    formats: tuple[str, ...] = _FORMATS
    if head[4:8] == b"ftyp" and head[8:12] not in (b"avif", b"avis"):
        formats = (*_FORMATS, _heif())
    try:
        with _quiet():
            Image.init()  # all formats, of which it knows only some until it meets another
            opened = Image.open(file, formats=formats)
    except Image.DecompressionBombError:
        raise ProbeError("too many pixels: Pillow refuses it as a possible decompression bomb") from None
    except UnidentifiedImageError:
        raise ProbeError("damaged: not a picture of a known format, or of a kind that Pillow does not read") from None
    _refuse_misread(opened)
    opened.info[_STATED] = of_picture(file, opened.format, opened.info)
    return opened


def _refuse_misread(image: Image.Image) -> None:
    """Raise `ProbeError` for a picture whose levels are not known, or whose TIFF is of a kind that Pillow reads wrong."""
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(ExifTags.Base.BitsPerSample, ())
    if image.mode in ("I", "F") or 2 in tags.get(ExifTags.Base.SampleFormat, ()):
        raise ProbeError(f"pixels of 32 bits or with a sign ({image.mode}) have no known range; store 8 or 16 bits")
    is_inverse = tags.get(ExifTags.Base.PhotometricInterpretation) == 0
    is_planar = len(bits) > 1 and tags.get(ExifTags.Base.PlanarConfiguration) == 2
    if 12 in bits or (16 in bits and (is_inverse or is_planar)):
        raise ProbeError(
            "a TIFF of 12 bits, or of 16 bits by planes or with 0 as white, is not read; store 16 bits by pixels"
        )


@cache
def _heif() -> str:
    """Make Pillow read HEIF, and return its name of the format."""
    try:
        import pillow_heif
    except ImportError as error:
        raise ProbeError("HEIC and HEIF need the package pillow-heif") from error
    pillow_heif.register_heif_opener()
    return "HEIF"


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8; 1 if it is absent or invalid. That of XMP, which viewers ignore, does not count."""
    exif = Image.Exif()
    with _quiet():
        with suppress(SyntaxError):  # as Pillow calls a block that is broken
            exif.load(image.info.get("exif") or b"")
        value = getattr(image, "tag_v2", exif).get(ExifTags.Base.Orientation, 1)
    return value if value in range(1, 9) else 1


@contextmanager
def _quiet() -> Iterator[None]:
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def shown_frames(image: Image.Image) -> range:
    """Return the numbers for `Image.seek` of the frames that a viewer shows; one for a picture.

    It is to be asked right after opening, at the picture that is shown: of several in HEIF, this is the primary one.
    An animated PNG may begin with a picture for viewers that cannot animate; the others do not show it.
    """
    if image.format not in _ANIMATED:
        return range(image.tell(), image.tell() + 1)
    count = getattr(image, "n_frames", 1)
    return range(1 if count > 1 and getattr(image, "default_image", False) else 0, count)


def frame_milliseconds(image: Image.Image) -> float:
    """Return how long an animation's current frame is shown."""
    duration = float(image.info.get("duration") or 0)
    return _USUAL_MS if duration <= _SHORTEST_MS else duration


def starts_seconds(image: Image.Image) -> NDArray[np.float64]:
    """Return when each frame of an animation is shown, from its first one on."""
    milliseconds = []
    for number in shown_frames(image):
        image.seek(number)
        image.load()
        milliseconds.append(frame_milliseconds(image))
    return (np.cumsum(milliseconds) - milliseconds) / 1000


def color_profile(image: Image.Image) -> ImageCms.ImageCmsProfile | None:
    """Return the ICC profile of a picture; None if it has none, or one that is damaged or of other channels."""
    data = image.info.get("icc_profile")
    if not data:
        return None
    is_grey = image.mode in ("1", "L", "LA", "La") or image.mode.startswith("I;16")
    channels = "CMYK" if image.mode == "CMYK" else "GRAY" if is_grey else "RGB"  # as ICC calls them
    with suppress(ImageCms.PyCMSError, OSError, ValueError):
        profile = ImageCms.ImageCmsProfile(BytesIO(data))
        if profile.profile.xcolor_space.strip() == channels:
            return profile
    return None


def profile_name(image: Image.Image) -> str:
    """Return the description of a picture's ICC profile, "unnamed" without one, and "" for no profile.

    Without a profile, it is the name of the wide gamut that a picture in SDR states otherwise. One that is called sRGB and shows other colours, such as "Linear sRGB", is told apart by the end of the name.
    """
    profile = color_profile(image)
    if profile is None:
        primaries, transfer = stated_colors(image)
        return "" if transfer else _GAMUTS.get(primaries, "")
    name = " ".join((profile.profile.profile_description or "").split())[:_PROFILE_NAME_LETTERS] or "unnamed"
    return name + _NOT_SRGB if is_srgb(name) and not _shows_srgb(bytes(image.info["icc_profile"])) else name


def stated_colors(image: Image.Image) -> StatedColors:
    """Return the colours that count for a picture: of HDR those that it states, of SDR only if it has no ICC profile."""
    stated: StatedColors = image.info.get(_STATED, StatedColors())
    return stated if stated.transfer or color_profile(image) is None else StatedColors()


def is_srgb(name: str) -> bool:
    """Return whether colours of a profile of this name need no conversion; those without a profile are sRGB."""
    return not name or ("sRGB" in name and not name.endswith(_NOT_SRGB))


@lru_cache(16)
def _shows_srgb(profile: bytes) -> bool:
    """Return whether colours that a profile shows are those of sRGB, but for rounding and for the black of a screen."""
    colors = Image.fromarray((np.indices((9, 9, 9)).T.reshape(1, -1, 3) * 255 // 8).astype(np.uint8))
    opened, how = ImageCms.ImageCmsProfile(BytesIO(profile)), ImageCms.Intent.RELATIVE_COLORIMETRIC
    shown = _to_srgb(colors, opened, renderingIntent=how, flags=ImageCms.Flags.BLACKPOINTCOMPENSATION).convert("RGB")
    colors = colors.convert(_mode(opened)).convert("RGB")
    # Profiles of sRGB that are rounded, or have its curve as a table, differ by a level or two.
    return bool(np.abs(np.asarray(shown, np.int16) - np.asarray(colors)).max() <= 3)


def upright(frame_HWC: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return a view of a frame as an EXIF orientation of 1 to 8 says that it is shown."""
    if orientation in (5, 6, 7, 8):
        frame_HWC = frame_HWC.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        frame_HWC = frame_HWC[:, ::-1]
    return frame_HWC[::-1] if orientation in (3, 4, 7, 8) else frame_HWC


def has_alpha(image: Image.Image) -> bool:
    """Return whether a picture may be transparent; Pillow's own answer fails for a frame with the palette of the one before."""
    is_bare = image.mode == "P" and image.palette is None
    return "transparency" in image.info if is_bare else image.has_transparency_data


def is_transparent(image: Image.Image) -> bool:
    """Return whether any pixel of a picture that was read is not opaque."""
    is_read = has_alpha(image) and not image.mode.startswith("I;16")
    return is_read and image.convert("RGBA").getchannel("A").getextrema()[0] != 255


def displayed(
    image: Image.Image, color: Color, resize: Callable[[Image.Image], Image.Image], *, convert_profile: bool = True
) -> Image.Image:
    """Return the current frame of an opened picture in RGB, as a viewer shows it over a background of this colour, resized.

    Colours that an opaque picture states are converted after `resize`, as those of videos are: before, it would take seconds and
    gigabytes. `convert_profile` is false for data in the form of pictures, such as masks: their numbers are kept.
    """
    turned, is_kept = _TRANSPOSE.get(orientation(image)), not convert_profile or is_srgb(profile_name(image))
    stated = stated_colors(image) if convert_profile else StatedColors()
    profile = None if is_kept or stated != StatedColors() else color_profile(image)
    image = image.copy() if turned is None else image.transpose(turned)
    if image.mode.startswith("I;16"):
        # Pillow would clip 16 bits to 8, which leaves all but the darkest pixels white.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    alpha = image.convert("RGBA").getchannel("A") if has_alpha(image) else None
    if profile is not None:
        image = _to_srgb(image, profile)
    if alpha is None:
        return _in_sdr(resize(image.convert("RGB")), stated)
    rgba = _in_sdr(image.convert("RGB"), stated).convert("RGBA")
    rgba.putalpha(alpha)
    return resize(Image.alpha_composite(Image.new("RGBA", rgba.size, (*color, 255)), rgba).convert("RGB"))


def _in_sdr(image: Image.Image, stated: StatedColors) -> Image.Image:
    if stated == StatedColors():
        return image
    codes = np.asarray(image).astype(np.uint16) * 257
    return Image.fromarray(tone_map.to_sdr(codes, stated.transfer or "srgb", stated.primaries))


def _mode(profile: ImageCms.ImageCmsProfile) -> str:
    return {"GRAY": "L", "CMYK": "CMYK"}.get(profile.profile.xcolor_space.strip(), "RGB")


def _to_srgb(image: Image.Image, profile: ImageCms.ImageCmsProfile, **how: Any) -> Image.Image:
    try:
        converted = ImageCms.profileToProfile(image.convert(_mode(profile)), profile, _SRGB, outputMode="RGB", **how)
    except ImageCms.PyCMSError:  # viewers ignore a profile that cannot be used
        return image
    assert converted is not None, "only a conversion in place returns nothing"
    return converted


def over(rgba_HWC: NDArray[np.uint8], color: Color) -> NDArray[np.uint8]:
    """Blend a frame over a background of one colour."""
    colors, alpha = rgba_HWC[..., :3].astype(np.uint16), rgba_HWC[..., 3:].astype(np.uint16)
    return ((colors * alpha + np.array(color, dtype=np.uint16) * (255 - alpha) + 127) // 255).astype(np.uint8)
