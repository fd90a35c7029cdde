"""Drills of the store: kills, damages, two writers, values of every kind."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import reelworks as rw
from reelworks.core import storage
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import names

torch.set_num_threads(1)  # a forked child waits for ever for the threads of its parent
_OURS = {names.LOCK, names.HISTORY, names.LATEST, names.PINS}


class Loop:
    """A training loop as people write it: a model, an optimizer with state of several kinds, counters, random numbers."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 40), nn.BatchNorm1d(40), nn.Linear(40, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.random = random.Random(0)
        self.values: dict[str, Any] = {
            "epoch": 0,
            "losses": [],
            "rng": None,
            "seen": np.zeros(0),
            "best": (None, {0: 1.5}),
        }

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "values": self.values}

    def step(self, step: int) -> None:
        """Train a step, whose result depends on all that came before."""
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step)) + self.random.random()
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        losses = [*self.values["losses"], loss.item()][-7:]
        seen = np.append(self.values["seen"], step)
        best = (loss.item(), {step: str(step)})
        self.values.update(epoch=step // 5, losses=losses, rng=self.random.getstate(), seen=seen, best=best)

    def resume(self, store: rw.CheckpointStore) -> int:
        """Go on from the newest checkpoint; returns its step, 0 for none."""
        step = store.load_latest(self.state) or 0
        if step:
            self.random.setstate(self.values["rng"])
        return step


def expected(last: int) -> list[dict[str, Any]]:
    """The whole state after each step of an uninterrupted loop."""
    loop, states = Loop(), []
    for step in range(last + 1):
        if step:
            loop.step(step)
        states.append({"model": _copy(loop.model.state_dict()), "optimizer": _copy(loop.optimizer.state_dict()),
                       "values": _copy(loop.values)})  # fmt: skip
    return states


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return type(value)(map(_copy, value)) if isinstance(value, list | tuple) else value


def equal(a: Any, b: Any) -> bool:
    """Whether two states are equal to the bit, with the types of values and keys."""
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return len(a) == len(b) and all(map(equal, a, b)) if isinstance(a, list | tuple) else bool(a == b)


LAST = 8
POLICY = rw.Retention(keep_last=2, keep_best=None, keep_every=4)


def _train(root: Path, last: int, told: Callable[[int], None] = lambda step: None) -> None:
    store, loop = rw.CheckpointStore(root, policy=POLICY), Loop()
    for step in range(loop.resume(store) + 1, last + 1):
        loop.step(step)
        store.save(step, loop.state)
        told(step)


def kill(chance: random.Random, folder: Path) -> list[str]:
    """Kill saves at random storage calls, some while they go on from a kill; then train to the end."""
    states, root, done = expected(LAST + 1), folder / "checkpoints", 0
    for _ in range(chance.randint(1, 3)):
        told, code = _in_child(lambda tell: _killed_at(root, chance.randrange(1, 250), tell))
        done = max([done, *told])
        if code not in (0, -signal.SIGKILL):
            return [f"a save ended with {code}"]
        loop, store = Loop(), rw.CheckpointStore(root)
        step = loop.resume(store)
        if step < done:
            return [f"step {done} was saved, and {step} is loaded"]
        if step and not equal(store.read(step), states[step]):
            return [f"step {step} is loaded as another state"]
        if not equal(_state(loop), states[step]):
            return [f"what goes on from step {step} is not what was saved"]
    _, code = _in_child(lambda tell: _train(root, LAST + 1, tell))
    left = {path.name for path in root.iterdir()} - _OURS - {names.of_step(step) for step in (4, 8, 9)}
    wrong = [f"leftovers: {sorted(left)}"] if left else []
    if code or not equal(rw.CheckpointStore(root).read(LAST + 1), states[LAST + 1]):
        wrong.append("training on does not end as the uninterrupted one")
    return wrong


def _state(loop: Loop) -> dict[str, Any]:
    return {"model": dict(loop.model.state_dict()), "optimizer": loop.optimizer.state_dict(), "values": loop.values}


def _killed_at(root: Path, call: int, tell: Callable[[int], None]) -> None:
    left = [call]

    def count(kind: str, path: Path) -> int | None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    with storage.guarded(count):
        _train(root, LAST, tell)


def _in_child(work: Callable[[Callable[[int], None]], None]) -> tuple[list[int], int]:
    """Do work in a child process; returns what it told, and its exit code, negative for a signal."""
    read, write = os.pipe()
    if not (child := os.fork()):
        os.close(read)
        code = 1
        try:
            work(lambda number: _tell(write, number))
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with open(read, "rb") as pipe:  # noqa: PTH123
        told = list(pipe.read())
    return told, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _tell(pipe: int, number: int) -> None:
    os.write(pipe, bytes([number]))


def damage(chance: random.Random, folder: Path) -> list[str]:
    """Damage some of the checkpoints at random places: an older one is loaded, exactly, or an error names them all."""
    states, root = expected(4), folder / "checkpoints"
    store = rw.CheckpointStore(root)
    loop = Loop()
    for step in range(1, 4):
        loop.step(step)
        store.save(step, loop.state)
    store.close()
    steps = chance.sample([1, 2, 3], chance.randint(1, 3))
    what = [_damage(chance, store.path(step)) for step in steps]
    fresh = Loop()
    try:
        step = fresh.resume(rw.CheckpointStore(root))
    except UserError as error:
        return [] if error.code == "no-good-checkpoint" and len(steps) == 3 else [f"{what}: {error}"]
    except Exception as error:
        return [f"{what}: {type(error).__name__}: {error}"]
    if not equal(_state(fresh), states[step]):
        return [f"{what}: step {step} is loaded as another state"]
    return [] if step >= max({0, 1, 2, 3} - {*steps}) else [f"{what}: only step {step} is loaded"]


def _damage(chance: random.Random, path: Path) -> str:
    file = chance.choice(sorted(file for file in path.rglob("*") if file.is_file()))
    data = bytearray(file.read_bytes())
    kind = chance.choice(["flip", "cut", "grow", "zeros", "delete", "folder", "other's"])
    place = chance.randrange(len(data))
    if kind == "flip":
        data[place] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del data[place:]
    elif kind == "grow":
        data += b"\0"
    elif kind == "zeros":
        data[place:] = bytes(len(data) - place)
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "other's":
        others = sorted(other for other in path.parent.rglob(file.name) if other.is_file())
        shutil.copyfile(chance.choice(others or [Path(__file__)]), file)
    elif kind != "delete":
        file.write_bytes(data)
    return f"{kind} of {file.relative_to(path.parent)} at {place}"


def two_writers(chance: random.Random, folder: Path) -> list[str]:
    """Two processes save into one folder: whoever is first saves all steps, the other none until that has ended."""
    root = folder / "checkpoints"
    begin_read, begin_write = os.pipe()
    children = []
    for writer in (1, 2):
        read, write = os.pipe()
        if not (child := os.fork()):
            os.close(begin_write)
            os.read(begin_read, 1)
            os._exit(_write_steps(root, writer, chance.randrange(5) / 1000, write))
        os.close(write)
        children.append((child, read))
    os.close(begin_read)
    os.close(begin_write)  # both begin
    told = []
    for child, read in children:
        with open(read, "rb") as pipe:  # noqa: PTH123
            told.append(pipe.read().decode().split())
        os.waitpid(child, 0)
    store, owner = rw.CheckpointStore(root), {"writer": 0}
    newest = store.load_latest(owner)
    refusals = [words.count("refused") for words in told]
    saves = [words.count("saved") for words in told]
    # A writer that was refused may save once the other has ended.
    right = (
        all(sorted(words) == words for words in told) and sum(r + s for r, s in zip(refusals, saves, strict=True)) == 8
    )
    right &= 4 in saves and newest == 4 and saves[owner["writer"] - 1] > 0
    return [] if right else [f"the writers were told {told}, and step {newest} is of {owner}"]


def _write_steps(root: Path, writer: int, pause: float, tell: int) -> int:
    store = rw.CheckpointStore(root)
    for step in range(1, 5):
        try:
            store.save(step, {"writer": writer, "x": torch.full((100,), writer)})
            os.write(tell, b"saved ")
        except UserError as error:
            os.write(tell, b"refused " if error.code == "run-locked" else f"{error.code} ".encode())
        time.sleep(pause)
    return 0


DRILLS: dict[str, Callable[[random.Random, Path], list[str]]] = {
    "kills": kill,
    "damages": damage,
    "two writers": two_writers,
}
