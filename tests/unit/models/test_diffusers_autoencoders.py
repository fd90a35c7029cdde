"""Every published autoencoder loads from a folder, and its latents have the family's shape and units."""

import dataclasses

import diffusers
import pytest
import tiny_families
import torch
from refused import refused
from safetensors.torch import save_file

from reelworks.core.shape import Shape
from reelworks.models import factory, registry
from reelworks.models.config import AutoencoderConfig


def plain_units(name, module, raw):
    """Latents in a denoiser's units, as the family's pipeline in diffusers computes them."""
    if name == "flux2":
        squares = diffusers.Flux2Pipeline._patchify_latents(raw)
        spread = torch.sqrt(module.bn.running_var.view(1, -1, 1, 1) + module.config.batch_norm_eps)
        return ((squares - module.bn.running_mean.view(1, -1, 1, 1)) / spread)[:, :, None]
    if name == "ideogram-4":
        return ideogram_units(module, raw)
    if name.startswith("ltx"):
        return diffusers.LTXPipeline._normalize_latents(raw, module.latents_mean, module.latents_std, 1.0)
    if name.startswith("hunyuan-video"):
        return raw * module.config.scaling_factor
    if name.startswith(("hunyuan", "kandinsky5")):
        return raw[:, :, None] * module.config.scaling_factor
    if name.startswith(("wan", "qwen", "minimax")):
        mean, std = (torch.tensor(module.config[key]).view(1, -1, 1, 1, 1) for key in ("latents_mean", "latents_std"))
        return (raw - mean) / std
    return ((raw - (module.config.shift_factor or 0)) * module.config.scaling_factor)[:, :, None]


