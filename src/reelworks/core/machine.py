"""Tell what this process may use of the machine: fewer cores and less memory than it has in most jobs and containers.

Told without torch, whose import takes seconds; OpenMP's wait policy and the fallback of Apple's GPUs, which are set here too,
must be set before that import.

A training runs on one kind of device: NVIDIA's and AMD's GPUs, which torch both names "cuda", Apple's, "mps", or the CPU.
What Apple's lack is told by `is_apple`, and the CPU takes its place for it by `exact_device`.
"""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from reelworks.core import system
from reelworks.core.errors import UserError

if TYPE_CHECKING:
    import torch

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_MEMORY_LIMITS = ("memory.max", "memory.limit_in_bytes")  # of the two versions of cgroups
# Of NVIDIA's driver, of AMD's, and of either in the Linux of Windows; then what they install on Windows.
_GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
_GPU_LIBRARIES = ("nvcuda.dll", "amdhip64_6.dll", "amdhip64_7.dll")
WAIT_POLICY = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # the variables that decide how OpenMP threads wait
_APPLE = {"mps"}  # devices without float64, pinned memory, float8, streams and collectives
_DEVICE = "REELWORKS_DEVICE"  # set to cpu to leave the GPU alone
_MPS_FALLBACK = "PYTORCH_ENABLE_MPS_FALLBACK"
_LEAST_MACOS = 14  # the first with bfloat16 on the GPU
_BUSY_SHARE = 0.5  # share of the cores that other processes must keep busy


def cores() -> int:
    """Return the number of cores that this process may use: those of its affinity, within the limits of its cgroups.

    A limit of 1.5 cores counts as 2, since one thread could not use all of it.
    """
    affine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = map(_core_limit, _limiting_cgroups("cpu"))
    return max(min([affine, *(math.ceil(limit) for limit in limits if limit is not None)]), 1)


