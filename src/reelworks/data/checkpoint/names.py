"""Names inside `checkpoints/`. A file that matches none of them exactly is not ours and is never touched.

step-000012000/                    a committed checkpoint
.tmp-step-000012000-1f0c.../       a save in progress, named after its save id
.trash-step-000009000-77aa.../     deleted, not yet unlinked
.old-step-000012000-3b9e.../       replaced by another save of its step, which may not have been published yet
.bad-step-000010000-52d1.../       failed verification; the newest few stay for inspection
.aside-step-000010000-52d1.../     of another branch, which training left for an earlier step; stays
pins/step-000012000                an empty file that protects its checkpoint from deletion
history.jsonl, latest
"""

from __future__ import annotations

import re
import uuid
from typing import Literal

HISTORY = "history.jsonl"
LATEST = "latest"
PINS = "pins"
LOCK = ".lock"
IN_FLIGHT = ".tmp-"
BAD = ".bad-"
# Inside a checkpoint: the folder of its tensors, everything else of the state, the position of training in the data.
TENSORS = "tensors"
STATE = "state.json"
CURSOR = "cursor.json"

_STEP = re.compile(r"step-(\d{9,})")
_FRESH = re.compile(r"\.([a-z]+)-(step-\d{9,})-[0-9a-f]{12}")
# Leftovers of a killed process: saves in progress, half-emptied trash, what was replaced, an unfinished `latest`.
_LEFTOVER = re.compile(r"\.(tmp|trash|old)-step-\d{9,}-[0-9a-f]{12}|\.latest\.[0-9a-f]{8}\.tmp")


def fresh_id() -> str:
    """Return an id that is unique among saves, deletions and quarantines."""
    return uuid.uuid4().hex[:12]


def fresh(kind: Literal["tmp", "trash", "old", "bad", "aside"], step: int) -> str:
    """Return a new name for a checkpoint that is in progress, deleted, replaced, damaged or of another branch."""
    return f".{kind}-{of_step(step)}-{fresh_id()}"


def of_step(step: int) -> str:
    """Return the folder name of a step's checkpoint."""
    return f"step-{step:09d}"


def parse_step(name: str) -> int | None:
    """Return the step in a checkpoint's folder name; None for any name that `of_step` would not return."""
    match = _STEP.fullmatch(name)
    step = int(match[1]) if match else -1
    return step if step >= 0 and of_step(step) == name else None


def parse_fresh(kind: str, name: str) -> int | None:
    """Return the step in a name that `fresh` gives to checkpoints of a kind; None for any other name."""
    match = _FRESH.fullmatch(name)
    return None if match is None or match[1] != kind else parse_step(match[2])


def is_leftover(name: str) -> bool:
    """Whether a name is that of a dead process's leftover, which a sweep removes."""
    return _LEFTOVER.fullmatch(name) is not None
