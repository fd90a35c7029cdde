"""The folder `checkpoints/`: its contents, and every change to it.

All changes are renames inside one folder, made durable before anything depends on them; files are unlinked
afterwards. One process at a time changes a store: the holder of the run's lock, or a command if nothing trains.
"""

from __future__ import annotations

import builtins
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from reelworks.core import files, storage
from reelworks.core.config import Config
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import manifest, names, read_lock
from reelworks.data.checkpoint.manifest import BadCheckpoint, Manifest
from reelworks.data.checkpoint.policy import CheckpointFacts


@dataclass(frozen=True)
class CheckpointInfo(CheckpointFacts):
    """A committed checkpoint, with its folder and manifest."""

    path: Path
    manifest: Manifest


class _Event(Config):
    """A line of the history, as far as it is read: others are of another program, or of somebody's hand."""

    model_config = ConfigDict(extra="ignore")

    time: float
    event: str
    step: int
    save_id: str = ""
    bytes: int = 0
    metrics: manifest.Metrics = Field(default={})
    measured_on: dict[str, str] = Field(default={})
    reason: str = ""
    reasons: list[str] = Field(default=[])


CheckpointInfos = list[CheckpointInfo]
_NOTHING: Mapping[str, str] = MappingProxyType({})
_KEPT_BAD = 3  # each may be as large as a checkpoint


