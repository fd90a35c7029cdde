"""What holds of a run, from the notes of its starts alone; and what is wrong with how it trained.

A start that went on from step s voids what earlier ones did after s; one that began fresh voids all.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reelworks.data.buckets.assign import Reason

Json = dict[str, Any]
Key = tuple[int, int]  # generation, epoch
Clip = tuple[str, int]  # id of a file, and which repeat of it
NOT_THERE, NO_DATASET, NO_COPY = "file gone", "dataset gone", "copy gone"


@dataclass(frozen=True)
class Begin:
    """A segment that begins: all live clips with their reasons, and those that it plans.

    Attributes:
        left: Ids of files whose dataset the recipe does not name.
        names: "dataset/path" of each file at that time, by id.
        superseded: True once another plan took its place before any of its steps was trained.
    """

    step: int
    key: Key
    segment: int
    plan_step: int
    live: dict[Clip, Reason]
    planned: frozenset[Clip]
    left: frozenset[str]
    names: dict[str, str] = field(default_factory=dict)
    superseded: bool = False

    @property
    def plan(self) -> tuple[Key, int, frozenset[Clip]]:
        """What tells its plan from those of other segments."""
        return self.key, self.segment, self.planned

    def why_gone(self, clip: Clip) -> str:
        """Say why a clip that was there before is not there now."""
        if clip[0] in {identity for identity, _ in self.live}:
            return NO_COPY
        return NO_DATASET if clip[0] in self.left else NOT_THERE


@dataclass(frozen=True)
class Step:
    """An optimizer step, or one that was not taken; with what became of each clip that it consumed."""

    step: int
    key: Key
    segment: int
    plan_step: int
    items: dict[Clip, str]


@dataclass(frozen=True)
class Began:
    """A start that got as far as to train, and the checkpoint that it went on from."""

    resumed: int | None


@dataclass(frozen=True)
class End:
    """An epoch's end, as the trainer told it."""

    step: int
    key: Key


@dataclass(frozen=True)
class Reopened:
    """An epoch that a start goes on with, before it has begun a segment there: what was begun beyond is void.

    Attributes:
        segment: Number of the segment whose record it makes place for: what had that number or a later one, and no
            step, is void too. None while it has not come so far.
    """

    key: Key
    segment: int | None = None


Entry = Began | Begin | Step | End | Reopened


@dataclass
class Truth:
    """What holds.

    Attributes:
        steps: In their order.
        begins: In their order; the last one is under way.
        ends: In their order, each with the segment that came to it.
    """

    steps: list[Step] = field(default_factory=list)
    begins: list[Begin] = field(default_factory=list)
    ends: list[tuple[End, Begin]] = field(default_factory=list)

    @property
    def keys(self) -> list[Key]:
        """Epochs, in their order."""
        return sorted({begin.key for begin in self.begins})

    @property
    def ended(self) -> set[Key]:
        """Epochs that came to their end.

        An end is that of a plan. With another plan in its place, under the same number too, the epoch goes on: a
        resume at its last step may find clips that nothing planned before, such as those that another seed holds out
        no more.
        """
        came_to_an_end = {begin.plan for _, begin in self.ends}
        return {key for key in self.keys if self.last_begin(key).plan in came_to_an_end}

    @property
    def names(self) -> dict[str, str]:
        """What each file was called when the run last saw it, by id; a plan that was never trained saw nothing."""
        named: dict[str, str] = {}
        for begin in self.begins:
            if not begin.superseded:
                named |= {identity: begin.names[identity] for identity, _ in begin.live if identity in begin.names}
        return named

    def last_begin(self, key: Key) -> Begin:
        """The last segment of an epoch."""
        return [begin for begin in self.begins if begin.key == key][-1]

    def consumed(self, key: Key) -> dict[Clip, tuple[int, str]]:
        """Step, and what it was made of, of each clip that an epoch consumed."""
        return {clip: (s.step, became) for s in self.steps if s.key == key for clip, became in s.items.items()}


def hold(entries: Iterable[Entry]) -> Truth:
    """Say what holds of all that was noted."""
    truth = Truth()
    for entry in entries:
        if isinstance(entry, Began):
            _go_back(truth, -1 if entry.resumed is None else entry.resumed)
        elif isinstance(entry, Step):
            truth.steps.append(entry)
        elif isinstance(entry, End):
            truth.ends.append((entry, truth.last_begin(entry.key)))
        elif isinstance(entry, Reopened):
            _void_beyond(truth, entry.key)
            if entry.segment is not None:
                truth.begins = [b for b in truth.begins if not _is_replaced(b, entry.key, entry.segment, truth)]
        else:
            _begin(truth, entry)
    return truth


def _go_back(truth: Truth, step: int) -> None:
    truth.steps = [s for s in truth.steps if s.step <= step]
    truth.begins = [b for b in truth.begins if b.step <= step]
    truth.ends = [(end, b) for end, b in truth.ends if end.step <= step]


def _begin(truth: Truth, begin: Begin) -> None:
    """What was begun beyond this segment is void; another plan in its place was never trained."""
    _void_beyond(truth, begin.key)
    truth.begins = [
        replace(b, superseded=True) if _is_replaced(b, begin.key, begin.segment, truth) else b for b in truth.begins
    ]
    truth.begins.append(begin)


