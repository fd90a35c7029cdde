"""Diffusion with learned variance has the reference's tables, inputs and losses."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from refused import refused
from safetensors.torch import load_file

from reelworks.core import hash_rng
from reelworks.models.objectives import iddpm, objectives
from reelworks.models.objectives.config import ObjectiveConfig

FOLDER = Path(__file__).parents[2] / "golden"
GOLDEN = load_file(FOLDER / "iddpm.safetensors")
TRAIN = {key.removeprefix("train/"): value for key, value in GOLDEN.items() if key.startswith("train/")}
IDDPM = objectives.from_config(ObjectiveConfig(name="iddpm"))


def assert_same(ours, golden, tolerance=1e-5):
    assert (ours - golden).abs().max() <= tolerance * golden.abs().max()


def test_tables_equal_the_reference():
    """Every number of the 1000 steps is the reference's to float32's last bits, not only the largest."""
    plan = iddpm.schedule()
    names = {
        "betas": plan.betas,
        "alphas_cumprod": plan.share_kept,
        "posterior_log_variance_clipped": plan.log_variance,
        "posterior_mean_coef1": plan.mean_of_x0,
        "posterior_mean_coef2": plan.mean_of_x_t,
    }
    for name, ours in names.items():
        torch.testing.assert_close(ours, GOLDEN[f"schedule1000/{name}"], rtol=1e-6, atol=0)


@pytest.mark.parametrize("steps", [10, 50, 100])
def test_fewer_steps_are_spread_as_in_the_reference(steps):
    """A shorter schedule takes the reference's steps and keeps their noise levels."""
    plan = iddpm.schedule(steps)
    assert torch.equal(plan.steps, GOLDEN[f"respaced{steps}/timestep_map"])
    torch.testing.assert_close(plan.betas, GOLDEN[f"respaced{steps}/betas"], rtol=1e-6, atol=0)
    torch.testing.assert_close(plan.share_kept, iddpm.schedule().share_kept[plan.steps], rtol=1e-4, atol=0)


@pytest.mark.parametrize("masked", [False, True])
def test_inputs_and_losses_equal_the_reference(masked):
    """Noised latents and both terms of the loss are the reference's, at the first and the last step too."""
    mask = TRAIN["mask"] if masked else None
    golden = {k.split("/")[1]: v for k, v in GOLDEN.items() if k.startswith(f"train_{'' if masked else 'no'}mask/")}
    t_B = TRAIN["t"].float()
    x_t = IDDPM.noised(TRAIN["x0"], TRAIN["noise"], t_B, mask)
    assert_same(x_t, golden["x_t"])
    mse_B, bound_B = iddpm.terms(TRAIN["model_out"], x_t, TRAIN["x0"], TRAIN["noise"], t_B, mask)
    for clip in range(3):
        assert_same(mse_B[clip], golden["mse"][clip])
        assert_same(bound_B[clip], golden["vb"][clip])
    loss_B = IDDPM.losses(TRAIN["model_out"], x_t, TRAIN["x0"], TRAIN["noise"], t_B, mask)
    assert_same(loss_B, golden["loss"])


def test_the_bound_teaches_the_variance_alone():
    """No gradient of the bound reaches the channels that predict the noise."""
    output = TRAIN["model_out"].clone().requires_grad_()
    t_B = TRAIN["t"].float()
    x_t = IDDPM.noised(TRAIN["x0"], TRAIN["noise"], t_B, None)
    iddpm.terms(output, x_t, TRAIN["x0"], TRAIN["noise"], t_B, None)[1].sum().backward()
    assert not output.grad[:, :4].any()
    assert output.grad[:, 4:].any()


def test_a_base_as_the_target_gives_its_noise_and_its_posterior():
    """The squared error of the noise, and the divergence of torch's normal distributions in float64, at the first step too."""
    output, t_B = TRAIN["model_out"], TRAIN["t"].float()
    base = output + 0.3 * torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    x_t = IDDPM.noised(TRAIN["x0"], TRAIN["noise"], t_B, None)
    mse_B, bound_B = iddpm.terms(output, x_t, TRAIN["x0"], TRAIN["noise"], t_B, None, base=base)
    plan = iddpm.Schedule(*(value.double() for value in vars(iddpm.schedule()).values()))
    own, theirs = (
        torch.distributions.Normal(each.mean, (0.5 * each.log_variance).exp())
        for each in (iddpm.posterior(plan, out.double(), x_t.double(), t_B.long()) for out in (output, base))
    )
    bound = torch.distributions.kl_divergence(theirs, own).mean(dim=(1, 2, 3, 4)) / np.log(2)
    mse = (output - base).double()[:, :4].square().mean(dim=(1, 2, 3, 4))
    assert t_B[0] == 0
    torch.testing.assert_close(mse_B.double(), mse, rtol=1e-5, atol=0)
    torch.testing.assert_close(bound_B.double(), bound, rtol=1e-3, atol=0)
    assert not IDDPM.losses(base, x_t, TRAIN["x0"], TRAIN["noise"], t_B, None, base=base).any()


def test_what_is_not_finite_in_given_frames_reaches_nothing():
    """Conditioning frames, and clips that are nothing else, leave loss and gradient finite."""
    mask = torch.tensor([[False] * 5, [False, True, True, True, True], [True] * 5])
    output = TRAIN["model_out"].clone()
    output[0], output[1, :, 0] = float("nan"), float("inf")
    output.requires_grad_()
    t_B = TRAIN["t"].float()
    x_t = IDDPM.noised(TRAIN["x0"], TRAIN["noise"], t_B, mask)
    losses = IDDPM.losses(output, x_t, TRAIN["x0"], TRAIN["noise"], t_B, mask)
    losses.sum().backward()
    assert losses[0] == 0
    assert (losses[1:] > 0).all()
    assert torch.isfinite(output.grad).all()
    assert not output.grad[0].any()


def test_times_are_all_steps_alike():
    """Draws become whole steps from 0 to 999, each as likely, whatever the shape's shift."""
    uniform = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    before, after = IDDPM.times(uniform, 7.0)
    assert torch.equal(before, after)
    assert torch.equal(torch.bincount(after.long()), torch.full((1000,), 4))


def test_times_have_the_quantiles_of_the_reference():
    """Whole steps are drawn as often as the reference draws them."""
    times = json.loads((FOLDER / "timesteps.json").read_text(encoding="utf-8"))
    golden, n = times["samplers"]["uniform-discrete|transform=False|None"], 200_000
    words = hash_rng.hash64(7, np.arange(n), hash_rng.Purpose.TIMESTEP)
    t = IDDPM.times(torch.from_numpy(hash_rng.uniform(words)), 1.0)[1].sort().values
    level = torch.tensor(times["quantile_levels"], dtype=torch.float64)
    quantile = torch.tensor(golden["quantiles"])
    tolerance = 5 * (level * (1 - level) * (1 / n + 1 / times["draws"])).sqrt()
    # Both sides of a step, since a quantile may be any level within its share.
    assert (torch.searchsorted(t, quantile, right=False) / n <= level + tolerance).all()
    assert (torch.searchsorted(t, quantile, right=True) / n >= level - tolerance).all()
    assert (t[0], t[-1]) == (golden["min"], golden["max"])


@pytest.mark.parametrize(
    "key", [{"timestep_shift": "none"}, {"timestep_sampling": "uniform"}, {"logit_mean": 0.5}, {"prediction": "sample"}]
)
def test_keys_of_rectified_flow_are_refused(key):
    """A key that would do nothing is refused by its name."""
    with refused("key-of-another-objective", next(iter(key))):
        ObjectiveConfig(name="iddpm", **key)
