"""Another family's autoencoder is refused by its config, or by names in its file, before a weight is read."""

from __future__ import annotations

import dataclasses
import json
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import diffusers
import pytest
import tiny_families
import torch
from refused import refused
from safetensors.torch import load_file, save_file

from reelworks.core.errors import UserError
from reelworks.models import factory, registry
from reelworks.models.autoencoders import diffusers_kl
from reelworks.models.config import AutoencoderConfig, ModelConfig
from reelworks.training.recipe import validation

NAMES = tuple(name for name, one in registry.AUTOENCODERS.items() if not one.module)  # those of diffusers
SMALL = {name: tiny_families.AUTOENCODERS[name] for name in ("wan-2.1", "qwen-image", "flux2")} | {
    name: tiny_families.KL | {"latent_channels": one.channels}
    for name, one in registry.AUTOENCODERS.items()
    if one.network == "AutoencoderKL"
}
# Names of autoencoders whose configs are the same: with the second of FLUX.1's its shift does not apply, and those of FLUX.2 and
# Ideogram 4 have statistics of another order.
SAME = ({"opensora-1.1", "sd1.5"}, {"flux", "kandinsky5-image"}, {"flux2", "ideogram-4"})


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Small ones of every family in their folders, and Stable Diffusion's."""
    root = tmp_path_factory.mktemp("autoencoders")
    for name in NAMES:
        module = getattr(diffusers, registry.AUTOENCODERS[name].network)(**tiny_families.AUTOENCODERS[name])
        module.save_pretrained(root / name / "vae")
    diffusers.AutoencoderKL(latent_channels=4, **tiny_families.KL).save_pretrained(root / "opensora-1.1")
    return root


