"""Ancestral sampling goes step by step where the reference goes, with the noise that it drew."""

import pytest
import torch
from refused import refused
from toy_sampling import Cases, ToyModel, assert_same

from reelworks.models.objectives.samplers import diffusion
from reelworks.models.objectives.samplers.flow import Edit

case = Cases("iddpm")


class BoundedModel(ToyModel):
    """The reference's toy model for this sampler."""

    def __init__(self):
        super().__init__(case)

    def __call__(self, *given):
        return torch.tanh(super().__call__(*given))


def run(model, **options):
    return diffusion.sample_iddpm(model, case("sample")["z"], num_steps=10, guidance_scale=7.0, **options)


def test_every_step_equals_the_reference():
    """Times and the final latents are the reference's, guidance and learned variance included."""
    model, golden = BoundedModel(), case("sample_plain")
    assert_same(run(model, step_noise=lambda step: golden["noise_seq"][step][:2]), golden["z_final"])
    for (_, t_2B, mask), t in zip(model.fed, golden["timesteps_fed"], strict=True):
        assert mask is None
        assert torch.equal(t_2B, t)


def test_every_masked_step_equals_the_reference():
    """Frames that are given or re-drawn get the reference's masks, noise and latents."""
    model, golden = BoundedModel(), case("sample_masked")
    noises = golden["noise_seq"][:, :2]
    edit = Edit(case("sample")["sample_mask"], lambda step: noises[2 * step])
    assert_same(run(model, step_noise=lambda step: noises[2 * step + 1], edit=edit), golden["z_final"])
    for (_, t_2B, mask), t, golden_mask in zip(model.fed, golden["timesteps_fed"], golden["x_mask_fed"], strict=True):
        assert torch.equal(t_2B, t)
        assert torch.equal(mask, golden_mask)


def guided_as_upstream(output_2B, scale, channels):
    """Open-Sora 1.1's formula: only the first channels of both halves are guided, the rest stays."""
    eps, rest = output_2B[:, :channels], output_2B[:, channels:]
    with_text, without = eps.chunk(2)
    guided = without + scale * (with_text - without)
    return torch.cat([torch.cat([guided, guided]), rest], dim=1)


@pytest.mark.parametrize("channels", [1, 3, 4, None])
def test_guidance_of_some_channels_is_upstreams(channels):
    """With the first channels guided alone, each step is that of a network whose output upstream's formula guided."""
    model, golden = BoundedModel(), case("sample_plain")
    noises = golden["noise_seq"][:, :2]
    ours = run(model, step_noise=lambda step: noises[step], guided_channels=channels)

    def already_guided(z_2B, t_2B, frame_mask_2B):
        return guided_as_upstream(BoundedModel()(z_2B, t_2B, frame_mask_2B), 7.0, channels or z_2B.shape[1])

    theirs = diffusion.sample_iddpm(
        already_guided, case("sample")["z"], num_steps=10, guidance_scale=1.0, step_noise=lambda step: noises[step]
    )
    assert_same(ours, theirs)
    all_guided = run(BoundedModel(), step_noise=lambda step: noises[step])
    assert torch.equal(ours, all_guided) == (channels in (None, 4))


@pytest.mark.parametrize("num_steps", [1, 1001])
def test_steps_that_do_not_exist_are_refused(num_steps):
    """One step cannot span the schedule, and there are 1000."""
    with refused("steps-out-of-range", "num_inference_steps"):
        diffusion.sample_iddpm(
            BoundedModel(), case("sample")["z"], num_steps=num_steps, guidance_scale=1.0, step_noise=torch.zeros
        )
