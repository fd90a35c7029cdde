"""Functions for spawned processes; they start sooner where little is imported."""

from __future__ import annotations

import os


def double_unless_deadly(value: int) -> int:
    """Double, and die on 13 as a decoder does on a segmentation fault."""
    if value == 13:
        os._exit(139)
    return 2 * value


def minus_one(value: int) -> int:
    return -1
