"""An average that is chosen after training is the one that a training would have kept (arXiv 2312.02696)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lora_files import header_of, updates_of
from refused import refused
from safetensors.torch import load_file
from torch import Tensor

from reelworks.annexes.lora import average, power_average
from reelworks.annexes.lora.request import AverageRunRequest
from reelworks.data.checkpoint import names
from reelworks.data.checkpoint import save as commit
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run.events import EventLog
from reelworks.data.run.folder import RunFolder
from reelworks.data.schedule.cursor import Cursor
from reelworks.models.adapters.key_mapping import METADATA

STEPS, DECAY = 300, 0.97
CURSOR = [each.name for each in fields(Cursor)]
FULL = f'[model]\nname = "wan-tiny"\n[train]\nema_decay = {DECAY}\n'
LORA = FULL + "[lora]\nrank = 2\nalpha = 3.0\n"


def decays(step: int) -> float:
    """The decay of the trainer's own average, `TrainState.update_ema`."""
    return min(DECAY, (1 + step) / (10 + step))


def trajectory(*shape: int, seed: int) -> list[Tensor]:
    """Weights before the first step and after each: a smooth way with noise."""
    generator = torch.Generator().manual_seed(seed)
    way, value = [torch.zeros(shape)], torch.zeros(shape)
    goal = torch.randn(shape, generator=generator)
    for _ in range(STEPS):
        value = value + 0.02 * (goal - value) + 0.05 * torch.randn(shape, generator=generator)
        way.append(value)
    return way


def wanted_shares(sigma_rel: float, last: int = STEPS) -> np.ndarray:
    """The shares of steps 0 to `last` in the wanted average: those of the recursion with the decay (1 - 1/t)^(γ + 1)."""
    gamma, shares = power_average.gamma_of(sigma_rel), np.zeros(last + 1)
    for step in range(1, last + 1):
        beta = (1 - 1 / step) ** (gamma + 1)
        shares *= beta
        shares[step] += 1 - beta
    return shares


def stored_shares(step: int, last: int = STEPS) -> np.ndarray:
    """The shares of steps 0 to `last` in the average that training stored after `step` steps."""
    shares = np.zeros(last + 1)
    shares[0] = 1
    for done in range(step):
        shares *= decays(done)
        shares[done + 1] += 1 - decays(done)
    return shares


def mixed(way: Sequence[Tensor], shares: np.ndarray) -> Tensor:
    """The average of a trajectory with given shares, in float64."""
    return sum(float(share) * value.double() for share, value in zip(shares, way, strict=True))  # type: ignore[return-value]


def run_of(
    folder: Path, ways: dict[str, list[Tensor]], steps: Sequence[int], recipe: str, *, has_ema: bool = True
) -> RunFolder:
    """A run whose checkpoints hold the trajectories and the averages that training keeps of them."""
    run = RunFolder(folder)
    run.create()
    run.keep_recipe(recipe)
    store = CheckpointFolder(run.checkpoints_folder)
    for step in steps:
        state = {"model": {name: way[step] for name, way in ways.items()}}
        if has_ema:
            state["ema"] = {name: mixed(way, stored_shares(step, len(way) - 1)).float() for name, way in ways.items()}
        commit.save(store, step, state)
    return run


def log_segments(run: RunFolder, *segments: tuple[float, Sequence[int]]) -> None:
    """Log that each segment went on where the one before it ended, and trained its steps with its own `ema_decay`."""
    log, last = EventLog(run.events_file), 0
    for decay, steps in segments:
        kept = run.keep_recipe(FULL.replace(str(DECAY), str(decay)))
        log.write("start", step=last, recipe=kept, resumed_from=last or None)
        for step in steps:
            log.write("step", step=step)
        last = steps[-1]


