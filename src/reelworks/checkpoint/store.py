"""The folder `checkpoints/`: what is in it, and every change to it.

All changes are renames inside one folder, made durable before anything is built on them; unlinking comes
after. One process at a time changes a store: the holder of the run's lock, or a command while nobody
trains.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reelworks.checkpoint import manifest, names, read_lock
from reelworks.checkpoint.manifest import BadCheckpoint, Manifest
from reelworks.core import files, storage
from reelworks.core.errors import UserError


@dataclass(frozen=True)
class CheckpointInfo:
    """A committed checkpoint.

    Attributes:
        step: Optimizer steps done.
        path: Its folder.
        manifest: What it consists of.
        pinned: True if a person asked to keep it.
        metrics: Metrics of the manifest and those recorded since; NaN for values that were not finite.
    """

    step: int
    path: Path
    manifest: Manifest
    pinned: bool
    metrics: dict[str, float]

    @property
    def created(self) -> float:
        """When it was saved, in seconds since 1970."""
        return self.manifest.created

    @property
    def num_bytes(self) -> int:
        """Size of its files, the manifest not counted."""
        return self.manifest.total_bytes


@dataclass(frozen=True)
class Broken:
    """A folder with a checkpoint's name and no manifest that can be read."""

    step: int
    path: Path
    reason: str


CheckpointInfos = list[CheckpointInfo]
_KEYS = {"time", "event", "step"}  # of every event