def ideogram_units(module, raw):
    """What the end of its pipeline undoes: squares of 2 × 2, of which a place holds all channels."""
    B, C, H, W = raw.shape
    tokens = raw.view(B, C, H // 2, 2, W // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(B, H // 2, W // 2, 4 * C)
    spread = torch.sqrt(module.bn.running_var + module.config.batch_norm_eps)
    return ((tokens - module.bn.running_mean) / spread).permute(0, 3, 1, 2)[:, :, None]


def imagenet(video, back=False):
    """Pixels in the units of MiniMax-H3's autoencoder, and back to [0, 1]."""
    mean, std = (torch.tensor(v).view(3, 1, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return video * std + mean if back else ((video + 1) / 2 - mean) / std


@pytest.fixture(scope="module", params=[name for name, one in registry.AUTOENCODERS.items() if not one.module])
def saved(request, tmp_path_factory):
    torch.manual_seed(0)
    module = getattr(diffusers, registry.AUTOENCODERS[request.param].network)(
        **tiny_families.AUTOENCODERS[request.param]
    ).eval()
    for name, buffer in module.named_buffers():
        if name in ("bn.running_mean", "bn.running_var", "latents_mean", "latents_std"):
            buffer.uniform_(0.5, 1.5)
    place = tmp_path_factory.mktemp(request.param)
    module.save_pretrained(place / "vae")
    return request.param, place, module


@pytest.mark.quick_cases(2)
def test_bfloat16_answers_as_float32(saved):
    """Weights are bfloat16, statistics and what comes out float32; latents and frames are nearly the same."""
    name, place, _ = saved
    exact, lowered = (
        factory.build_autoencoder(AutoencoderConfig(name=name, weights=str(place), dtype=dtype))
        for dtype in ("float32", "bfloat16")
    )
    geometry = exact.geometry
    frames = geometry.nearest_frames(5)
    video = torch.rand(1, 3, frames, 2 * geometry.stride[1], 2 * geometry.stride[2]) * 2 - 1
    latents = [one.encode(video) for one in (exact, lowered)]
    videos = [one.decode(latents[0], frames) for one in (exact, lowered)]
    for wanted, found in (latents, videos):
        assert wanted.dtype == found.dtype == torch.float32
        assert not torch.equal(wanted, found)
        assert (found - wanted).norm() < 0.05 * wanted.norm()
    assert {p.dtype for p in lowered.module.parameters()} == {torch.bfloat16}
    assert lowered.contract.compute == lowered.contract.storage == torch.bfloat16
    assert torch.equal(exact._mean, lowered._mean)
    assert torch.equal(exact._std, lowered._std)


@pytest.mark.quick_cases(3)
def test_latents_are_the_posteriors_means_in_the_familys_units(saved):
    """A folder's autoencoder gives the declared shape, what the pipeline would give, and as many frames back.

    A fourth channel says that pictures are opaque, and is left out of what comes back.
    """
    name, place, module = saved
    autoencoder = factory.build_autoencoder(AutoencoderConfig(name=name, weights=str(place)))
    geometry = autoencoder.geometry
    frames = geometry.nearest_frames(22 if name == "minimax-h3" else 9)
    shape = Shape(frames, 2 * geometry.stride[1], 3 * geometry.stride[2])
    video = torch.rand(1, 3, frames, shape.height, shape.width) * 2 - 1
    latent = autoencoder.encode(video)
    assert latent.shape == (1, autoencoder.latent_channels, *geometry.latent(shape))
    with torch.no_grad():
        flat_ones = ("flux", "flux2", "hunyuan-image-2.1", "ideogram-4", "kandinsky5-image", "sd1.5", "sd3", "sdxl")
        flat = name in flat_ones
        shown = torch.cat([video, torch.ones_like(video[:, :1])], dim=1) if name == "qwen-image-2.1" else video
        if name == "minimax-h3":
            shown = imagenet(shown)
        raw = module.encode(shown[:, :, 0] if flat else shown).latent_dist.mode()
        torch.testing.assert_close(latent, plain_units(name, module, raw), rtol=1e-4, atol=1e-5)
        back = module.decode(raw).sample[:, :3]
        if name == "minimax-h3":
            back = 2 * imagenet(back, back=True) - 1
    torch.testing.assert_close(
        autoencoder.decode(latent, frames), back[:, :, None] if flat else back, rtol=1e-3, atol=1e-4
    )


def test_a_file_of_flux2_is_read_for_ideogram(tmp_path, monkeypatch):
    """Its statistics are sorted by channel, those of Ideogram's folder by place: latents and pictures are the same."""
    torch.manual_seed(0)
    module = diffusers.AutoencoderKLFlux2(**tiny_families.AUTOENCODERS["ideogram-4"])
    for buffer in (module.bn.running_mean, module.bn.running_var):
        buffer.uniform_(0.5, 1.5)
    save_file(module.state_dict(), tmp_path / "flux2-vae.safetensors")
    small = dataclasses.replace(
        registry.AUTOENCODERS["ideogram-4"], file_config=tiny_families.AUTOENCODERS["ideogram-4"]
    )
    monkeypatch.setitem(registry.AUTOENCODERS, "ideogram-4", small)
    for buffer in (module.bn.running_mean, module.bn.running_var):
        buffer.copy_(buffer.view(32, 4).T.flatten())
    module.save_pretrained(tmp_path / "folder" / "vae")
    for buffer in (module.bn.running_mean, module.bn.running_var):
        buffer.copy_(buffer.view(4, 32).T.flatten())
    in_folder = "folder/vae/diffusion_pytorch_model.safetensors"
    one, other, third = (
        factory.build_autoencoder(AutoencoderConfig(name="ideogram-4", weights=str(tmp_path / name)))
        for name in ("folder", "flux2-vae.safetensors", in_folder)
    )
    video = torch.rand(1, 3, 1, 32, 32) * 2 - 1
    latent = one.encode(video)
    assert torch.equal(latent, other.encode(video))
    assert torch.equal(latent, third.encode(video))
    assert torch.equal(one.decode(latent, 1), other.decode(latent, 1))


def test_a_layer_that_has_the_former_name_and_todays_is_refused(tmp_path):
    torch.manual_seed(0)
    module = diffusers.AutoencoderKL(**tiny_families.AUTOENCODERS["sdxl"])
    module.save_pretrained(tmp_path / "vae")
    twice = {"encoder.mid_block.attentions.0.query.weight": torch.ones(2), **module.state_dict()}
    save_file(twice, tmp_path / "vae" / "diffusion_pytorch_model.safetensors")
    with refused("weights-unreadable", "autoencoder.weights", says="query.weight"):
        factory.build_autoencoder(AutoencoderConfig(name="sdxl", weights=str(tmp_path)))


@pytest.mark.quick_cases(5)
def test_clips_of_a_batch_do_not_meet(saved):
    """Two clips together become what each becomes alone, there and back."""
    name, place, _ = saved
    autoencoder = factory.build_autoencoder(AutoencoderConfig(name=name, weights=str(place)))
    geometry = autoencoder.geometry
    frames = geometry.nearest_frames(5)
    video = torch.rand(2, 3, frames, 2 * geometry.stride[1], 2 * geometry.stride[2]) * 2 - 1
    latents = autoencoder.encode(video)
    alone = torch.cat([autoencoder.encode(clip) for clip in video.split(1)])
    torch.testing.assert_close(latents, alone, rtol=1e-4, atol=1e-5)
    back = torch.cat([autoencoder.decode(clip, frames) for clip in latents.split(1)])
    torch.testing.assert_close(autoencoder.decode(latents, frames), back, rtol=1e-3, atol=1e-4)
