"""LTX-2 with sound: its latents, and picture and sound of which each is generated or given."""

import dataclasses
import math

import diffusers
import pytest
import torch
from diffusers.pipelines import ltx2 as pipelines
from refused import refused

from reelworks.models.api import SoundInputs
from reelworks.models.families.ltx2 import sound
from reelworks.models.family import PublishedSound
from reelworks.testing import contract

FACTS = PublishedSound(16_000, 2, 640, 32, module=sound.__name__)
TINY = {"base_channels": 32, "ch_mult": (1, 1, 1), "num_res_blocks": 1, "latent_channels": 2}
VOCODER = {
    "in_channels": 128,
    "hidden_channels": 16,
    "upsample_kernel_sizes": [16, 15, 16],
    "upsample_factors": [6, 5, 8],
    "resnet_kernel_sizes": [3],
    "resnet_dilations": [[1, 3, 5]],
}


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A folder as a release's, with random weights and statistics."""
    folder = tmp_path_factory.mktemp("release")
    torch.manual_seed(0)
    autoencoder = diffusers.AutoencoderKLLTX2Audio(**TINY)
    autoencoder.latents_mean.normal_()
    autoencoder.latents_std.uniform_(0.5, 2)
    autoencoder.save_pretrained(folder / "audio_vae")
    pipelines.LTX2Vocoder(**VOCODER).save_pretrained(folder / "vocoder")
    return folder


def tone(hertz, seconds=1.0, channels=2):
    at = torch.arange(int(16_000 * seconds)) / 16_000
    return (0.5 * torch.sin(2 * math.pi * hertz * at))[None, :, None].expand(1, -1, channels)


@pytest.mark.parametrize("hertz", [200, 440, 1000, 3000, 7000])
def test_a_tone_is_loudest_in_its_band(hertz):
    """Bands are Slaney's: 200/3 Hz apart at low frequencies, and in equal ratios above 1000 Hz."""
    filters = sound.mel_filters(16_000, 64)
    mel = sound.log_mel(tone(hertz), filters, 160)
    assert mel.shape == (1, 2, 101, 64)
    centres = (filters * torch.linspace(0, 8000, 513)[:, None]).sum(0) / filters.sum(0)
    band = int(mel[0, 0, 50].argmax())
    assert abs(band - int((centres - hertz).abs().argmin())) <= 1
    # Each filter has unit area over frequencies that lie 8000 / 512 Hz apart.
    assert filters[:, 40:].sum(0) == pytest.approx(torch.full((24,), 512 / 8000).numpy(), rel=0.05)


def test_silence_has_the_smallest_logarithm():
    mel = sound.log_mel(torch.zeros(1, 1600, 2), sound.mel_filters(16_000, 64), 160)
    assert torch.equal(mel, torch.full_like(mel, math.log(1e-5)))


@torch.no_grad()
def test_latents_are_packed_and_normalised_as_the_pipeline_does(release):
    encoder = sound.build(str(release), FACTS)
    samples = torch.rand(1, 25 * 640, 2) - 0.5
    latent = encoder.encode(samples)
    assert latent.shape == (1, 32, 25)
    vae = diffusers.AutoencoderKLLTX2Audio.from_pretrained(release / "audio_vae")
    mel = sound.log_mel(samples, sound.mel_filters(16_000, 64), 160)[:, :, :97]
    pipeline = diffusers.LTX2Pipeline
    packed = pipeline._pack_audio_latents(vae.encode(mel).latent_dist.mode())
    wanted = pipeline._normalize_audio_latents(packed, vae.latents_mean, vae.latents_std)
    torch.testing.assert_close(latent.transpose(1, 2), wanted)
    heard, rate = encoder.decode(latent)
    raw = pipeline._denormalize_audio_latents(wanted, vae.latents_mean, vae.latents_std)
    mel = vae.decode(pipeline._unpack_audio_latents(raw, 25, num_mel_bins=16)).sample
    vocoder = pipelines.LTX2Vocoder.from_pretrained(release / "vocoder")
    assert rate == 24_000
    torch.testing.assert_close(heard.transpose(1, 2), vocoder(mel))
    assert heard.shape[1] == pytest.approx(24_000, abs=0.04 * 24_000)


def test_another_autoencoder_is_refused(release):
    with refused("other-autoencoder", "sound.weights"):
        sound.build(str(release), FACTS._replace(features=128))


@torch.no_grad()
@pytest.mark.parametrize("given", ["neither", "picture", "sound", "beginning"])
def test_what_is_given_has_time_0_and_is_seen_by_the_other(given):
    """All combinations equal the network called directly; given picture or sound changes what is predicted."""
    denoiser, i = contract.build("ltx-2-sound-tiny"), contract.example(contract.Shape(5, 4, 4), "ltx-2-sound-tiny")
    i = dataclasses.replace(i, sources=())
    none = torch.zeros_like(i.time)
    if given == "picture":
        i = dataclasses.replace(i, time=none, frame_mask=torch.zeros_like(i.frame_mask))
    elif given == "sound":
        i = dataclasses.replace(i, sound=SoundInputs(i.sound.latent, none, torch.zeros_like(i.sound.mask)))
    elif given == "beginning":
        frames, heard = i.frame_mask.clone(), i.sound.mask.clone()
        frames[:, 0], heard[:, :2] = False, False
        i = dataclasses.replace(i, frame_mask=frames, sound=dataclasses.replace(i.sound, mask=heard))
    picture, heard = denoiser.predict_both(i)
    text, of_sound = i.text.chunk(2, dim=2)
    out = denoiser.module(
        hidden_states=i.latent.flatten(2).transpose(1, 2),
        audio_hidden_states=i.sound.latent.flatten(2).transpose(1, 2),
        encoder_hidden_states=text,
        audio_encoder_hidden_states=of_sound,
        timestep=(i.frame_mask * i.time[:, None]).repeat_interleave(16, dim=1),
        audio_timestep=i.sound.mask * i.sound.time[:, None],
        sigma=i.time,
        audio_sigma=i.sound.time,
        encoder_attention_mask=i.text_mask,
        audio_encoder_attention_mask=i.text_mask,
        num_frames=5,
        height=4,
        width=4,
        fps=24.0,
        audio_num_frames=6,
        use_cross_timestep=True,
    )
    torch.testing.assert_close(picture.flatten(2).transpose(1, 2), -out.sample)
    torch.testing.assert_close(heard.flatten(2).transpose(1, 2), -out.audio_sample)
    other = dataclasses.replace(i, sound=dataclasses.replace(i.sound, latent=i.sound.latent + 1))
    assert not torch.allclose(denoiser.predict_both(other)[0], picture, atol=1e-3)
    other = dataclasses.replace(i, latent=i.latent + 1)
    assert not torch.allclose(denoiser.predict_both(other)[1], heard, atol=1e-3)
