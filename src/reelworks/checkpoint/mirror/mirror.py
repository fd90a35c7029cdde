"""Copies of checkpoints in another place, made in the background while training goes on.

One thread takes one checkpoint at a time. Of those that wait the newest wins: storage that is slower than the
saves gets fewer checkpoints, never a growing queue. No error of the mirror ends a training; it is tried again,
then told, and the next checkpoint is another try.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

from reelworks.checkpoint import manifest, policy
from reelworks.checkpoint.config import MirrorConfig, Retention
from reelworks.checkpoint.manifest import BadCheckpoint, Manifest
from reelworks.checkpoint.mirror import files
from reelworks.checkpoint.mirror.remote import RemoteFilesystem, check_size, describe, folder_of
from reelworks.checkpoint.policy import Decision, PolicyTime
from reelworks.checkpoint.store import CheckpointStore
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.run.folder import RunFolder

P = ParamSpec("P")
T = TypeVar("T")
# Pauses between tries of one operation; file systems like S3's try several times more by themselves.
WAITS_SECONDS = (2.0, 10.0, 30.0)


class OnEvent(Protocol):
    """Callback for events of a run; called from the mirror's thread."""

    def event(self, kind: str, **fields: Any) -> None:
        """Write an event."""
        ...


@dataclass(frozen=True)
class Mirrored:
    """A complete checkpoint in the mirror, as retention sees it."""

    step: int
    created: float
    num_bytes: int
    pinned: bool
    metrics: dict[str, float]


class _Superseded(Exception):  # noqa: N818
    """A newer checkpoint waits."""


