"""Ranks save into one store and load from it, each in a process."""

from __future__ import annotations

import json
import random
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import reelworks as rw
from reelworks.core.errors import UserError


class Shrinking(torch.optim.Optimizer):
    """Keeps a count, a text, a wide copy of each weight, and a mean of its rows: state of several shapes."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights, {"lr": 0.1})

    @torch.no_grad()
    def step(self) -> None:
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            state["count"] = state.get("count", 0) + 1
            state["label"] = f"step {state['count']}"
            state["wide"] = state.get("wide", weight.double() * 0) + weight.grad.double()
            if weight.ndim == 2:
                state["rows"] = weight.mean(dim=1)
            weight -= (0.1 / state["count"] * state["wide"]).to(weight.dtype)


class Training:
    """A model whose first dimensions (5 and 3) do not divide by two ranks, an average and two optimizers."""

    def __init__(self, world_size: int) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
        if world_size > 1:
            fully_shard(self.model, mesh=init_device_mesh("cpu", (world_size,)))
        first, second = list(self.model[0].parameters()), list(self.model[1].parameters())
        self.adam, self.own = torch.optim.AdamW(first, lr=0.1), Shrinking(second)
        self.ema = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
        self.norm, self.inner_norm = nn.BatchNorm1d(2), nn.BatchNorm1d(2)

    @property
    def state(self) -> dict[str, Any]:
        norms = {"norm": self.norm, "by name": {"norms": [self.inner_norm]}}
        return {"model": self.model, "optimizers": [self.adam, self.own], "ema": self.ema} | norms

    def step(self) -> None:
        for weight in self.model.parameters():
            weight.grad = torch.ones_like(weight)
        self.adam.step()
        self.own.step()
        for name, weight in self.model.named_parameters():
            self.ema[name].lerp_(weight.detach(), 0.5)

    def whole(self) -> dict[str, Tensor]:
        """All tensors, gathered."""
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        found |= {f"ema.{name}": value for name, value in self.ema.items()}
        for optimizer in (self.adam, self.own):
            for weight in optimizer.param_groups[0]["params"]:
                values = optimizer.state.get(weight, {}).items()
                found |= {f"{len(found)}.{key}": v for key, v in values if isinstance(v, Tensor)}
        return {name: v.full_tensor() if isinstance(v, DTensor) else v for name, v in found.items()}


def refusal(work: Any) -> str:
    try:
        work()
    except UserError as error:
        return f"{error.code} {error.field}"
    return "nothing was refused"


def main(rank: int, world_size: int, folder: Path) -> None:
    warnings.simplefilter("error")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous-{world_size}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=300),
    )
    told: dict[str, Any] = {}
    store = rw.CheckpointStore(folder / "checkpoints")

    # One process saved step 1, and this is other ranks' first look.
    training = Training(world_size)
    assert store.load_latest(training.state) == 1
    training.step()

    # Each rank has values of its own.
    random.seed(rank)
    torch.manual_seed(rank)
    with torch.no_grad():
        training.norm.running_mean.fill_(rank)
        training.inner_norm.running_mean.fill_(rank + 5)
    own = {
        "rng": {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.arange(rank, rank + 3)},
        "counters": {"clips": 7 * rank, "name": f"rank {rank}", rank: "key"},
        "equal": {"everywhere": torch.arange(4), "number": 3},
    }
    unlike = {"both": torch.arange(3), "mine": torch.full((5,), rank), "odd": torch.zeros(2 + rank)}
    store.save(2, training.state | own | {"unlike": unlike})
    again = Training(world_size)
    values: dict[str, Any] = {"rng": None, "counters": {}, "equal": {"everywhere": torch.zeros(4)}, "unlike": {}}
    assert store.load_latest(again.state | values | {"rng": None}) == 2
    store.load(2, values)
    told["own values"] = (
        torch.equal(values["rng"]["torch"], own["rng"]["torch"])
        and values["rng"]["python"] == own["rng"]["python"]
        and values["rng"]["numpy"].tolist() == own["rng"]["numpy"].tolist()
        and values["counters"] == own["counters"]
        and values["equal"]["everywhere"].tolist() == [0, 1, 2, 3]
        and all(torch.equal(values["unlike"][key], unlike[key]) for key in unlike)
    )
    told["norm"] = (
        again.norm.running_mean.tolist() + again.inner_norm.running_mean.tolist()
    )  # of the first rank, as with DistributedDataParallel
    training.step()
    again.step()
    ours, theirs = training.whole(), again.whole()
    told["goes on equally"] = ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)
    told["sharded"] = isinstance(again.own.state[again.model[1].weight]["wide"], DTensor)
    told["wide"] = str(again.own.state[again.model[1].weight]["wide"].dtype)
    told["rank's own by hand"] = store.read(2, ["counters"], rank=1)["counters"]["name"]

    # What fails on one rank is told alike on all.
    mine = lambda: None  # noqa: E731
    told["not storable"] = refusal(lambda: store.save(3, {"part": mine if rank == world_size - 1 else 1}))
    told["missing"] = refusal(lambda: store.load_latest({"nothing": 1}))
    bad = rw.CheckpointStore(folder / f"bad-{world_size}")
    bad.save(1, {"x": torch.ones(3)})
    dist.barrier()
    if rank == 0:
        file = bad.path(1) / "tensors" / "rank-00000.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"!")
    dist.barrier()
    told["all bad"] = refusal(lambda: bad.load_latest({"x": torch.zeros(3)}))
    store.save(3, training.state)
    (folder / f"told-{world_size}-{rank}.json").write_text(json.dumps(told), encoding="utf-8")
    if rank == 0:
        torch.save(ours, folder / f"whole-{world_size}.pt")
    dist.barrier()
    dist.destroy_process_group()
