"""What checkpoints promise holds whatever the optimizer, and what it cannot do is refused before anything is done."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import children
import killing
import pytest
import torch

from reelworks.core import digests
from reelworks.data.checkpoint import load
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.distributed import mesh
from reelworks.data.distributed.layout import Layout
from reelworks.data.distributed.mesh import local
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.assembly import build
from reelworks.training.loop.config import TrainConfig
from reelworks.training.recipe import recipe_file
from reelworks.training.step.optimizer_names import OPTIMIZERS
from reelworks.training.step.progress import learning_rate
from reelworks.training.step.state import TrainState

OTHERS = sorted(set(OPTIMIZERS) - {"adamw"})
ON_SHARDS = sorted(name for name, one in OPTIMIZERS.items() if not one.whole)
FALLING = {"learning_rate_schedule": "cosine", "final_learning_rate": 1e-5}


@pytest.fixture
def bare(tiny):
    """As `tiny`, where only the optimizer matters: with matrices large enough for 8 bits, and nothing to validate."""

    def make(output: str, optimizer: str, steps: int, **train: Any) -> dict[str, Any]:
        recipe: dict[str, Any] = tiny(
            output,
            buckets={"aspect_ratios": ["1:1"]},
            validation={"split": 0.0},
            model={"hidden_size": 48},
            parallel={"strategy": "replicated"},
            checkpoints={"every_steps": 1},
        )
        recipe["train"] = {"max_steps": steps, "optimizer": optimizer, "threads": 1, **train}
        return recipe

    return make


def tensors_at(run: Path, step: int) -> dict[str, Any]:
    recipe = recipe_file.load(run / "recipe.toml")
    state = TrainState.start(build.denoiser(recipe, torch.device("cpu")), recipe.train)
    tensors = state.state_dict()
    load.load(CheckpointFolder(run / "checkpoints").path(step), tensors)
    return tensors


def digest(tensors: dict[str, Any]) -> dict[str, str]:
    """Of all that a checkpoint holds, plain numbers of the optimizer too."""
    parts = {"model": tensors["model"], "ema": tensors["ema"], **tensors["optimizer"]["state"]}
    parts["found"] = tensors["optimizer"].get("found", {})
    return {
        name: digests.digest_arrays(**{k: torch.as_tensor(v).numpy() for k, v in values.items()})
        for name, values in parts.items()
    }


def told(run: Path, field: str) -> list[float]:
    return [event[field] for event in events.timeline(RunFolder(run).events_file, "step")]


@pytest.mark.parametrize(
    "name",
    [
        "prodigy",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("adamw8bit", "muon", "adafactor", "came", "schedulefree")
        ),
    ],
)
@pytest.mark.slow
def test_a_killed_run_ends_as_the_uninterrupted_one(bare, tmp_path, name):
    """To the last bit, with a rate that falls where the optimizer allows it."""
    falling = {} if name == "schedulefree" else FALLING
    assert children.train(bare("calm", name, 3, **falling)) == [0]
    recipe = bare("killed", name, 3, **falling)
    assert children.train(recipe, fault=("after the optimizer stepped", 2)) == [killing.SELF_KILLED]
    assert children.train(recipe) == [0]
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    assert told(killed, "loss") == told(calm, "loss")
    assert told(killed, "learning_rate") == told(calm, "learning_rate")
    assert len(set(told(calm, "learning_rate"))) == (3 if falling else 1)
    assert digest(tensors_at(killed, 3)) == digest(tensors_at(calm, 3))


@pytest.mark.slow
def test_one_process_goes_on_from_two_with_copies(bare, tmp_path):
    """What the optimizer found of all weights together comes along."""
    division = {"micro_batches_per_step": 2, "same_bucket_run": 1}
    assert children.train(bare("one", "prodigy", 2, **division)) == [0]
    assert children.train(bare("two", "prodigy", 1, **division), world=2) == [0] * 2
    assert children.train(bare("two", "prodigy", 2, **division)) == [0]
    one, two = (tensors_at(tmp_path / output, 2)["optimizer"] for output in ("one", "two"))
    assert one["found"] == pytest.approx(two["found"], rel=1e-3)
    assert told(tmp_path / "two", "loss") == pytest.approx(told(tmp_path / "one", "loss"), rel=1e-4)
    for name, values in one["state"].items():
        assert values.keys() == two["state"][name].keys()
        torch.testing.assert_close(two["state"][name]["s"], values["s"], rtol=1e-2, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw8bit", "muon", "schedulefree"])
def test_a_state_in_shards_goes_on_in_one_process_and_back(bare, tmp_path, name):
    """Two ranks with shards, one process, two again: as one process all the way."""
    division = {"micro_batches_per_step": 2, "same_bucket_run": 1, "learning_rate": 1e-4}
    model = {"model": {"name": "stdit3-tiny", "hidden_size": 64, "depth": 1, "num_heads": 2}}
    shards = {"parallel": {"strategy": "fsdp"}} | model
    assert children.train(bare("one", name, 3, **division) | model) == [0]
    for steps, world in ((1, 2), (2, 1), (3, 2)):
        recipe = bare("many", name, steps, **division) | shards
        assert children.train(recipe, world=world) == [0] * world, children.output(recipe)
    many, one = tmp_path / "many", tmp_path / "one"
    assert told(many, "loss") == pytest.approx(told(one, "loss"), rel=1e-4)
    assert len(told(one, "loss")) == 3
    assert told(many, "grad_norm") == pytest.approx(told(one, "grad_norm"), rel=1e-3)
    # Of biases without influence the gradient is noise, whose sign AdamW follows; matrices tell of the state.
    wanted, found = (tensors_at(run, 3)["optimizer"]["state"] for run in (one, many))
    assert found.keys() == wanted.keys()
    assert all(found[path].keys() == values.keys() for path, values in wanted.items())


@pytest.mark.parametrize(("world", "offload"), [pytest.param(2, False, marks=pytest.mark.slow), (1, True)])
@pytest.mark.slow
def test_copies_that_fsdp_manages_are_updated_as_plain_weights_are(bare, world, offload):
    """To the last bit, where gradients are equal; by every optimizer that shards are refused for."""
    recipe = bare("run", "adamw", 1) | {"parallel": {"strategy": "replicated", "offload": offload}}
    assert children.on_ranks(_compare_with_copies, recipe, world=world) == [0] * world, children.output(recipe)


def _compare_with_copies(recipe: dict[str, Any]) -> None:
    parsed = recipe_file.parse(recipe)
    with mesh.join(offload=parsed.parallel.offload) as world:
        for name in OTHERS:
            keys = {"max_steps": 9, "optimizer": name, "weight_decay": 0.01}
            alone, copied = (build.denoiser(parsed, torch.device("cpu")) for _ in range(2))
            mesh.shard(
                copied.module,
                copied.sharding().units,
                copied.contract,
                world,
                Layout.from_strategy("replicated", world.size),
            )
            states = [TrainState.start(one, TrainConfig.model_validate(keys)) for one in (alone, copied)]
            before = [p.detach().clone() for p in alone.module.parameters()]
            for step in range(3):
                for state in states:
                    torch.manual_seed(step)
                    for parameter in state.module.parameters():
                        held = torch.empty_like(parameter)
                        local(held).normal_()
                        parameter.grad = held
                    state.optimizer.step()
                    state.optimizer.zero_grad()
            here, there = (dict(state.module.named_parameters()) for state in states)
            for path, parameter in here.items():
                assert torch.equal(parameter, local(there[path])), f"{name}: {path}"
            changed = [not torch.equal(p, q) for p, q in zip(before, here.values(), strict=True)]
            assert all(changed), name
            assert states[1].optimizer.state_dict().keys() == states[0].optimizer.state_dict().keys()
        world.wait()  # rank 0 keeps the address book of the others


@pytest.mark.slow  # half a minute; the copies above compare the same optimizers, and test_worlds trains in shards
@pytest.mark.parametrize(("strategy", "world"), [("fsdp", 2), ("hsdp", 4)])
def test_shards_are_updated_as_whole_weights_are(bare, strategy, world):
    """By every optimizer that works on shards, its own average too; also rows that ranks cannot share evenly."""
    recipe = bare("run", "adamw", 1)
    assert children.on_ranks(_compare_with_shards, recipe, strategy, world=world) == [0] * world, children.output(
        recipe
    )


def _compare_with_shards(recipe: dict[str, Any], strategy: str) -> None:
    from torch.distributed.tensor import distribute_tensor

    with mesh.join() as world:
        for name in ON_SHARDS:
            # Blocks of 8 bits are shared if rows are of whole ones.
            width = 64 if name == "adamw8bit" else 40
            recipe["model"] = {"name": "stdit3-tiny", "hidden_size": width, "depth": 1, "num_heads": 2}
            parsed = recipe_file.parse(recipe)
            keys = {"max_steps": 9, "optimizer": name, "weight_decay": 0.01, "learning_rate": 1e-2}
            alone, shared = (build.denoiser(parsed, torch.device("cpu")) for _ in range(2))
            layout = Layout.from_strategy(strategy, world.size, 2)
            mesh.shard(shared.module, shared.sharding().units, shared.contract, world, layout)
            states = [TrainState.start(one, TrainConfig.model_validate(keys)) for one in (alone, shared)]
            before = [p.detach().clone() for p in alone.module.parameters()]
            lowered = [key for key, value in states[1].optimizer.tensors().items() if value.dtype == torch.uint8]
            assert bool(lowered) == (name == "adamw8bit")
            for step in range(3):
                torch.manual_seed(step)
                pairs = list(zip(alone.module.parameters(), shared.module.parameters(), strict=True))
                for whole, part in pairs:
                    whole.grad = torch.randn_like(whole)
                    part.grad = distribute_tensor(whole.grad, part.device_mesh, part.placements)
                for state in states:
                    state.optimizer.step()
                    state.update_ema(step, None if name == "schedulefree" else 0.9)
            for (path, whole), part in zip(alone.module.named_parameters(), shared.module.parameters(), strict=True):
                told = f"{name}: {path}"
                torch.testing.assert_close(part.full_tensor(), whole, rtol=1e-4, atol=1e-6, msg=lambda m, t=told: t + m)
                mean = states[1].ema[path].full_tensor()
                torch.testing.assert_close(mean, states[0].ema[path], rtol=1e-4, atol=1e-6)
            assert all(not torch.equal(p, q) for p, q in zip(before, alone.module.parameters(), strict=True)), name
        world.wait()


@pytest.mark.slow
def test_what_cannot_be_is_refused_before_anything_is_done(bare, tmp_path):
    """Shards for whole weights, and the state of one optimizer for another; weights alone are of use to any."""
    sharded = bare("sharded", "adafactor", 1) | {"parallel": {"strategy": "fsdp"}}
    assert 0 not in children.train(sharded, world=2)
    assert "it keeps statistics of whole rows and columns" in children.output(sharded)
    assert not (tmp_path / "sharded").exists()

    assert children.train(bare("run", "adafactor", 1)) == [0]
    other = bare("run", "adamw", 2)
    assert children.train(other) != [0]
    assert "holds the state of adafactor, which adamw cannot use" in children.output(other)
    assert f"--load {tmp_path / 'run'} --weights-only" in children.output(other)
    another = bare("another", "muon", 1)
    assert children.train(another, load=str(tmp_path / "run")) != [0]
    assert 'set it to "adafactor", or add --weights-only' in children.output(another)
    assert children.train(another, load=str(tmp_path / "run"), weights_only=True) == [0]


@pytest.mark.slow
def test_a_step_that_is_skipped_tells_the_rate_of_its_neighbours(bare, tmp_path):
    """With what Prodigy finds by itself, or the curve would leap from a millionth to 1 and back."""
    assert children.train(bare("run", "prodigy", 3, skip_steps=[[2, 2]])) == [0]
    assert told(tmp_path / "run", "learning_rate") == [1e-6] * 3


@pytest.mark.slow
def test_a_rate_falls_over_epochs_as_planned_at_the_start(bare, tmp_path):
    """To the bit after a kill, and over other batches too, with which the epochs end elsewhere; that is told."""
    epochs = {"max_epochs": 2, "learning_rate_schedule": "cosine", "warmup_steps": 2, "final_learning_rate": 1e-5}
    calm = bare("calm", "adamw", None, **epochs) | {"checkpoints": {"every_steps": 4}}
    calm["bucket"] = [{"resolution": "32px", "num_frames": 1, "batch_size": 3}]
    assert children.train(calm) == [0]
    rates = told(tmp_path / "calm", "learning_rate")
    assert f"the learning rate falls until step {len(rates)}," in children.output(calm)
    in_steps = TrainConfig(**calm["train"] | {"max_steps": len(rates), "max_epochs": None})
    assert rates == [learning_rate(in_steps, step) for step in range(len(rates))]

    hurt = calm | {"output": str(tmp_path / "hurt")}
    assert children.train(hurt, fault=("after the optimizer stepped", 6)) == [killing.SELF_KILLED]
    shutil.copytree(tmp_path / "hurt", tmp_path / "other")
    assert children.train(hurt) == [0]
    assert told(tmp_path / "hurt", "learning_rate") == rates
    assert digest(tensors_at(tmp_path / "hurt", len(rates))) == digest(tensors_at(tmp_path / "calm", len(rates)))

    other = hurt | {"output": str(tmp_path / "other")}
    other["bucket"] = [hurt["bucket"][0] | {"batch_size": 1}]
    assert children.train(other) == [0]
    longer = told(tmp_path / "other", "learning_rate")
    assert len(longer) > len(rates)
    assert longer == rates + [1e-5] * (len(longer) - len(rates))
    assert f"set train.max_steps = {len(longer)}" in children.output(other)


@pytest.mark.slow
def test_a_rate_falls_over_epochs_that_begin_again(bare):
    recipe = bare("run", "adamw", None, max_epochs=1, learning_rate_schedule="linear")
    assert children.train(recipe) == [0]
    first = int(re.search(r"falls until step (\d+)", children.output(recipe))[1])
    assert children.train(recipe, restart_data=True) == [0]
    assert f"falls until step {2 * first}," in children.output(recipe)