@pytest.mark.parametrize("sigma_rel", [0.02, 0.05, 0.1, 0.2, 0.28])
def test_the_power_of_a_width_is_that_of_the_paper(sigma_rel: float) -> None:
    """The deviation of the shares is the width; γ of 6.94 and 16.97 are the paper's own examples, for 0.10 and 0.05."""
    gamma = power_average.gamma_of(sigma_rel)
    assert math.isclose((gamma + 1) ** 0.5 / (gamma + 2) / (gamma + 3) ** 0.5, sigma_rel)
    shares = wanted_shares(sigma_rel, 5000)
    steps = np.arange(5001) / 5000
    mean = shares @ steps
    assert math.isclose(shares.sum(), 1)
    assert math.isclose(math.sqrt(shares @ (steps - mean) ** 2), sigma_rel, rel_tol=0.01)
    known = {0.1: 6.94, 0.05: 16.97}
    assert round(gamma, 2) == known.get(sigma_rel, round(gamma, 2))


@pytest.mark.parametrize("sigma_rel", [0.05, 0.2])
def test_snapshots_of_all_steps_give_the_average_exactly(tmp_path: Path, sigma_rel: float) -> None:
    """Which is the moving average that a training with this decay would have kept."""
    combined = power_average.of_snapshots(range(1, STEPS + 1), sigma_rel)
    assert np.allclose(combined.weights, wanted_shares(sigma_rel)[1:], atol=1e-12)


def test_snapshots_stand_for_the_steps_before_them(tmp_path: Path) -> None:
    """In a file of full weights that is their weighted sum."""
    steps, ways = [100, 150, 300], {"a.weight": trajectory(4, 3, seed=0), "b.bias": trajectory(4, seed=1)}
    run, target = run_of(tmp_path / "run", ways, steps, FULL, has_ema=False), tmp_path / "a.safetensors"
    found = average.average(AverageRunRequest(run=run.path, output=target, sigma_rel=0.1, dtype="float32"))
    shares = wanted_shares(0.1)
    weights = [shares[:101].sum(), shares[101:151].sum(), shares[151:].sum()]
    assert found.averaged == "model"
    assert np.allclose([each.weight for each in found.checkpoints], weights, atol=1e-9)
    for name, value in load_file(target).items():
        wanted = sum(weight * ways[name][step].double() for weight, step in zip(weights, steps, strict=True))
        torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-6)
    assert found.result.relative_error is not None
    assert found.result.relative_error < 1e-7
    assert header_of(target)["ema_sigma_rel"] == "0.1"
    assert header_of(target)["step"] == "300"


@pytest.mark.parametrize(("sigma_rel", "near"), [(0.1, 0.04), (0.05, 0.4), (0.2, 0.23)])
def test_stored_averages_are_combined_to_the_nearest_profile(tmp_path: Path, sigma_rel: float, near: float) -> None:
    """The file is the average of the trajectory with the combined shares, and no other combination is nearer."""
    steps, ways = range(30, STEPS + 1, 30), {"a.weight": trajectory(4, 3, seed=0)}
    run, target = run_of(tmp_path / "run", ways, steps, FULL), tmp_path / "a.safetensors"
    found = average.average(AverageRunRequest(run=run.path, output=target, sigma_rel=sigma_rel, dtype="float32"))
    weights = np.array([each.weight for each in found.checkpoints])
    stored = np.array([stored_shares(step) for step in steps])
    wanted, shares = wanted_shares(sigma_rel), weights @ stored
    assert (found.averaged, [each.step for each in found.checkpoints]) == ("ema", [*steps])
    assert math.isclose(weights.sum(), 1, rel_tol=1e-9)
    distance = float(np.linalg.norm(shares - wanted) / np.linalg.norm(wanted))
    assert found.profile_error is not None
    assert math.isclose(found.profile_error, distance, rel_tol=1e-6)
    assert distance < near
    for i in range(len(weights) - 1):  # along each direction that keeps the sum
        step = np.zeros(len(weights))
        step[i], step[i + 1] = 1e-3, -1e-3
        for other in (weights + step, weights - step):
            assert np.linalg.norm(other @ stored - wanted) >= np.linalg.norm(shares - wanted) * (1 - 1e-9)
    (layer,) = found.result.layers
    value = load_file(target)["a.weight"].double()
    assert layer.layer == "a.weight"
    assert layer.norm == pytest.approx(float(value.norm()))
    torch.testing.assert_close(value, mixed(ways["a.weight"], shares), rtol=1e-4, atol=1e-5)
    dense = mixed(ways["a.weight"], wanted)
    assert float((value - dense).norm() / dense.norm()) < near
    # Nearer than any average that training has kept.
    assert float((value - dense).norm()) < min(float((mixed(ways["a.weight"], each) - dense).norm()) for each in stored)


