"""Names inside `checkpoints/`. What they do not match exactly is not ours and is never touched.

step-000012000/                    a committed checkpoint
.tmp-step-000012000-1f0c.../       in flight, named after its save
.trash-step-000009000-77aa.../     deleted, not yet unlinked
.bad-step-000010000-52d1.../       failed verification, or left behind by --resume STEP; kept for a person to look at
pins/step-000012000                an empty file that keeps its checkpoint
history.jsonl, latest
"""

from __future__ import annotations

import re
import uuid

HISTORY = "history.jsonl"
LATEST = "latest"
PINS = "pins"
IN_FLIGHT = ".tmp-"
# Inside a checkpoint: the folder of its tensors, and where training went on.
DCP = "dcp"
CURSOR = "cursor.json"

_STEP = re.compile(r"step-(\d{9,})")
# What a killed process may leave: saves in flight, half-emptied trash, an unfinished `latest`.
_LEFTOVER = re.compile(r"\.(tmp|trash)-step-\d{9,}-[0-9a-f]{12}|\.latest\.[0-9a-f]{8}\.tmp")


def fresh_id() -> str:
    """Make an id that no other save, deletion or quarantine has."""
    return uuid.uuid4().hex[:12]


def of_step(step: int) -> str:
    """Name the checkpoint of a step."""
    return f"step-{step:09d}"


def parse_step(name: str) -> int | None:
    """Read the step out of a checkpoint's name; None for any name that `of_step` would not give."""
    match = _STEP.fullmatch(name)
    step = int(match[1]) if match else -1
    return step if step >= 0 and of_step(step) == name else None


def in_flight(step: int, save_id: str) -> str:
    """Name the folder into which a save writes."""
    return f"{IN_FLIGHT}{of_step(step)}-{save_id}"


def trash(step: int) -> str:
    """Name a deleted checkpoint."""
    return f".trash-{of_step(step)}-{fresh_id()}"


def bad(step: int) -> str:
    """Name a quarantined checkpoint."""
    return f".bad-{of_step(step)}-{fresh_id()}"


def is_leftover(name: str) -> bool:
    """Say whether a dead process may have left this, so that a sweep removes it."""
    return _LEFTOVER.fullmatch(name) is not None
