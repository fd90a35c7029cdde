"""The autoencoders of Open-Sora give upstream's numbers, from its weights, under its key names."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from refused import refused
from safetensors.torch import load_file, save_file

from reelworks.core.shape import Geometry, Shape
from reelworks.models import factory
from reelworks.models.autoencoders import opensora
from reelworks.models.autoencoders.opensora import OpenSoraSizes, TemporalAutoencoder, TemporalSizes
from reelworks.models.components import autoencoder_geometry
from reelworks.models.config import AutoencoderConfig
from reelworks.models.precision.boundary import check_contract

GOLDEN = Path(__file__).parents[2] / "golden" / "opensora_autoencoder"
SPEC = json.loads((GOLDEN / "vae_tiny.json").read_text(encoding="utf-8"))
WEIGHTS = str(GOLDEN / "vae_pipeline_tiny.weights.safetensors")
TEMPORAL = TemporalSizes(filters=8, num_res_blocks=2, num_groups=4)
SIZES = OpenSoraSizes({**SPEC["pipeline"]["spatial_config"]}, TEMPORAL)


def relative(got, want):
    assert got.shape == want.shape
    return ((got - want).abs().max() / want.abs().max()).item()


def build(name="opensora-1.2", weights=WEIGHTS):
    return opensora.build(AutoencoderConfig(name=name, weights=str(weights)), SIZES)


@pytest.fixture(scope="module")
def autoencoder():
    return build()


@pytest.mark.parametrize("name", [case["name"] for case in SPEC["temporal"]["cases"]])
@torch.no_grad()
def test_the_temporal_half(name):
    """Moments and decoded latents are upstream's for whole and broken groups of four frames."""
    module = TemporalAutoencoder(TEMPORAL)
    module.load_state_dict(load_file(GOLDEN / "vae_temporal_tiny.weights.safetensors"))
    cases = load_file(GOLDEN / "vae_temporal_tiny.cases.safetensors")
    x = cases[f"{name}/x"]
    mean, log_variance = module.encode(x)
    assert relative(mean, cases[f"{name}/mean"]) <= 1e-5
    assert relative(log_variance, cases[f"{name}/logvar"]) <= 1e-5
    assert relative(module.decode(mean, x.shape[2]), cases[f"{name}/decoded"]) <= 1e-5


