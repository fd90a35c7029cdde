"""Available memory of this machine or container."""

from __future__ import annotations

import sys
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Return the memory that machine and container have left, or `sys.maxsize` on systems other than Linux."""
    return min(_machine(), _container())


def _machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return sys.maxsize
    fields = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else sys.maxsize


def _container() -> int:
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except OSError:
        return sys.maxsize
    if limit == "max":
        return sys.maxsize
    # The system evicts cached files when memory is needed.
    return max(int(limit) - int(used) + int(cached.get("inactive_file", 0)), 0)
