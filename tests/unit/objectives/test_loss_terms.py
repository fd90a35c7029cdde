"""Distances and weights of a loss, against the formulas of their papers and diffusers' functions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler
from diffusers.training_utils import compute_loss_weighting_for_sd3, compute_snr
from refused import refused

from reelworks.core import hash_rng
from reelworks.models.objectives import ddpm, objectives
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.training.step import noising

STEPS = [0, 1, 20, 250, 500, 750, 950, 999]
ERROR = torch.randn(len(STEPS), 4, 3, 5, 5, generator=torch.Generator().manual_seed(1))


def loss_of(config: ObjectiveConfig, t_B: torch.Tensor) -> torch.Tensor:
    """The loss that an objective gives to the errors above."""
    return objectives.from_config(config).of_error(ERROR, t_B, None)


def ratio(t_B: torch.Tensor, **settings: object) -> torch.Tensor:
    """The weight of each clip: its loss by that without weights."""
    plain = {key: value for key, value in settings.items() if key == "name"}
    return loss_of(ObjectiveConfig(**settings), t_B) / loss_of(ObjectiveConfig(**plain), t_B)


@pytest.mark.parametrize("noise_key", ["none", "noise_offset", "multires_noise_iterations", "input_perturbation"])
@pytest.mark.parametrize("prediction", ["velocity", "sample", "epsilon", "v-prediction"])
def test_the_exact_answer_has_no_loss(prediction, noise_key):
    """The clip, the noise that is trained on, or what leads from one to the other, at all timesteps and with any noise."""
    strength = {} if noise_key == "none" else {noise_key: 6 if noise_key == "multires_noise_iterations" else 0.5}
    flow = prediction in ("velocity", "sample")
    values = {"prediction": prediction} if flow else {"name": prediction}
    x0 = torch.randn(len(STEPS), 4, 3, 5, 5, generator=torch.Generator().manual_seed(3))
    if flow and noise_key == "multires_noise_iterations":
        with refused("noise-of-another-objective", noise_key):
            ObjectiveConfig(**values | strength)
        return
    config = ObjectiveConfig(**values | strength)
    noise, added = noising.of_clips(config, x0, hash_rng.hash64(1, "noise", np.arange(len(STEPS))))
    t, objective = torch.tensor(STEPS).float(), objectives.from_config(config)
    x_t = objective.noised(x0, added, t, None)
    data, share = (factor.view(-1, 1, 1, 1, 1) for factor in ddpm.weights(t))
    exact = {"velocity": x0 - noise, "sample": x0, "epsilon": noise, "v-prediction": data * noise - share * x0}[
        prediction
    ]
    torch.testing.assert_close(objective.losses(exact, x_t, x0, noise, t, None), torch.zeros(len(STEPS)))
    off = objective.losses(exact + 0.1, x_t, x0, noise, t, None)
    scale = (t / 1000).clamp(min=0.05) if prediction == "sample" else 1
    torch.testing.assert_close(off, 0.01 / scale**2 * torch.ones(len(STEPS)))


@pytest.mark.parametrize(("name", "shift"), [("epsilon", 0), ("v-prediction", 1)])
@pytest.mark.parametrize("gamma", [1.0, 5.0])
def test_min_snr_is_that_of_the_paper(name, shift, gamma):
    """min(SNR, γ) / SNR for the noise and min(SNR, γ) / (SNR + 1) for v, with diffusers' signal-to-noise ratios."""
    scheduler = DDPMScheduler(1000, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    snr = compute_snr(scheduler, torch.tensor(STEPS)).double()
    expected = snr.clamp(max=gamma) / (snr + shift)
    found = ratio(torch.tensor(STEPS).float(), name=name, loss_weighting="min-snr", snr_gamma=gamma)
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=0)  # diffusers cumulates in float32
    debiased = ratio(torch.tensor(STEPS).float(), name=name, loss_weighting="debiased")
    torch.testing.assert_close(debiased.double(), snr.sqrt() / (snr + shift), rtol=2e-3, atol=0)


