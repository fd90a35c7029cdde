"""Open-Sora's Video DC-AE gives the numbers that upstream's code gives, from files as it releases them."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from closeness import relative
from refused import refused
from safetensors.torch import load_file, save_file
from test_opensora2_autoencoders import video

from reelworks.core.shape import Shape
from reelworks.models import components, factory, registry
from reelworks.models.config import AutoencoderConfig, ModelConfig
from reelworks.models.families.opensora2 import autoencoder as dc_ae
from reelworks.models.families.opensora2.dc_ae import AutoencoderVideoDC, VideoDCSizes

GOLDEN = Path(__file__).parents[2] / "golden" / "opensora2"
SPEC = json.loads((GOLDEN / "video_dc_ae_tiny.json").read_text(encoding="utf-8"))
CASES = {case["name"]: case for case in SPEC["cases"]}
SIZES = VideoDCSizes(**{name: tuple(size) if isinstance(size, list) else size for name, size in SPEC["sizes"].items()})
EVERY = 7  # of the rows and columns of frames that are kept
NAME, FILE = "video-dc-ae", "F32T4C128_AE.safetensors"
LARGE = "long_large_clip"  # which takes as long as all others


def weights(network):
    """Return the weights of a network from random bits that are equal everywhere, drawn key by key in sorted order."""
    bits, state = np.random.PCG64(0), {}
    for key, tensor in sorted(network.state_dict().items()):
        drawn = (bits.random_raw(tensor.numel()) >> np.uint64(11)) / 2.0**52 - 1
        values = torch.from_numpy(drawn).reshape(tensor.shape)
        if tensor.dim() > 1:
            state[key] = (values * (3 / tensor[0].numel()) ** 0.5).float()
        else:
            state[key] = (values * 0.2 + key.endswith("weight")).float()
    return state


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder with the files of the release."""
    place = tmp_path_factory.mktemp("Open-Sora-v2-Video-DC-AE")
    save_file(weights(AutoencoderVideoDC(SIZES)), place / FILE)
    save_file({"img_in.weight": torch.zeros(1)}, place / "Open_Sora_v2_Video_DC_AE.safetensors")
    return place


@pytest.fixture
def built(source, monkeypatch):
    """A function that builds the tiny autoencoder as a recipe's is built."""
    monkeypatch.setattr(dc_ae, "build", partial(dc_ae.build, sizes=SIZES))
    return lambda **keys: factory.build_autoencoder(AutoencoderConfig(**{"name": NAME, "weights": str(source)} | keys))


@pytest.fixture(scope="module")
def golden():
    return load_file(GOLDEN / "video_dc_ae_tiny.cases.safetensors")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == LARGE else n for n in CASES])
@pytest.mark.quick_cases(4)
def test_latents_and_frames(built, golden, name):
    """Pictures, clips, tiles of both along time and space, and latents divided by their spread."""
    case = CASES[name]
    autoencoder = built(std=case.get("std", 1.0))
    clip = video(case["frames"], case["height"], case["width"])
    latent = autoencoder.encode(clip)
    assert latent.shape[2:] == autoencoder.geometry.latent(Shape(*clip.shape[2:]))
    assert relative(latent, golden[f"{name}/latent"]) <= 1e-5
    frames = autoencoder.decode(golden[f"{name}/latent"], case["frames"])
    wanted = golden[f"{name}/frames"]
    same = case["frames"]
    if wanted.shape[2] < same:  # upstream decodes a last latent frame alone, to one frame
        same = wanted.shape[2] - 1
    assert relative(frames[:, :, :same, ::EVERY, ::EVERY], wanted[:, :, :same]) <= 1e-5


