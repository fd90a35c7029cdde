"""A loss mask makes each clip's loss the mean over what it shows, under every objective."""

from __future__ import annotations

import pytest
import torch

from reelworks.models.objectives import objectives
from reelworks.models.objectives.config import ObjectiveConfig

SHAPE = (2, 3, 4, 2, 5)
every_objective = pytest.mark.parametrize("name", ["rectified-flow", "iddpm", "epsilon", "v-prediction"])


def case(name):
    g = torch.Generator().manual_seed(0)
    objective = objectives.from_config(ObjectiveConfig(name=name))
    x0, noise = (torch.randn(SHAPE, generator=g) for _ in range(2))
    t = torch.tensor([300.0, 700.0])
    channels = 6 if objective.learns_variance else 3
    output = torch.randn(2, channels, *SHAPE[2:], generator=g, requires_grad=True)
    return objective, output, objective.noised(x0, noise, t, None), x0, noise, t, g


@every_objective
def test_it_is_the_mean_over_what_is_shown(name):
    """Of a mask of one frame it is the loss of that frame alone, however dark the mask is there."""
    objective, output, x_t, x0, noise, t, _ = case(name)
    weight = torch.zeros(2, *SHAPE[2:])
    weight[0, 1], weight[1, 3] = 1.0, 0.25
    found = objective.losses(output, x_t, x0, noise, t, None, weight)
    for clip, frame in ((0, 1), (1, 3)):
        parts = (value[clip : clip + 1, :, frame : frame + 1] for value in (output, x_t, x0, noise))
        alone = objective.losses(*parts, t[clip : clip + 1], None)
        torch.testing.assert_close(found[clip : clip + 1], alone)


@every_objective
def test_nothing_outside_reaches_the_gradient(name):
    """Neither a number nor NaN where the weight is 0 or the frame is given; inside, a weight is a share."""
    objective, output, x_t, x0, noise, t, g = case(name)
    weight = (torch.rand(2, *SHAPE[2:], generator=g) - 0.5).clamp(min=0)
    frames = torch.ones(2, SHAPE[2], dtype=torch.bool)
    frames[:, 0] = False
    outside = (weight == 0) | ~frames[:, :, None, None]
    broken = torch.where(outside[:, None], torch.nan, output.detach()).requires_grad_()
    losses = objective.losses(broken, x_t, x0, noise, t, frames, weight)
    torch.testing.assert_close(losses, objective.losses(output, x_t, x0, noise, t, frames, weight))
    torch.autograd.backward(losses.sum())
    assert broken.grad.isfinite().all()
    assert not broken.grad.masked_select(outside[:, None].expand_as(broken.grad)).any()
    twice = objective.losses(output, x_t, x0, noise, t, frames, 0.5 * weight)
    torch.testing.assert_close(twice, losses)


@every_objective
def test_white_is_no_mask_and_black_is_no_loss(name):
    """All white gives the loss without a mask; all black gives 0 and no gradient."""
    objective, output, x_t, x0, noise, t, _ = case(name)
    white = torch.ones(2, *SHAPE[2:])
    torch.testing.assert_close(
        objective.losses(output, x_t, x0, noise, t, None, white), objective.losses(output, x_t, x0, noise, t, None)
    )
    losses = objective.losses(output, x_t, x0, noise, t, None, 0 * white)
    torch.autograd.backward(losses.sum())
    assert not losses.any()
    assert not output.grad.any()


@every_objective
def test_a_mask_of_all_frames_is_no_mask(name):
    """Noised latents and losses are the same, with a weight and without one."""
    objective, output, x_t, x0, noise, t, g = case(name)
    every = torch.ones(2, SHAPE[2], dtype=torch.bool)
    torch.testing.assert_close(objective.noised(x0, noise, t, every), x_t)
    for weight in (None, torch.rand(2, *SHAPE[2:], generator=g)):
        masked, plain = (objective.losses(output, x_t, x0, noise, t, frames, weight) for frames in (every, None))
        torch.testing.assert_close(masked, plain)