class CheckpointFolder:
    """The checkpoints of one run; reading never creates anything.

    Args:
        root: The folder `checkpoints/`.
        may_write: Called right before a checkpoint is published, moved or deleted; raises if another process has taken over the
            run.
    """

    def __init__(self, root: str | Path, may_write: Callable[[], None] = lambda: None) -> None:
        self.root, self._may_write = Path(root), may_write
        self._late: dict[str, tuple[dict[str, float], dict[str, str]]] = {}
        self._seen_bytes = 0

    def path(self, step: int) -> Path:
        """Return the folder of a step's checkpoint, whether it exists or not."""
        return self.root / names.of_step(step)

    def steps(self) -> builtins.list[int]:
        """Return the steps that have a checkpoint folder, ascending; links and foreign names do not count."""
        if not self.root.is_dir():
            return []
        with os.scandir(self.root) as entries:
            steps = [names.parse_step(e.name) for e in entries if e.is_dir(follow_symlinks=False)]
        return sorted(step for step in steps if step is not None)

    def info(self, step: int) -> CheckpointInfo:
        """Return the facts of one checkpoint; raises as `manifest.read` does."""
        saved = manifest.read(self.path(step))
        return CheckpointInfo(**vars(self.facts_of(saved)), path=self.path(step), manifest=saved)

    def scan(self) -> tuple[CheckpointInfos, dict[int, str]]:
        """Return the checkpoints with a valid manifest, and the steps of those without, with the reasons; ascending."""
        good, broken = [], {}
        for step in self.steps():
            try:
                good.append(self.info(step))
            except (BadCheckpoint, OSError) as error:
                if self.path(step).exists():  # a training may have deleted it meanwhile
                    broken[step] = str(error)
        return good, broken

    def facts_of(self, saved: Manifest) -> CheckpointFacts:
        """Return the facts of a manifest, with the metrics recorded since, even if its checkpoint was deleted."""
        # Only the history's new lines are read. Metrics are kept by save id, not by step: those of an earlier save of the
        # step do not apply to a new one.
        data = b""
        with suppress(FileNotFoundError), (self.root / names.HISTORY).open("rb") as f:
            f.seek(self._seen_bytes)
            data = f.read()
        lines = data[: data.rfind(b"\n") + 1]
        self._seen_bytes += len(lines)
        for event in _events(files.parse_json_lines(lines.splitlines())):
            if event["event"] == "metrics":
                late, late_on = self._late.setdefault(event.get("save_id", ""), ({}, {}))
                late.update(_floats(metrics := event.get("metrics", {})))
                late_on.update(dict.fromkeys(metrics, "") | event.get("measured_on", {}))
        late, late_on = self._late.get(saved.save_id, ({}, {}))
        return CheckpointFacts(
            saved.step,
            saved.created,
            saved.total_bytes,
            self.is_pinned(saved.step),
            _floats(saved.metrics) | late,
            stage=saved.stage,
            measured_on=saved.measured_on | late_on,
        )

    def history(self) -> builtins.list[dict[str, Any]]:
        """Return all recorded events of this store, oldest first; damaged lines are skipped."""
        return [*_events(files.read_json_lines(self.root / names.HISTORY))]

    def log(self, event: str, step: int, **fields: Any) -> None:
        """Append an event to the history."""
        files.append_json_line(self.root / names.HISTORY, {"time": time.time(), "event": event, "step": step, **fields})

    def record_metrics(
        self, step: int, metrics: Mapping[str, float], measured_on: Mapping[str, str] = _NOTHING
    ) -> None:
        """Add metrics that were measured after the save; a value that is not finite counts as missing.

        `measured_on` has digests of what they were measured on: only metrics with equal ones, or with none, are compared.
        """
        save_id = manifest.read(self.path(step)).save_id
        values = {"metrics": manifest.plain_metrics(metrics), "measured_on": dict(measured_on)}
        self.log("metrics", step, save_id=save_id, **values)

    def is_pinned(self, step: int) -> bool:
        """Whether a checkpoint is pinned."""
        return (self.root / names.PINS / names.of_step(step)).exists()

    def pin(self, step: int) -> None:
        """Protect a checkpoint from the policy; may be called while another process trains."""
        if step not in self.steps():
            raise self.unknown(step)
        if self.is_pinned(step):
            return
        pins = self.root / names.PINS
        storage.mkdirs(pins)
        with suppress(FileExistsError), storage.create(pins / names.of_step(step)):
            pass
        storage.fsync_folder(pins)
        # `remove` checks for the pin again after its rename, so one of the two sees the other.
        if step not in self.steps():
            storage.unlink(pins / names.of_step(step))
            raise self.unknown(step)
        self.log("pin", step)

    def unpin(self, step: int) -> None:
        """Remove a checkpoint's pin, if it has one."""
        if self.is_pinned(step):
            storage.unlink(self.root / names.PINS / names.of_step(step))
            storage.fsync_folder(self.root / names.PINS)
            self.log("unpin", step)

    def unknown(self, step: int) -> UserError:
        """Return the error for a step that has no checkpoint."""
        steps = ", ".join(map(str, self.steps())) or "none"
        return UserError(
            "there is no checkpoint of this step",
            code="no-such-checkpoint",
            field="step",
            value=step,
            remedy=f"steps with a checkpoint: {steps}",
        )

    def publish(self, temporary: Path, step: int) -> None:
        """Rename a complete temporary folder to the checkpoint of a step, durably; replaces one that is there.

        One that is being read stays as `.old-*` until a later sweep: no reader ends a training.
        """
        target = self.path(step)
        self._may_write()
        replaced = None
        if os.path.lexists(target):
            replaced = self.root / names.fresh("old", step)
            storage.rename(target, replaced)
        storage.rename(temporary, target)
        storage.fsync_folder(self.root)
        if replaced is not None and not read_lock.is_read(replaced):
            storage.rmtree_if_possible(replaced)

    def recover(self) -> None:
        """Put back checkpoints that a process was replacing when it was killed."""
        for path in self.root.glob(".old-*"):
            step = names.parse_fresh("old", path.name)
            if step is not None and not self.path(step).exists():
                with suppress(FileNotFoundError):  # another process has put it back, or removed it
                    storage.rename(path, self.path(step))
                    storage.fsync_folder(self.root)

    def record_saved(self, info: CheckpointInfo, seconds: float) -> None:
        """Record a published checkpoint in the history and in `latest`."""
        saved, seconds = info.manifest, round(seconds, 3)
        fields = {"save_id": saved.save_id, "bytes": saved.total_bytes, "seconds": seconds, "metrics": saved.metrics}
        self.log("saved", info.step, **fields)
        files.write_bytes(self.root / names.LATEST, f"{names.of_step(info.step)}\n".encode())

    def remove(self, step: int, reasons: tuple[str, ...]) -> None:
        """Delete a checkpoint by a rename, unlink its files, and log both; refuses one that is pinned or being read."""
        if step not in self.steps():
            raise self.unknown(step)
        path, trash = self.path(step), self.root / names.fresh("trash", step)
        self._refuse_if_protected(step, path)
        # Logged first, so that a crash leaves no deletion unexplained; a full disk may refuse the line.
        with suppress(OSError):
            self.log("deleting", step, reasons=list(reasons))
        self._may_write()
        storage.rename(path, trash)
        try:
            self._refuse_if_protected(step, trash)
        except UserError:
            storage.rename(trash, path)
            raise
        finally:
            storage.fsync_folder(self.root)
        # Before logging: on a full disk this makes room for the line. The next sweep removes what cannot be
        # unlinked now.
        storage.rmtree_if_possible(trash)
        self.log("deleted", step, reasons=list(reasons))

    def _refuse_if_protected(self, step: int, path: Path) -> None:
        if self.is_pinned(step):
            raise UserError(
                "the checkpoint is pinned", code="checkpoint-pinned", field="step", value=step, remedy="unpin it first"
            )
        if read_lock.is_read(path):
            remedy = "wait until the reading process has finished"
            raise UserError(
                "the checkpoint is being read", code="checkpoint-in-use", field="step", value=step, remedy=remedy
            )

    def quarantine(self, step: int, reason: str) -> Path:
        """Rename a bad checkpoint, for a person to inspect, and return its new path; older ones are deleted."""
        path = self._move(step, self.root / names.fresh("bad", step), reason)
        bad = [old for old in self.root.iterdir() if names.parse_fresh("bad", old.name) is not None]
        for old in sorted(bad, key=lambda old: (old.stat().st_ctime_ns, old.name))[:-_KEPT_BAD]:
            storage.rmtree_if_possible(old)
        return path

    def set_aside(self, step: int, reason: str) -> Path:
        """Rename a checkpoint of another branch of the training, and return its new path."""
        return self._move(step, self.root / names.fresh("aside", step), reason)

    def _move(self, step: int, target: Path, reason: str) -> Path:
        self._may_write()
        storage.rename(self.path(step), target)
        storage.fsync_folder(self.root)
        self.log("quarantined", step, reason=reason, name=target.name)
        return target

    def sweep(self) -> builtins.list[str]:
        """Remove unfinished saves, half-emptied trash and replaced saves of dead processes, and return their names.

        Files that cannot be removed now, such as open ones on a network file system, stay for the next sweep. Only
        for the holder of the run's lock: any other process would also delete a save in progress.
        """
        if not self.root.is_dir():
            return []
        self.recover()
        leftovers = sorted(path for path in self.root.iterdir() if names.is_leftover(path.name))
        for path in leftovers:
            if not read_lock.is_read(path):
                self._may_write()
                storage.rmtree_if_possible(path)
        return [path.name for path in leftovers if not os.path.lexists(path)]

    def list(self) -> CheckpointInfos:
        """Return the checkpoints with a valid manifest by ascending step; `scan` also returns the others."""
        return self.scan()[0]


def _events(lines: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a history that are events, as they are."""
    for line in lines:
        with suppress(ValidationError):
            _Event.model_validate(line)
            yield line


def _floats(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in metrics.items()}
