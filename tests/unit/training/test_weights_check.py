"""Weights that were trained predict better than a line; fresh ones and those that were read wrongly do not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tiny_recipe
import torch
from refused import refused

from reelworks.models.objectives import ddpm, objectives
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.training.assembly import build
from reelworks.training.memory import dry_run
from reelworks.training.preflight import weights_check
from reelworks.training.recipe import dataset, recipe_file

CPU = torch.device("cpu")


def parts(**tables):
    values = tiny_recipe.least(
        bucket=[{"resolution": "32px", "num_frames": 1, "batch_size": 1}],
        model={"name": "stdit3-tiny", "hidden_size": 64, "depth": 1, "num_heads": 2},
        text_encoder={"dim": 16, "max_length": 6},
        precision={"compute": "float32"},
    )
    recipe = recipe_file.parse(values | tables)
    denoiser, encoder = build.denoiser(recipe, CPU), build.encoder(recipe, CPU)
    named = recipe.model_copy(update={"model": recipe.model.model_copy(update={"weights": "trained.safetensors"})})
    return named, denoiser, encoder, dataset.bucket_table(recipe)[1].buckets


def train(recipe, denoiser, encoder, buckets, steps=800):
    """Train on the picture itself, with noise and timesteps that the check does not use."""
    bucket = min(buckets, key=lambda one: -one.tokens)
    frame = torch.from_numpy(weights_check.picture(bucket.shape.height, bucket.shape.width)).permute(2, 0, 1)
    x0 = encoder.autoencoder.encode(frame[None, :, None]).expand(8, -1, -1, -1, -1)
    text = encoder.texts([weights_check.CAPTION] * 8, [False] * 8)
    clean = dry_run.blank(encoder, bucket, 8, CPU)
    objective, boundary = objectives.from_config(recipe.objective), DtypeBoundary(denoiser)
    optimizer = torch.optim.AdamW(denoiser.module.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(7)
    for _ in range(steps):
        noise, time = torch.randn(x0.shape, generator=generator), 1000 * torch.rand(8, generator=generator)
        x_t = objective.noised(x0, noise, time, None)
        inputs = dataclasses.replace(clean, latent=x_t, time=time, text=text.tokens, text_mask=text.mask)
        loss = objective.losses(boundary(inputs), x_t, x0, noise, time, None).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()


def test_fresh_weights_are_told():
    fresh = weights_check.run(*parts())
    assert not fresh.is_trained
    assert fresh.fault.code == "weights-not-trained"
    assert "trained ones have less than 90%" in str(fresh)


def test_the_network_is_told_the_whole_caption():
    """Its tokens, and the embedding of all of it where it takes one."""
    made = parts(model={"name": "opensora2-tiny"}, text_encoder={"dim": 16, "max_length": 6, "pooled_dim": 8})
    seen = []
    made[1].module.register_forward_pre_hook(lambda _, inputs: seen.extend(inputs))
    weights_check.run(*made)
    text = made[2].texts([weights_check.CAPTION], [False])
    assert torch.equal(seen[2], text.tokens)
    assert torch.equal(seen[4], text.pooled)


@pytest.mark.slow
def test_trained_weights_are_told_from_wrongly_read_ones():
    made = parts()
    train(*made)
    trained = weights_check.run(*made)
    assert trained.is_trained, trained
    assert trained.fault is None
    assert f"{trained.tensors:,} tensors" in str(trained)
    with torch.no_grad():
        for weight in made[1].module.parameters():
            if weight.dim() == 2:
                weight.copy_(weight.flip(1))  # columns in another order, as of a rotated basis
    assert not weights_check.run(*made).is_trained


def test_timesteps_are_those_of_equal_strength_of_the_picture():
    flow, diffusion = (objectives.from_config(ObjectiveConfig(name=name)) for name in ("rectified-flow", "epsilon"))
    assert weights_check._times(flow, 0, 1000) == [250, 400, 556]
    for time, strength in zip(weights_check._times(diffusion, 0, 1000), weights_check._STRENGTHS, strict=True):
        data, noise = ddpm.weights(torch.tensor([time]))
        assert float(data / noise) == pytest.approx(strength, rel=0.01)
    assert weights_check._times(flow, 875, 1000) == [875]


def test_without_weights_there_is_nothing_to_check():
    recipe, *others = parts()
    bare = recipe.model_copy(update={"model": recipe.model.model_copy(update={"weights": None})})
    with refused("no-weights-to-check", "model.weights"):
        weights_check.run(bare, *others)


def test_the_picture_is_one_of_any_size():
    for height, width in ((32, 48), (720, 1280)):
        drawn = weights_check.picture(height, width)
        assert drawn.shape == (height, width, 3)
        assert (drawn.min() >= -1, drawn.max() <= 1, drawn.dtype) == (True, True, np.float32)
        assert drawn.std(axis=(0, 1)).min() > 0.1
