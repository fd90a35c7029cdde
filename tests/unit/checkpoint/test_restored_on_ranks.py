"""What ranks save comes back on as many ranks, on others and on one, and what one cannot do is told on all."""

from __future__ import annotations

import json
from pathlib import Path

import children
import pytest
import torch
from checkpoint_helpers import assert_equal
from refused import refused
from store_rank import Training, main

import reelworks as rw


def run_ranks(folder: Path, world_size: int) -> list[dict[str, object]]:
    ranks = [children.process(main, rank, world_size, folder) for rank in range(world_size)]
    assert children.ended(ranks) == [0] * world_size
    return [
        json.loads((folder / f"told-{world_size}-{rank}.json").read_text(encoding="utf-8"))
        for rank in range(world_size)
    ]


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.slow(reason="as with two ranks"))])
@pytest.mark.slow
def test_one_process_to_many_and_back(tmp_path: Path, world_size: int) -> None:
    store, straight = rw.CheckpointStore(tmp_path / "checkpoints"), Training(1)
    straight.step()
    store.save(1, straight.state)
    store.close()
    told = run_ranks(tmp_path, world_size)
    assert all(one == told[0] for one in told)
    assert told[0] == {
        "own values": True,
        "norm": [0.0, 0.0, 5.0, 5.0],
        "goes on equally": True,
        "sharded": True,
        "wide": "torch.float64",
        "rank's own by hand": "rank 1",
        "not storable": "state-not-storable part",
        "missing": "checkpoint-part-missing nothing",
        "all bad": "no-good-checkpoint checkpoints",
    }

    # The ranks went on as one process does, and one process goes on from their checkpoint.
    for _ in range(2):
        straight.step()
    assert_equal(torch.load(tmp_path / f"whole-{world_size}.pt", weights_only=True), straight.whole())
    alone = Training(1)
    assert store.load_latest(alone.state) == 3
    assert alone.inner_norm.running_mean.tolist() == [5.0, 5.0], (
        "those of the first rank, also of modules in containers"
    )
    alone.step()
    straight.step()
    assert_equal(alone.whole(), straight.whole())

    # Values of each rank are never taken for another's.
    with refused("state-of-each-rank", "rng", says=f"the {world_size} ranks that saved them, and there are 1 now"):
        store.load(2, {"rng": None})
    with refused("state-of-each-rank"):
        store.read(2)
    assert [store.read(2, rank=rank)["counters"]["clips"] for rank in range(world_size)] == [
        *range(0, 7 * world_size, 7)
    ]
    with refused("argument-invalid", "rank", says=f"from 0 to {world_size - 1}"):
        store.read(2, ["rng"], rank=world_size)
    assert store.read(2, ["equal"])["equal"]["number"] == 3
    assert store.read(3, ["model"])["model"]["0.weight"].shape == (5, 4)
