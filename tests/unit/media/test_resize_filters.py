"""Filters of resizing are those of their formulas, and one that a program adds works as those of the package do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import av
import media_makers
import numpy as np
import pytest
from av.video.reformatter import Interpolation
from numpy.typing import NDArray
from PIL import Image
from pydantic import ValidationError

import reelworks as rw
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.data.media import framing
from reelworks.data.media.config import DataConfig
from reelworks.data.media.decode import Request, load
from reelworks.data.media.decode_pool import DecodePool
from reelworks.data.media.framing import FILTERS, ResizeFilter
from reelworks.testing import sample_catalog, sample_dataset, sample_folder

SMALL = Shape(1, 24, 40)


@pytest.fixture
def linear() -> Iterator[ResizeFilter]:
    added = ResizeFilter("linear", "BILINEAR", "BILINEAR")
    framing.register_filter(added)
    yield added
    del FILTERS[added.name]


def weights(name: str, kind: str, of: int, to: int) -> NDArray[np.float64]:
    """The share of each of `of` pixels in each of `to` pixels, by the definition of a filter."""
    scale = of / to
    if name == "area" and scale > 1:  # what of each pixel lies in the new one
        edges = np.clip((np.arange(to + 1) * scale)[:, None] - np.arange(of), 0, 1)
        return np.diff(edges, axis=0) / scale
    x = np.abs(np.arange(of) + 0.5 - (np.arange(to)[:, None] + 0.5) * scale) / max(scale, 1)
    if name == "area":  # as OpenCV's, it is linear where it enlarges
        shares = np.clip(1 - x, 0, None)
    elif name == "lanczos":
        shares = np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0)
    else:  # Keys' cubic, for which Pillow and libswscale have each its own parameter
        a = -0.5 if kind == "png" else -0.6
        near, far = (a + 2) * x**3 - (a + 3) * x**2 + 1, a * (x**3 - 5 * x**2 + 8 * x - 4)
        shares = np.select([x < 1, x < 2], [near, far], 0)
    return shares / shares.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("kind", ["png", "bgr0", "yuv420p"])
@pytest.mark.parametrize("name", ["bicubic", "lanczos", "area"])
@pytest.mark.parametrize("size", [(45, 60), (78, 104), (108, 144)], ids=str)
def test_a_filter_is_that_of_its_formula(tmp_path: Path, size: tuple[int, int], name: str, kind: str) -> None:
    """In every channel and at ratios that are not whole; values leave room for overshoot, which is cut off."""
    source = np.random.default_rng(0).integers(64, 192, (96, 128, 3), dtype=np.uint8)
    if kind == "yuv420p":
        source[:] = source[..., :1]  # its colours have no such detail
    path = tmp_path / ("a.png" if kind == "png" else "a.mkv")
    if kind == "png":
        Image.fromarray(source).save(path)
    else:
        media_makers.write(path, [source], codec="ffv1", pixel_format=kind)
    down, across = weights(name, kind, 96, size[0]), weights(name, kind, 128, size[1])
    exact = np.einsum("ah,hwc,bw->abc", down, source.astype(np.float64), across, optimize=True)
    found = load(Request(path, kind == "png", Shape(1, *size), resize=FILTERS[name]))[0]
    assert np.abs(found - exact).mean() < 0.5


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_filter_from_outside_resizes_videos_and_pictures(
    tmp_path: Path, linear: ResizeFilter, num_workers: int
) -> None:
    """Worker processes, which do not know it by its name, too."""
    noise = np.random.default_rng(0).integers(0, 256, (48, 80, 3), dtype=np.uint8)
    picture, video = tmp_path / "a.png", tmp_path / "a.mkv"
    Image.fromarray(noise).save(picture)
    media_makers.write(video, [noise], codec="ffv1", pixel_format="bgr0")
    flags = Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
    flags |= Interpolation.FULL_CHR_H_INP
    with av.open(str(video)) as container:
        expected = next(container.decode(video=0)).reformat(40, 24, "rgb24", interpolation=flags).to_ndarray()
    pool = DecodePool(num_workers, 60.0)
    found = [
        pool.submit(Request(path, path == picture, SMALL, resize=linear)).result(timeout=120)
        for path in (picture, video)
    ]
    pool.close()
    by_pillow = np.asarray(Image.fromarray(noise).resize((40, 24), Image.Resampling.BILINEAR))
    assert np.array_equal(np.stack(found), np.stack([by_pillow[None], expected[None]]))
    assert not np.array_equal(found[1], load(Request(video, False, SMALL)))


def test_a_recipe_may_name_it(linear: ResizeFilter) -> None:
    def requests(data: DataConfig) -> set[ResizeFilter]:
        spec = rw.DataSpec((rw.DatasetConfig(path=str(sample_folder())),), data=data)
        loader = rw.Loader(rw.Dataset(sample_catalog(), sample_dataset().table, spec))
        return {each.resize for step in loader for m in step for each in m.request.requests}

    assert requests(DataConfig(resize="linear")) == {linear}
    assert requests(DataConfig()) == {FILTERS["bicubic"]}


def test_names_are_free_or_refused(linear: ResizeFilter) -> None:
    with pytest.raises(UserError, match="two filters of resizing have the name 'linear'"):
        framing.register_filter(linear)
    with pytest.raises(UserError, match="'bicubic', 'lanczos' or 'area'"):
        DataConfig(resize="liner")
    with pytest.raises(ValidationError):
        DataConfig.model_validate({"resize": "liner"})
