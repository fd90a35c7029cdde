"""Tell how much CPU memory this process may use."""

from __future__ import annotations

import os

from reelworks.core import cgroups


def total_bytes() -> int:
    """Return the memory of the machine, or less where a cgroup limits it, as in containers and jobs."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [cgroups.number(folder / name) for folder in cgroups.limiting("memory") for name in _LIMITS]
    return min([machine, *(limit for limit in limits if limit is not None)])


_LIMITS = ("memory.max", "memory.limit_in_bytes")  # of the two versions