def test_min_snr_of_a_velocity_weighs_the_clean_samples_error():
    """The sample's error is σ times the velocity's, so the loss is that of the sample by min(SNR, γ)."""
    t = torch.tensor([1.0, 50.0, 200.0, 400.0, 500.0, 700.0, 999.0, 1000.0])
    sigma = t.double() / 1000
    snr = ((1 - sigma) / sigma) ** 2
    found = ratio(t, loss_weighting="min-snr", snr_gamma=3.0)
    torch.testing.assert_close(found.double(), snr.clamp(max=3.0) * sigma**2, rtol=1e-4, atol=1e-9)
    at_zero = loss_of(ObjectiveConfig(loss_weighting="min-snr"), torch.zeros(len(STEPS)))
    assert torch.isfinite(at_zero).all()


@pytest.mark.parametrize("name", ["sigma-sqrt", "cosmap"])
def test_weights_of_stable_diffusion_3_are_those_of_diffusers(name):
    t = torch.tensor([1.0, 50.0, 200.0, 400.0, 500.0, 700.0, 999.0, 1000.0])
    expected = compute_loss_weighting_for_sd3(name.replace("-", "_"), t / 1000)
    torch.testing.assert_close(ratio(t, loss_weighting=name), expected, rtol=1e-5, atol=0)


def test_no_weight_is_larger_than_that_of_the_first_of_the_discrete_timesteps():
    """A density may draw a timestep that is nearly 0, whose clip would be all that a step learns from."""
    t = torch.tensor([1.0, 0.5, 1e-3, 0.0])
    for name in ("sigma-sqrt", "cosmap", "bell", "min-snr", "debiased"):
        weighted = loss_of(ObjectiveConfig(loss_weighting=name), t.repeat(2))
        plain = loss_of(ObjectiveConfig(), t.repeat(2))
        assert ((weighted / plain) <= 1e6 * 1.001).all(), name


def test_the_bell_is_zero_at_both_ends_and_one_on_average():
    """By its formula on the 1000 timesteps of a schedule without shift, normalised to a sum of 1000."""
    grid = torch.linspace(1, 0, 1001, dtype=torch.float64)[:-1] * 1000
    bell = torch.exp(-2 * ((grid - 500) / 1000) ** 2)
    bell = (bell - bell.min()) * 1000 / (bell - bell.min()).sum()
    picked = [0, 100, 300, 500, 600, 800, 950, 999]
    found = ratio(grid[picked].float(), loss_weighting="bell")
    torch.testing.assert_close(found.double(), bell[picked], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", ["rectified-flow", "v-prediction"])
@pytest.mark.parametrize("delta", [0.1, 1.5])
def test_the_distances_are_those_of_torch(name, delta):
    t = torch.tensor(STEPS).float()
    zero = torch.zeros_like(ERROR)
    huber = torch.nn.functional.huber_loss(ERROR, zero, reduction="none", delta=delta).mean(dim=(1, 2, 3, 4))
    smooth = torch.nn.functional.smooth_l1_loss(ERROR, zero, reduction="none", beta=delta).mean(dim=(1, 2, 3, 4))
    found = loss_of(ObjectiveConfig(name=name, loss="huber", huber_delta=delta), t)
    torch.testing.assert_close(found, huber)
    found = loss_of(ObjectiveConfig(name=name, loss="smooth-l1", huber_delta=delta), t)
    torch.testing.assert_close(found, smooth)


def test_an_exponential_schedule_goes_from_one_to_the_bound():
    t = torch.tensor([0.0, 500.0, 1000.0, 1000.0, 0.0, 500.0, 250.0, 750.0])
    found = loss_of(ObjectiveConfig(loss="huber", huber_delta=0.04, huber_schedule="exponential"), t)
    for i, time in enumerate(t.tolist()):
        delta = math.exp(math.log(0.04) * time / 1000)
        expected = torch.nn.functional.huber_loss(ERROR[i], torch.zeros_like(ERROR[i]), delta=delta)
        assert found[i].item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_validation_loss_has_neither_weights_nor_bounds():
    config = ObjectiveConfig(loss="huber", loss_weighting="min-snr", huber_delta=0.5, logit_mean=1.0)
    t = torch.tensor(STEPS).float()
    assert torch.equal(loss_of(config.for_validation(), t), loss_of(ObjectiveConfig(), t))
    assert config.for_validation().logit_mean == 1.0
