"""Count the cores and threads that this process may use: fewer than the machine has in most jobs and containers."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from reelworks.core import cgroups


def count() -> int:
    """Return the number of cores that this process may use: those of its affinity, within the limits of its cgroups.

    A limit of 1.5 cores counts as 2, since one thread could not use all of it.
    """
    affine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = min(
        (limit for folder in cgroups.limiting("cpu") if (limit := _limit(folder)) is not None), default=math.inf
    )
    return max(min(affine, math.ceil(limit) if limit != math.inf else affine), 1)


def threads(ranks: int = 1, environment: Mapping[str, str] = os.environ) -> int:
    """Return the threads that each of some ranks on this machine computes with: `OMP_NUM_THREADS`, or its share of cores."""
    asked = environment.get("OMP_NUM_THREADS", "").partition(",")[0]  # "8,2" gives those of nested regions too
    return int(asked) if asked.isdecimal() and int(asked) > 0 else max(count() // ranks, 1)


def _limit(folder: Path) -> float | None:
    """Return the cores that a cgroup allows; None without a limit."""
    try:
        if (of_v2 := folder / "cpu.max").is_file():
            quota, period = of_v2.read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return int(quota) / int(period) if quota not in ("max", "-1") else None
    except (OSError, ValueError):
        return None
