"""A filter of resizing that a program adds works as those of the package do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import av
import media_makers
import numpy as np
import pytest
from av.video.reformatter import Interpolation
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