class CheckpointStore:
    """The checkpoints of one run; nothing is created by looking.

    Args:
        root: The folder.
        may_publish: Asked right before a checkpoint is published; raises where another process took over.
    """

    def __init__(self, root: str | Path, may_publish: Callable[[], None] = lambda: None) -> None:
        self.root, self._may_publish = Path(root), may_publish
        self._late: dict[str, dict[str, float]] = {}
        self._seen_bytes = 0

    def path(self, step: int) -> Path:
        """Folder of a step's checkpoint, whether it is there or not."""
        return self.root / names.of_step(step)

    def steps(self) -> list[int]:
        """Steps that have a checkpoint folder, ascending. Links and foreign names do not count."""
        if not self.root.is_dir():
            return []
        with os.scandir(self.root) as entries:
            found = [names.parse_step(e.name) for e in entries if e.is_dir(follow_symlinks=False)]
        return sorted(step for step in found if step is not None)

    def info(self, step: int) -> CheckpointInfo:
        """Describe one checkpoint.

        Raises:
            BadCheckpoint: Its manifest is missing or wrong.
            OSError: Its manifest cannot be read now.
        """
        return self._info(step, self._late_metrics())

    def scan(self) -> tuple[CheckpointInfos, list[Broken]]:
        """List checkpoints with a valid manifest, and apart those without; both by ascending step."""
        good, broken, late = [], [], self._late_metrics()
        for step in self.steps():
            try:
                good.append(self._info(step, late))
            except (BadCheckpoint, OSError) as error:
                if self.path(step).exists():  # else a training has deleted it meanwhile
                    broken.append(Broken(step, self.path(step), str(error)))
        return good, broken

    def _info(self, step: int, late: Mapping[str, Mapping[str, float]]) -> CheckpointInfo:
        found = manifest.read(self.path(step))
        known = {**_floats(found.metrics), **late.get(found.save_id, {})}
        return CheckpointInfo(step, self.path(step), found, self.is_pinned(step), known)

    def metrics_of(self, found: Manifest) -> dict[str, float]:
        """Metrics of a manifest and those recorded since, whether its checkpoint is still here or not."""
        return {**_floats(found.metrics), **self._late_metrics().get(found.save_id, {})}

    def history(self) -> list[dict[str, Any]]:
        """Everything that happened here, oldest first; lines that storage damaged are passed over."""
        events = files.read_json_lines(self.root / names.HISTORY)
        return [e for e in events if e.keys() >= _KEYS and isinstance(e["step"], int)]

    def log(self, event: str, step: int, **fields: Any) -> None:
        """Append to the history."""
        files.append_json_line(
            self.root / names.HISTORY, {"time": time.time(), "event": event, "step": step, **fields}
        )

    def record_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add metrics that were measured after the save; a value that is not finite counts as none.

        Raises:
            BadCheckpoint: There is no such checkpoint.
        """
        save_id = manifest.read(self.path(step)).save_id
        self.log("metrics", step, save_id=save_id, metrics=manifest.plain_metrics(metrics))

    def _late_metrics(self) -> dict[str, dict[str, float]]:
        """Metrics by save, not by step: a checkpoint that is made again has not been measured yet."""
        for event in files.parse_json_lines(self._history_since_last_look()):
            if event.get("event") == "metrics" and isinstance(event.get("metrics"), dict):
                self._late.setdefault(str(event.get("save_id")), {}).update(_floats(event["metrics"]))
        return self._late

    def _history_since_last_look(self) -> list[bytes]:
        """Whole lines that are new; thousands of old ones are not read again at each save."""
        try:
            with (self.root / names.HISTORY).open("rb") as f:
                f.seek(self._seen_bytes)
                data = f.read()
        except FileNotFoundError:
            return []
        lines = data[: data.rfind(b"\n") + 1]
        self._seen_bytes += len(lines)
        return lines.splitlines()

    def is_pinned(self, step: int) -> bool:
        """Say whether a person asked to keep a checkpoint."""
        return (self.root / names.PINS / names.of_step(step)).exists()

    def pin(self, step: int) -> None:
        """Keep a checkpoint whatever the policy says; may be called while another process trains.

        Raises:
            UserError: There is no such checkpoint.
        """
        if step not in self.steps():
            raise self.unknown(step)
        if self.is_pinned(step):
            return
        pins = self.root / names.PINS
        storage.mkdirs(pins)
        with suppress(FileExistsError), storage.create(pins / names.of_step(step)):
            pass
        storage.fsync_folder(pins)
        # `remove` looks for the pin once more behind its rename, so one of the two sees the other.
        if step not in self.steps():
            storage.unlink(pins / names.of_step(step))
            raise self.unknown(step)
        self.log("pin", step)

    def unpin(self, step: int) -> None:
        """Leave a checkpoint to the policy again; does nothing to one that is not pinned."""
        if self.is_pinned(step):
            storage.unlink(self.root / names.PINS / names.of_step(step))
            storage.fsync_folder(self.root / names.PINS)
            self.log("unpin", step)

    def unknown(self, step: int) -> UserError:
        """Make the error for a step that has no checkpoint."""
        there = ", ".join(map(str, self.steps())) or "none"
        return UserError(
            "there is no checkpoint of this step",
            code="no-such-checkpoint",
            field="step",
            value=step,
            remedy=f"there are: {there}",
        )

    def publish(self, temporary: Path, step: int) -> None:
        """Turn a complete temporary folder into the checkpoint of a step, durably.

        Raises:
            FileExistsError: The step has a checkpoint; nothing is ever renamed onto one.
        """
        target = self.path(step)
        if os.path.lexists(target):
            raise FileExistsError(f"{target} is occupied")
        self._may_publish()
        storage.rename(temporary, target)
        storage.fsync_folder(self.root)

    def record_saved(self, info: CheckpointInfo, seconds: float) -> None:
        """Tell the history and `latest` about a published checkpoint."""
        self.log(
            "saved",
            info.step,
            save_id=info.manifest.save_id,
            bytes=info.manifest.total_bytes,
            seconds=round(seconds, 3),
            metrics=info.manifest.metrics,
        )
        files.write_bytes(self.root / names.LATEST, f"{names.of_step(info.step)}\n".encode())

    def remove(self, step: int, reasons: tuple[str, ...]) -> None:
        """Delete a checkpoint: gone with the rename, unlinked afterwards; the history is told before and after.

        Raises:
            UserError: It is pinned or being read, or there is none.
        """
        if step not in self.steps():
            raise self.unknown(step)
        path, trash = self.path(step), self.root / names.trash(step)
        self._refuse_if_wanted(step, path)
        # Told before, so that no death leaves a deletion unexplained; a full disk may refuse the line.
        with suppress(OSError):
            self.log("deleting", step, reasons=list(reasons))
        storage.rename(path, trash)
        try:
            self._refuse_if_wanted(step, trash)
        except UserError:
            storage.rename(trash, path)
            raise
        finally:
            storage.fsync_folder(self.root)
        # Before the history is told: on a full disk this makes the room for its line. What cannot be unlinked
        # now is removed by the next sweep.
        storage.rmtree_if_possible(trash)
        self.log("deleted", step, reasons=list(reasons))

    def _refuse_if_wanted(self, step: int, path: Path) -> None:
        if self.is_pinned(step):
            raise UserError(
                "the checkpoint is pinned",
                code="checkpoint-pinned",
                field="step",
                value=step,
                remedy="unpin it first",
            )
        if read_lock.is_read(path):
            raise UserError(
                "the checkpoint is being read",
                code="checkpoint-in-use",
                field="step",
                value=step,
                remedy="wait until that is done",
            )

    def quarantine(self, step: int, reason: str) -> Path:
        """Set a bad checkpoint aside, whole, for a person to look at; returns where it lies now."""
        target = self.root / names.bad(step)
        storage.rename(self.path(step), target)
        storage.fsync_folder(self.root)
        self.log("quarantined", step, reason=reason, name=target.name)
        return target

    def sweep(self) -> list[str]:
        """Remove what dead processes left: saves in flight, half-emptied trash. Returns the names.

        What cannot be removed now, as where a network file system keeps files that are open, stays for the next time.
        Only for the holder of the run's lock: to anyone else a save in flight looks just as dead.
        """
        if not self.root.is_dir():
            return []
        leftovers = sorted(path for path in self.root.iterdir() if names.is_leftover(path.name))
        for path in leftovers:
            storage.rmtree_if_possible(path)
        return [path.name for path in leftovers if not os.path.lexists(path)]

    def list(self) -> CheckpointInfos:
        """List checkpoints with a valid manifest by ascending step; `scan` tells of the others."""
        return self.scan()[0]


def _floats(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in metrics.items()}
