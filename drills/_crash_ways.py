"""Ways to save a checkpoint that people use, and ours, each killed at every system call that changes its folder.

To go on means for the plain ways what their users do: take the newest by name and load it. A way survives a
kill if that gives a whole state, not older than the last one that it said was saved. Kills come before calls
(see `_strace`), not in the middle of a write, which the plain ways are spared; and only calls below the
folder count. What a kill cannot show is a power cut, which none of the plain ways but
torch.distributed.checkpoint prepares for: they do not fsync.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import re
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import one_save
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from drills import _strace
from reelworks.data.checkpoint.folder import CheckpointFolder

State = dict[str, Any]
Told = Callable[[int], None]
Load = Callable[[Path], tuple[int, State]]
BEFORE = (30, 40)
LIMIT = 2
# Where it writes files before it moves them; None stands for beside its folder.
LIGHTNING = {
    "Lightning ModelCheckpoint, /tmp on the same disk": None,
    "Lightning ModelCheckpoint, /tmp on another disk": Path("/tmp"),
}
_TOLD = [one_save.PINNED, one_save.SAVED, one_save.RETIRED]


class Way(NamedTuple):
    """How one saves: `save` leaves a step in a folder, `load` gives the newest step there and its state."""

    save: Callable[[Path, int], None]
    load: Load


def save_over_one_file(folder: Path, step: int) -> None:
    torch.save({"step": step, **one_save.state(step)}, folder / "last.pt")


def load_one_file(folder: Path) -> tuple[int, State]:
    state = torch.load(folder / "last.pt", weights_only=True)
    return state.pop("step"), state


def save_dcp(folder: Path, step: int) -> None:
    with _quiet():
        dcp.save(one_save.state(step), checkpoint_id=folder / f"step-{step}", no_dist=True)


def load_dcp(folder: Path) -> tuple[int, State]:
    step, newest = by_name(folder)[-1]
    state = one_save.state(0)
    with _quiet():
        dcp.load(state, checkpoint_id=newest, no_dist=True)
    return step, state


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warning about every save and load without a process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"torch\.distributed is disabled, unavailable or uninitialized")
        yield


def save_in_files(folder: Path, step: int) -> None:
    here = folder / f"checkpoint-{step}"
    here.mkdir()
    state = one_save.state(step)
    torch.save(state["model"], here / "model.pt")
    torch.save(state["optimizer"], here / "optimizer.pt")
    (here / "trainer_state.json").write_text(json.dumps({"step": step}), encoding="utf-8")


def load_files(folder: Path) -> tuple[int, State]:
    step, newest = by_name(folder)[-1]
    assert json.loads((newest / "trainer_state.json").read_text(encoding="utf-8")) == {"step": step}
    parts = {name: torch.load(newest / f"{name}.pt", weights_only=True) for name in ("model", "optimizer")}
    return step, parts


def save_then_delete(folder: Path, step: int) -> None:
    save_in_files(folder, step)
    for _, path in by_name(folder)[:-LIMIT]:
        shutil.rmtree(path)


def delete_then_save(folder: Path, step: int) -> None:
    for _, path in by_name(folder)[: 1 - LIMIT]:
        shutil.rmtree(path)
    save_in_files(folder, step)


def by_name(folder: Path) -> list[tuple[int, Path]]:
    """Checkpoints by the number in their names, as such scripts find them."""
    found = [(re.search(r"-(\d+)", path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in found if match)


WAYS = {
    "torch.save over one file": Way(save_over_one_file, load_one_file),
    "torch.distributed.checkpoint, newest by name": Way(save_dcp, load_dcp),
    "torch.save, then delete the oldest": Way(save_then_delete, load_files),
    "delete the oldest, then torch.save": Way(delete_then_save, load_files),
}


def table(folder: Path) -> dict[str, Any]:
    """Points and survived by way, or why there are none."""
    if reason := _strace.is_missing():
        return dict.fromkeys([*WAYS, *LIGHTNING, "Reelworks"], reason)
    logging.disable()  # torch tells at length what it cannot load
    rows: dict[str, Any] = {name: kill_everywhere(plain(way), folder) for name, way in WAYS.items()}
    for name, temporary in LIGHTNING.items():
        rows[name] = kill_everywhere(lightning(temporary), folder) if _has_lightning() else "not installed"
    rows["Reelworks"] = kill_everywhere(OURS, folder)
    return rows


class Trial(NamedTuple):
    """What is killed: `prepare` fills a folder, `work` goes on in it, and `is_well` judges what is left.

    `work` tells of each step that is saved; `is_well` gets the last of them, or 0.
    """

    prepare: Callable[[Path], None]
    work: Callable[[Path, Told], None]
    is_well: Callable[[Path, int], bool]


def kill_everywhere(trial: Trial, folder: Path) -> dict[str, int]:
    """Do the work once for each of its system calls, and look whether what is left is well."""
    template = Path(tempfile.mkdtemp(dir=folder))
    trial.prepare(template)

    def attempt(call: _strace.SystemCall | None) -> tuple[Any, Path]:
        here = Path(shutil.copytree(template, Path(tempfile.mkdtemp(dir=folder)) / "checkpoints"))
        told = here.parent / "told"
        told.write_text("0", encoding="utf-8")

        def tell(step: int) -> None:
            told.write_text(str(step), encoding="utf-8")

        def work() -> None:
            trial.work(here, tell)

        return _strace.calls(work, here) if call is None else _strace.kill_at(work, call), here

    survived, seen = 0, attempt(None)[0]
    for call in seen:
        ended, here = attempt(call)
        if ended != -signal.SIGKILL:
            raise RuntimeError(f"{call} was not reached: {ended}")
        survived += trial.is_well(here, int((here.parent / "told").read_text(encoding="utf-8")))
        shutil.rmtree(here.parent)
    return {"points": len(seen), "survived": survived}


def plain(way: Way) -> Trial:
    """Save step 50 where others are."""

    def prepare(folder: Path) -> None:
        for step in BEFORE:
            way.save(folder, step)

    def work(folder: Path, told: Told) -> None:
        way.save(folder, 50)
        told(50)

    def is_well(folder: Path, told: int) -> bool:
        return loads(way.load, one_save.state, folder, max(told, BEFORE[-1]))

    return Trial(prepare, work, is_well)


def loads(load: Load, expected: Callable[[int], State], folder: Path, least: int) -> bool:
    """Say whether the newest by name is a whole state and not older than it may be."""
    try:
        step, state = load(folder)
    except (Exception, CheckpointException):
        return False
    return step >= least and one_save.equal(state, expected(step))


def _has_lightning() -> bool:
    return importlib.util.find_spec("lightning") is not None


def lightning(temporary: Path | None) -> Trial:
    """ModelCheckpoint as it comes, in a training."""
    from drills import _crash_lightning as own

    return Trial(
        lambda folder: None,
        lambda folder, told: own.work(folder, told, temporary or folder.parent),
        lambda folder, told: loads(own.load, own.expected, folder, told),
    )


OURS = Trial(
    lambda folder: one_save.prepare(CheckpointFolder(folder)),
    lambda folder, told: one_save.work(CheckpointFolder(folder), lambda what: told(_TOLD.index(what) + 1)),
    lambda folder, told: not one_save.problems(CheckpointFolder(folder), _TOLD[:told]),
)
