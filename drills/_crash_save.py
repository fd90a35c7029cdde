"""One save, killed at every storage call of every rank."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import one_save
import storage_calls as crash
import torch.distributed as dist
from storage_calls import Point, Work

from reelworks.data.checkpoint.folder import CheckpointFolder

Seen = dict[str, list[str]]
_PEER_SECONDS = 30


def survive(ranks: int, folder: Path) -> Seen:
    """Kill each rank at each of its calls; returns what was wrong by point."""
    template = folder / "template"
    one_save.prepare(CheckpointFolder(template))
    assert threading.active_count() == 1, "a fork of a process with threads may hang"

    def attempt(point: Point | None) -> tuple[crash.Outcome, CheckpointFolder]:
        here = Path(tempfile.mkdtemp(dir=folder))
        one_save.copy(template, here / "checkpoints")
        store = CheckpointFolder(here / "checkpoints")
        work = work_of(store, ranks, here / "rendezvous")
        return crash.run(work, ranks=ranks, die_at=point, record=point is None, limit_seconds=2 * _PEER_SECONDS), store

    calm, store = attempt(None)
    assert calm.exits == [0] * ranks, calm.errors
    seen = {"nothing happens": one_save.problems(store, calm.told)}
    for rank, calls in sorted(calm.calls.items()):
        for point in crash.points(rank, calls):
            outcome, store = attempt(point)
            seen[str(point)] = _wrong_exits(outcome, point) + one_save.problems(store, outcome.told)
            shutil.rmtree(store.root.parent)
    del seen["nothing happens"]
    return seen


def work_of(store: CheckpointFolder, ranks: int, rendezvous: Path) -> Work:
    """The save as a rank does it."""

    def work(rank: int, told: Callable[[str], None]) -> None:
        if ranks > 1:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{rendezvous}",
                rank=rank,
                world_size=ranks,
                timeout=timedelta(seconds=_PEER_SECONDS),
            )
        one_save.work(store, told)

    return work


def _wrong_exits(outcome: crash.Outcome, point: Point) -> list[str]:
    """The victim is killed, and every other rank ends by itself, with an error."""
    wrong = []
    for rank, code in enumerate(outcome.exits):
        if code != (-9 if rank == point.rank else 1):
            wrong.append(f"rank {rank} ended with {code}")
    return wrong
