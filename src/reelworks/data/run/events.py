"""Events of a run, as append-only JSON lines with one schema.

Every event has `v` (schema version), `time` (seconds since 1970), `kind` and, except for the first few,
`step` (optimizer steps done). The kinds and their fields are:

    start       world_size, sequence_degree (ranks that share clips, if more than 1), micro_batches_per_step, same_bucket_run,
                threads, device, recipe (file below recipes/), resumed_from (step or null)
    epoch       data_restarts, epoch, segment, planned, plan_steps, plan (digest): an epoch's plan begins
    step        epoch, plan_step, loss, loss_by_bucket {name: loss}, loss_by_timestep {"300-400": loss},
                applied (false if the step was skipped), learning_rate, grad_norm,
                grad_norm_by_block {name: norm} (where it was measured), clips, tokens, seconds, data_wait_seconds (of them,
                waiting for clips), decode_p50_seconds and decode_p99_seconds (of the last 1000 clips, or null), queue_bytes
                (decoded frames that wait), buckets [name, ...], micro_batches (over all ranks), batch_sizes [distinct ones,
                with copies and repeats, ...], memory_bytes (largest so far, of the GPU or, without one, of the process)
    spike       what ("loss" or "grad_norm"), bucket, clip_kind, value, usual (median of recent steps), limit, skipped,
                clips [{uid, path, loss}]: a step far above the usual
    idle_layers problem ("no gradient" | "unused" | "zero" | "unchanged" | "not finite"), layers [name, ...], all_layers (their
                number), steps, learning_rate, is_note (a healthy training may have them), message: layers of an adapter that
                have learnt nothing in so many steps
    early_stop  patience, best, best_step: the validation loss did not fall any more, and training ends
    profile     file, first, last: steps whose trace was written; on a GPU idle_share of the time, and
                gaps [{begin_ms, ms, after, before}]: the longest times without work, of more than 2 % of a step
    compiled    buckets [name, ...] that were new in the step, graphs (so far, over all kinds of blocks), seconds (of the
                step's, spent on compiling)
    balance     planned, measured (shares of the time in which ranks wait for the slowest, since the last such event),
                seconds_by_rank [of forward passes, ...], forward_ms_per_clip {bucket: milliseconds},
                stragglers [{rank, host, factor}]: ranks that are slow for their micro-batches
    validation  loss, loss_by_time {"100": loss, ...}, loss_by_bucket {name: loss}, clips, unread (clips that could not be
                decoded), measured_on (digest; only losses with equal ones are compared), is_comparable, seconds
    clip_losses clips, seconds: a round of measurements with fixed noise
    checkpoint  name, bytes, seconds (null if a kill came right after the save)
    retention   kept [{step, reasons}], deleted [{step, reasons}]
    mirrored    bytes, seconds: the step's checkpoint is in the mirror
    mirror_skipped    newer (step): the checkpoint was not mirrored, because a newer one was waiting
    unmirrored  reason: the checkpoint could not be mirrored; training continued
    mirror_retention  kept, deleted: as in retention
    samples     files [path below samples/], prompts [text, ...], by (what made them), num_inference_steps, guidance_scale
    metrics     values {name: value}, skipped {name: reason}, measured_on (digest): metrics of the previews
    stop_advice use (step), reasons [text, ...]: likeness rises no more since that step, but closeness or the loss does
    failure     uid, copy, repeat_index, path, reason: a clip could not be decoded and was trained with weight 0; or with
                held_out (true), a validation could not read it, but the one before could
    epoch_end   epoch, planned, trained, failed, skipped
    unsaved     reason: a checkpoint could not be written; training continued
    stop        reason: "finished" | "stage" (another one follows) | "signal"
    error       reason: training ended with an exception
"""

from __future__ import annotations

import itertools
import math
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from reelworks.core import files

Event = dict[str, Any]
SCHEMA_VERSION = 1
_BEGIN = re.compile(rb'\{"v": \d+, "time": [^,"]+, "kind": "(\w+)"')  # of a line that `EventLog` writes
_MANY = {"step", "failure"}  # kinds that a run tells of each step


class EventLog:
    """Write the events of one run, of which it is the only writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_whole = False  # whether the last line is known to be complete

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event."""
        event = {"v": SCHEMA_VERSION, "time": time.time(), "kind": kind, **fields}
        is_whole, self._is_whole = self._is_whole, False  # unless the write succeeds
        files.append_json_line(self.path, event, is_whole=is_whole)
        self._is_whole = True


