"""A network that is conditioned on crops is told the size of the file and the place of the crop that it is shown."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import prepare_files as files
import pytest
import torch
from examples import training_example, validation_example
from PIL import Image

from reelworks.data.loader import prefetch
from reelworks.data.loader.step_source import StepSource
from reelworks.data.media.decode_pool import DecodePool
from reelworks.models import registry
from reelworks.models.families.sdxl import network as sdxl
from reelworks.testing import contract
from reelworks.training.assembly import build

SIZES = ((48, 64), (60, 90), (100, 130), (64, 48), (70, 55))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("crops")
    (path / "data").mkdir()
    noise = np.random.default_rng(0)
    for i, (height, width) in enumerate(SIZES):
        pixels = noise.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path / "data" / f"{i}.png")
        (path / "data" / f"{i}.txt").write_text(f"noise {i}", encoding="utf-8")
    return path


def batches(folder, validates=False, **objective):
    """The micro-batches of an epoch with random crops and flips, or of validation on its clips, and the recipe."""
    dataset = {"path": str(folder / "data"), "flip": 0.5, "repeats": 3}
    changes = {"data": {"crop": "random"}, "objective": objective, "buckets": {"incomplete_batch": "pad"}}
    data = files.opened(files.recipe(folder, dataset=[dataset], **changes))
    plan, source = data.plan(data.plan_spec(1, 1), 0), StepSource(data, 0, 1)
    clips = data.entries(0)
    works = [work for plan_step in range(plan.num_steps) for work in source.requests_of_step(plan, 0, plan_step)]
    if validates:
        works = [source.build_request(clips.take(np.array([i])), epoch=0, augments=False) for i in range(len(clips))]
    pool = DecodePool(0, 60.0)
    try:
        return data.recipe, list(prefetch.read_ahead(works, pool))
    finally:
        pool.close()


@pytest.mark.parametrize("validates", [False, True])
def test_the_crop_that_is_told_is_the_crop_that_is_shown(folder, validates):
    """Resized and cropped by hand at the place that the network is told, each file gives the frame that it is shown."""
    recipe, read = batches(folder, validates)
    encoder = build.encoder(recipe, torch.device("cpu"))
    told = 0
    for batch in read:
        if validates:
            example = validation_example(batch, encoder, recipe.objective, seed=0, times=[500.0])
        else:
            example = training_example(batch, encoder, recipe.objective, seed=0)
        for i, request in enumerate(batch.request.requests):
            height, width, top, left = map(int, example.inputs.crop[i].tolist())
            file = Image.open(request.path)
            assert (file.height, file.width) == (height, width)
            box = batch.request.crops[i]
            whole = np.asarray(file.resize((box.resized_width, box.resized_height), Image.Resampling.BICUBIC))
            whole = whole[:, ::-1] if request.augmentation.flip else whole
            shape = batch.request.shape
            window = whole[top : top + shape.height, left : left + shape.width]
            assert np.array_equal(window, batch.frames[i, 0].numpy())
            told += 1
    assert told >= 3 * len(SIZES)


def test_without_crop_conditioning_it_is_told_the_bucket(folder):
    recipe, (batch, *_) = batches(folder, crop_conditioning="none")
    encoder = build.encoder(recipe, torch.device("cpu"))
    example = training_example(batch, encoder, recipe.objective, seed=0)
    shape = batch.request.shape
    assert example.inputs.crop.tolist() == [[shape.height, shape.width, 0, 0]] * len(batch.request.uids)


def test_sdxl_gets_file_crop_and_target_in_the_order_of_its_release():
    """As `original_size + crops_coords_top_left + target_size` of its pipeline."""
    called = {}

    def unet(*_args, added_cond_kwargs, **_kwargs):
        called.update(added_cond_kwargs)
        return (torch.zeros(2, 4, 4, 6),)

    inputs = contract.example(contract.Shape(1, 4, 6), "sdxl-tiny")
    crop = torch.tensor([[768.0, 1024.0, 3.0, 40.0], [512.0, 600.0, 0.0, 0.0]])
    made = SimpleNamespace(**{**vars(inputs), "crop": crop})
    sdxl.predict(unet, made, registry.PRESETS["sdxl-tiny"].config)
    assert called["time_ids"].tolist() == [[768, 1024, 3, 40, 4, 6], [512, 600, 0, 0, 4, 6]]
    sdxl.predict(unet, inputs, registry.PRESETS["sdxl-tiny"].config)
    assert called["time_ids"].tolist() == [[4, 6, 0, 0, 4, 6]] * 2
