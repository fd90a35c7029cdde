"""Convert opened pictures to what a viewer shows: upright, in sRGB, without transparency."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

from reelworks.data.media import picture_files as pictures

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


def upright(frame_HWC: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return a view of a frame as an EXIF orientation of 1 to 8 says that it is shown."""
    if orientation in (5, 6, 7, 8):
        frame_HWC = frame_HWC.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        frame_HWC = frame_HWC[:, ::-1]
    return frame_HWC[::-1] if orientation in (3, 4, 7, 8) else frame_HWC


def displayed(image: Image.Image, color: Color = WHITE, *, convert_profile: bool = True) -> Image.Image:
    """Return the current frame of an opened picture in RGB, as a viewer shows it over a background of this colour.

    `convert_profile` is false for data in the form of pictures, such as masks: their numbers are kept.
    """
    orientation, profile = pictures.orientation(image), pictures.color_profile(image) if convert_profile else None
    image = image.transpose(_TRANSPOSE[orientation]) if orientation in _TRANSPOSE else image.copy()
    if image.mode.startswith("I;16"):
        # Pillow would clip 16 bits to 8, which leaves all but the darkest pixels white.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    alpha = image.convert("RGBA").getchannel("A") if image.has_transparency_data else None
    if profile is not None and not pictures.is_srgb(pictures.profile_name(profile)):
        image = _to_srgb(image, profile)
    if alpha is None:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    rgba.putalpha(alpha)
    return Image.alpha_composite(Image.new("RGBA", rgba.size, (*color, 255)), rgba).convert("RGB")


def _to_srgb(image: Image.Image, profile: ImageCms.ImageCmsProfile) -> Image.Image:
    mode = {"GRAY": "L", "CMYK": "CMYK"}.get(profile.profile.xcolor_space.strip(), "RGB")
    try:
        converted = ImageCms.profileToProfile(image.convert(mode), profile, _SRGB, outputMode="RGB")
    except ImageCms.PyCMSError:  # viewers ignore a profile that cannot be used
        return image
    assert converted is not None, "only a conversion in place returns nothing"
    return converted


def over(rgba_HWC: NDArray[np.uint8], color: Color) -> NDArray[np.uint8]:
    """Blend a frame over a background of one colour."""
    colors, alpha = rgba_HWC[..., :3].astype(np.uint16), rgba_HWC[..., 3:].astype(np.uint16)
    background = np.array(color, dtype=np.uint16)
    return ((colors * alpha + background * (255 - alpha) + 127) // 255).astype(np.uint8)