def _is_replaced(begin: Begin, key: Key, segment: int, truth: Truth) -> bool:
    """Return whether a segment takes the place of a former one that no step holds of."""
    is_trained = any((s.key, s.segment) == (begin.key, begin.segment) for s in truth.steps)
    return begin.key == key and begin.segment >= segment and not is_trained


def _void_beyond(truth: Truth, key: Key) -> None:
    truth.ends = [(end, b) for end, b in truth.ends if end.key <= key]
    truth.begins = [b for b in truth.begins if b.key <= key]


# Reading notes.


def read(folder: Path, ids: dict[str, str], left: frozenset[str], names: dict[str, str]) -> list[Entry]:
    """Read what the ranks of a start noted, in the order of the first one.

    A step that one rank took is a step of all: its gradient is the sum of what each of them gave, and a rank that was
    killed before it took the step had given its share too. A share that no rank took a step with consumed nothing.

    Args:
        folder: Where the notes are.
        ids: Ids of files by their path in this start.
        left: Ids of files whose dataset the recipe does not name.
        names: "dataset/path" of files in this start, by id.
    """
    files = sorted(folder.glob("rank-*.jsonl"))
    by_rank = [[json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] for file in files]
    main = by_rank[0] if files and files[0].name == "rank-0.jsonl" else []
    shares: dict[int, list[list[Any]]] = defaultdict(list)
    taken: dict[int, Json] = {}
    for line in (line for lines in by_rank for line in lines):
        if line["what"] == "share":
            shares[line["step"]] += line["items"]
        elif line["what"] == "step":
            taken.setdefault(line["step"], line)
    entries: list[Entry] = []
    for line in main:
        if line["what"] == "step":
            entries.append(_step(line, shares[line["step"]], ids))
        elif line["what"] != "share":
            entries.append(_entry(line, ids, left, names))
    beyond = sorted(taken.keys() - {line["step"] for line in main if line["what"] == "step"})
    # Of a rank that was killed where another one went on.
    return entries + [_step(taken[step], shares[step], ids) for step in beyond]


def _entry(line: Json, ids: dict[str, str], left: frozenset[str], names: dict[str, str]) -> Entry:
    if line["what"] == "began":
        return Began(line["resumed"])
    key = (line["data_restarts"], line["epoch"])
    if line["what"] == "ended":
        return End(line["step"], key)
    live = {(ids.get(path, path), copy): Reason(reason) for path, copy, reason in line["live"]}
    planned = frozenset((ids.get(path, path), copy) for path, copy in line["planned"])
    return Begin(line["step"], key, line["segment"], line["plan_step"], live, planned, left, names)


def _step(line: Json, shares: list[list[Any]], ids: dict[str, str]) -> Step:
    items: dict[Clip, str] = {}
    for path, copy, repeat_index, state in shares:
        if repeat_index:
            continue  # shown once more, which consumes nothing
        clip = (ids.get(path, path), copy)
        became = {"counts": "trained" if line["applied"] else "skipped"}.get(state, state)
        items[clip] = "twice" if clip in items else became
    return Step(line["step"], (line["data_restarts"], line["epoch"]), line["segment"], line["plan_step"], items)


# What can be wrong with the training.


def wrong_training(truth: Truth, ids: dict[str, str] | None = None) -> list[str]:
    """Say what is wrong with the steps that hold; each line begins with a name for its kind and a colon."""
    wrong = []
    numbers = [s.step for s in truth.steps]
    if numbers != list(range(1, len(numbers) + 1)):
        wrong.append(f"steps do not count on: {numbers}")
    for key in truth.keys:
        steps = [s for s in truth.steps if s.key == key]
        times = Counter(clip for s in steps for clip in s.items)
        twice = [clip for clip, n in times.items() if n > 1]
        twice += [clip for s in steps for clip, became in s.items.items() if became == "twice"]
        wrong += [f"trained twice: {clip} in {key}, steps {_steps_of(steps, clip)}" for clip in twice]
        wrong += [f"lost in a step: {s.step}" for s in steps if "lost" in s.items.values()]
        last = truth.last_begin(key)
        due = {clip for clip, reason in last.live.items() if reason == Reason.NONE}
        if key in truth.ended and (never := sorted(due - times.keys())):
            wrong.append(f"never trained: {never} in {key}")
    return wrong


def wrong_plan(truth: Truth) -> list[str]:
    """Say where the segment under way plans other clips than those that are due and not consumed."""
    if not truth.begins:
        return []
    begin = truth.begins[-1]
    before = {clip for s in truth.steps if s.key == begin.key and s.segment != begin.segment for clip in s.items}
    due = {clip for clip, reason in begin.live.items() if reason == Reason.NONE} - before
    wrong = []
    if again := sorted(begin.planned & before):
        wrong.append(f"planned again: {again} in {begin.key}, segment {begin.segment}")
    if missing := sorted(due - begin.planned):
        wrong.append(f"not planned: {missing} in {begin.key}, segment {begin.segment}")
    if undue := sorted(begin.planned - due - before):
        wrong.append(f"planned against a reason: {undue} in {begin.key}, segment {begin.segment}")
    return wrong


def _steps_of(steps: list[Step], clip: Clip) -> list[int]:
    return [s.step for s in steps if clip in s.items]
