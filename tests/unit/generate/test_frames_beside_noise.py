"""A network that gets condition frames beside the noise learns from them and generates from them as Open-Sora 2.0 does."""

import dataclasses

import numpy as np
import pytest
import torch

from reelworks.core.shape import Shape
from reelworks.inference.generate import pipeline
from reelworks.inference.generate.conditions import Conditions
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models import components, factory
from reelworks.models.config import ModelConfig
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.objectives.samplers import flow
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.testing import contract
from reelworks.training.encoding.encoders import FrozenEncoders

NAME = "opensora2-tiny"
SHAPE = Shape(5, 8, 8)
OPTIONS = GenerateOptions(SHAPE, 24.0, 3, 7.5, 5, image_guidance_scale=3.0)
FRAMES = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def model():
    encoder = FrozenEncoders(
        factory.build_autoencoder(contract.AUTOENCODER),
        factory.build_text_encoder(contract.TEXT),
        torch.device("cpu"),
        components.conditioning(ModelConfig(name=NAME)),
    )
    return DtypeBoundary(contract.build(NAME)), encoder


def run(model, **changes):
    """Frames, and the inputs of all calls of the network."""
    boundary, encoder = model
    calls = []

    def watch(inputs):
        calls.append(inputs)
        return boundary(inputs)

    options = dataclasses.replace(OPTIONS, **changes)
    return pipeline.generate(watch, encoder, ObjectiveConfig(), ["waves"], options)[0][0], calls


def test_a_reference_is_shown_beside_the_noise_at_every_step(model):
    """All frames begin as noise, the reference is in the condition, and the third prediction has neither."""
    clip, calls = run(model, conditions=Conditions(FRAMES))
    assert clip.shape == (5, 8, 8, 3)
    pairs, bare = calls[::2], calls[1::2]
    assert len(pairs) == len(bare) == OPTIONS.num_inference_steps
    latents = model[1].latents(torch.from_numpy(FRAMES)[None])
    for both in pairs:
        assert both.frame_mask.tolist() == 2 * [[False, False, True, True, True]]
        assert torch.equal(both.condition[:, :, :2], latents.expand(2, -1, -1, -1, -1))
    assert not torch.equal(pairs[0].latent[:1, :, :2], latents)
    for both, neither in zip(pairs, bare, strict=True):
        assert neither.frame_mask.all()
        assert torch.equal(neither.text, both.text[1:])
        assert torch.equal(neither.latent, both.latent[1:])


def test_each_input_has_an_effect(model):
    """The clip depends on the reference and on its guidance, and without a reference, guidance by it changes nothing."""
    clip, _ = run(model, conditions=Conditions(FRAMES))
    assert not np.array_equal(clip, run(model, conditions=Conditions(255 - FRAMES))[0])
    unguided, calls = run(model, conditions=Conditions(FRAMES), image_guidance_scale=None)
    assert not np.array_equal(clip, unguided)
    assert len(calls) == OPTIONS.num_inference_steps
    free, calls = run(model)
    assert len(calls) == OPTIONS.num_inference_steps
    assert np.array_equal(free, run(model, image_guidance_scale=None)[0])


def test_guidance_is_upstreams():
    """Both scales together give upstream's sum of three velocities."""
    text, frames, bare = torch.randn(3, 1, 4, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    cond, uncond = flow.guided_by_frames(torch.cat([text, frames]), bare, 3.0).chunk(2)
    plainly = bare + 3.0 * (frames - bare) + 7.5 * (text - frames)
    torch.testing.assert_close(uncond + 7.5 * (cond - uncond), plainly)
