"""How threads of OpenMP wait for one another: spinning, or asleep.

libgomp's threads spin at the end of each parallel region. On an idle machine that is quickest. Beside other busy
processes a spinning thread takes the core that the thread it waits for needs, and training becomes many times
slower (`benchmarks.busy`). The library reads its settings when it is loaded, so the choice comes before torch is
imported; processes that are started later inherit it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_BUSY_SHARE = 0.5  # of the cores, that other processes keep busy
_GPUS = ("/dev/nvidia0", "/dev/kfd")


def choose(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let threads sleep while they wait if other processes keep this machine busy, and nobody has chosen yet."""
    if not is_chosen(environment) and is_busy() and not any(Path(gpu).exists() for gpu in _GPUS):
        environment["OMP_WAIT_POLICY"] = "passive"


def is_chosen(environment: Mapping[str, str] = os.environ) -> bool:
    """True if the environment says how threads wait."""
    return any(name in environment for name in SETTINGS)


def is_busy(own_threads: int = 0, share: float = _BUSY_SHARE) -> bool:
    """True if other processes keep a share of the cores busy, by the load average of the last minute.

    Args:
        own_threads: Threads of this machine's training, which the load counts too.
        share: Of the cores.
    """
    return os.getloadavg()[0] - own_threads >= share * cores()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