def build(name, place):
    return factory.build_autoencoder(AutoencoderConfig(name=name, weights=str(place)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.quick_cases(2)
def test_a_family_takes_its_own_and_no_other(name, places, monkeypatch):
    """The error says what was found, what is wanted and which name is right; nothing is read for it."""
    assert build(name, places / name).latent_channels == registry.AUTOENCODERS[name].channels
    monkeypatch.setattr(diffusers_kl.weights, "read", None)
    for other in (*NAMES, "opensora-1.1"):
        if other == name or {name, other} in SAME:
            continue
        with pytest.raises(UserError) as caught:
            build(name, places / other)
        assert caught.value.field == "autoencoder.weights"
        assert registry.AUTOENCODERS[name].network in caught.value.problem
        names = next((sorted(same) for same in SAME if other in same), [other])
        named = " or ".join(f'"{one}"' for one in names)
        assert caught.value.remedy.endswith(f"autoencoder.name = {named}")


def test_equal_classes_are_told_by_their_units(places):
    """Stable Diffusion 3's has the shapes of Flux's, and Stable Diffusion 1's, which is Open-Sora v1.1's, those of SDXL's."""
    with refused(
        "other-autoencoder",
        "autoencoder.weights",
        says=r"scaling_factor = 1\.5305, .* AutoencoderKL with scaling_factor = 0\.3611",
    ):
        build("flux", places / "sd3")
    with refused(
        "other-autoencoder", "autoencoder.weights", says=r"scaling_factor = 0\.13025, .*with scaling_factor = 0\.18215"
    ):
        build("opensora-1.1", places / "sdxl" / "vae")


def test_what_a_config_leaves_out_is_what_its_class_says(tmp_path):
    """As diffusers reads it: older configs name no scaling factor."""
    for name, left in (("opensora-1.1", {}), ("wan-2.1", {}), ("sdxl", {"latent_channels": 4})):
        kind = "AutoencoderKLWan" if name == "wan-2.1" else "AutoencoderKL"
        (tmp_path / "config.json").write_text(json.dumps({"_class_name": kind} | left), encoding="utf-8")
        config = AutoencoderConfig(name=name, weights=str(tmp_path))
        if name != "sdxl":
            assert diffusers_kl.config_of(config) == {"_class_name": kind} | left
            continue
        with refused("other-autoencoder", "autoencoder.weights", says=r"scaling_factor = 0\.18215"):
            diffusers_kl.config_of(config)


def release(name):
    """A name of diffusers' AutoencoderKL as releases write it."""
    for theirs, ours in {
        ".mid_block.resnets.0.": ".mid.block_1.",
        ".mid_block.resnets.1.": ".mid.block_2.",
        ".mid_block.attentions.0.group_norm.": ".mid.attn_1.norm.",
        ".mid_block.attentions.0.to_q.": ".mid.attn_1.q.",
        ".mid_block.attentions.0.to_k.": ".mid.attn_1.k.",
        ".mid_block.attentions.0.to_v.": ".mid.attn_1.v.",
        ".mid_block.attentions.0.to_out.0.": ".mid.attn_1.proj_out.",
        ".conv_norm_out.": ".norm_out.",
        ".conv_shortcut.": ".nin_shortcut.",
        ".downsamplers.0.": ".downsample.",
        ".upsamplers.0.": ".upsample.",
        ".resnets.": ".block.",
    }.items():
        name = name.replace(theirs, ours)
    for i in range(4):
        name = name.replace(f"down_blocks.{i}.", f"down.{i}.").replace(f"up_blocks.{i}.", f"up.{3 - i}.")
    return name


@pytest.mark.parametrize("name", SMALL)
def test_a_single_file_has_the_familys_units_without_a_config(name, places, tmp_path, monkeypatch):
    """In the names of diffusers, today's and those before 0.17, and of a release; nothing is asked of the hub."""
    one = registry.AUTOENCODERS[name]
    assert one.file_config is not None
    small = dataclasses.replace(one, file_config={**one.file_config, **SMALL[name]})
    monkeypatch.setitem(registry.AUTOENCODERS, name, small)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    state = load_file(places / name / "vae" / "diffusion_pytorch_model.safetensors")
    if name in ("flux", "kandinsky5-image", "sd3"):  # whose releases have no such layers
        state = {key: value for key, value in state.items() if "quant_conv" not in key}
    files = {"ours": state, "whole": {"unet.x": torch.ones(1)} | {f"vae.{key}": value for key, value in state.items()}}
    if "decoder.mid_block.attentions.0.to_q.weight" in state:
        files["released"] = {release(key): value for key, value in state.items()}
        files["old"] = {former(key): value for key, value in state.items()}
    own = build(name, places / name)
    for which, tensors in files.items():
        save_file(tensors, tmp_path / f"{which}.safetensors")
        made = build(name, tmp_path / f"{which}.safetensors")
        assert torch.equal(made._mean, own._mean)
        assert torch.equal(made._std, own._std)
        given = made.module.state_dict()
        assert all(torch.equal(given[key], value) for key, value in state.items())


def former(name):
    """A name of diffusers' layers of attention as it was before its release 0.17."""
    for now, then in (("to_q", "query"), ("to_k", "key"), ("to_v", "value"), ("to_out.0", "proj_attn")):
        name = name.replace(f".{now}.", f".{then}.")
    return name


def test_a_folder_that_diffusers_wrote_before_its_release_017_is_read(places, tmp_path):
    """Stable Diffusion 1.5's own autoencoder, and its tuned ones, are such folders."""
    whole = shutil.copytree(places / "sd1.5", tmp_path / "sd1.5")
    file = whole / "vae" / "diffusion_pytorch_model.safetensors"
    state = load_file(file)
    save_file({former(key): value for key, value in state.items()}, file)
    assert not state.keys() <= load_file(file).keys()
    given = build("sd1.5", whole).module.state_dict()
    assert all(torch.equal(given[key], value) for key, value in state.items())


@pytest.mark.parametrize(
    ("name", "other", "said"),
    [
        ("flux", "wan-2.1", "this is an .*AutoencoderKLWan, .* needs an AutoencoderKL"),
        ("flux", "flux2", "this is an AutoencoderKLFlux2"),
        ("wan-2.1", "sd3", "this is an AutoencoderKL, .*AutoencoderKLWan"),
        (
            "ltx-video",
            "sdxl",
            'this is an AutoencoderKL, (?s:.*) or "flux" or "kandinsky5-image" or "sd1.5" or "sd3" or "sdxl"',
        ),
        ("flux", "sdxl", "AutoencoderKL of 4 channels, .*AutoencoderKL of 16 channels"),
        ("hunyuan-video-1.5", "hunyuan-video-1.5", "without its config"),
        ("qwen-image-2.1", "qwen-image-2.1", "without its config"),
    ],
)
def test_a_single_file_of_another_family_is_told_by_its_names(name, other, said, places, tmp_path):
    """And a class whose files diffusers does not know asks for a folder."""
    file = tmp_path / "vae.safetensors"
    state = load_file(places / other / "vae" / "diffusion_pytorch_model.safetensors")
    save_file({f"vae.{key}": value for key, value in state.items()}, file)
    with pytest.raises(UserError, match=said) as caught:
        build(name, file)
    assert caught.value.field == "autoencoder.weights"


def test_sizes_of_single_files_are_those_that_were_published():
    """To the last parameter."""
    for one in (one for one in registry.AUTOENCODERS.values() if one.file_config is not None):
        with torch.device("meta"):
            module = getattr(diffusers, one.network)(**one.file_config, **one.config)
        assert sum(p.numel() for p in module.parameters()) == one.parameters


@pytest.mark.parametrize(
    ("model", "autoencoder", "wanted"),
    [
        ("wan-2.1-1.3b", "flux", "wan-2.1"),
        ("flux-dev", "sd3", "flux"),
        ("z-image", "wan-2.1", "flux"),
        ("sd3-medium", "flux", "sd3"),
        ("ltx-2", "ltx-video", "ltx-2"),
        ("ltx-2.3", "ltx-2", "ltx-2.3"),
        ("stdit3-xl", "opensora-1.1", "opensora-1.2"),
        ("stdit2-xl", "sdxl", "opensora-1.1"),
        ("wan-2.1-14b", "qwen-image", None),
        ("qwen-image-edit", "wan-2.1", None),
        ("z-image", "flux", None),
        ("stdit3-xl", "sdxl", None),
        ("stdit3-xl", "wan-2.1", None),
        ("flux-dev", "pixel", None),
    ],
)
def test_weights_go_with_the_latents_that_they_were_trained_on(model, autoencoder, wanted):
    """Latents of as many channels from elsewhere are refused; shared ones, and other channels, are not."""
    config = AutoencoderConfig(name=autoencoder, weights=None if autoencoder == "pixel" else "x")
    validation.require_autoencoder(SimpleNamespace(model=ModelConfig(name=model), autoencoder=config))
    trained = SimpleNamespace(model=ModelConfig(name=model, weights="there"), autoencoder=config)
    if wanted is None:
        validation.require_autoencoder(trained)
        return
    with pytest.raises(UserError, match=rf'(?s)autoencoder\.name = .*latents of another autoencoder.*write "{wanted}"'):
        validation.require_autoencoder(trained)


@pytest.mark.parametrize("part", ["flux", "wan-2.1", None])
def test_an_export_names_the_autoencoder_that_it_was_trained_on(part, tmp_path):
    """What names another one, or none, and a damaged file, is taken for a release's; the loader tells damage."""
    file, header = tmp_path / "export.safetensors", None if part is None else {"autoencoder": part}
    save_file({"w": torch.ones(1)}, file, header)
    model, own = ModelConfig(name="wan-2.1-1.3b", weights=str(file)), AutoencoderConfig(name="flux", weights="x")
    with nullcontext() if part == "flux" else refused("other-autoencoder", "autoencoder.name"):
        validation.require_autoencoder(SimpleNamespace(model=model, autoencoder=own))
    file.write_bytes(file.read_bytes()[:20])
    with refused("other-autoencoder", "autoencoder.name"):
        validation.require_autoencoder(SimpleNamespace(model=model, autoencoder=own))