def threads(ranks: int = 1, environment: Mapping[str, str] = os.environ) -> int:
    """Return the threads that each of some ranks on this machine computes with: `OMP_NUM_THREADS`, or its share of cores."""
    asked = environment.get("OMP_NUM_THREADS", "").partition(",")[0]  # "8,2" gives those of nested regions too
    return int(asked) if asked.isdecimal() and int(asked) > 0 else max(cores() // ranks, 1)


def memory_bytes() -> int:
    """Return the CPU memory of the machine, or less where a cgroup limits it, as in containers and jobs."""
    least = int(psutil.virtual_memory().total)
    for folder in _limiting_cgroups("memory"):
        for name in _MEMORY_LIMITS:
            with suppress(OSError, ValueError):  # it is not there, or says "max"
                least = min(least, int((folder / name).read_text(encoding="utf-8")))
    return least


def has_gpu() -> bool:
    """Whether there is a file of a GPU's driver, or Apple's GPU, which torch may know."""
    libraries = (Path(os.environ.get("SYSTEMROOT", "/"), "System32", name) for name in _GPU_LIBRARIES)
    files = (*map(Path, _GPU_FILES), *libraries)
    return any(file.exists() for file in files) or (sys.platform, platform.machine()) == ("darwin", "arm64")


def default_device(number: int | None = None) -> torch.device:
    """Return the current GPU, or the one of a number, or Apple's; the CPU without one, or where the environment says so."""
    import torch

    asked = os.environ.get(_DEVICE)
    if asked not in (None, "", "cpu"):
        raise UserError(
            "only the CPU can be asked for in place of the GPU",
            code="device-unknown",
            field=_DEVICE,
            value=asked,
            remedy="set it to cpu, or unset it",
        )
    if not asked and torch.cuda.is_available():
        return torch.device("cuda" if number is None else f"cuda:{number}")
    if not asked and torch.backends.mps.is_available() and torch.backends.mps.is_macos_or_newer(_LEAST_MACOS, 0):
        return torch.device("mps", 0)
    return torch.device("cpu")


def why_cpu() -> str:
    """Return why the CPU of a machine with a GPU, or of a Mac, computes; empty where it does not, and on other machines."""
    import torch

    is_mac = sys.platform == "darwin"
    if default_device().type != "cpu" or not (is_mac or has_gpu()):
        return ""
    if os.environ.get(_DEVICE):
        return f"{_DEVICE} is set"
    if not is_mac:
        return f"this torch is for {torch_target()}, and finds no GPU that it can use"
    if not torch.backends.mps.is_built():
        return "this torch is not built for Apple's GPUs"
    if torch.backends.mps.is_available():
        return f"Apple's GPUs compute in bfloat16 from macOS {_LEAST_MACOS}, and this is {platform.mac_ver()[0]}"
    return "torch finds no GPU of Apple"


def torch_target() -> str:
    """Return what the installed torch was built for: "CUDA 13.0", "ROCm 7.1", "Apple's GPUs" or "the CPU"."""
    import torch

    if torch.version.cuda or torch.version.hip:
        return f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    return "Apple's GPUs" if torch.backends.mps.is_built() else "the CPU"


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, such as "NVIDIA H100 80GB HBM3", or the type of another device."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def is_apple(device: torch.device) -> bool:
    """Whether a device is Apple's GPU."""
    return device.type in _APPLE


def exact_device(device: torch.device) -> torch.device:
    """Return the device for sums in float64 and for random numbers: the CPU in place of Apple's GPU, which lacks float64."""
    import torch

    return torch.device("cpu") if is_apple(device) else device


def let_mps_fall_back(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let the CPU compute operations that torch lacks on Apple's GPUs, unless the environment decides it.

    Torch reads the variable when it is loaded, so it must be set before torch is imported.
    """
    if sys.platform == "darwin":
        environment.setdefault(_MPS_FALLBACK, "1")


def choose_wait_policy(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let waiting OpenMP threads sleep if other processes keep this machine busy and the environment does not decide it.

    libgomp's threads spin at the end of each parallel region, which is fastest on an idle machine. If other processes
    compete for the cores, a spinning thread occupies the core that the thread it waits for needs, and training becomes
    many times slower (`benchmarks.busy`). The library reads its settings when it is loaded, so they must be set before
    torch is imported; processes that are started later inherit them.
    """
    if not is_wait_policy_chosen(environment) and is_busy() and not has_gpu():
        environment["OMP_WAIT_POLICY"] = "passive"


def is_wait_policy_chosen(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment decides how OpenMP threads wait."""
    return any(name in environment for name in WAIT_POLICY)


def is_busy(own_threads: int = 0, share: float = _BUSY_SHARE) -> bool:
    """Whether other processes keep a share of the cores busy, by the load average of the last minute.

    The load average includes the training's own threads on this machine, which are subtracted.
    """
    return system.load_average() - own_threads >= share * cores()


def _limiting_cgroups(controller: str) -> list[Path]:
    """Return the folders of the cgroups whose limits of a kind bind this process: its own and all above, of both versions.

    Within a container the path may be that of the host; then the limit is at the root that the container sees.
    """
    try:
        lines = _OWN_CGROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for root in (_CGROUPS / controllers, _CGROUPS / controller) if controllers else (_CGROUPS,):
            own = root / path.lstrip("/")
            folders += [own, *(above for above in own.parents if above.is_relative_to(root))]
    return folders


def _core_limit(cgroup: Path) -> float | None:
    """Return the cores that a cgroup allows; None without a limit."""
    with suppress(OSError, ValueError):
        if (of_v2 := cgroup / "cpu.max").is_file():
            quota, period = of_v2.read_text(encoding="utf-8").split()
        else:
            quota, period = (
                (cgroup / f"cpu.cfs_{name}_us").read_text(encoding="utf-8").strip() for name in ("quota", "period")
            )
        return int(quota) / int(period) if quota not in ("max", "-1") else None
    return None
