"""Ideogram 4 is drawn as its pipeline draws, guided by a second network, or without it by an empty caption."""

import copy
from pathlib import Path

import diffusers
import numpy as np
import pytest
import tiny_families
import tiny_recipe
import torch
from diffusers.pipelines.ideogram4 import pipeline_ideogram4
from safetensors.torch import load_file, save_file

from reelworks.core.shape import Shape
from reelworks.inference.generate import diffusers_pipeline
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models.expert_pair.denoiser import GuidedDenoiser
from reelworks.models.objectives.samplers import flow
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.models.storage import stored_weights
from reelworks.models.text import encoders
from reelworks.training.assembly import build
from reelworks.training.recipe import recipe_file

NAME, PROMPT, CPU = "ideogram-4-tiny", "two cats sit on a wall in the sun", torch.device("cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of a family whose autoencoder's statistics differ among all channels."""
    place = tiny_families.write(NAME, tmp_path_factory.mktemp(NAME))
    # A copy, since nothing can be written over a file of Windows from which weights are mapped.
    autoencoder = copy.deepcopy(diffusers.AutoencoderKLFlux2.from_pretrained(place / "vae"))
    for values in (autoencoder.bn.running_mean, autoencoder.bn.running_var):
        values.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(3))
    autoencoder.save_pretrained(place / "vae")
    return place


@pytest.fixture
def exact_texts(monkeypatch):
    """Encoders in float32 for once, as the pipeline holds its own here."""
    monkeypatch.setattr(encoders, "_STORAGE", torch.float32)
    exact = encoders.CONTRACT.__class__(torch.float32, torch.float32, None, None, torch.float32, {})
    monkeypatch.setattr(encoders.FamilyTextEncoder, "contract", exact)


def drawn(place: Path, scale: float, **tables: object):
    """The picture with whatever guides in the folder, and the sampler that made it."""
    values = tiny_families.recipe_of(NAME, place) | {"precision": {"compute": "float32"}}
    bucket = [{"resolution": "64px", "num_frames": 1, "batch_size": 1}]
    recipe = recipe_file.parse(
        tiny_recipe.least(bucket=bucket) | values | {"objective": {"timestep_shift": 2.0}} | tables
    )
    denoiser = build.with_other_network(recipe, build.denoiser(recipe, CPU, trains=False), CPU)
    options = GenerateOptions(Shape(1, 32, 64), 12.0, 3, scale, seed=5)
    with torch.no_grad():
        made = diffusers_pipeline.generate(
            recipe, DtypeBoundary(denoiser), build.encoder(recipe, CPU), [PROMPT], options
        )
    return made.clips[0], made.by, denoiser


@pytest.mark.usefixtures("exact_texts")
def test_a_picture_is_what_its_pipeline_makes_by_hand(place, monkeypatch):
    """From the same folder, words, noise and timesteps the same picture comes: layout, order of channels, guidance.

    The pipeline's own timesteps are quantiles of a logit-normal density, near those of a shift.
    """
    ours, by, denoiser = drawn(place, 3.0)
    assert by == "the own sampler (the family's pipeline takes no embedded texts)"
    assert isinstance(denoiser, GuidedDenoiser)
    sigmas = flow.times(3, 2.0)[:-1] / 1000
    monkeypatch.setattr(pipeline_ideogram4, "_logit_normal_sigmas", lambda *_, **__: sigmas)
    pipeline = diffusers.Ideogram4Pipeline.from_pretrained(place, prompt_enhancer_head=None)
    pipeline.scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    noise = torch.randn(1, 128, 1, 2, 4, generator=torch.Generator().manual_seed(5))
    settings = {"guidance_scale": 3.0, "guidance_schedule": None, "num_inference_steps": 3, "max_sequence_length": 64}
    latents = noise.flatten(2).transpose(1, 2)
    theirs = pipeline(PROMPT, 32, 64, latents=latents, output_type="np", return_dict=False, **settings)[0]
    assert theirs.std() > 0
    assert np.abs(ours.astype(int) - (theirs * 255).round().astype(int)).max() <= 1


