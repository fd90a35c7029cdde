"""A companion shows the moments and the part of the frame that its clip shows, whatever its own size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from media_makers import differ, numbered, numbers, write
from PIL import Image

from reelworks.core.shape import Shape
from reelworks.data.media.decode import Request, load
from reelworks.data.media.reading import MediaError

MEASURES = Shape(20, 48, 96)


def slope(height, width, n=20):
    """Frames whose grey tells the number, and whose red and blue tell the place."""
    frames = numbered(n, (height, width)).astype(np.int64)
    frames[..., 0] = (np.arange(width) * 160 // width + 40)[None, None]
    frames[..., 2] = (np.arange(height) * 160 // height + 40)[None, :, None]
    return frames.astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A clip, the same smaller, narrower and with more frames, and its first frame at twice its size."""
    place = tmp_path_factory.mktemp("pair")
    quality = {"pixel_format": "yuv444p", "options": {"qp": "0"}}
    write(place / "clip.mp4", slope(48, 96), **quality)
    write(place / "half.mp4", slope(24, 36, 26), **quality)
    write(place / "short.mp4", slope(48, 96, 9), **quality)
    Image.fromarray(slope(96, 192, 1)[0]).save(place / "still.png")
    return place


def read(path, draws, step, **changes):
    first, down, across = draws
    shape = Shape(5, 32, 32)
    return load(Request(path, path.suffix == ".png", shape, step, first, (down, across), measures=MEASURES, **changes))


DRAW = st.floats(0, 1, exclude_max=True)


@given(st.tuples(DRAW, DRAW, DRAW), st.sampled_from([1.0, 2.5, 4.0]))
@settings(max_examples=15)
def test_a_companion_shows_what_its_clip_shows(folder, draws, step):
    """Same numbers of frames though it is longer, same place though it is smaller and narrower; a picture stands for all."""
    clip, half, still = (read(folder / name, draws, step) for name in ("clip.mp4", "half.mp4", "still.png"))
    assert numbers(clip[..., 1:2]) == numbers(half[..., 1:2])
    assert differ(clip[..., ::2], half[..., ::2]) < 4
    assert differ(clip[..., ::2], still[..., ::2]) < 4
    assert (still == still[:1]).all()


def test_nearest_invents_no_grey(folder, tmp_path):
    """A mask of black and white stays so at another size."""
    mask = np.zeros((24, 48), np.uint8)
    mask[:, 17:] = 255
    Image.fromarray(mask).save(tmp_path / "mask.png")
    found = read(tmp_path / "mask.png", (0, 0.5, 0.5), 1.0, nearest=True)
    assert set(np.unique(found)) == {0, 255}
    blended = read(tmp_path / "mask.png", (0, 0.5, 0.5), 1.0)
    assert len(np.unique(blended)) > 2


@pytest.mark.parametrize("hidden", [0, 255], ids=["black", "white"])
def test_a_mask_is_black_where_nothing_is_painted(tmp_path, hidden):
    """A layer of a paint program, whose transparent pixels have any colour: as one on black, whatever `alpha_color`."""
    rgba = np.full((48, 96, 4), hidden, np.uint8)
    rgba[..., 3] = 0
    rgba[16:32, 20:70] = 255
    Image.fromarray(rgba).save(tmp_path / "mask.png")
    write(tmp_path / "mask.mov", [rgba] * 20, codec="qtrle", pixel_format="argb")
    for name in ("mask.png", "mask.mov"):
        request = Request(tmp_path / name, name == "mask.png", MEASURES, measures=MEASURES, nearest=True)
        for color in (request.alpha_color, (0, 128, 255)):
            found = load(replace(request, alpha_color=color))
            assert np.array_equal(found, np.broadcast_to(rgba[..., 3:], found.shape))


def test_a_companion_that_ends_before_is_refused(folder):
    """Frames that it lacks are not made up."""
    with pytest.raises(MediaError, match="the file has 9 frames, 20 are needed"):
        read(folder / "short.mp4", (0.999, 0.5, 0.5), 1.0)
