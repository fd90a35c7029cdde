"""Diffusion by 1000 steps is that of diffusers' schedulers: noise, targets and what follows from a prediction."""

import itertools

import diffusers
import pytest
import torch
from refused import refused

from reelworks.models.objectives import ddpm, objectives
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.objectives.samplers import diffusion, functions

SCHEDULE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "num_train_timesteps": 1000}
NAMES = {"epsilon": "epsilon", "v-prediction": "v_prediction"}


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", NAMES)
def test_inputs_and_losses_are_those_of_the_scheduler(name):
    """x_t, the target and the loss at steps from first to last equal diffusers'."""
    objective = objectives.from_config(ObjectiveConfig(name=name))
    scheduler = diffusers.DDPMScheduler(**SCHEDULE, prediction_type=NAMES[name])
    x0, noise, output = (draw(4, 3, 1, 4, 6, seed=i) for i in range(3))
    t = torch.tensor([0, 1, 500, 999])
    x_t = objective.noised(x0, noise, t.float(), torch.ones(4, 1, dtype=torch.bool))
    torch.testing.assert_close(x_t, scheduler.add_noise(x0, noise, t), rtol=1e-4, atol=1e-5)
    target = noise if name == "epsilon" else scheduler.get_velocity(x0, noise, t)
    losses = objective.losses(output, x_t, x0, noise, t.float(), None)
    torch.testing.assert_close(losses, (output - target).square().mean((1, 2, 3, 4)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_perfect_prediction_gives_back_data_and_noise(name):
    """Reading the target as the prediction ends at the clean latents and the noise."""
    kind = objectives.PREDICTIONS[name]
    x0, noise, t = draw(3, 2, 1, 4, 4), draw(3, 2, 1, 4, 4, seed=1), torch.tensor([5.0, 400.0, 900.0])
    x_t = ddpm.noised(x0, noise, t, None)
    found = ddpm.read(kind, ddpm.target(kind, x0, noise, t), x_t, t)
    for one, wanted in zip(found, (x0, noise), strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_sampling_with_a_perfect_network_ends_at_the_data(name):
    """A network that knows the data brings any noise to them, in one step or many, guided or not."""
    kind = objectives.PREDICTIONS[name]
    x0 = draw(1, 2, 1, 4, 4, seed=2)

    def network(z, t, _mask):
        data, noise = ddpm.weights(t)
        return ddpm.target(kind, x0.expand_as(z), (z - data * x0) / noise, t)

    for steps in (1, 2, 20):
        found = diffusion.sample_ddim(network, draw(1, 2, 1, 4, 4), kind, num_steps=steps, guidance_scale=3.0)
        torch.testing.assert_close(found, x0, rtol=1e-3, atol=1e-3)


def test_steps_are_whole_numbers_and_all_alike():
    """Draws in [0, 1) become each of the 1000 steps, and nothing is shifted."""
    objective = objectives.from_config(ObjectiveConfig(name="epsilon"))
    before, after = objective.times(torch.arange(1000, dtype=torch.float64) / 1000 + 1e-6, 7.0)
    assert before.tolist() == after.tolist() == list(range(1000))
    assert not objective.learns_variance


def test_keys_of_rectified_flow_are_refused():
    """A recipe that sets what the objective does not have is told so."""
    with refused("key-of-another-objective", "timestep_shift", says="no meaning for epsilon"):
        ObjectiveConfig(name="epsilon", timestep_shift=3.0)


def test_the_last_step_may_be_pure_noise():
    """Shares, noised latents, targets and losses are those of diffusers' rescaled schedule, without a remainder at the end."""
    objective = objectives.from_config(ObjectiveConfig(name="v-prediction", zero_terminal_snr=True))
    scheduler = diffusers.DDPMScheduler(**SCHEDULE, prediction_type="v_prediction", rescale_betas_zero_snr=True)
    torch.testing.assert_close(ddpm.share_kept(True), scheduler.alphas_cumprod, rtol=1e-4, atol=1e-6)
    x0, noise, output = (draw(4, 3, 1, 4, 6, seed=i) for i in range(3))
    t = torch.tensor([0, 1, 500, 999])
    x_t = objective.noised(x0, noise, t.float(), None)
    torch.testing.assert_close(x_t, scheduler.add_noise(x0, noise, t), rtol=1e-4, atol=1e-5)
    assert torch.equal(x_t[-1], noise[-1])
    losses = objective.losses(output, x_t, x0, noise, t.float(), None)
    wanted = (output - scheduler.get_velocity(x0, noise, t)).square().mean((1, 2, 3, 4))
    torch.testing.assert_close(losses, wanted, rtol=1e-4, atol=1e-5)
    for weighting in ("min-snr", "debiased"):
        weighted = ObjectiveConfig(name="v-prediction", zero_terminal_snr=True, loss_weighting=weighting)
        found = objectives.from_config(weighted).losses(output, x_t, x0, noise, t.float(), None)
        assert found.isfinite().all()
        assert found[-1] == 0  # both weigh by what is left of the data


def test_sampling_from_pure_noise_is_that_of_diffusers():
    """Each step from the last of the 1000 ends where diffusers' DDIM ends, with trailing steps and a rescaled schedule."""
    scheduler = diffusers.DDIMScheduler(
        **SCHEDULE,
        prediction_type="v_prediction",
        rescale_betas_zero_snr=True,
        timestep_spacing="trailing",
        clip_sample=False,
    )
    scheduler.set_timesteps(1)
    noise = draw(1, 2, 1, 4, 4)

    def network(z, t, _mask):
        return torch.tanh(z) + t.view(-1, 1, 1, 1, 1) / 1000

    assert scheduler.timesteps.tolist() == [999]
    wanted = scheduler.step(network(noise, torch.tensor([999.0]), None), 999, noise, eta=0.0).pred_original_sample
    found = diffusion.sample_ddim(network, noise, "v", num_steps=1, guidance_scale=1.0, zero_snr=True)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def of_diffusers(prediction):
    return diffusers.DDIMScheduler(
        **SCHEDULE,
        prediction_type={"epsilon": "epsilon", "v": "v_prediction"}[prediction],
        timestep_spacing="trailing",
        clip_sample=False,
    )


@pytest.mark.parametrize("steps", [1, 3, 7, 30, 48, 300])
@pytest.mark.parametrize("prediction", ["epsilon", "v"])
def test_each_step_of_ddim_is_that_of_diffusers(prediction, steps):
    """With trailing steps. diffusers goes down by 1000 // steps from each, which misses the next one unless steps divides 1000,
    so it is told how far that is."""
    scheduler, asked, z = of_diffusers(prediction), [], draw(1, 2, 1, 4, 4).double()
    scheduler.set_timesteps(steps)

    def network(z, t):
        asked.append(t.item())
        return torch.tanh(z)

    found = functions.ddim(network, z, prediction=prediction, steps=steps)
    assert asked == scheduler.timesteps.tolist()
    for now, after in itertools.pairwise([*scheduler.timesteps.tolist(), -1]):
        scheduler.register_to_config(num_train_timesteps=(now - after) * steps)
        z = scheduler.step(torch.tanh(z), now, z).prev_sample
    torch.testing.assert_close(found, z, rtol=1e-4, atol=1e-4)


def test_the_steps_of_ddim_are_those_of_diffusers_however_many():
    scheduler = of_diffusers("v")
    for steps in range(1, 64):  # 48 has steps that lie midway, and 61 one below 0
        scheduler.set_timesteps(steps)
        asked = []
        functions.ddim(lambda z, t, asked=asked: asked.append(t.item()) or z, draw(1, 1, 1, 1, 1), steps=steps)
        assert asked == [step for step in scheduler.timesteps.tolist() if step >= 0]


@pytest.mark.parametrize("name", ["epsilon", "rectified-flow", "iddpm"])
def test_pure_noise_needs_a_prediction_of_v(name):
    """Other objectives are refused with the remedy."""
    with refused("zero-snr-without-v", "zero_terminal_snr", says="v-prediction"):
        ObjectiveConfig(name=name, zero_terminal_snr=True)


@pytest.mark.parametrize("make", [functions.flow, functions.ddim, functions.iddpm])
def test_samplers_give_a_network_the_dtype_of_the_noise(make):
    """Also in later steps: a bfloat16 network takes nothing else."""
    seen, outputs = set(), 2 if make is functions.iddpm else 1

    def network(z, t):
        seen.add(z.dtype)
        return z.repeat(1, outputs, 1, 1, 1)

    assert make(network, draw(1, 4, 1, 4, 4).bfloat16(), steps=3).dtype == torch.bfloat16
    assert seen == {torch.bfloat16}


def test_a_prediction_of_another_name_is_none():
    for name in ("noise", "eps", "v-prediction"):
        with refused("argument-invalid", "prediction"):
            objectives.Ddpm(name)
        with refused("argument-invalid", "prediction"):
            functions.ddim(lambda z, t: z, draw(1, 4, 1, 4, 4), prediction=name)
    with refused("zero-snr-without-v", "zero_terminal_snr"):
        functions.ddim(lambda z, t: z, draw(1, 4, 1, 4, 4), zero_terminal_snr=True)
    with refused("argument-invalid", "steps"):
        functions.flow(lambda z, t: z, draw(1, 4, 1, 4, 4), steps=0)
    with refused("unknown-key", says="timestep_sampling"):
        objectives.RectifiedFlow(timestep_samplin="uniform")