class Mirror:
    """The mirror of one run, on its main process.

    Args:
        place: Where the copies go.
        run: The run folder.
        run_id: The run's id.
        config: The recipe's `[checkpoints.mirror]`.
        tell: Told of each copy and each failure.
    """

    def __init__(
        self, place: RemoteFilesystem, run: RunFolder, run_id: str, config: MirrorConfig, tell: OnEvent
    ) -> None:
        self._place, self._run, self._run_id, self._tell = place, run, run_id, tell
        self._store = CheckpointStore(run.checkpoints_folder)
        self._policy = Retention(
            keep_last=config.keep_last,
            keep_best=config.keep_best,
            keep_every=config.keep_every,
        )
        self._changed = threading.Condition()
        self._waiting: int | None = None
        self._under_way: int | None = None
        self._closing = False
        self._failure: str | None = None
        # Not waited for where the process ends by an error: the copy under way then stays without a manifest.
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        self._thread.start()

    def offer(self, step: int) -> None:
        """Have a committed checkpoint copied; call it before retention, and for the one that a run resumes from."""
        with self._changed:
            replaced, self._waiting = self._waiting, step
            self._changed.notify_all()
        if replaced is not None:
            self._skipped(replaced, step)

    def in_use(self) -> frozenset[int]:
        """Steps whose folders are needed here: the one being copied, and the one that waits."""
        with self._changed:
            return frozenset(s for s in (self._waiting, self._under_way) if s is not None)

    def close(self) -> str | None:
        """Wait for the last checkpoint, and copy the run's files once more.

        Returns:
            Why the last one is not in the mirror, as a sentence; None if it is.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            last = self._waiting if self._waiting is not None else self._under_way
        if last is not None:
            logger.info(f"waiting until the checkpoint of step {last} is in the mirror {self._place.url}")
        self._thread.join()
        return self._failure

    def _work(self) -> None:
        while (step := self._next()) is not None:
            self._attempt(step)
            with self._changed:
                self._under_way = None
        with suppress(Exception):  # the checkpoint is there; what is lost are the last events
            files.push(self._place, self._run, self._run_id)

    def _next(self) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._closing)
            self._under_way, self._waiting = self._waiting, None
            return self._under_way

    def _attempt(self, step: int) -> None:
        try:
            self._copy(step)
        except _Superseded:
            with self._changed:
                newer = self._waiting
            assert newer is not None
            self._skipped(step, newer)
        except Exception as error:  # each kind of storage raises its own
            reason = error.problem if isinstance(error, UserError) else describe(error)
            self._failure = f"the checkpoint of step {step} is not in the mirror {self._place.url} ({reason})"
            self._tell.event("unmirrored", step=step, reason=reason)
            logger.warning(self._failure)
        else:
            self._failure = None
            self._tidy(step)

    def _tidy(self, step: int) -> None:
        """Bring the mirror's other checkpoints into order after a copy."""
        try:
            self._set_aside_after(step)
            self._retire(step)
        except _Superseded:
            pass  # done after the newer one
        except Exception as error:
            logger.warning("old checkpoints could not be deleted in the mirror (%s)", describe(error))

    def _copy(self, step: int) -> None:
        began = time.perf_counter()
        wanted = manifest.read(self._store.path(step))
        self._patiently(files.push, self._place, self._run, self._run_id)
        if not self._patiently(self._place.is_there, wanted):
            self._upload(wanted)
            seconds = time.perf_counter() - began
            fields = {"bytes": wanted.total_bytes, "seconds": round(seconds, 3)}
            self._log("mirrored", step, save_id=wanted.save_id, url=self._place.url, **fields)
            self._tell.event("mirrored", step=step, **fields)

    def _upload(self, wanted: Manifest) -> None:
        """Copy a checkpoint, its manifest last."""
        here, there = self._store.path(wanted.step), folder_of(wanted.step)
        # What lies there may be of another save, with files of the same sizes.
        self._patiently(self._place.remove, wanted.step)
        for entry in wanted.files:
            self._patiently(self._place.put, here / entry.path, f"{there}/{entry.path}")
        sizes = self._patiently(self._place.sizes, there)
        for entry in wanted.files:
            check_size(entry, sizes.get(entry.path))
        data = (here / manifest.FILE_NAME).read_bytes()
        self._patiently(self._place.write, f"{there}/{manifest.FILE_NAME}", data)

    def _set_aside_after(self, step: int) -> None:
        """Take out what the run went back behind: it must not pass for the newest when the mirror is resumed from."""
        for later in [s for s in self._patiently(self._place.steps) if s > step]:
            if self._patiently(self._place.set_aside, later):
                self._log("mirror_abandoned", later, reason=f"the run went back to step {step}")

    def _retire(self, step: int) -> None:
        """Delete what the mirror's policy does not keep."""
        for earlier in [s for s in self._patiently(self._place.steps) if s < step]:
            if self._patiently(self._place.is_leftover, earlier):
                self._patiently(self._place.remove, earlier)
        decisions = self._patiently(self._plan)
        for decision in [d for d in decisions if not d.keep]:
            self._patiently(self._place.remove, decision.step)
            self._log("mirror_deleted", decision.step, reasons=list(decision.reasons))
        described: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for decision in decisions:
            described[decision.keep].append({"step": decision.step, "reasons": list(decision.reasons)})
        self._tell.event("mirror_retention", step=step, kept=described[True], deleted=described[False])

    def _plan(self) -> list[Decision]:
        found = []
        for step in self._place.steps():
            with suppress(BadCheckpoint):  # neither counts nor is deleted
                whole = self._place.complete(step)
                metrics = self._store.metrics_of(whole)
                pinned = self._store.is_pinned(step)
                found.append(Mirrored(step, whole.created, whole.total_bytes, pinned, metrics))
        return policy.plan_retention(found, self._policy, PolicyTime(time.time()))

    def _patiently(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do `work`, again after a pause if storage errs; not where another try cannot help.

        Raises:
            _Superseded: A newer checkpoint came while this one waited for another try.
            Exception: The last try's.
        """
        for seconds in WAITS_SECONDS:
            try:
                return work(*args, **kwargs)
            except (BadCheckpoint, UserError):
                raise
            except Exception:  # each kind of storage raises its own
                pass
            with self._changed:
                if self._changed.wait_for(lambda: self._waiting is not None, seconds):
                    raise _Superseded
        return work(*args, **kwargs)

    def _skipped(self, step: int, newer: int) -> None:
        self._tell.event("mirror_skipped", step=step, newer=newer)
        logger.info(f"checkpoint of step {step} is not mirrored: that of step {newer} is newer")

    def _log(self, event: str, step: int, **fields: Any) -> None:
        with suppress(OSError):  # a full disk
            self._store.log(event, step, **fields)
