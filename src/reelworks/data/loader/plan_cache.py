"""Cache plans: the last few in memory, and as memory-mapped files in the run folder for all processes of a machine."""

from __future__ import annotations

import json
import re
import shutil
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.core import files, storage, system
from reelworks.core.arrays import I32, I64
from reelworks.data.run.folder import RunFolder
from reelworks.data.schedule.plan import EpochPlan

Arrays = dict[str, NDArray[Any]]
_NAME = re.compile(r"plan-(\d{3,})-(\d{6,})-(\d{3,})")
_ABOUT = "about.json"
_UNFINISHED = ".new-"
_ABANDONED_AFTER_SECONDS = 3600.0  # writing a plan takes seconds
_KEPT = 3


def path(run: RunFolder, data_restarts: int, epoch: int, segment: int) -> Path:
    """Return the folder of a segment's plan."""
    return run.plan_folder / f"plan-{data_restarts:03d}-{epoch:06d}-{segment:03d}"


def shared(
    run: RunFolder, data_restarts: int, epoch: int, segment: int, made_of: str, make: Callable[[], Arrays]
) -> Arrays:
    """Return a segment's plan, memory-mapped; the first process that needs it computes it while the others wait.

    A stored plan that was made of other inputs, by their digest `made_of`, is replaced.

    Raises:
        OSError: The plan could not be written, or not read back.
    """
    run.plan_folder.mkdir(parents=True, exist_ok=True)
    with (run.plan_folder / ".lock").open("ab") as f:
        with suppress(OSError):  # without locks each machine computes the plan, with equal results
            system.lock(f.fileno(), wait=True)
        folder = path(run, data_restarts, epoch, segment)
        stored = _read(folder)
        if stored is None or stored[0] != made_of:
            _write(folder, made_of, make())
            stored = _read(folder)
    if stored is None:
        raise OSError(f"{folder}: the plan read back is not the plan written")
    return stored[1]


def drop(run: RunFolder, now: tuple[int, int]) -> None:
    """Remove plans before (data_restarts, epoch) `now`, and unfinished ones of killed processes; later ones stay."""
    for unfinished in run.plan_folder.glob(f"{_UNFINISHED}*"):
        if time.time() - unfinished.stat().st_mtime > _ABANDONED_AFTER_SECONDS:
            shutil.rmtree(unfinished, ignore_errors=True)
    for old in run.plan_folder.glob("plan-*"):
        name = _NAME.fullmatch(old.name)
        if name and not (int(name[1]) == now[0] and int(name[2]) >= now[1]):
            shutil.rmtree(old, ignore_errors=True)


def _read(folder: Path) -> tuple[str, Arrays] | None:
    """Read a stored plan and the digest of its inputs; None if it is missing, or not the one that was written.

    Sizes and times of its files tell that: each of many processes would take seconds to read all of it.
    """
    with suppress(OSError, ValueError, EOFError, KeyError, TypeError):
        about = json.loads((folder / _ABOUT).read_bytes())
        # Plain arrays of the mapped memory: each slice of a memmap would cost ten times as much.
        arrays = {
            file.stem: np.asarray(np.load(file, mmap_mode=system.MAPPED, allow_pickle=False))
            for file in folder.glob("*.npy")
        }
        intact = about["files"] == {name: files.state(folder / f"{name}.npy") for name in arrays}
        return (str(about["made_of"]), arrays) if intact else None
    return None


def _write(folder: Path, made_of: str, arrays: Arrays) -> None:
    unfinished = folder.with_name(f"{_UNFINISHED}{uuid.uuid4().hex[:8]}")
    try:
        unfinished.mkdir(parents=True)
        for name, array in arrays.items():
            with (unfinished / f"{name}.npy").open("wb") as f:
                np.save(f, array, allow_pickle=False)
                f.flush()
                storage.fsync(f.fileno(), unfinished)
        states = {name: files.state(unfinished / f"{name}.npy") for name in arrays}
        files.write_json(unfinished / _ABOUT, {"made_of": made_of, "files": states})
        # A process that has mapped the former plan can still read it after this.
        shutil.rmtree(folder, ignore_errors=True)
        system.patiently(lambda: unfinished.rename(folder))
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    storage.fsync_folder(folder.parent)


@dataclass(frozen=True)
class Unplanned:
    """Live clips and repeats that a plan leaves out.

    Attributes:
        reason: `Reason` of each clip; `NONE` if an earlier segment of the epoch consumed it.
        nearest: Index of the bucket entry that each clip misses by least; of duplicates the ordinal of the clip that stands
            for each; -1 if there is none.
    """

    ordinal: NDArray[Any]
    copy: NDArray[Any]
    reason: NDArray[np.int8]
    nearest: I32

    def take(self, where: I64) -> Unplanned:
        """Return the clips at some indices."""
        return Unplanned(self.ordinal[where], self.copy[where], self.reason[where], self.nearest[where])


@dataclass(frozen=True)
class Planned:
    """A plan, and the clips that it leaves out."""

    plan: EpochPlan
    others: Unplanned

    def arrays(self) -> Arrays:
        """Return all arrays by name, as they are stored, and the plan's digest, which takes long to compute."""
        others = {f"other_{name}": array for name, array in vars(self.others).items()}
        return self.plan.arrays() | others | {"digest": np.array([self.plan.digest()])}

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> Planned:
        """Restore from the result of `arrays`."""
        plan = EpochPlan(**{f.name: arrays[f.name] for f in fields(EpochPlan)}).with_digest(str(arrays["digest"][0]))
        return cls(plan, Unplanned(**{f.name: arrays[f"other_{f.name}"] for f in fields(Unplanned)}))


@dataclass
class PlanCache:
    """The last few plans, since reading ahead and training share them."""

    _plans: OrderedDict[str, Planned] = field(default_factory=OrderedDict)

    def get(
        self, run: RunFolder | None, place: tuple[int, int, int], made_of: str, make: Callable[[], Planned]
    ) -> Planned:
        """Return the plan at (data_restarts, epoch, segment) from the cache, or compute it.

        Processes share their plans in the run folder, if there is one. `made_of` is the digest of the plan's inputs.
        """
        if made_of not in self._plans:
            planned = None
            if run is not None:
                with suppress(OSError):  # a full disk must not end training
                    planned = Planned.of_arrays(shared(run, *place, made_of, lambda: make().arrays()))
            self._plans[made_of] = planned or make()
            while len(self._plans) > _KEPT:
                self._plans.popitem(last=False)
        return self._plans[made_of]