def test_pipelines_timesteps_are_near_those_of_the_release_shift():
    """At 1024 × 1024 pixels they are those of a shift of 2, to five hundredths."""
    theirs = pipeline_ideogram4._logit_normal_sigmas(48, pipeline_ideogram4._resolution_aware_mu(1024, 1024, 0.0), 1.5)
    assert (theirs - flow.times(48, 2.0)[:-1] / 1000).abs().max() < 0.05


@pytest.mark.slow
def test_without_the_second_network_an_empty_caption_guides(place, tmp_path):
    """Weights of one file have none; what is drawn is then said, and is another picture, but the same one at scale 1."""
    (file,) = (place / "transformer").glob("*.safetensors")
    alone = {"model": {"name": NAME, "weights": str(file)}}
    guided, told = [drawn(place, 3.0, **tables)[:2] for tables in ({}, alone)]
    assert told[1].endswith(
        ", guided by the trained network with an empty caption, without the release's second network"
    )
    assert not np.array_equal(guided[0], told[0])
    first, second = [drawn(place, 1.0, **tables)[:2] for tables in ({}, alone)]
    assert np.abs(first[0].astype(int) - second[0].astype(int)).max() <= 1  # the difference to nothing is rounded
    assert first[1] == second[1] == guided[1]


@pytest.mark.parametrize("kept", [True, False])
def test_codes_of_the_release_are_read_under_its_names(place, tmp_path, kept):
    """Ideogram's folders and ComfyUI's files have codes of fp8 with a scale for each row, of joined layers too.

    They are kept below a LoRA, and multiplied out for other trainings; folders have the second network beside the first.
    """
    exact, layout = {}, {}
    for part in ("transformer", "unconditional_transformer"):
        (source,) = (place / part).glob("*.safetensors")
        state = load_file(source)
        for block in range(2):
            name = f"layers.{block}.attention"
            state[f"{name}.qkv.weight"] = torch.cat([state.pop(f"{name}.to_{one}.weight") for one in "qkv"])
            state[f"{name}.o.weight"] = state.pop(f"{name}.to_out.0.weight")
        layout[part] = {}
        for name, value in state.items():
            if name.startswith("layers.") and value.ndim == 2 and "adaln" not in name:
                scale = value.abs().amax(dim=1) / 448
                codes = (value / scale[:, None]).to(torch.float8_e4m3fn)
                layout[part] |= {name: codes, f"{name}_scale": scale}
                state[name] = codes.float() * scale[:, None]
            else:
                layout[part][name] = value
        exact[part] = state
        (tmp_path / part).mkdir()
        save_file(layout[part], tmp_path / part / "diffusion_pytorch_model.safetensors")
    lora = {"lora": {"rank": 2, "base": "float8"}, "precision": {"compute": "bfloat16"}} if kept else {}
    values = tiny_families.recipe_of(NAME, place) | {"model": {"name": NAME, "weights": str(tmp_path)}} | lora
    bucket = [{"resolution": "64px", "num_frames": 1, "batch_size": 1}]
    recipe = recipe_file.parse(tiny_recipe.least(bucket=bucket) | values)
    both = build.with_other_network(recipe, build.denoiser(recipe, CPU, trains=False), CPU)
    assert isinstance(both, GuidedDenoiser)
    for part, network in both.module.named_children():
        attention = network.layers[1].attention
        found = [
            stored_weights.value(layer.weight).float() for layer in (attention.to_q, attention.to_k, attention.to_v)
        ]
        assert torch.equal(torch.cat(found), exact[part]["layers.1.attention.qkv.weight"])
        assert torch.equal(
            stored_weights.value(attention.to_out[0].weight).float(), exact[part]["layers.1.attention.o.weight"]
        )
