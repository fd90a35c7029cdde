"""How much memory a process may still take."""

from __future__ import annotations

import sys
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Memory that the machine, and the container that limits this process, have left.

    Where neither tells (other systems than Linux), there is no limit to know.
    """
    return min(_machine(), _container())


def _machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return sys.maxsize
    told = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return int(told["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in told else sys.maxsize


def _container() -> int:
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except OSError:
        return sys.maxsize
    if limit == "max":
        return sys.maxsize
    # What is cached of files gives way.
    return max(int(limit) - int(used) + int(cached.get("inactive_file", 0)), 0)
