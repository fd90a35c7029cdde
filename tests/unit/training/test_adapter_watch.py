"""Layers of an adapter that learn nothing are told by name, once; those of a healthy training never."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from reelworks.data.distributed.mesh import World
from reelworks.models.api import Denoiser
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.testing import contract
from reelworks.training.observers.step_reports import IdleLayerReports
from reelworks.training.step.adapter_watch import LAST_STEPS, STEPS, AdapterWatch, IdleLayers, _Sums

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
@pytest.mark.quick_cases(1)
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
    assert (idle.problem, set(idle.layers)) == ("zero", set(trained_layers(denoiser)))
    assert "all layers: their update is still zero after 20 steps" in str(idle)
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
    assert (idle.problem, idle.layers, idle.is_note) == ("no gradient", (dead,), False)
    assert f"1 of {len(trained_layers(denoiser))} layers ({dead})" in str(idle)


def test_a_layer_that_dies_later_is_told_for_what_it_lacks_now() -> None:
    """Its gradients before the last comparison are no sign of life."""
    denoiser = adapted()
    watch, (dead, *_) = watching(denoiser), trained_layers(denoiser)
    for left_out in (None, dead):
        for _ in range(STEPS):
            for name, parameter in denoiser.module.named_parameters():
                lives = parameter.requires_grad and not (left_out and name.startswith(f"{left_out}."))
                parameter.grad = torch.ones_like(parameter) if lives else None
                parameter.data -= 1e-3 if lives else 0.0
            watch.note(1e-3)
        idle = watch.find_idle()
        assert bool(idle) == bool(left_out)
    (idle,) = idle
    assert (idle.problem, idle.layers) == ("no gradient", (dead,))


def test_layers_that_a_network_may_leave_out_are_a_note_unless_nothing_learns() -> None:
    """Layers of sound without sound, beside those that learn: they harm nothing."""
    for some in (True, False):
        denoiser = adapted()
        layers = trained_layers(denoiser)
        dead = [*layers][:2] if some else [*layers]
        for name in dead:
            layers[name].scaling = dict.fromkeys(layers[name].scaling, 0.0)
        watch = watching(denoiser, always_used={*layers} - {*dead})
        train(denoiser, watch, STEPS)
        (idle,) = watch.find_idle()
        assert (idle.problem, list(idle.layers), idle.is_note) == ("unused", dead, some)
        assert "leave them out with lora.targets" in str(idle)


def test_gradients_of_a_whole_layer_that_are_not_finite_are_told_at_once() -> None:
    denoiser = adapted()
    bad, layer = list(trained_layers(denoiser).items())[2]
    watch = watching(denoiser)
    for parameter in denoiser.module.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    layer.lora_A["default"].weight.grad[0] = math.nan
    assert watch.find_not_finite() == []  # a part of the layer is finite
    layer.lora_B["default"].weight.grad[0] = math.inf
    (idle,) = watch.find_not_finite()
    assert (idle.problem, idle.layers, idle.is_note) == ("not finite", (bad,), False)
    assert "every gradient in them is infinite or NaN" in str(idle)
    assert watch.find_not_finite() == []


def test_what_earlier_starts_have_told_is_not_told_again() -> None:
    denoiser = adapted()
    first, *others = trained_layers(denoiser)
    watch = watching(denoiser, told={(first, "unchanged")})
    train(denoiser, watch, STEPS, rate=1e-12)
    assert [list(idle.layers) for idle in watch.find_idle()] == [others]


def test_layers_without_a_gradient_tensor_are_counted_beside_the_others() -> None:
    denoiser = adapted()
    unreached, layer = list(trained_layers(denoiser).items())[1]
    weights = [p for p in denoiser.module.parameters() if p.requires_grad]
    watch = watching(denoiser)
    for _ in range(STEPS):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        for parameter in layer.parameters():
            parameter.grad = None
        watch.note(1e-3)
        with torch.no_grad():
            torch._foreach_add_(weights, 1e-3)
    (idle,) = watch.find_idle()
    assert (idle.problem, idle.layers) == ("no gradient", (unreached,))


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


@pytest.mark.parametrize(
    ("problem", "is_main", "level"), [("zero", True, "WARNING"), ("unused", True, "INFO"), ("zero", False, "")]
)
def test_idle_layers_of_a_step_and_of_a_save_are_events_and_told_once(
    caplog: pytest.LogCaptureFixture, problem: Any, is_main: bool, level: str
) -> None:
    """As a warning, or as a note if they may be meant so; by the first rank."""
    written: list[dict[str, Any]] = []
    log = SimpleNamespace(event=lambda kind, **values: written.append({"kind": kind, **values}))
    found = [IdleLayers(problem, (name,), 4, STEPS, 1e-3) for name in ("a", "b")]
    watch: Any = SimpleNamespace(is_first_due=False, find_idle=lambda is_end: found[1:])
    training: Any = SimpleNamespace(log=log, world=SimpleNamespace(is_main=is_main))
    reports = IdleLayerReports(training, watch)
    step: Any = SimpleNamespace(number=3, result=SimpleNamespace(idle=found[:1]))
    with caplog.at_level("INFO"):
        reports.after_step(step)
        for is_saved in (False, True):
            now: Any = SimpleNamespace(step=5, is_saved=is_saved, is_over=lambda: False)
            reports.after_save(now)
    assert [(one["kind"], one["step"], one["layers"]) for one in written] == [
        ("idle_layers", 3, ("a",)), ("idle_layers", 5, ("b",)),
    ]  # fmt: skip
    told = [(level, f"step {number}: {idle}") for number, idle in zip((3, 5), found, strict=True)]
    assert [(one.levelname, one.message) for one in caplog.records] == told * is_main


def test_weights_that_stand_still_are_told_with_the_rate() -> None:
    watch = watching(denoiser := adapted())
    train(denoiser, watch, STEPS)
    assert watch.find_idle() == []
    train(denoiser, watch, STEPS, rate=1e-12)
    (idle,) = watch.find_idle()
    assert (idle.problem, set(idle.layers)) == ("unchanged", set(trained_layers(denoiser)))
    assert "train.learning_rate is too low" in str(idle)
    assert "1e-12" in str(idle)


@pytest.mark.slow
def test_a_warm_up_from_zero_and_a_short_training_wait() -> None:
    watch = watching(denoiser := adapted())
    train(denoiser, watch, 3 * STEPS, rate=0.0)
    assert watch.find_idle() == []
    train(denoiser, watch, LAST_STEPS - 1, rate=1e-12)
    assert watch.find_idle(is_end=True) == []
    train(denoiser, watch, 1, rate=1e-12)
    assert [idle.problem for idle in watch.find_idle(is_end=True)] == ["unchanged"]


def test_steps_at_a_rate_of_zero_teach_nothing_and_are_none() -> None:
    watch = watching(adapted())
    for _ in range(3 * STEPS):
        watch.note(0.0)
    assert watch.find_idle() == []


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


@pytest.mark.parametrize(("factors", "problem"), [(1, "no gradient"), (2, "zero")])
def test_a_single_tensor_of_zeros_is_idle_for_want_of_a_gradient(factors: int, problem: str) -> None:
    """As each of several is for the others' zeros."""
    none = _Sums(0.0, 0.0, 0.0)
    assert AdapterWatch._problem([(none, none, True)] * factors) == problem
