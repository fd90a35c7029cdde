"""Lucy Edit makes a clip from another one as its pipeline in diffusers does."""

import diffusers
import numpy as np
import pytest
import tiny_families
import torch
import wan_pipelines
from PIL import Image

from reelworks.core.shape import Shape
from reelworks.inference.generate import pipeline
from reelworks.inference.generate.conditions import Conditions
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models import components, factory
from reelworks.models.config import AutoencoderConfig, ModelConfig
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.testing import contract
from reelworks.training.encoding.encoders import FrozenEncoders

NAME, SHAPE, STEPS = "wan-edit-tiny", Shape(5, 32, 64), wan_pipelines.STEPS


@pytest.mark.parametrize("shift", [1.0, 5.0])
def test_an_edit_is_what_the_pipeline_makes(tmp_path, shift):
    """From the same noise and source, with our sampler's steps, the same clip comes; another source makes another one."""
    torch.manual_seed(0)
    vae = diffusers.AutoencoderKLWan(**tiny_families.WAN | tiny_families.WAN_22).eval()
    vae.save_pretrained(tmp_path / "vae")
    published = AutoencoderConfig(name="wan-2.2", weights=str(tmp_path))
    model = ModelConfig(name=NAME)
    denoiser = factory.build_denoiser(model, autoencoder=published, text=contract.TEXT, device="cpu", seed=0)
    encoder = FrozenEncoders(
        factory.build_autoencoder(published),
        factory.build_text_encoder(contract.TEXT),
        torch.device("cpu"),
        components.conditioning(model),
    )
    frames = np.random.default_rng(0).integers(0, 256, (SHAPE.num_frames, 32, 64, 3), dtype=np.uint8)

    def made(source):
        options = GenerateOptions(SHAPE, 24.0, STEPS, 3.0, 5, Conditions(), {"source": source})
        objective = ObjectiveConfig(timestep_shift=shift)
        return pipeline.generate(DtypeBoundary(denoiser), encoder, objective, ["waves"], options)[0][0]

    theirs = wan_pipelines.frames(
        diffusers.LucyEditPipeline,
        (denoiser, encoder, vae),
        SHAPE,
        shift,
        [Image.fromarray(frame) for frame in frames],
        options={"expand_timesteps": True},
    )
    ours = made(frames)
    assert ours.shape == theirs.shape == (5, 32, 64, 3)
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1
    assert not np.array_equal(ours, made(255 - frames))
