"""Whether OpenMP threads spin or sleep while they wait for one another.

libgomp's threads spin at the end of each parallel region, which is fastest on an idle machine. If other processes
compete for the cores, a spinning thread occupies the core that the thread it waits for needs, and training becomes
many times slower (`benchmarks.busy`). The library reads its settings when it is loaded, so they must be set before
torch is imported; processes that are started later inherit them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

from reelworks.core import cores, gpu_devices

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_BUSY_SHARE = 0.5  # share of the cores that other processes must keep busy


def choose(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let waiting threads sleep if other processes keep this machine busy and the environment does not decide it."""
    if not is_chosen(environment) and is_busy() and not gpu_devices.exist():
        environment["OMP_WAIT_POLICY"] = "passive"


def is_chosen(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment decides how threads wait."""
    return any(name in environment for name in SETTINGS)


def is_busy(own_threads: int = 0, share: float = _BUSY_SHARE) -> bool:
    """Whether other processes keep a share of the cores busy, by the load average of the last minute.

    The load average includes the training's own threads on this machine, which are subtracted.
    """
    return os.getloadavg()[0] - own_threads >= share * cores.count()
