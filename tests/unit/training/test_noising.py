"""Noise has the parts that an objective asks for, each clip its own, as the formulas of the field have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from reelworks.core import hash_rng
from reelworks.core.arrays import U64
from reelworks.core.hash_rng import Purpose
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.training.step import draws, noising

CPU = torch.device("cpu")
SHAPE = (4, 1, 6, 8)
ALL: dict[str, Any] = {
    "noise_offset": 0.1,
    "noise_offset_random_strength": True,
    "noise_offset_probability": 0.5,
    "adaptive_noise_scale": 0.2,
    "multires_noise_iterations": 6,
    "input_perturbation": 0.1,
}


def seeds(count: int) -> U64:
    return hash_rng.hash64(7, np.arange(count))


def latents(count: int) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def made(count: int, **keys: Any) -> tuple[Tensor, Tensor]:
    return noising.of_clips(ObjectiveConfig(name="epsilon", **keys), latents(count), seeds(count))


def test_plain_noise_is_one_draw_and_validation_has_it() -> None:
    for config in (ObjectiveConfig(name="epsilon"), ObjectiveConfig(name="epsilon", **ALL).for_validation()):
        trained, added = noising.of_clips(config, latents(3), seeds(3))
        assert torch.equal(trained, draws.normal(SHAPE, seeds(3), CPU))
        assert added is trained


@pytest.mark.parametrize("keys", [{}, ALL])
def test_no_clip_depends_on_the_others(keys: dict[str, Any]) -> None:
    """Alone or among others, in any order, a clip has the same noise."""
    config, some = ObjectiveConfig(name="epsilon", **keys), [3, 1]
    together = noising.of_clips(config, latents(5), seeds(5))
    alone = noising.of_clips(config, latents(5)[some], seeds(5)[some])
    for many, two in zip(together, alone, strict=True):
        assert torch.equal(many[some], two)


def test_an_offset_is_one_value_per_channel_by_the_formula() -> None:
    """noise + strength * N(0, 1) of each channel; by the adaptive formula the strength grows with the channel's mean."""
    plain = draws.normal(SHAPE, seeds(5), CPU)
    offset = draws.normal((4, 1, 1, 1), hash_rng.extend(seeds(5), Purpose.NOISE_OFFSET), CPU)
    assert torch.equal(made(5, noise_offset=0.1)[0], plain + 0.1 * offset)
    means = latents(5).mean(dim=(2, 3, 4), keepdim=True).abs()
    adapted = (0.1 - 0.9 * means).clamp(min=0)
    assert 0 < (adapted == 0).sum() < adapted.numel()
    torch.testing.assert_close(made(5, noise_offset=0.1, adaptive_noise_scale=-0.9)[0], plain + adapted * offset)


@pytest.mark.parametrize(
    ("keys", "square"),
    [
        ({}, 0.25),
        ({"noise_offset_random_strength": True}, 0.25 / 3),
        ({"noise_offset_probability": 0.4}, 0.25 * 0.4),
    ],
)
def test_statistics_of_an_offset(keys: dict[str, Any], square: float) -> None:
    """Two pixels of a channel have the covariance strength², those of two channels none.

    A mean of HW pixels has the variance strength² + 1 / HW. A strength that is drawn has a third of the square on average.
    """
    trained = made(4000, noise_offset=0.5, **keys)[0].double().squeeze(2)
    means = trained.mean(dim=(2, 3))
    assert means.var(dim=0).mean().item() == pytest.approx(square + 1 / (SHAPE[2] * SHAPE[3]), rel=0.06)
    assert abs((means[:, 0] * means[:, 1]).mean().item()) < 0.02
    assert (trained[:, :, 0, 0] * trained[:, :, -1, -1]).mean().item() == pytest.approx(square, abs=0.03)


def sizes(seed_1: U64, iterations: int) -> list[tuple[int, int]]:
    """The sizes of a clip's further noises, the last of which has a side of 1."""
    found: list[tuple[int, int]] = []
    for level in range(iterations):
        ratio = 2 + 2 * hash_rng.uniform(hash_rng.extend(seed_1, level, "ratio"))[0]
        found.append((max(1, int(SHAPE[2] / ratio**level)), max(1, int(SHAPE[3] / ratio**level))))
        if 1 in found[-1]:
            break
    return found


@pytest.mark.parametrize(("iterations", "discount"), [(1, 0.3), (6, 0.3), (10, 0.8)])
def test_noise_of_several_resolutions_by_the_formula(iterations: int, discount: float) -> None:
    """In plain torch from the same draws: on top of an offset, as in sd-scripts, and scaled to one deviation."""
    keys = {"multires_noise_iterations": iterations, "multires_noise_discount": discount}
    found, before = made(5, noise_offset=0.1, **keys)[0], made(5, noise_offset=0.1)[0]
    own = hash_rng.extend(seeds(5), Purpose.MULTIRES_NOISE)
    for clip, noise, seed in zip(found[:, :, 0], before[:, :, 0], own, strict=True):
        total = noise
        for level, size in enumerate(sizes(seed.reshape(1), iterations)):
            coarse = draws.normal((4, 1, *size), hash_rng.extend(seed.reshape(1), level), CPU)[0].transpose(0, 1)
            total = total + interpolate(coarse, size=SHAPE[2:], mode="bilinear")[0] * discount**level
        torch.testing.assert_close(clip, total / total.std())


def test_statistics_of_several_resolutions() -> None:
    """Pixels correlate as in the sum of the upsampled noises, computed in float64."""
    clips, iterations, discount, pixels = 600, 6, 0.8, SHAPE[2] * SHAPE[3]
    own = hash_rng.extend(seeds(clips), Purpose.MULTIRES_NOISE)[:200]
    expected = torch.zeros(pixels, pixels, dtype=torch.float64)
    for seed in own:
        covariance = torch.eye(pixels, dtype=torch.float64)
        for level, (height, width) in enumerate(sizes(seed.reshape(1), iterations)):
            basis = torch.eye(height * width, dtype=torch.float64).view(-1, 1, height, width)
            spread = interpolate(basis, size=SHAPE[2:], mode="bilinear").view(-1, pixels)
            covariance += discount ** (2 * level) * spread.T @ spread
        expected += covariance / covariance.trace() * pixels / len(own)
    keys = {"multires_noise_iterations": iterations, "multires_noise_discount": discount}
    found = made(clips, **keys)[0].double().view(-1, pixels)
    covariance = found.T @ found / len(found)
    assert (covariance - expected).abs().max() < 0.12
    assert covariance[0, 1].item() == pytest.approx(expected[0, 1].item(), abs=0.08)
    assert 0.3 < expected[0, 1] < 1


def test_what_perturbs_the_input_is_not_to_be_predicted() -> None:
    trained, added = made(4, input_perturbation=0.2)
    more = draws.normal(SHAPE, hash_rng.extend(seeds(4), Purpose.INPUT_PERTURBATION), CPU)
    assert torch.equal(trained, made(4)[0])
    assert torch.equal(added, trained + 0.2 * more)