def test_stored_averages_have_the_profile_of_the_decay_that_each_step_had(tmp_path: Path) -> None:
    """Of a run whose `ema_decay` was changed when it was resumed, the new one counts from the next step on."""
    steps, changed, name = [20, 40, 60], 20, "a.weight"
    run = RunFolder(tmp_path / "run")
    run.create()
    store = CheckpointFolder(run.checkpoints_folder)
    log_segments(run, (0.9, [20]), (0.3, [40, 60]))
    for step in steps:
        commit.save(store, step, {part: {name: torch.full((2,), float(step))} for part in ("model", "ema")})
    found = average.average(AverageRunRequest(run=run.path, output=tmp_path / "a.safetensors", sigma_rel=0.1))
    expected = power_average.of_averages(steps, 0.1, lambda step: 0.9 if step < changed else 0.3)
    assert [each.weight for each in found.checkpoints] == expected.weights
    assert found.profile_error == expected.profile_error


def test_a_lora_is_averaged_as_training_averages_it(tmp_path: Path) -> None:
    """Tensor by tensor; how far its update is from the average of the updates is told by layer."""
    layer = "blocks.0.attn1.to_q"
    ways = {
        f"{layer}.lora_A.default.weight": trajectory(2, 6, seed=0),
        f"{layer}.lora_B.default.weight": trajectory(5, 2, seed=1),
    }
    steps = [200, 250, 300]
    run, target = run_of(tmp_path / "run", ways, steps, LORA), tmp_path / "a.safetensors"
    asked: dict[str, Any] = {"run": run.path, "output": target, "dtype": "float32"}
    found = average.average(AverageRunRequest(**asked, of="model"))
    A, B = (sum(each.weight * way[each.step].double() for each in found.checkpoints) for way in ways.values())
    update = updates_of(target)[f"transformer.{layer}"]
    torch.testing.assert_close(update, 1.5 * B @ A, rtol=1e-5, atol=1e-6)
    a, b = ways.values()
    exact = sum(each.weight * 1.5 * b[each.step].double() @ a[each.step].double() for each in found.checkpoints)
    (told,) = found.result.layers
    assert (told.layer, told.rank) == (layer, 2)
    assert told.norm is not None
    assert told.relative_error is not None
    assert math.isclose(told.norm, float(exact.norm()), rel_tol=1e-4)
    assert math.isclose(told.relative_error, float((update - exact).norm() / exact.norm()), rel_tol=1e-3)
    assert json.loads(header_of(target)[METADATA])["transformer.r"] == 2
    average.average(AverageRunRequest(**asked, format="kohya", overwrite=True))
    assert {key.rpartition(".")[0] for key in load_file(target)} >= {"lora_unet_blocks_0_self_attn_q"}


