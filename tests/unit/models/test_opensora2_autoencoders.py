"""Autoencoders of Open-Sora 2.0 give the numbers that upstream's code gives, from files as it releases them."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from closeness import relative
from refused import refused
from safetensors.torch import load_file

from reelworks.models import factory, registry
from reelworks.models.config import AutoencoderConfig

GOLDEN = Path(__file__).parents[2] / "golden" / "opensora2"
WEIGHTS = GOLDEN / "hunyuan_vae_tiny.weights.safetensors"
SPEC = json.loads((GOLDEN / "hunyuan_vae_tiny.json").read_text(encoding="utf-8"))
CASES = {case["name"]: case for case in SPEC["cases"]}
EVERY = 7  # of the rows and columns of the largest picture that are kept


def video(frames, height, width):
    n = torch.arange(3 * frames * height * width, dtype=torch.float64)
    return torch.sin(n * 0.013 + torch.sin(n * 0.0007) * 3).float().reshape(1, 3, frames, height, width)


@pytest.fixture(scope="module", params=["file", "repository"])
def autoencoder(request, tmp_path_factory):
    """The tiny autoencoder, of one file, or of a folder that holds files of other models too, as the release does."""
    source = WEIGHTS
    if request.param == "repository":
        source = tmp_path_factory.mktemp("Open-Sora-v2")
        for name in ("hunyuan_vae.safetensors", "Open_Sora_v2.safetensors"):
            (source / name).write_bytes(WEIGHTS.read_bytes())
    known = registry.AUTOENCODERS["hunyuan-video"]
    with pytest.MonkeyPatch.context() as patch:
        small = dataclasses.replace(known, file_config=SPEC["config"])
        patch.setitem(registry.AUTOENCODERS, "hunyuan-video", small)
        return factory.build_autoencoder(AutoencoderConfig(name="hunyuan-video", weights=str(source)))


# The largest picture takes as long as all others.
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "large" else n for n in CASES])
def test_latents_and_frames(autoencoder, name):
    """Long clips are encoded whole, and pictures above 256 pixels in tiles, as upstream's configs ask for."""
    case, golden = CASES[name], load_file(GOLDEN / "hunyuan_vae_tiny.cases.safetensors")
    latent = autoencoder.encode(video(case["frames"], case["height"], case["width"]))
    assert relative(latent, golden[f"{name}/latent"]) <= 1e-4
    frames = autoencoder.decode(golden[f"{name}/latent"], case["frames"])
    step = EVERY if name == "large" else 1
    assert relative(frames[..., ::step, ::step], golden[f"{name}/frames"]) <= 1e-4


def test_the_count_of_parameters_is_upstreams():
    assert registry.AUTOENCODERS["hunyuan-video"].parameters == SPEC["full_size"]["parameters"]


def test_the_file_is_no_other_autoencoders():
    with refused("other-autoencoder", "autoencoder.weights", says="AutoencoderKLHunyuanVideo"):
        factory.build_autoencoder(AutoencoderConfig(name="flux", weights=str(WEIGHTS)))
