"""Frames of a clip are mirrored, rotated and recoloured alike, without corners that the file does not have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from media_makers import differ, quarters, write
from PIL import Image

from reelworks.core.shape import Shape
from reelworks.data.media.augment import NO_AUGMENTATION, Augmentation
from reelworks.data.media.decode import Request, load
from reelworks.data.media.framing import FILTERS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("augment")
    Image.fromarray(quarters(96, 160)).save(path / "quarters.png")
    Image.new("RGB", (160, 96), (255, 255, 255)).save(path / "white.png")
    lossless = {"codec": "ffv1", "pixel_format": "bgr0"}
    write(path / "white.mkv", [np.full((96, 160, 3), 255, np.uint8)] * 3, **lossless)
    noise = np.random.default_rng(0).integers(0, 256, (96, 160, 3), dtype=np.uint8)
    write(path / "same.mkv", [noise] * 4, **lossless)
    Image.fromarray(noise).save(path / "noise.png")
    return path


PICTURE = Shape(1, 64, 96)


def request(path: Path, shape: Shape = PICTURE, **changes) -> Request:
    return replace(Request(path, path.suffix == ".png", shape), **changes)


def test_without_augmentation_the_frames_are_those_of_before(folder):
    """Their array is not even copied."""
    frames = load(request(folder / "noise.png"))
    assert NO_AUGMENTATION.apply(frames, PICTURE) is frames
    assert NO_AUGMENTATION.read_shape(PICTURE) == PICTURE


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
@settings(max_examples=20, deadline=None)
def test_a_flip_mirrors_what_is_read(folder, down, across):
    plain = request(folder / "noise.png", crop_draw=(down, across))
    flipped = replace(plain, augmentation=Augmentation(flip=True))
    assert np.array_equal(load(flipped), load(plain)[:, :, ::-1])
    source = Shape(1, 96, 160)
    box, mirrored = plain.crop_box(source), flipped.crop_box(source)
    assert mirrored.left == box.resized_width - 96 - box.left
    assert mirrored.top == box.top


@pytest.mark.parametrize("shape", [Shape(1, 64, 64), Shape(1, 32, 96), Shape(1, 48, 80)])
@pytest.mark.parametrize("draw", [(0.9, 0.1), (0.0, 0.99)])
def test_the_crop_box_says_what_is_cut_out(folder, shape, draw):
    """Of the file as it is resized: from files that are wider than the shape, and from those that are taller."""
    asked = request(folder / "noise.png", shape, crop_draw=draw, resize=FILTERS["lanczos"])
    with Image.open(asked.path) as image:
        box = asked.crop_box(Shape(1, image.height, image.width))
        whole = np.asarray(image.resize((box.resized_width, box.resized_height), Image.Resampling.LANCZOS))
    cut = whole[box.top : box.top + shape.height, box.left : box.left + shape.width]
    assert np.array_equal(load(asked)[0], cut)


@given(st.floats(-45, 45), st.integers(16, 90), st.integers(16, 90), st.floats(0, 1, exclude_max=True), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_rotation_has_no_empty_corners(folder, degrees, height, width, draw, nearest):
    """A white file stays white to the last pixel, by interpolation and without."""
    asked = request(folder / "white.png", Shape(1, height, width), crop_draw=(draw, draw), nearest=nearest)
    frames = load(replace(asked, augmentation=Augmentation(degrees=degrees)))
    assert frames.shape == (1, height, width, 3)
    assert frames.min() == 255


def test_a_rotation_of_a_video_has_no_empty_corners(folder):
    frames = load(request(folder / "white.mkv", Shape(3, 48, 64), augmentation=Augmentation(degrees=-7.0)))
    assert frames.shape == (3, 48, 64, 3)
    assert frames.min() == 255


def test_a_rotation_turns_clockwise_around_the_middle(folder):
    """A quarter to the right of the middle comes down; the middle stays the middle."""
    bar = np.zeros((101, 101, 3), np.uint8)
    bar[48:53, 50:] = 255
    Image.fromarray(bar).save(folder / "bar.png")
    frame = load(request(folder / "bar.png", Shape(1, 51, 51), augmentation=Augmentation(degrees=30.0)))[0, ..., 0]
    y, x = np.nonzero(frame > 128)
    slope = np.polyfit(x - 25.0, y - 25.0, 1)[0]
    assert slope == pytest.approx(np.tan(np.radians(30)), abs=0.06)
    assert abs(np.polyfit(x - 25.0, y - 25.0, 1)[1]) < 1


def test_a_small_rotation_shows_nearly_the_same(folder):
    """Of a rotated clip, the region is the one that the unrotated clip shows, but for the part lost to the corners."""
    draws = {"crop_draw": (0.3, 0.8)}
    plain = load(request(folder / "quarters.png", Shape(1, 96, 160), **draws))
    turned = load(request(folder / "quarters.png", Shape(1, 96, 160), augmentation=Augmentation(degrees=1.0), **draws))
    assert 0 < differ(plain, turned) < 12


@given(st.floats(0.5, 1.5), st.floats(0.5, 1.5), st.floats(0, 2), st.floats(-0.5, 0.5), st.floats(-9, 9), st.booleans())
@settings(max_examples=15, deadline=None)
def test_changes_are_constant_over_the_frames_of_a_clip(folder, brightness, contrast, saturation, hue, degrees, flip):
    """Four equal frames stay equal."""
    augmentation = Augmentation(flip, degrees, brightness, contrast, saturation, hue)
    frames = load(request(folder / "same.mkv", Shape(4, 48, 64), augmentation=augmentation))
    assert (frames == frames[:1]).all()


def test_colors_change_as_named():
    """Brightness, contrast, saturation and hue, each by a value that can be computed by hand."""

    def changed(rgb: tuple[int, int, int], **values: float) -> list[int]:
        frames = np.array(rgb, dtype=np.uint8).reshape(1, 1, 1, 3)
        return Augmentation(**values).apply(frames, Shape(1, 1, 1)).reshape(3).tolist()

    assert changed((100, 50, 200), brightness=0.5) == [50, 25, 100]
    assert changed((100, 50, 200), brightness=1.5) == [150, 75, 255]
    assert changed((0, 255, 120), contrast=0.5) == [64, 191, 124]
    assert changed((100, 100, 100), saturation=0.0, hue=0.3) == [100, 100, 100]
    assert changed((255, 0, 0), saturation=0.0) == [76, 76, 76]
    assert changed((200, 40, 90), hue=1 / 3) == [90, 200, 40]
    assert changed((10, 20, 30), contrast=0.5, brightness=2.0) == [74, 84, 94]
    assert changed((10, 20, 30)) == [10, 20, 30]


def test_color_changes_do_not_depend_on_what_is_cropped():
    """The window of a recoloured frame is the recoloured window."""
    frames = np.random.default_rng(1).integers(0, 256, (2, 20, 30, 3), dtype=np.uint8)
    jitter = Augmentation(brightness=1.1, contrast=0.8, saturation=1.3, hue=0.05)
    whole, part = jitter.apply(frames, Shape(2, 20, 30)), jitter.apply(frames[:, 3:9, 5:9], Shape(2, 6, 4))
    assert np.array_equal(whole[:, 3:9, 5:9], part)


@pytest.mark.parametrize("resize", FILTERS)
@pytest.mark.parametrize("kind", ["picture", "bgr0", "yuv420p"])
def test_downscaling_averages(tmp_path, resize, kind):
    """A checkerboard of single pixels is grey at a quarter of its size, not black, white or striped."""
    board = np.where(np.indices((128, 192)).sum(axis=0) % 2, 255, 0).astype(np.uint8)
    board = np.repeat(board[..., None], 3, axis=2)
    path = tmp_path / ("board.png" if kind == "picture" else "board.mkv")
    if kind == "picture":
        Image.fromarray(board).save(path)
    else:
        write(path, [board], codec="ffv1", pixel_format=kind)
    frames = load(request(path, Shape(1, 32, 48), resize=FILTERS[resize])).astype(int)
    assert np.abs(frames - 127.5).max() <= 3
    nearest = load(request(path, Shape(1, 32, 48), nearest=True)).astype(int)
    assert np.abs(nearest - 127.5).max() > 100


@pytest.mark.parametrize("draw", [(0.9, 0.1), (0.5, 0.5), (0.0, 0.99)])
def test_the_crop_box_of_a_rotated_clip_has_its_middle(folder, draw):
    """The place of an upright crop of the same size, in the frame as resized for the rotation."""
    asked = request(folder / "noise.png", crop_draw=draw, augmentation=Augmentation(degrees=10.0))
    box = asked.crop_box(Shape(1, 96, 160))
    read = asked.augmentation.read_shape(PICTURE)
    top, left = replace(asked, shape=read).crop_offsets(box.resized_height, box.resized_width)
    assert box.top + PICTURE.height / 2 == pytest.approx(top + read.height / 2, abs=1)
    assert box.left + PICTURE.width / 2 == pytest.approx(left + read.width / 2, abs=1)
    assert (box.original_height, box.original_width) == (96, 160)
    assert 0 <= box.top <= box.resized_height - 64
    assert 0 <= box.left <= box.resized_width - 96
    unturned = replace(asked, augmentation=NO_AUGMENTATION).crop_box(Shape(1, 96, 160))
    assert box.resized_height > unturned.resized_height


def test_a_rotated_mask_has_its_own_values_alone(folder):
    asked = request(folder / "quarters.png", nearest=True, augmentation=Augmentation(degrees=10.0))
    assert set(np.unique(load(asked))) <= set(np.unique(quarters(96, 160)))
