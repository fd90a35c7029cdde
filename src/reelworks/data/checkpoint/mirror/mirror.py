"""Copy checkpoints to another place in the background, while training continues.

One thread copies one checkpoint at a time. A newer checkpoint replaces a waiting one: slow storage gets fewer
checkpoints, never a growing queue. No error of the mirror ends a training: operations are retried, then the error
is reported, and the next checkpoint is another attempt.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from typing import Any, ParamSpec, TypeVar

from reelworks.core import retry
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.checkpoint import manifest, names, policy
from reelworks.data.checkpoint.config import MirrorConfig, Retention
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.manifest import BadCheckpoint, Manifest
from reelworks.data.checkpoint.mirror import fetch, files
from reelworks.data.checkpoint.mirror.remote import RemoteFilesystem, describe, folder_of
from reelworks.data.checkpoint.policy import PolicyTime
from reelworks.data.run.folder import RunFolder

P = ParamSpec("P")
T = TypeVar("T")
# Pauses between retries of one operation; file systems such as S3's also retry by themselves.
WAITS_SECONDS = (2.0, 10.0, 30.0)
# Given the kind of an event of a run, and its fields by name; called from the mirror's thread.
OnEvent = Callable[..., None]


class _Superseded(Exception):  # noqa: N818
    """A newer checkpoint is waiting."""


class Mirror:
    """The mirror of one run, on its main process; `event` is told of each copy and each failure."""

    def __init__(self, place: RemoteFilesystem, run: RunFolder, config: MirrorConfig, event: OnEvent) -> None:
        self._place, self._run, self.event, self._token = place, run, event, names.fresh_id()
        self._store = CheckpointFolder(run.checkpoints_folder)
        self._policy = Retention(keep_last=config.keep_last, keep_best=config.keep_best, keep_every=config.keep_every)
        self._changed = threading.Condition()
        self._waiting: int | None = None
        self._under_way: int | None = None
        self._closing = False
        self._failure: str | None = None
        # A daemon, so that a process that fails does not wait; the unfinished copy then has no manifest.
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        self._thread.start()

    def offer(self, step: int) -> None:
        """Queue a committed checkpoint; call this before retention, and for the one that a run resumes from."""
        with self._changed:
            replaced, self._waiting = self._waiting, step
            self._changed.notify_all()
        if replaced is not None:
            self._skipped(replaced, step)

    def in_use(self) -> frozenset[int]:
        """Return the steps whose folders must not be deleted: the one being copied and the waiting one."""
        with self._changed:
            return frozenset(s for s in (self._waiting, self._under_way) if s is not None)

    def close(self) -> str | None:
        """Wait for the last checkpoint, copy the run's files once more, and return why the checkpoint is not there."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            last = self._waiting if self._waiting is not None else self._under_way
        if last is not None:
            logger.info(f"waiting until the checkpoint of step {last} is in the mirror {self._place.url}")
        self._thread.join()
        return self._failure

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._closing)
                step, self._waiting = self._waiting, None
                self._under_way = step
            if step is None:
                break
            self._attempt(step)
            with self._changed:
                self._under_way = None
        with suppress(Exception):  # the checkpoint is copied; only the last events would be lost
            files.push(self._place, self._run, self._token)

    def _attempt(self, step: int) -> None:
        try:
            self._copy(step)
        except _Superseded as error:
            self._skipped(step, *error.args)
        except Exception as error:  # each kind of storage raises its own
            reason = error.problem if isinstance(error, UserError) else describe(error)
            self._failure = f"the checkpoint of step {step} is not in the mirror {self._place.url} ({reason})"
            self.event("unmirrored", step=step, reason=reason)
            logger.warning(self._failure)
        else:
            self._failure = None
            self._tidy(step)

    def _tidy(self, step: int) -> None:
        """Apply retention after a copy, and set aside what the run went back behind, which no resume may take for the newest."""
        try:
            for later in [s for s in self._with_retries(self._place.steps) if s > step]:
                if _is_abandoned(self._store, later) and self._with_retries(self._place.set_aside, later):
                    self._log("mirror_abandoned", later, reason=f"the run went back to step {step}")
            # Later ones that damage has put out of reach neither count, as they would in the place of good ones, nor go.
            mirrored = [one for one in self._with_retries(fetch.facts, self._place, self._store) if one.step <= step]
            decisions = policy.plan_retention(mirrored, self._policy, PolicyTime(time.time()))
            for decision in [d for d in decisions if not d.keep]:
                self._with_retries(self._place.remove, decision.step)
                self._log("mirror_deleted", decision.step, reasons=list(decision.reasons))
            self.event("mirror_retention", step=step, **policy.as_event(decisions))
        except _Superseded:
            pass  # follows after the newer checkpoint
        except Exception as error:
            logger.warning("old checkpoints could not be deleted in the mirror (%s)", describe(error))

    def _copy(self, step: int) -> None:
        began = time.perf_counter()
        saved = manifest.read(self._store.path(step))
        self._with_retries(files.own_index, self._place, self._run)  # before anything is deleted
        with suppress(Exception):  # before room is needed; what cannot be deleted ends no copy
            self._with_retries(self._place.remove_leftovers)
        self._with_retries(files.push, self._place, self._run, self._token)
        if not self._with_retries(self._place.is_there, saved):
            self._upload(saved)
            fields = {"bytes": saved.total_bytes, "seconds": round(time.perf_counter() - began, 3)}
            self._log("mirrored", step, save_id=saved.save_id, url=self._place.url, **fields)
            self.event("mirrored", step=step, **fields)

    def _upload(self, saved: Manifest) -> None:
        """Copy a checkpoint, its manifest last; a failed copy is removed, since it would take the room of the next one."""
        source, target = self._store.path(saved.step), folder_of(saved.step)
        # Existing files may be of another save, with the same sizes.
        self._with_retries(self._place.remove, saved.step)
        try:
            for path in (*(entry.path for entry in saved.files), manifest.FILE_NAME):
                self._with_retries(self._place.put, source / path, f"{target}/{path}")
        except Exception:
            with suppress(Exception):
                self._place.remove(saved.step)
            raise

    def _with_retries(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `work`, and retry after a pause if the storage fails, unless a newer checkpoint comes meanwhile."""

        def wait(seconds: float) -> None:
            with self._changed:
                if self._changed.wait_for(lambda: self._waiting is not None, seconds):
                    raise _Superseded(self._waiting)

        return retry.with_retries(
            lambda: work(*args, **kwargs),
            waits_seconds=WAITS_SECONDS,
            may_vanish=lambda error: not isinstance(error, BadCheckpoint | UserError),  # each storage raises its own
            wait=wait,
        )

    def _skipped(self, step: int, newer: int) -> None:
        self.event("mirror_skipped", step=step, newer=newer)
        logger.info(f"checkpoint of step {step} is not mirrored: that of step {newer} is copied instead")

    def _log(self, event: str, step: int, **fields: Any) -> None:
        with suppress(OSError):  # a full disk
            self._store.log(event, step, **fields)


def _is_abandoned(store: CheckpointFolder, step: int) -> bool:
    """Whether somebody went back behind a step since it was saved last, rather than that damage made training do so."""
    since = takewhile(lambda event: (event["event"], event["step"]) != ("saved", step), reversed(store.history()))
    return any(event["event"] == "went_back" and event["step"] < step for event in since)
