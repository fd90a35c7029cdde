"""Functions for spawned processes; they start sooner where little is imported."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import time
from typing import Any


def double_unless_deadly(value: int) -> int:
    """Double, and die on 13 as a decoder does on a segmentation fault."""
    if value == 13:
        os._exit(139)
    return 2 * value


def double_unless_endless(value: int) -> int:
    """Double, and never return for 13, as a decoder that goes round in a damaged file."""
    while value == 13:
        time.sleep(0.1)
    return 2 * value


def minus_one(value: int, reason: str) -> int:
    return -1


def examine_unless_endless(requests: Any) -> Any:
    """Examine a file, and never return from native code for a.png, which holds Python's lock meanwhile."""
    from reelworks.data.catalog.scan.examine import examine

    if requests[0].file.name == "a.png":
        ctypes.PyDLL(None).sleep(1000)
    return examine(requests)


def examine_unless_deadly(requests: Any) -> Any:
    """Examine a file, and die on a.png as a decoder does on a segmentation fault."""
    from reelworks.data.catalog.scan.examine import examine

    if requests[0].file.name == "a.png":
        assert multiprocessing.parent_process() is not None, "the scan itself would die"
        os._exit(139)
    return examine(requests)
