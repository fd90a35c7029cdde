"""VACE samples its reference pictures with the clip and cuts them off, as its pipeline in diffusers does."""

from dataclasses import replace

import diffusers
import numpy as np
import pytest
import torch
import wan_pipelines
from PIL import Image

from reelworks.core.shape import Shape
from reelworks.data.media.config import DataConfig
from reelworks.inference.generate import conditions, pipeline
from reelworks.inference.generate.conditions import Conditions
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models import components, factory
from reelworks.models.config import AutoencoderConfig, ModelConfig
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.testing import contract
from reelworks.training.encoding.encoders import FrozenEncoders

NAME, SHAPE, STEPS = "wan-vace-tiny", Shape(5, 32, 48), wan_pipelines.STEPS
WAN = {"base_dim": 8, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1}


@pytest.fixture
def parts(tmp_path):
    torch.manual_seed(0)
    vae = diffusers.AutoencoderKLWan(**WAN).eval()
    vae.save_pretrained(tmp_path / "vae")
    wan = AutoencoderConfig(name="wan-2.1", weights=str(tmp_path))
    denoiser = factory.build_denoiser(ModelConfig(name=NAME), autoencoder=wan, text=contract.TEXT, device="cpu", seed=0)
    with torch.no_grad():
        for parameter in denoiser.module.parameters():  # those of zeros, so that the control has an effect
            if not parameter.any():
                parameter.normal_(std=0.1)
    encoder = FrozenEncoders(
        factory.build_autoencoder(wan),
        factory.build_text_encoder(contract.TEXT),
        torch.device("cpu"),
        components.conditioning(ModelConfig(name=NAME)),
    )
    return denoiser, encoder, vae


def by_hand(parts, sources, shift):
    """Frames of the pipeline with the steps of our own sampler."""
    references = [[Image.fromarray(each[0]) for each in reversed(sources)]]
    return wan_pipelines.frames(diffusers.WanVACEPipeline, parts, SHAPE, shift, reference_images=references)


@pytest.mark.parametrize("count", [1, 2])
def test_a_clip_from_reference_pictures_is_what_the_pipeline_makes(parts, count):
    """From the same noise, which has frames for the pictures, the same clip comes, without these frames."""
    rng = np.random.default_rng(0)
    sources = [rng.integers(0, 256, (1, SHAPE.height, SHAPE.width, 3), dtype=np.uint8) for _ in range(count)]
    shown = dict(zip(("source", "source-2"), sources, strict=False))
    objective = ObjectiveConfig(timestep_shift=3.0)
    options = GenerateOptions(SHAPE, 16.0, STEPS, 3.0, 5, Conditions(), shown)
    made = pipeline.generate(DtypeBoundary(parts[0]), parts[1], objective, ["waves"], options)[0][0]
    theirs = by_hand(parts, sources, 3.0)
    assert made.shape == theirs.shape == (5, 32, 48, 3)
    assert np.abs(made.astype(int) - theirs.astype(int)).max() <= 1
    without = pipeline.generate(
        DtypeBoundary(parts[0]), parts[1], objective, ["waves"], GenerateOptions(SHAPE, 16.0, STEPS, 3.0, 5)
    )[0][0]
    assert not np.array_equal(made, without)


@pytest.mark.parametrize(("height", "width"), [(16, 64), (64, 16), (32, 48), (64, 96)])
def test_a_reference_picture_is_placed_whole_on_white_as_in_the_pipeline(parts, tmp_path, height, width):
    """Of any aspect ratio, its area is the pipeline's to the pixel, and white is around it."""
    y, x = np.mgrid[:height, :width]
    smooth = np.stack([x * 180 // width, y * 180 // height, 0 * x + 60], axis=2).astype(np.uint8)
    Image.fromarray(smooth).save(tmp_path / "a.png")
    ours = conditions.companion(tmp_path / "a.png", replace(SHAPE, num_frames=1), "--source", DataConfig(), whole=True)
    denoiser, _, vae = parts
    pipe = diffusers.WanVACEPipeline(None, None, vae, diffusers.UniPCMultistepScheduler(), denoiser.module)
    *_, references = pipe.preprocess_conditions(
        reference_images=Image.fromarray(smooth), height=32, width=48, dtype=torch.float32, device=torch.device("cpu")
    )
    theirs = ((references[0][0] + 1) * 127.5).permute(1, 2, 0).numpy()
    assert ours.shape == (1, 32, 48, 3)
    assert np.array_equal((ours[0] == 255).all(axis=2), (theirs > 254).all(axis=2))
    assert np.abs(ours[0] - theirs).max() <= 4
