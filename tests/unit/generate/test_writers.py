import os
from fractions import Fraction

import av
import numpy as np
import places
import pytest
from PIL import Image
from refused import refused

from reelworks.core import files
from reelworks.inference.generate import writers


def clip(count, height, width):
    t, y, x = np.mgrid[0:count, 0:height, 0:width]
    return np.stack([x * 200 // width, y * 200 // height, t * 200 // count], axis=-1).astype(np.uint8)


def read(path):
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = np.stack([f.to_ndarray(format="rgb24", threads=1) for f in container.decode(stream)])
        return frames, stream.average_rate, stream.codec_context.name, stream.pix_fmt


@pytest.mark.parametrize(("suffix", "codec"), [(".mp4", "h264"), (".webm", "vp9")])
def test_a_clip_comes_back_as_it_was_written(tmp_path, suffix, codec):
    path = tmp_path / "deep" / "er" / f"clip{suffix}"
    frames = clip(7, 32, 48)
    writers.write(path, frames, 12.5)
    back, rate, name, pixels = read(path)
    assert back.shape == frames.shape
    assert np.abs(back.astype(int) - frames).mean() < 4
    assert float(rate) == pytest.approx(12.5)
    assert codec in name
    assert pixels == "yuv420p"
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("size", [(64, 96), (720, 64), (64, 1280)])
@pytest.mark.parametrize("suffix", [".mp4", ".webm"])
def test_colours_are_stated_and_those_of_bt_709_at_every_size(tmp_path, suffix, size):
    """Without a statement, small clips are read as BT.601 and large ones as BT.709."""
    colours = np.uint8([(220, 30, 30), (30, 200, 40), (40, 60, 220), (255, 255, 255), (0, 0, 0)])
    writers.write(tmp_path / f"c{suffix}", np.broadcast_to(colours[:, None, None], (5, *size, 3)), 5)
    with av.open(str(tmp_path / f"c{suffix}")) as container:
        frames = list(container.decode(video=0))
    assert {(f.colorspace, f.color_primaries, f.color_trc, f.color_range) for f in frames} == {(1, 1, 1, 1)}
    luma = [bytes(frame.planes[0])[size[1] // 2] for frame in frames]
    assert luma == pytest.approx(16 + 219 / 255 * (colours @ (0.2126, 0.7152, 0.0722)), abs=1)


def test_odd_sizes_grow_to_even_ones(tmp_path):
    writers.write(tmp_path / "odd.mp4", clip(3, 33, 47), 24)
    back, *_ = read(tmp_path / "odd.mp4")
    assert back.shape == (3, 34, 48, 3)


@pytest.mark.parametrize("rate", [Fraction(24000, 1001), Fraction(30000, 1001), Fraction(60000, 1001), Fraction(25, 2)])
def test_rates_of_television_are_exact(tmp_path, rate):
    """23.976 and so on are fractions of 1001; a long clip of a rounded rate would drift from its sound."""
    writers.write(tmp_path / "c.mp4", clip(25, 32, 48), float(rate))
    assert read(tmp_path / "c.mp4")[1] == rate


def test_a_picture_is_lossless(tmp_path):
    frame = clip(1, 9, 7)
    writers.write(tmp_path / "p.png", frame, 1)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "p.png")), frame[0])


def test_a_wrong_suffix_is_named_with_the_nearest_known(tmp_path):
    with refused("unknown-media-suffix", "output", says=r'\.mp5.*did you mean ".mp4"'):
        writers.write(tmp_path / "x.mp5", clip(2, 8, 8), 8)
    with refused("image-file-for-video", "output", says="cannot hold 2 frames"):
        writers.write(tmp_path / "x.png", clip(2, 8, 8), 8)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x.png", "x.mp4"])
def test_a_place_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path, name):
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    with refused("file-unwritable", "output", says="remedy: name a place"):
        writers.write(tmp_path / "file" / name, clip(1, 8, 8), 8)
    if not places.MAY_ALL:  # root may write anywhere
        tmp_path.chmod(0o500)
        with refused("file-unwritable", "output", says="remedy: name a place"):
            writers.write(tmp_path / name, clip(1, 8, 8), 8)


@pytest.mark.parametrize(("name", "stays"), [("a.png", False), ("b.png", False), ("a.mp4", True)])
def test_what_a_killed_process_left_goes_before_others_are_written(tmp_path, name, stays):
    """In files of a kind that is written, once nobody can be writing them any more."""
    place = tmp_path / "samples"
    place.mkdir()
    left, fresh = (files.temporary_name(place / name) for _ in range(2))
    for file in (left, fresh):
        file.touch()
    os.utime(left, (0, 0))
    writers.require_places([place / "a.png", place / "c.png"])
    assert {*place.iterdir()} == {fresh, *[left] * stays}


def test_a_failed_write_leaves_the_former_file_and_nothing_else(tmp_path):
    path = tmp_path / "clip.mp4"
    writers.write(path, clip(3, 16, 16), 8)
    before = path.read_bytes()
    with pytest.raises(ValueError):
        writers.write(path, clip(3, 16, 16)[..., :2], 8)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["clip.mp4"]


def test_a_contact_sheet_shows_first_middle_and_last_frame_in_their_cells():
    long, picture = np.zeros((5, 20, 40, 3), np.uint8), np.full((1, 20, 20, 3), 255, np.uint8)
    for index, value in ((0, 50), (2, 150), (4, 250)):
        long[index] = value
    sheet = writers.contact_sheet([[long, picture], [picture]], [["a clip", "p" * 400], ["x"]], height_px=40)
    pixels = np.asarray(sheet)
    y, x = 12 + 20, 12 + 40
    assert [pixels[y, x + 82 * i, 0] for i in range(3)] == [50, 150, 250]
    assert pixels[y, 12 + 244 + 12 + 20, 0] == 255
    assert pixels[y + 40 + 24 + 12, 12 + 20, 0] == 255
    caption = pixels[12 + 44 : 12 + 62]
    assert (caption[:, 12:60] < 128).any()  # ink below the first clip
    assert not (caption[:, 12 + 244 + 12 + 40 :] < 128).any()  # a long caption stays in its column
