"""Reference pictures of VACE, from folders to the loss: live and stored, for clips with none, one and two of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import examples
import numpy as np
import pytest
import tiny_recipe
import torch
from examples import training_example, validation_example
from PIL import Image

from reelworks.core.shape import Shape
from reelworks.data.loader import prefetch
from reelworks.data.loader.step_source import StepSource
from reelworks.data.media.decode_pool import DecodePool
from reelworks.inference.generate import writers
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.training.assembly import build
from reelworks.training.precompute import encoding
from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.step.examples import Predicted

SHAPE, CLIPS = Shape(5, 32, 48), 4


def grey(path: Path, value: int, size: tuple[int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), value, np.uint8)).save(path)


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A recipe of clips whose number is in their shade: the last has no reference picture, the first two have two."""
    root = tmp_path_factory.mktemp("shots")
    (root / "clips").mkdir()
    for i in range(CLIPS):
        writers.write_video(root / f"clips/{i}.mp4", np.full((7, 32, 48, 3), 20 * i, np.uint8), 16.0)
        (root / f"clips/{i}.txt").write_text(f"clip {i}", encoding="utf-8")
        grey(root / f"areas/{i}.png", 255, (32, 48))
        if i < 3:
            grey(root / f"person/{i}.png", 100 + 10 * i, (64, 16) if i else (20, 60))
        if i < 2:
            grey(root / f"place/{i}.png", 200 + 10 * i, (32, 48))
    clips = {"path": f"{root}/clips", "source": [f"{root}/person", f"{root}/place"], "min_sources": 0}
    entry = [{"resolution": "32x48", "num_frames": 5, "batch_size": 2}]
    tables = {"data": {"clip_start": "start"}, "validation": {"timesteps": [500.0]}}
    masked = clips | {"loss_mask": f"{root}/areas"}
    return tiny_recipe.of_family("wan-vace-tiny", root / "run", masked, bucket=entry, **tables)


def framed(value: int, size: tuple[int, int]) -> np.ndarray[Any, Any]:
    """A grey area in the middle of a white picture."""
    picture = np.full((1, 32, 48, 3), 255, np.uint8)
    top, left = (32 - size[0]) // 2, (48 - size[1]) // 2
    picture[:, top : top + size[0], left : left + size[1]] = value
    return picture


def test_reference_pictures_are_latents_before_those_of_the_clip(values: dict[str, Any]) -> None:
    """They are whole, whatever their aspect ratio, noised and trained with the clip, and the same from a store."""
    recipe = recipe_file.parse(values)
    dataset.scan_recipe(recipe)
    data, encoder = RecipeData.open(recipe), build.encoder(recipe, torch.device("cpu"))
    boundary = DtypeBoundary(build.denoiser(recipe, torch.device("cpu")))
    plan, counts = data.plan(data.plan_spec(1, 1), 0), dict[int, int]()
    assert plan.planned == CLIPS
    work = [
        each
        for plan_step in range(plan.num_steps)
        for each in StepSource(data, 0, 1).requests_of_step(plan, 0, plan_step)
    ]
    pool = DecodePool(0, 60.0)
    try:
        stored = encoding.open_store(data)
        unstored = examples.batch_encoder(encoder, stored).read(work, pool, 1 << 30)
        for batch, missing in zip(prefetch.read_ahead(work, pool), unstored, strict=True):
            example = training_example(batch, encoder, recipe.objective, seed=1)
            again = training_example(missing, encoder, recipe.objective, seed=1, stored=stored)
            assert all(
                torch.equal(a, b)
                for a, b in zip(
                    (example.x0, *example.inputs.tensors().values()),
                    (again.x0, *again.inputs.tensors().values()),
                    strict=True,
                )
            )
            ahead = example.x0.shape[2] - 5
            counts[ahead] = counts.get(ahead, 0) + len(batch.captions)
            assert example.inputs.sources == ()
            for i, caption in enumerate(batch.captions):
                number = int(caption.split()[1])
                shown = [
                    framed(100 + 10 * number, (32, 8) if number else (16, 48)),
                    framed(200 + 10 * number, (32, 48)),
                ]
                clean = encoder.latents(torch.from_numpy(np.stack(shown[:ahead], 1)[0])[None]) if ahead else None
                if clean is not None:
                    torch.testing.assert_close(example.x0[i : i + 1, :, :ahead], clean, atol=0.03, rtol=0)
            C = example.x0.shape[1]
            control = example.inputs.control
            assert torch.equal(control[:, :C, :ahead], example.x0[:, :, :ahead])
            assert not control[:, C:, :ahead].any()
            assert bool((control[:, 2 * C :, ahead:] == 1).all())
            assert example.trained_frames is None
            assert example.loss_weight is not None  # the mask shows all of the clip, and no more
            assert example.loss_weight.amax(dim=(0, 2, 3)).tolist() == [0.0] * ahead + [1.0] * 5
            losses = example.losses(Predicted.from_inputs(boundary, example.inputs))
            assert losses.shape == (len(batch.captions),)
            assert bool(losses.isfinite().all())
            losses.sum().backward()
    finally:
        pool.close()
    assert counts == {0: 1, 1: 1, 2: 2}


def test_a_held_out_clip_is_measured_with_its_reference_pictures(values: dict[str, Any]) -> None:
    """One clip is repeated for each timestep, and its pictures with it."""
    recipe = recipe_file.parse(values)
    dataset.scan_recipe(recipe)
    data, encoder = RecipeData.open(recipe), build.encoder(recipe, torch.device("cpu"))
    entries = data.entries(0)
    works = [
        StepSource(data, 0, 1).build_request(entries.take(np.array([i])), epoch=0, augments=False) for i in range(CLIPS)
    ]
    work = next(each for each in works if "source-2" in each.companions)
    pool = DecodePool(0, 60.0)
    try:
        (batch,) = prefetch.read_ahead([work], pool)
        example = validation_example(batch, encoder, recipe.objective, seed=1, times=[200.0, 700.0])
    finally:
        pool.close()
    assert example.x0.shape[:3] == (2, example.x0.shape[1], 7)
    assert example.inputs.control.shape[2] == 7
    assert torch.equal(example.x0[0], example.x0[1])