def test_averages_that_a_stage_began_anew_are_combined_since_then(tmp_path: Path) -> None:
    """As in a run that begins where the stage does, whose decay alone counts; the trained weights are those of one way."""
    border, name = 100, "a.weight"
    way = trajectory(4, 3, seed=0)
    run = RunFolder(tmp_path / "run")
    run.create()
    log_segments(run, (0.5, [50, border]), (DECAY, [120, 200, 300]))
    store = CheckpointFolder(run.checkpoints_folder)

    def save(step: int, began: int) -> None:
        since = way[began : step + 1]
        stored = mixed(since, stored_shares(step - began, step - began)).float()
        cursor = {**dict.fromkeys(CURSOR, 0), **dict.fromkeys(("catalog", "spec", "plan", "next_step"), "")}
        cursor |= {"stage_name": "late" if began else "early", "stage_average_step": began}
        details: Any = {"extra": {names.CURSOR: json.dumps(cursor).encode()}}
        commit.save(store, step, {"model": {name: way[step]}, "ema": {name: stored}}, **details)

    for step in (50, border):
        save(step, 0)
    save(120, border)
    asked: dict[str, Any] = {"run": run.path, "output": tmp_path / "a.safetensors", "dtype": "float32"}
    with refused("checkpoints-too-few", "run", says="a stage began a new average after step 100"):
        average.average(AverageRunRequest(**asked))
    for step in (200, 300):
        save(step, border)
    found = average.average(AverageRunRequest(**asked))
    assert [each.step for each in found.checkpoints] == [120, 200, 300]
    assert found.result.notes[0] == "left out: steps 50, 100, since a stage began a new average after step 100"
    alone = run_of(tmp_path / "alone", {name: way[border:]}, [20, 100, 200], FULL)
    expected = average.average(AverageRunRequest(**asked | {"run": alone.path, "output": tmp_path / "b.safetensors"}))
    assert [each.weight for each in found.checkpoints] == [each.weight for each in expected.checkpoints]
    for one, other in zip(*(load_file(tmp_path / f"{file}.safetensors").values() for file in "ab"), strict=True):
        torch.testing.assert_close(one, other)
    of_all = average.average(AverageRunRequest(**asked, of="model", overwrite=True))
    assert [each.step for each in of_all.checkpoints] == [50, 100, 120, 200, 300]
    until = average.average(AverageRunRequest(**asked, until=border, overwrite=True))
    assert [each.step for each in until.checkpoints] == [50, 100]


def test_what_a_run_lacks_is_told(tmp_path: Path) -> None:
    """Checkpoints that are damaged, too few or of an unknown average; profiles that are out of reach."""
    ways = {"a.weight": trajectory(4, 3, seed=0)}
    run, target = run_of(tmp_path / "run", ways, [100, 290, 300], FULL), tmp_path / "a.safetensors"
    asked: dict[str, Any] = {"run": run.path, "output": target, "dtype": "float32"}
    notes = average.average(AverageRunRequest(**asked, sigma_rel=0.28)).result.notes
    assert [note[:33] for note in notes] == ["the stored averages come only wit"]
    with refused("output-file-invalid", "output", says="exists already"):
        average.average(AverageRunRequest(**asked))
    target.unlink()
    with refused("checkpoints-too-few", "run", says="the run has 1 up to step 100, of 3 in all"):
        average.average(AverageRunRequest(**asked, until=100))
    (next((run.checkpoints_folder / "step-000000290").glob("tensors/*"))).write_bytes(b"")
    found = average.average(AverageRunRequest(**asked, of="model", sigma_rel=0.28))
    assert [each.step for each in found.checkpoints] == [100, 300]
    assert "step 290, which is damaged" in found.result.notes[0]
    assert "stands for 28% of the profile" in found.result.notes[1]
    run.keep_recipe(FULL.replace(str(DECAY), '"none"'))
    with refused("averages-unknown", "of"):
        average.average(AverageRunRequest(**asked, of="ema", overwrite=True))
    with refused("lora-format-without-lora", "format"):
        average.average(AverageRunRequest(**asked, format="kohya", overwrite=True))
    with refused("no-run", "run"):
        average.average(AverageRunRequest(**asked | {"run": tmp_path}, overwrite=True))