@pytest.mark.parametrize("halves", [(False, False, False), (False, True, False), (True, True, True)])
@pytest.mark.parametrize("num_frames", [1, 6, 9])
@torch.no_grad()
def test_the_temporal_half_with_other_strides(halves, num_frames):
    """Frames that are put in front of the first follow from the levels that halve time."""
    sizes = TemporalSizes(filters=8, num_res_blocks=1, num_groups=4, halves=halves)
    module = TemporalAutoencoder(sizes)
    x = torch.zeros(1, 4, num_frames, 2, 2)
    mean, _ = module.encode(x)
    assert mean.shape[2] == -(-num_frames // 2 ** sum(halves))
    assert module.decode(mean, num_frames).shape == x.shape


@pytest.mark.parametrize("name", [case["name"] for case in SPEC["pipeline"]["cases"]])
@torch.no_grad()
def test_the_whole_autoencoder(autoencoder, name):
    """Normalised latents and decoded pixels are upstream's for pictures, one chunk, and two."""
    cases = load_file(GOLDEN / "vae_pipeline_tiny.cases.safetensors")
    x = cases[f"{name}/x"]
    latent = autoencoder.encode(x)
    assert relative(latent, cases[f"{name}/z"]) <= 1e-5
    assert relative(autoencoder.decode(latent, x.shape[2]), cases[f"{name}/decoded"]) <= 1e-5
    shape = Shape(x.shape[2], x.shape[3], x.shape[4])
    assert autoencoder.geometry.latent(shape) == tuple(latent.shape[2:])


@torch.no_grad()
def test_bfloat16_answers_as_float32(autoencoder):
    """Weights are bfloat16, statistics and what comes out float32; latents and frames are nearly the same."""
    config = AutoencoderConfig(name="opensora-1.2", weights=WEIGHTS, dtype="bfloat16")
    lowered = opensora.build(config, SIZES)
    x = torch.rand(1, 3, 5, 16, 24, generator=torch.Generator().manual_seed(0)) * 2 - 1
    latents = [one.encode(x) for one in (autoencoder, lowered)]
    videos = [one.decode(latents[0], 5) for one in (autoencoder, lowered)]
    for wanted, found in (latents, videos):
        assert wanted.dtype == found.dtype == torch.float32
        assert 0 < (found - wanted).norm() < 0.05 * wanted.norm()
    assert {p.dtype for p in lowered._network.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in lowered._network.buffers()} == {torch.float32}


def test_geometry_gives_upstreams_latent_frames_for_every_length():
    """1 to 408 frames have as many latent frames as upstream makes of them."""
    golden = json.loads((GOLDEN / "vae_latent_frames.json").read_text(encoding="utf-8"))["latent_frames"]
    geometry = autoencoder_geometry(AutoencoderConfig(name="opensora-1.2", weights="w"))
    ours = {frames: geometry.latent(Shape(int(frames), 64, 64))[0] for frames in golden}
    assert ours == golden


@torch.no_grad()
def test_sizes_that_are_no_multiples_of_8_are_rounded_down(autoencoder):
    """Latents of an odd size have the shape that the geometry tells, as upstream's tables need."""
    latent = autoencoder.encode(torch.zeros(1, 3, 2, 21, 37))
    assert tuple(latent.shape[2:]) == autoencoder.geometry.latent(Shape(2, 21, 37)) == (1, 2, 4)


def test_full_size_keys_and_shapes_equal_upstreams():
    """The published file has a place for each of its tensors, and no tensor is without one."""
    golden = json.loads((GOLDEN / "full_size_keys.json").read_text(encoding="utf-8"))
    with torch.device("meta"):
        module = opensora.VideoNetwork(OpenSoraSizes())
    assert {key: list(value.shape) for key, value in module.state_dict().items()} == dict(golden["state_dict"])


@torch.no_grad()
def test_frame_by_frame_it_is_the_2d_half_alone(autoencoder, tmp_path):
    """v1.1 encodes each frame with the 2D autoencoder, whose old key names load too."""
    prefix = "spatial_vae.module."
    state = {k.removeprefix(prefix): v for k, v in load_file(WEIGHTS).items() if k.startswith(prefix)}
    save_file(
        {k.replace("to_q", "query").replace("to_out.0", "proj_attn"): v for k, v in state.items()},
        tmp_path / "old.safetensors",
    )
    old = build("opensora-1.1", tmp_path / "old.safetensors")
    assert old.geometry == Geometry((1, 8, 8), (1, 1, 1), drops_rest=True)
    cases = load_file(GOLDEN / "vae_pipeline_tiny.cases.safetensors")
    for name in ("T1", "T20", "T34"):
        x = cases[f"{name}/x"]
        latent = old.encode(x)
        assert relative(latent, cases[f"{name}/z_spatial"]) <= 1e-5
        assert old.decode(latent, x.shape[2]).shape == x.shape


def test_the_registry_builds_it_and_float16_is_declared_to_overflow(monkeypatch):
    """A recipe's name and weights make it; its contract refuses the dtype that becomes infinite."""
    monkeypatch.setattr(opensora.build, "__defaults__", (SIZES,))
    built = factory.build_autoencoder(AutoencoderConfig(name="opensora-1.2", weights=WEIGHTS))
    assert built.latent_channels == 4
    check_contract(built.contract)
    with refused("dtype-overflows", "precision.compute"):
        check_contract(dataclasses.replace(built.contract, compute=torch.float16))


def test_weights_are_asked_for_and_must_fit(tmp_path):
    """No weights, none there, and others than its own are told with the recipe's key."""
    with pytest.raises(ValidationError, match=r"autoencoder\.weights.*\n.*set it to a folder"):
        AutoencoderConfig(name="opensora-1.2")
    with pytest.raises(ValidationError, match="has no weights"):
        AutoencoderConfig(weights="x")
    with refused("weights-not-found", "autoencoder.weights", says=r"autoencoder\.weights = 'nowhere'"):
        build(weights="nowhere")
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with refused("weights-do-not-fit", "autoencoder.weights", says="missing: shift"):
        build(weights=tmp_path / "other.safetensors")
