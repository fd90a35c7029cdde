"""Read the events of a run as they come; of a million steps, only so many as a plot shows become Python objects."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from reelworks.core import files
from reelworks.core.arrays import I64
from reelworks.data.catalog.store.schema import as_numpy
from reelworks.data.run import events
from reelworks.data.run.events import Event
from reelworks.training.coverage.speed import Speed

MAX_STEPS = 3000  # parsed for plots
SPARK_STEPS = 48  # of a run in the list
SPEED_STEPS = 60  # last steps from which the time left is computed
_BLOCK_BYTES = 1 << 20
_NUMBERS = ("loss", "clips", "seconds", "data_wait_seconds")
_FIELDS = pa.schema(
    {"kind": pa.string(), "step": pa.int64(), "applied": pa.bool_()} | dict.fromkeys(_NUMBERS, pa.float64())
)
_READ = arrow_json.ReadOptions(use_threads=False, block_size=4 * _BLOCK_BYTES)
_PARSE = arrow_json.ParseOptions(explicit_schema=_FIELDS, unexpected_field_behavior="ignore")


class EventIndex:
    """Places, losses and speeds of a run's steps, and all its other events, read further at each `update`.

    Attributes:
        total_bytes: Size of the file when it was last looked at.
        read_bytes: How much of it was read.
        others: All events but steps, oldest first.
        num_steps: Number of step events, also of those that a resume made void.
        rests: Whether it has only what the list of runs shows (`rest`).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self.total_bytes = self.read_bytes = self.num_steps = 0
        self.rests = False
        self.others: list[Event] = []
        self._offset, self._step = array("q"), array("q")
        self._numbers = {name: array("d") for name in _NUMBERS}  # of each step; `clips` as `Speed` counts them
        self._before: list[int] = []  # number of steps before each of the other events
        self._file: tuple[int, int] | None = None
        self._kept: dict[int, tuple[Any, list[Event]]] = {}  # steps by their number, of a state of the file

    @property
    def complete(self) -> bool:
        """True if everything that was in the file when it was last looked at was read."""
        return self.read_bytes >= self.total_bytes

    def rest(self) -> None:
        """Forget the steps, but what the list of runs shows: the few of its curve, and the last ones."""
        self.steps(SPARK_STEPS)
        with self._lock:
            is_all = self.path.stat().st_size == self.read_bytes  # not where a killed run has left half a line
            if is_all and (kept := self._kept.get(SPARK_STEPS)) and kept[0] == self._state():
                self._kept, self._offset = {SPARK_STEPS: kept}, self._offset[-SPEED_STEPS:]
                self._step, self._numbers, self.rests = array("q"), {}, True

    def update(self, most_bytes: int | None = None, *, whole: bool = True) -> bool:
        """Read what was added since, at most so many bytes; return whether there was anything.

        After `rest`, the file is read from its start when it has grown, or the `whole` of it is needed.
        """
        with self._lock:
            try:
                with self.path.open("rb") as file:
                    return self._update(file, most_bytes, whole)
            except FileNotFoundError:
                self._clear()
                return False

    def _update(self, file: BinaryIO, most_bytes: int | None, whole: bool) -> bool:
        about = self.path.stat()
        identity = (about.st_dev, about.st_ino)
        is_other = identity != self._file or about.st_size < self.read_bytes  # another run in the same folder
        if is_other or (self.rests and (whole or about.st_size > self.read_bytes)):
            self._clear()
            self._file = identity
        begun, self.total_bytes = self.read_bytes, about.st_size
        until = self.total_bytes if most_bytes is None else min(self.total_bytes, begun + most_bytes)
        file.seek(begun)
        while self.read_bytes < until:
            lines = file.readlines(_BLOCK_BYTES)
            is_cut = not lines or not lines[-1].endswith(b"\n")
            if ended := lines[: len(lines) - is_cut]:
                self._take(ended)
            if is_cut:
                self.total_bytes = self.read_bytes  # the last line is being written
                break
        return self.read_bytes > begun

    def _take(self, lines: list[bytes]) -> None:
        ends = self.read_bytes + np.cumsum([len(line) for line in lines], dtype=np.int64)
        table = _fields_of(lines)
        is_step = as_numpy(
            pc.and_(pc.equal(table["kind"], "step"), pc.greater_equal(table["step"], 0)).fill_null(False)
        )
        before = self.num_steps + np.cumsum(is_step)
        for line in np.flatnonzero(~is_step).tolist():
            for event in filter(events.is_event, files.parse_json_lines([lines[line]])):
                self.others.append(event)
                self._before.append(int(before[line]))
        steps = table.filter(is_step)
        counted = pc.if_else(steps["applied"].fill_null(True), steps["clips"], 0.0)
        steps = steps.set_column(steps.schema.get_field_index("clips"), "clips", counted)
        self._offset.frombytes(np.r_[self.read_bytes, ends[:-1]][is_step].tobytes())
        self._step.frombytes(as_numpy(steps["step"]).tobytes())
        for name, values in self._numbers.items():
            values.frombytes(as_numpy(steps[name].fill_null(np.nan if name == "loss" else 0.0)).tobytes())
        self.read_bytes = int(ends[-1])
        self.num_steps += int(is_step.sum())

    def _state(self) -> Any:
        return self._file, self.num_steps, len(self.others)

    def valid_steps(self) -> I64:
        """Return the places of steps that no resume made void, as `data.run.events.timeline` tells them."""
        step = np.array(self._step, dtype=np.int64)
        starts = [(i, e) for i, e in zip(self._before, self.others, strict=True) if e["kind"] == "start"]
        befores, begun = [before for before, _ in starts], [event for _, event in starts]
        last_steps = np.array(events.last_steps(begun))
        return np.flatnonzero(step <= last_steps[np.searchsorted(befores, np.arange(len(step)), side="right")])

    def speed(self) -> Speed:
        """Return the speed of all steps that no resume made void."""
        with self._lock:
            at = self.valid_steps()
            clips, seconds, waited = (np.array(self._numbers[name])[at].sum() for name in _NUMBERS[1:])
        return Speed(int(clips), float(seconds), float(waited))

    def valid_others(self) -> list[Event]:
        """Return the other events that no resume made void."""
        others = list(self.others)
        return list(events.valid(others, (event for event in others if event["kind"] == "start")))

    def sessions(self) -> list[Event]:
        """Return all other events in order, with the last step before each start and the last one of all."""
        with self._lock:
            others = list(zip(self._before, self.others, strict=True))
            starts = [before for before, event in others if event.get("kind") == "start" and before]
            lasts = sorted({*starts, *([len(self._step)] if self._step else [])})
            offsets = [self._offset[number - 1] for number in lasts]
        # A step is the last one of so many; the other events with that number before them follow it.
        placed = [((number, 0), event) for number, event in zip(lasts, self._parse(offsets), strict=False)]
        placed += [((before, 1), event) for before, event in others]
        return [event for _, event in sorted(placed, key=lambda item: item[0])]

    def last_step(self) -> Event | None:
        """Return the last step; one that a resume made void is never the last, but for the moment until the next one."""
        with self._lock:
            offsets = self._offset[-1:].tolist()
        return next(self._parse(offsets), None)

    def steps(self, most: int = MAX_STEPS) -> list[Event]:
        """Return valid step events, at least the first and the last one and at most so many, evenly spaced.

        Where steps are left out, a loss is the mean of its step and of those left out before it.
        """
        with self._lock:
            state = self._state()
            if most in self._kept and self._kept[most][0] == state:
                return self._kept[most][1]
            at = self.valid_steps()
            if not len(at):
                return []
            last = np.unique(np.linspace(0, len(at) - 1, min(max(most, 2), len(at))).round().astype(np.int64))
            loss = np.array(self._numbers["loss"])[at]
            offsets = [self._offset[i] for i in at[last].tolist()]
        events = list(self._parse(offsets))
        if len(last) < len(at) and len(events) == len(last):
            finite = np.isfinite(loss)
            sums, counts = (
                np.add.reduceat(v, np.r_[0, last[:-1] + 1]) for v in (np.where(finite, loss, 0.0), finite * 1)
            )
            for event, total, count in zip(events, sums.tolist(), counts.tolist(), strict=True):
                event["loss"] = total / count if count else None
        if len(events) == len(last):
            self._kept[most] = state, events
        return events

    def seconds_per_step(self, most: int) -> float | None:
        """Return the mean time from one to the next of the last steps; None if there are not two."""
        with self._lock:
            offsets = self._offset[-most:].tolist()
        first, last = next(self._parse(offsets[:1]), None), next(self._parse(offsets[-1:]), None)
        if first is None or last is None or last["step"] <= first["step"] or last["time"] < first["time"]:
            return None  # where a clock was set back, as where there are not two
        return float((last["time"] - first["time"]) / (last["step"] - first["step"]))

    def _parse(self, offsets: list[int]) -> Iterator[Event]:
        if not offsets:
            return
        with self.path.open("rb") as file:
            for offset in offsets:
                file.seek(offset)
                yield from files.parse_json_lines([file.readline()])


def _fields_of(lines: list[bytes]) -> pa.Table:
    """Return what the index needs of the event of each line; nothing of a line that holds none."""
    with suppress(pa.ArrowInvalid):  # for lines that are no JSON, and for fields that only steps have as numbers
        table = arrow_json.read_json(pa.BufferReader(b"".join(lines)), _READ, _PARSE)
        if len(table) == len(lines):
            return table
    return pa.Table.from_pylist([_fields(line) for line in lines], _FIELDS)


def _fields(line: bytes) -> Event:
    for event in filter(events.is_event, files.parse_json_lines([line])):
        numbers = {name: float(event[name]) for name in _NUMBERS if isinstance(event.get(name), int | float)}
        applied = bool(event.get("applied", True))
        return {"kind": event["kind"], "step": int(event.get("step", 0)), "applied": applied, **numbers}
    return {}
