"""Pages about a catalog and about what buckets see, made of real files."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import tiny_recipe
from PIL import Image
from refused import refused

from reelworks.annexes.quality import inspect
from reelworks.core import files
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan import scan
from reelworks.data.catalog.store.store import Catalog
from reelworks.inference.generate import writers
from reelworks.reports import sheet
from reelworks.training.recipe import dataset, recipe_file


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages")
    data = path / "data"
    (data / "cats").mkdir(parents=True)
    generator = np.random.default_rng(0)
    for i, size in enumerate([(48, 64), (48, 160), (64, 48)]):
        pixels = generator.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(data / "cats" / f"{i}.png")
        (data / "cats" / f"{i}.txt").write_text("a <b>cat</b>, " * (i + 1), encoding="utf-8")
    writers.write_video(data / "clip.mp4", generator.integers(0, 256, (30, 48, 64, 3), dtype=np.uint8), 24.0)
    (data / "clip.txt").write_text("", encoding="utf-8")
    (data / "bad.mp4").write_text("no video", encoding="utf-8")
    scan.scan_sources([Source("data", data)], path / "catalog", workers=1)
    return path


@pytest.fixture(scope="module")
def found(folder):
    return inspect.inspect_rows(Catalog.open(folder / "catalog").live())


def test_distributions_count_what_is_there(found):
    assert dict(found.duration) == {"1–2": 1}
    assert dict(found.caption_tokens) == {"none": 1, "9–16": 1, "17–32": 2}
    assert found.pictures_by_folder == [("data/cats", 3)]
    for _, _, histogram in found.histograms:
        assert sum(count for _, count in histogram) in (1, 3, 4)
    assert {"unreadable", "captions_empty", "few_pictures"} <= {one.name for one in found.advice}


def test_an_inspection_is_json(found):
    value = json.loads(files.to_json(found))
    assert value["proposal"]["toml"].count("[[bucket]]") == len(value["proposal"]["entries"])
    assert value["summary"]["clips"] == 5


def test_an_inspection_as_a_page_of_one_file(found, folder, tmp_path):
    page = tmp_path / "new" / "page.html"
    inspect.write_inspection(found, folder / "catalog", page)
    text = page.read_text(encoding="utf-8")
    plots = json.loads(re.search(r'id="figures">(.*?)</script>', text, re.S)[1])
    assert len(plots) == len(found.histograms) + 1
    assert all(f'id="plot-{name}"' in text for name in plots)
    assert "15 to 20 per subject" in text
    assert "data/bad.mp4" in text
    assert not re.findall(r'(?:src|href)="(?!#|data:image/webp;base64,)', text.partition("<script")[0])


def test_a_page_that_cannot_be_written_is_an_error_with_a_remedy(found, folder, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with refused("file-unwritable", "--html"):
        inspect.write_inspection(found, folder / "catalog", tmp_path / "file" / "page.html")


def recipe(folder, **changes):
    values = tiny_recipe.least(
        output=str(folder / "run"),
        catalog=str(folder / "catalog"),
        dataset=[{"path": str(folder / "data")}],
        bucket=[{"resolution": "48px", "num_frames": [1, 9], "batch_size": [3, 2]}],
        buckets={"aspect_ratios": ["4:3", "3:4"], "max_crop": 0.8},
        train={"max_epochs": 1},
        validation={"split": 0.0},
    )
    made = recipe_file.parse(values | changes)
    dataset.scan_recipe(made)
    return made


def test_a_contact_sheet_has_a_sheet_for_each_bucket_and_names_what_is_cut_most(folder, tmp_path):
    told = sheet.write_page(recipe(folder), tmp_path / "out", clips=2)
    assert {bucket.clips for bucket in told.buckets} == {1, 2}
    for bucket in told.buckets:
        with Image.open(tmp_path / "out" / bucket.sheet) as png:
            assert png.width > 100
        assert len(bucket.shown) == min(2, bucket.clips)
    assert told.worst[0].path == "data/cats/1.png"
    assert told.worst[0].lost > 0.5
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert all(f'src="{bucket.sheet}"' in page for bucket in told.buckets)
    assert "<b>cat" not in page
    assert json.loads(files.to_json(told))["index"] == str(tmp_path / "out" / "index.html")


def test_each_of_several_sheets_shows_the_clips_of_its_bucket(folder, tmp_path):
    asked = recipe(folder, buckets={"aspect_ratios": ["4:3", "3:4", "3:1"], "max_crop": 0.8, "upscale": True})
    told = sheet.write_page(asked, tmp_path / "out", clips=2)
    assert sorted(clip.path for bucket in told.buckets for clip in bucket.shown) == [
        f"data/cats/{i}.png" for i in range(3)
    ]
    assert len({bucket.sheet for bucket in told.buckets}) == 3


def test_a_contact_sheet_of_nothing_says_what_would_cure_it(folder, tmp_path):
    none = recipe(folder, bucket=[{"resolution": "512px", "num_frames": 200}])
    with refused("empty-epoch", "bucket"):
        sheet.write_page(none, tmp_path / "out", clips=2)


def test_a_contact_sheet_that_cannot_be_written_is_an_error_with_a_remedy(folder, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with refused("file-unwritable", "--output"):
        sheet.write_page(recipe(folder), tmp_path / "file" / "out", clips=2)


def test_the_window_stays_bright_and_the_rest_goes_dark():
    whole = np.full((10, 20, 3), 200, dtype=np.uint8)
    shown = sheet.with_window(whole, (2, 5, 4, 8))
    assert (shown[2:6, 5:13] == 200).all()
    assert (shown != 200).all(axis=2).sum() == 10 * 20 - 4 * 8
    assert (whole == 200).all()


def test_a_loss_mask_tints_what_does_not_count():
    """White stays as it is, black is tinted most, and what training counts as black like black."""
    frames = np.full((1, 1, 4, 3), 100, dtype=np.uint8)
    mask = np.repeat(np.array([255, 128, 15, 0], dtype=np.uint8), 3).reshape(1, 1, 4, 3)
    white, grey, dark, black = sheet.masked(frames, mask)[0, 0].astype(int)
    assert (white == 100).all()
    assert (dark == black).all()
    assert 0 < abs(grey - 100).sum() < abs(black - 100).sum()


def test_a_sheet_shows_first_and_last_frame():
    assert sheet.frames_shown(1) == [0]
    assert sheet.frames_shown(3) == [0, 1, 2]
    shown = sheet.frames_shown(97)
    assert (shown[0], shown[-1]) == (0, 96)
