"""Layers of an adapter that learn nothing are told by name, once; those of a healthy training never."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reelworks.distributed.mesh import World
from reelworks.models.api import Denoiser
from reelworks.precision.boundary import DtypeBoundary
from reelworks.testing import contract
from reelworks.train.step.adapter_watch import LAST_STEPS, STEPS, AdapterWatch, IdleLayers

WORLD = World(0, 1, torch.device("cpu"))


def trained_layers(denoiser: Denoiser) -> dict[str, Any]:
    """Return the layers with an adapter, by name."""
    return {name: child for name, child in denoiser.module.named_modules() if hasattr(child, "scaling")}


def adapted(name: str = "wan-tiny", type: str = "lora", **more: Any) -> Denoiser:
    return contract.with_lora(name, "bfloat16", torch.bfloat16, type=type, **more)


def train(denoiser: Denoiser, watch: AdapterWatch, steps: int, rate: float = 1e-3) -> None:
    name = "wan-tiny" if "Wan" in type(denoiser.module).__name__ else "stdit3-tiny"
    inputs = contract.example(contract.shapes(name)[-1], name)
    weights = [p for p in denoiser.module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.0)
    for _ in range(steps):
        torch.autograd.backward(DtypeBoundary(denoiser)(inputs).square().mean())
        watch.note(rate)
        optimizer.step()
        optimizer.zero_grad()


def watching(denoiser: Denoiser, **more: Any) -> AdapterWatch:
    return AdapterWatch({n: p for n, p in denoiser.module.named_parameters() if p.requires_grad}, WORLD, **more)


@pytest.mark.parametrize("kind", ["lora", "lokr", "loha", "oft"])
def test_a_healthy_adapter_is_not_told(kind: str) -> None:
    watch = watching(denoiser := adapted(type=kind))
    for _ in range(2):
        train(denoiser, watch, STEPS)
        assert watch.find_idle() == []


def test_matrices_of_zeros_are_told_with_all_their_layers_once() -> None:
    denoiser = adapted()
    with torch.no_grad():
        for parameter in denoiser.module.parameters():
            parameter.zero_() if parameter.requires_grad else None
    watch = watching(denoiser)
    train(denoiser, watch, STEPS)
    (idle,) = watch.find_idle()
    assert (idle.problem, set(idle.layers)) == ("no gradient", set(trained_layers(denoiser)))
    assert "all layers: no gradient has reached them in 20 steps" in str(idle)
    train(denoiser, watch, STEPS)
    assert watch.find_idle() == []


def test_a_dead_layer_is_told_by_its_name_also_if_its_weights_decay() -> None:
    denoiser = adapted()
    dead, layer = list(trained_layers(denoiser).items())[3]
    layer.scaling = dict.fromkeys(layer.scaling, 0.0)
    watch = watching(denoiser)
    train(denoiser, watch, STEPS)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(0.9) if parameter.requires_grad else None
    (idle,) = watch.find_idle()
    assert (idle.problem, idle.layers) == ("no gradient", (dead,))
    assert f"1 of {len(trained_layers(denoiser))} layers ({dead})" in str(idle)


def test_an_update_that_stays_zero_is_told() -> None:
    denoiser = adapted()
    held, layer = next(iter(trained_layers(denoiser).items()))
    watch = watching(denoiser)
    for _ in range(STEPS):
        train(denoiser, watch, 1)
        with torch.no_grad():
            layer.lora_B["default"].weight.zero_()
    (idle,) = watch.find_idle()
    assert (idle.problem, idle.layers) == ("zero", (held,))


def test_weights_that_stand_still_are_told_with_the_rate() -> None:
    watch = watching(denoiser := adapted())
    train(denoiser, watch, STEPS)
    assert watch.find_idle() == []
    train(denoiser, watch, STEPS, rate=1e-12)
    (idle,) = watch.find_idle()
    assert (idle.problem, set(idle.layers)) == ("unchanged", set(trained_layers(denoiser)))
    assert "train.learning_rate is too low" in str(idle)
    assert "1e-12" in str(idle)


def test_a_warm_up_from_zero_and_a_short_training_wait() -> None:
    watch = watching(denoiser := adapted())
    train(denoiser, watch, 3 * STEPS, rate=0.0)
    assert watch.find_idle() == []
    train(denoiser, watch, LAST_STEPS - 1, rate=1e-12)
    assert watch.find_idle(is_end=True) == []
    train(denoiser, watch, 1, rate=1e-12)
    assert [idle.problem for idle in watch.find_idle(is_end=True)] == ["unchanged"]


def test_experts_have_more_steps_as_one_of_them_may_not_be_drawn() -> None:
    watch = watching(denoiser := adapted(), experts=2)
    train(denoiser, watch, STEPS, rate=1e-12)
    assert not watch.is_first_due
    assert watch.find_idle() == []


def test_a_full_training_is_not_watched() -> None:
    watch = watching(denoiser := contract.build("stdit3-tiny"))
    train(denoiser, watch, STEPS)
    assert not watch.is_first_due
    assert watch.find_idle() == []


def test_gradients_too_small_to_square_are_gradients() -> None:
    watch = watching(denoiser := adapted())
    for parameter in denoiser.module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 1e-30)
    for _ in range(STEPS):
        watch.note(1e-3)
    found: list[IdleLayers] = watch.find_idle()
    assert [idle.problem for idle in found] == ["unchanged"]
