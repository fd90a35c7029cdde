"""Compares what `coverage` tells of each clip with what was noted behind the steps."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection
from typing import Any, NamedTuple

from drills._histories.truth import NO_COPY, NO_DATASET, NOT_THERE, Clip, Key, Truth
from reelworks.data.buckets.assign import Reason

Json = dict[str, Any]
# What coverage calls that which the notes name so; every other reason has the label of its own.
NAMES = {
    "trained": "trained",
    "failed": "failed",
    "skipped": "skipped",
    "due": "not_yet",
    NOT_THERE: "removed",
    NO_DATASET: "dataset_removed",
    NO_COPY: "fewer_repeats",
}
# Which of the two is said of a file that goes while its dataset is renamed or split depends on what counts as its
# dataset then.
GONE_WITH_A_NAME = {NAMES[NOT_THERE], NAMES[NO_DATASET]}
CONSUMED = {"trained", "failed", "skipped"}


class Fate(NamedTuple):
    """What became of a clip in an epoch: a name of coverage's, and the step, if one took it."""

    became: str
    step: int | None = None


Fates = dict[Clip, Fate]


def fates(truth: Truth, key: Key) -> Fates:
    """What must be told of each clip that was alive at some time of an epoch."""
    last, consumed = truth.last_begin(key), truth.consumed(key)
    told: Fates = {}
    for begin in truth.begins:
        if begin.key == key and not begin.superseded:
            told |= dict.fromkeys(begin.live)  # type: ignore[arg-type]
    for clip in {*told, *consumed}:
        if clip in consumed:
            step, became = consumed[clip]
            told[clip] = Fate(NAMES.get(became, became), step)
        elif clip in last.live:
            reason = last.live[clip]
            told[clip] = Fate(NAMES["due"] if reason == Reason.NONE else reason.label)
        else:
            told[clip] = Fate(NAMES[last.why_gone(clip)])
    return told


def differences(told: Json, truth: Truth, alike: Collection[str] = ()) -> list[str]:
    """Say where an account differs from the truth; each line begins with a name for its kind and a colon.

    Args:
        told: What `reelworks coverage RUN --json` prints.
        truth: What holds.
        alike: Fates that are not told apart.
    """
    wrong = []
    keys = [(e["data_restarts"], e["epoch"]) for e in told["epochs"]]
    if keys != truth.keys:
        return [f"other epochs are told: {keys}, not {truth.keys}"]
    for epoch in told["epochs"]:
        if not epoch["adds_up"]:
            wrong.append(f"does not add up: {epoch}")
    clips, strange = _clips(told, truth)
    wrong += strange
    for key in keys:
        found = {clip: _fate(one, key) for clip, one in clips.items()}
        wrong += _of_epoch(key, found, fates(truth, key), truth, alike)
    return wrong


def _fate(clip: Json, key: Key) -> Fate | None:
    for epoch in clip["epochs"]:
        if (epoch["data_restarts"], epoch["epoch"]) == key:
            return Fate(epoch["became"], epoch.get("step"))
    return None


def _of_epoch(
    key: Key, told: dict[Clip, Fate | None], expected: Fates, truth: Truth, alike: Collection[str]
) -> list[str]:
    when = "in the epoch under way" if key == truth.keys[-1] else "in an epoch before"
    wrong = []
    for clip, fate in sorted(expected.items()):
        found = told.get(clip)
        if found is not None and found.became in alike and fate.became in alike:
            continue
        if found is None:
            wrong.append(f"{fate.became} is not told {when}: {clip} in {key}, {fate}")
        elif found.became != fate.became:
            wrong.append(f"{fate.became} is told as {found.became} {when}: {clip} in {key}, {fate} and {found}")
        elif found.step != fate.step:
            wrong.append(f"{fate.became} in another step {when}: {clip} in {key}, {fate.step} and {found.step}")
    for clip, found in sorted(told.items()):
        if clip not in expected and found is not None and found.became in CONSUMED:
            wrong.append(f"nothing is told as {found.became} {when}: {clip} in {key}, {found}")
    return wrong


def _clips(told: Json, truth: Truth) -> tuple[dict[Clip, Json], list[str]]:
    """Clips of an account by file; where several files had one name last, as they fit the truth best.

    A clip is told under the name that its file had when the run last saw it. A name that a file had before may be
    that of another file by now, as after a swap, so it says nothing of which file is meant.
    """
    groups: dict[str, dict[int, list[Json]]] = defaultdict(lambda: defaultdict(list))
    for clip in told["clips"]:
        groups[clip["path"]][clip["uid"]].append(clip)
    files: dict[str, list[str]] = defaultdict(list)
    for identity, name in truth.names.items():
        files[name].append(identity)
    found: dict[Clip, Json] = {}
    strange = []
    for path, by_uid in groups.items():
        ids, clips = files[path], list(by_uid.values())
        if len(ids) < len(clips):
            strange.append(f"a clip that no file is: {path}")
        best = min(
            itertools.permutations(ids, min(len(clips), len(ids))),
            key=lambda order: (_misfit(order, clips, truth), [ids.index(one) for one in order]),
        )
        for identity, copies in zip(best, clips, strict=False):
            for one in copies:
                if (clip := (identity, one["copy"])) in found:
                    strange.append(f"one clip is told as two: {path}")
                found[clip] = one
    return found, strange


def _misfit(order: tuple[str, ...], clips: list[list[Json]], truth: Truth) -> int:
    wrong = 0
    for key in truth.keys:
        expected = fates(truth, key)
        wrong += sum(
            _fate(one, key) != expected.get((identity, one["copy"]))
            for identity, copies in zip(order, clips, strict=False)
            for one in copies
        )
    return wrong