def test_a_last_latent_frame_alone_is_decoded_with_those_before_it(built, golden):
    """A tile of one latent frame would become one frame; the end of the tile before it is taken instead."""
    latent, autoencoder = golden["last_latent_alone/latent"], built()
    frames = autoencoder.decode(latent, 52)
    start = (latent.shape[2] - 1) // 6 * 6 - 6
    end = autoencoder.decode(latent[:, :, start:], 4 * (latent.shape[2] - start))
    torch.testing.assert_close(frames[:, :, -4:], end[:, :, -4:])


def test_clips_of_a_batch_do_not_meet_and_bfloat16_answers_as_float32(built):
    exact, lowered = built(), built(dtype="bfloat16")
    clips = torch.cat([video(8, 32, 64), -video(8, 32, 64).flip(2)])
    latents = exact.encode(clips)
    assert torch.equal(latents, torch.cat([exact.encode(clip) for clip in clips.split(1)]))
    assert torch.equal(exact.decode(latents, 8)[1:], exact.decode(latents[1:], 8))
    for wanted, found in ((latents, lowered.encode(clips)), (exact.decode(latents, 8), lowered.decode(latents, 8))):
        assert wanted.dtype == found.dtype == torch.float32
        assert not torch.equal(wanted, found)
        assert (found - wanted).norm() < 0.05 * wanted.norm()
    assert {p.dtype for p in lowered.module.parameters()} == {torch.bfloat16}


def test_full_size_keys_and_shapes_equal_upstreams():
    """Published weights have a place for each of their tensors, and the count of parameters is upstream's."""
    with torch.device("meta"):
        network = AutoencoderVideoDC(VideoDCSizes())
    wanted = json.loads((GOLDEN / "video_dc_ae_keys.json").read_text(encoding="utf-8"))
    assert {key: list(value.shape) for key, value in network.state_dict().items()} == wanted
    count = sum(p.numel() for p in network.parameters())
    assert count == registry.AUTOENCODERS[NAME].parameters == SPEC["full_size"]["parameters"]


def test_a_file_alone_and_that_of_another(built, source, tmp_path):
    """The name of a file means nothing; its tensors tell what it is."""
    clip = video(1, 32, 32)
    assert torch.equal(built(weights=str(source / FILE)).encode(clip), built().encode(clip))
    with refused(
        "other-autoencoder", "autoencoder.weights", says=f'AutoencoderVideoDC(?s:.*)autoencoder.name = "{NAME}"'
    ):
        built(name="flux", weights=str(source / FILE))
    other = GOLDEN / "hunyuan_vae_tiny.weights.safetensors"
    with refused("other-autoencoder", "autoencoder.weights", says="needs an AutoencoderVideoDC"):
        built(weights=str(other))
    (tmp_path / "config.json").write_text('{"_class_name": "AutoencoderKLWan"}', encoding="utf-8")
    with refused("other-autoencoder", "autoencoder.weights", says='autoencoder.name = "wan-2.1"'):
        built(weights=str(tmp_path))


def test_shapes_of_clips_that_are_clips_again():
    """Frames are a picture's one or a multiple of 4 from 8 on, and sides multiples of 32; a latent element is a token."""
    rule = components.geometry(ModelConfig(name="opensora2-dc-ae"), AutoencoderConfig(name=NAME, weights="-"))
    assert [n for n in range(1, 18) if rule.accepts_frames(n)] == [1, 8, 12, 16]
    assert (rule.nearest_frames(4), rule.nearest_frames(5), rule.nearest_frames(129)) == (1, 8, 128)
    assert rule.multiple == (32, 32)
    assert rule.latent(Shape(128, 768, 1344)) == (32, 24, 42)
    assert rule.tokens(Shape(128, 768, 1344)) == 32 * 24 * 42


def test_the_spread_of_latents_is_1_unless_a_recipe_says_otherwise():
    """Other autoencoders keep the default of the pixels."""
    assert AutoencoderConfig(name=NAME, weights="-").std == 1.0
    assert AutoencoderConfig(name=NAME, weights="-", std=0.493).std == 0.493
    assert AutoencoderConfig().std == 0.5