class _Kept:
    """The events of a file that are few, read further at each look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file: tuple[int, int] | None = None
        self._read_bytes = 0
        self._events: list[Event] = []

    def events(self) -> list[Event]:
        """Return the events but `_MANY`, oldest first, after reading what was added since the last call."""
        if not self.path.exists():
            return []
        with self._lock, self.path.open("rb") as file:
            about = os.fstat(file.fileno())
            if (about.st_dev, about.st_ino) != self._file:  # links of it are cut before it is written
                self._file, self._read_bytes, self._events = (about.st_dev, about.st_ino), 0, []
            file.seek(self._read_bytes)
            self._events += _few(self._whole(file))
            # A line without its end may be in the middle of being written.
            file.seek(self._read_bytes)
            return [*self._events, *_few(file)]

    def _whole(self, file: BinaryIO) -> Iterator[bytes]:
        for line in file:
            if line.endswith(b"\n"):
                self._read_bytes += len(line)
                yield line


def _few(lines: Iterable[bytes]) -> Iterator[Event]:
    parsed = files.parse_json_lines(line for line in lines if _kind_of(line) not in _MANY)
    return (event for event in parsed if is_event(event) and event["kind"] not in _MANY)


_kept: dict[Path, _Kept] = {}


@contextmanager
def kept(path: Path) -> Iterator[None]:
    """Keep the few events of a file in memory meanwhile, so that `read` and `timeline` read each line of it once for all of them.

    The file must only grow, as that of a run whose lock this process holds.
    """
    _kept[path] = _Kept(path)
    try:
        yield
    finally:
        del _kept[path]


def read(path: Path, *kinds: str, of_epoch: tuple[int, int] | None = None) -> Iterator[Event]:
    """Yield the events of some kinds, or of all kinds by default, oldest first; only lines of these are parsed.

    Steps and failures may be asked for of one epoch alone, by its data restarts and number, together with `epoch`.
    """
    if kinds and path in _kept and not _MANY & {*kinds}:
        yield from (event for event in _kept[path].events() if event["kind"] in kinds)
    elif path.exists():
        passed = {None, *kinds}
        with path.open("rb") as file:
            lines = (line for line in file if not kinds or _kind_of(line) in passed)
            for event in files.parse_json_lines(lines):
                if is_event(event) and (not kinds or event["kind"] in kinds):
                    yield event
                    if of_epoch is not None and event["kind"] == "epoch":
                        is_asked = (event["data_restarts"], event["epoch"]) == of_epoch
                        passed = {None, *kinds} - (set() if is_asked else _MANY)


def _kind_of(line: bytes) -> str | None:
    """Return the kind of the event in a line that `EventLog` wrote, None in another line."""
    found = _BEGIN.match(line)
    return None if found is None else found[1].decode()


def is_event(value: dict[str, Any]) -> bool:
    """Return whether an object of the file has what every event has, in place of something that another program wrote."""
    kind, time_, step = value.get("kind"), value.get("time", 0.0), value.get("step", 0)
    return (
        isinstance(kind, str)
        and isinstance(time_, int | float)
        and isinstance(step, int if kind == "step" else int | float)
        and 0 <= step < 2**63
        and ("step" in value or kind != "step")
    )


def timeline(path: Path, *kinds: str) -> list[Event]:
    """Return the events that are still valid: a start from step s voids earlier events of later steps.

    A run that was killed at step 130 and resumed from its checkpoint of step 100 repeats steps 101 to 130; their
    first events are dropped. A run that was killed before its first checkpoint begins again at step 0. All start
    events are kept.
    """
    return list(stream(path, *kinds))


def stream(path: Path, *kinds: str, of_epoch: tuple[int, int] | None = None) -> Iterator[Event]:
    """Yield the events of `timeline` one by one; `of_epoch` as in `read`."""
    wanted = {*kinds, "start"} if kinds else ()
    return valid(read(path, *wanted, of_epoch=of_epoch), read(path, "start"), *kinds)


def last_steps(starts: Iterable[Event]) -> list[float]:
    """Return the last step that is valid of those before the first start, and of those after each."""
    resumed = [-1 if (step := start.get("resumed_from")) is None else step for start in starts]
    return [math.inf, *itertools.accumulate(reversed(resumed), min)][::-1]


def valid(events: Iterable[Event], starts: Iterable[Event], *kinds: str) -> Iterator[Event]:
    """Yield those of some events that are still valid after all the starts, which are among them."""
    last, begun = last_steps(starts), 0
    for event in events:
        if event["kind"] == "start":
            begun += 1
            if begun == len(last):  # a start that came meanwhile
                return
        elif event.get("step", 0) > last[begun]:
            continue
        if not kinds or event["kind"] in kinds:
            yield event
