"""One save as a run makes it, and what must hold after anything has happened to it.

A store has the checkpoints 10 (pinned), 20 (best), 30 and 40, and a file of somebody else's. Then 40 is pinned,
50 is saved, and retention, which keeps the newest and the best, deletes 30.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from reelworks.core import digests
from reelworks.data.checkpoint import names, retention, verify
from reelworks.data.checkpoint import save as commit
from reelworks.data.checkpoint.config import CheckpointsConfig, KeepBest
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.load import load, read_extra
from reelworks.data.distributed import collectives

POLICY = CheckpointsConfig(keep_last=1, keep_best=KeepBest(metric="loss"))
LOSSES = {10: 0.9, 20: 0.1, 30: 0.5, 40: 0.4, 50: 0.3}
PINNED = "40 is pinned"
SAVED = "50 is saved"
RETIRED = "30 is deleted"
_FOREIGN = "step-000000050.mine"
_OURS = {names.PINS, names.HISTORY, names.LATEST, _FOREIGN}

# Of the largest tensor: more than fits into one buffer.
NUMBERS = 300_000

Told = Callable[[str], None]
Listing = dict[str, str]


def state(step: int) -> dict[str, Any]:
    """What is saved at a step: more than one buffer's worth of tensors, and plain values."""
    generator = torch.Generator().manual_seed(step)
    return {
        "model": {
            "weight": torch.randn(NUMBERS, generator=generator),
            "bias": torch.randn(7, generator=generator).bfloat16(),
        },
        "optimizer": {"step": torch.tensor(float(step)), "lr": 1e-4 * step},
    }


def save(store: CheckpointFolder, step: int) -> commit.Saved:
    """Save a step."""
    cursor = f'{{"plan_step": {step}}}'.encode()
    return commit.save(
        store, step, state(step), extra={names.CURSOR: cursor}, metrics={"loss": LOSSES[step]}, run_id="run"
    )


def prepare(store: CheckpointFolder) -> None:
    """Make the checkpoints that are there before."""
    for step in (10, 20, 30, 40):
        save(store, step)
    store.pin(10)
    (store.root / _FOREIGN).write_text("foreign", encoding="utf-8")


def copy(source: Path, target: Path) -> None:
    """Copy a store. Only the history is ever changed in place, so other files are shared by hard links."""

    def link(src: str, dst: str) -> None:
        if Path(src).name == names.HISTORY:
            shutil.copyfile(src, dst)
        else:
            Path(dst).hardlink_to(src)

    shutil.copytree(source, target, copy_function=link)


def work(store: CheckpointFolder, told: Told) -> None:
    """Pin, save, retire. Collective where there is a process group."""
    if collectives.rank() == 0:
        store.pin(40)
        told(PINNED)
    save(store, 50)
    told(SAVED)
    if collectives.rank() == 0:
        retention.apply_retention(store, POLICY)
        told(RETIRED)
    if collectives.is_distributed():
        dist.barrier()


def resume(store: CheckpointFolder) -> int:
    """Do what a run does that goes on; returns the step."""
    store.sweep()
    found = verify.newest_valid(store, full=True)
    if found is None:
        raise ValueError("no checkpoint is there")
    return found[0].step


def problems(store: CheckpointFolder, told: list[str]) -> list[str]:
    """What is wrong with a store in which `work` died; resumes twice from it and does the work again.

    Args:
        store: Where it happened.
        told: What the work had told before it died.
    """
    wrong = problems_on_resume(store, told)
    if wrong:
        return wrong
    after = listing(store.root)
    resume(store)
    if listing(store.root) != after:
        wrong.append("a second resume changes the folder")
    work(store, lambda what: None)
    left = {path.name for path in store.root.iterdir()}
    if left != {*map(names.of_step, (10, 20, 40, 50)), *_OURS}:
        wrong.append(f"after the work was done again there are {sorted(left)}")
    return wrong


def problems_on_resume(store: CheckpointFolder, told: list[str]) -> list[str]:
    """What is wrong with a store once it has been resumed from."""
    try:
        step = resume(store)
        wrong = differences(store.path(step), step) + missing(store, told)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    if step < (50 if SAVED in told else 40):
        wrong.append(f"resumed from {step} after {told}")
    return wrong


def missing(store: CheckpointFolder, told: list[str]) -> list[str]:
    """Of the pins, the best one and the names that may be there, what is not as it must be."""
    wrong = []
    there = {info.step: info for info in store.list()}
    if not there.keys() >= {10, 20, 40} or (30 not in there and SAVED not in told and 50 not in there):
        wrong.append(f"only {sorted(there)} are left")
    if [step for step, info in there.items() if info.metrics != {"loss": LOSSES[step]}]:
        wrong.append("metrics are lost")
    if not store.is_pinned(10) or (PINNED in told and not store.is_pinned(40)):
        wrong.append("a pin is lost")
    left = {path.name for path in store.root.iterdir() if names.parse_step(path.name) is None}
    if not left <= _OURS:
        wrong.append(f"litter is left: {sorted(left - _OURS)}")
    if (store.root / _FOREIGN).read_text(encoding="utf-8") != "foreign":
        wrong.append("a file of somebody else's is changed")
    return wrong


def differences(path: Path, step: int) -> list[str]:
    """Where a checkpoint, loaded, is not what was saved."""
    expected, loaded = state(step), state(step + 1)
    load(path, loaded)
    wrong = [] if equal(expected, loaded) else [f"step {step} loads as another state"]
    if read_extra(path, names.CURSOR) != f'{{"plan_step": {step}}}'.encode():
        wrong.append(f"step {step} has another cursor")
    return wrong


def equal(a: Any, b: Any) -> bool:
    """Say whether two states are equal to the bit, dtypes included."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return bool(a == b)


def listing(root: Path) -> Listing:
    """Digest of every file below a folder, and "" for every folder."""
    return {
        path.relative_to(root).as_posix(): "" if path.is_dir() else digests.of_file(path)
        for path in sorted(root.rglob("*"))
    }
