"""Cache of plans: the last few in memory, and memory-mapped files in the run folder for all processes of a machine."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.core import digests, files, storage
from reelworks.run.folder import RunFolder
from reelworks.schedule.plan import EpochPlan

Arrays = dict[str, NDArray[Any]]
_NAME = re.compile(r"plan-(\d{3,})-(\d{6,})-(\d{3,})")
_ABOUT = "about.json"
_UNFINISHED = ".new-"
_NOBODY_WRITES_FOR_SECONDS = 3600.0  # a plan takes seconds


def path(run: RunFolder, generation: int, epoch: int, segment: int) -> Path:
    """Folder of a segment's plan."""
    return run.plan_folder / f"plan-{generation:03d}-{epoch:06d}-{segment:03d}"


def shared(
    run: RunFolder, generation: int, epoch: int, segment: int, made_of: str, make: Callable[[], Arrays]
) -> Arrays:
    """Map a segment's plan; the first process that asks for it makes it, and others wait for that.

    Args:
        run: The run folder.
        generation: Times that the data were restarted.
        epoch: The segment's epoch.
        segment: Its number in the epoch.
        made_of: Digest of all that the plan follows from; a stored one of something else is replaced.
        make: Makes the plan.

    Raises:
        OSError: The plan could not be written, or not read back.
    """
    run.plan_folder.mkdir(parents=True, exist_ok=True)
    with _lock(run):
        folder = path(run, generation, epoch, segment)
        stored = _read(folder)
        if stored is None or stored[0] != made_of:
            _write(folder, made_of, make())
            stored = _read(folder)
    if stored is None:
        raise OSError(f"{folder} reads otherwise than it was written")
    return stored[1]


def drop(run: RunFolder, now: tuple[int, int]) -> None:
    """Remove the plans of former epochs, and what killed processes left half written.

    Args:
        run: The run folder.
        now: Generation and epoch that training is in; later epochs may have been planned ahead.
    """
    for half in run.plan_folder.glob(f"{_UNFINISHED}*"):
        if time.time() - half.stat().st_mtime > _NOBODY_WRITES_FOR_SECONDS:
            shutil.rmtree(half, ignore_errors=True)
    for old in run.plan_folder.glob("plan-*"):
        name = _NAME.fullmatch(old.name)
        if name and not (int(name[1]) == now[0] and int(name[2]) >= now[1]):
            shutil.rmtree(old, ignore_errors=True)


def _read(folder: Path) -> tuple[str, Arrays] | None:
    """Read a stored plan and the digest of its sources; None unless they are as they were written."""
    try:
        about = json.loads((folder / _ABOUT).read_bytes())
        arrays = {
            file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in folder.glob("*.npy")
        }
        whole = digests.digest_arrays(**arrays) == about["digest"]
        return (str(about["made_of"]), arrays) if whole else None
    except (OSError, ValueError, EOFError, KeyError, TypeError):
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
        about = {"made_of": made_of, "digest": digests.digest_arrays(**arrays)}
        files.write_json(unfinished / _ABOUT, about)
        # Who maps the former one keeps it: its pages outlive its name.
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    storage.fsync_folder(folder.parent)


@contextmanager
def _lock(run: RunFolder) -> Iterator[None]:
    """Wait for one's turn; on a file system without locks each machine makes its own, which are equal."""
    with (run.plan_folder / ".lock").open("a") as f:
        with suppress(OSError):
            fcntl.flock(f, fcntl.LOCK_EX)
        yield


_KEPT = 3


@dataclass(frozen=True)
class Unplanned:
    """Live clips and copies that a plan does not hold, by ordinal.

    Attributes:
        ordinal, copy: The clip.
        reason: `Reason` of each; `NONE` where an earlier segment of the epoch consumed it.
        nearest: Entry that would ask least of it, -1 where there is none.
    """

    ordinal: NDArray[np.int64]
    copy: NDArray[np.int64]
    reason: NDArray[np.int8]
    nearest: NDArray[np.int32]

    def take(self, where: NDArray[np.int64]) -> Unplanned:
        """Take the clips at the given places."""
        return Unplanned(self.ordinal[where], self.copy[where], self.reason[where], self.nearest[where])


@dataclass(frozen=True)
class Planned:
    """A plan, and the clips that it leaves out."""

    plan: EpochPlan
    others: Unplanned

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays by name, as files keep them."""
        return {
            **self.plan.arrays(),
            **{f"other_{f.name}": getattr(self.others, f.name) for f in fields(Unplanned)},
        }

    @classmethod
    def of_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Planned:
        """Take what `arrays` gave."""
        plan = EpochPlan(**{f.name: arrays[f.name] for f in fields(EpochPlan)})
        return cls(plan, Unplanned(**{f.name: arrays[f"other_{f.name}"] for f in fields(Unplanned)}))


@dataclass
class PlanCache:
    """The last few plans, since reading ahead and training share them."""

    _plans: OrderedDict[str, Planned] = field(default_factory=OrderedDict)

    def get(
        self, run: RunFolder | None, place: tuple[int, int, int], made_of: str, make: Callable[[], Planned]
    ) -> Planned:
        """Return a plan that was made before, or a new one.

        Args:
            run: The run folder whose processes share their plans, or None.
            place: Generation, epoch and segment.
            made_of: Digest of all that the plan follows from.
            make: Makes it.
        """
        if made_of not in self._plans:
            self._plans[made_of] = make() if run is None else _shared(run, place, made_of, make)
            while len(self._plans) > _KEPT:
                self._plans.popitem(last=False)
        return self._plans[made_of]


def _shared(
    run: RunFolder, place: tuple[int, int, int], made_of: str, make: Callable[[], Planned]
) -> Planned:
    try:
        return Planned.of_arrays(shared(run, *place, made_of, lambda: make().arrays()))
    except OSError:  # a full disk ends no training; the record tells that it could not be kept
        return make()
