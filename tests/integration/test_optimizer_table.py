"""Each cell of docs/reference/optimizers.md: an optimizer takes steps in a layout and a precision, or is refused."""

from __future__ import annotations

from typing import Any

import children
import pytest

from reelworks.core.errors import UserError
from reelworks.data.distributed.layout import Layout
from reelworks.training.step import optimizer_names
from reelworks.training.step.optimizer_names import OPTIMIZERS

RATES = {"prodigy": 1.0, "came": 1e-4}
LAYOUTS = {"replicated": Layout(4, 1), "fsdp": Layout(1, 4), "hsdp": Layout(2, 2)}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_cell_trains_or_is_refused(tiny, name):
    recipe = tiny()
    assert children.on_ranks(_cells_of, recipe, name, world=4) == [0] * 4, children.output(recipe)
    told = [line for line in children.output(recipe).splitlines() if line.startswith("cell ")]
    assert len(told) == 2 * len(LAYOUTS)
    for line in told:
        _, strategy, _, outcome = line.split()
        assert outcome == ("refused" if OPTIMIZERS[name].whole and strategy != "replicated" else "trained")


def _cells_of(recipe: dict[str, Any], name: str) -> None:
    import torch

    from reelworks.data.distributed import mesh

    with mesh.join() as world:
        for strategy, layout in LAYOUTS.items():
            for compute in (torch.float32, torch.bfloat16):
                try:
                    optimizer_names.require(name, layout)
                    outcome = _steps(name, layout, compute, world)
                except UserError as error:
                    outcome = "refused" if error.code == "optimizer-not-shardable" else f"{error}"
                if world.is_main:
                    print(f"cell {strategy} {compute} {outcome}", flush=True)
        world.wait()


def _steps(name: str, layout: Layout, compute: Any, world: Any) -> str:
    """Take three steps on one batch; each rank has its own, so that gradients are summed over all."""
    import torch

    from reelworks.data.distributed import mesh
    from reelworks.models.api import DenoiserInputs
    from reelworks.models.precision.boundary import DtypeBoundary
    from reelworks.testing import contract
    from reelworks.training.loop.config import TrainConfig
    from reelworks.training.step.state import TrainState

    denoiser = contract.build("stdit3-tiny", compute=compute)
    mesh.shard(denoiser.module, denoiser.sharding().units, denoiser.contract, world, layout)
    keys = {"max_steps": 9, "optimizer": name, "learning_rate": RATES.get(name, 1e-3)}
    state = TrainState.start(denoiser, TrainConfig.model_validate(keys))
    inputs: DenoiserInputs = contract.example(contract.shapes("stdit3-tiny")[0], "stdit3-tiny", batch=1)
    losses = []
    for step in range(3):
        loss = (DtypeBoundary(denoiser)(inputs) - 0.5).square().mean()
        torch.autograd.backward(loss)
        assert state.optimizer.tensors()
        state.optimizer.step()
        state.update_ema(step, None if name == "schedulefree" else 0.9)
        state.optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert state.not_finite() == []
    assert losses[2] < losses[0], losses
    return "trained"
