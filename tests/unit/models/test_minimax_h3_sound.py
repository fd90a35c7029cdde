"""MiniMax-H3's sound: left and right are encoded apart, and timesteps are shifted otherwise than the picture's."""

from __future__ import annotations

import diffusers
import pytest
import tiny_families
import torch
from refused import refused

from reelworks.models import registry
from reelworks.models.families.minimax_h3 import sound
from reelworks.models.objectives.samplers import flow

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
TINY = tiny_families.MINIMAX_H3_SOUND
FACTS = registry.SOUND_ENCODERS["minimax-h3"]


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A folder as a release's, with random weights."""
    folder = tmp_path_factory.mktemp("release")
    torch.manual_seed(0)
    diffusers.AutoencoderKLMiniMaxH3Audio(**TINY).save_pretrained(folder / "audio_vae")
    return folder


@torch.no_grad()
def test_each_channel_has_its_half_of_the_features(release):
    """The halves are the normalised latents of the channels alone; samples come back with as many."""
    encoder = sound.build(str(release), FACTS)
    samples = torch.rand(2, 3 * 800, 2) - 0.5
    latent = encoder.encode(samples)
    assert latent.shape == (2, 64, 3)
    module = diffusers.AutoencoderKLMiniMaxH3Audio.from_pretrained(release / "audio_vae")
    mean, std = (torch.tensor(TINY[key]).view(1, -1, 1) for key in ("latents_mean", "latents_std"))
    for side, half in enumerate(latent.chunk(2, dim=1)):
        alone = module.encode(samples[:, None, :, side]).latent_dist.mode()
        torch.testing.assert_close(half, (alone - mean) / std, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            encoder.decode(latent)[0][..., side], module.decode(alone).sample[:, 0], atol=1e-4, rtol=1e-3
        )
    assert encoder.decode(latent)[0].shape == samples.shape


def test_the_sound_of_another_release_is_refused(tmp_path):
    with refused("other-autoencoder", "sound.weights"):
        sound.build(str(tmp_path), FACTS)


def test_sound_takes_the_steps_of_its_own_shift():
    """The timesteps that the network gets, and the noise that each step removes, are those of both shifts."""
    seen = []

    def network(z, heard, t, sound_t, _mask):
        seen.append((float(t[0]), float(sound_t[0])))
        return torch.ones_like(z), torch.ones_like(heard)

    start = torch.zeros(1, 1, 1, 1, 1)
    made = flow.sample_with_sound(network, start, start, num_steps=4, guidance_scale=1.0, shift=12.0, sound_shift=3.0)
    ours = [flow.times(4, shift)[:-1].tolist() for shift in (12.0, 3.0)]
    assert seen == [pytest.approx(pair) for pair in zip(*ours, strict=True)]
    assert seen[1][0] > seen[1][1]
    assert [float(each) for each in made] == pytest.approx([1.0, 1.0])
