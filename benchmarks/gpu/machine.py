"""The device: its name, how fast it is by its maker and by measurement, and how long a piece of work takes on it."""

from __future__ import annotations

import platform
import re
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from reelworks.core import gpus

_MOST_SECONDS, _MOST_CALLS, _LEAST_CALLS = 5.0, 12, 3


class Speed(NamedTuple):
    """TFLOP/s in bfloat16: by the maker (None if the device is not listed), and of large products measured here."""

    published: float | None
    measured: float


class Times(NamedTuple):
    """Seconds of one call: the first, which may compile, and median, fastest and slowest of the later ones."""

    first: float
    median: float
    fastest: float
    slowest: float


def name(device: str) -> str:
    """Return the name of the device, such as "NVIDIA H200"."""
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def file_name(device: str, *, tiny: bool) -> str:
    """Return the name of the file of figures, such as "gpu-nvidia-h200.json"."""
    words = re.findall(r"[a-z0-9]+", name(device).lower())
    return "-".join(["gpu", *words, *(["tiny"] if tiny else [])]) + ".json"


def speed(device: str) -> Speed:
    """Look up and measure the speed of the device."""
    size = 8192 if device == "cuda" else 512
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    fastest = timed(lambda: a @ b, device, most_seconds=1.0).fastest
    found = gpus.of_device(name(device))
    return Speed(found.tflops if found else None, 2 * size**3 / fastest / 1e12)


def facts(device: str) -> dict[str, Any]:
    """Return what a reader of the figures needs to know about the machine."""
    found = speed(device)
    return {
        "device": name(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "memory_gb": round(torch.cuda.get_device_properties(0).total_memory / 1e9, 1) if device == "cuda" else None,
        "published_tflops": found.published,
        "measured_tflops": round(found.measured, 3),
    }


def timed(work: Callable[[], object], device: str, *, most_seconds: float = _MOST_SECONDS) -> Times:
    """Call twice untimed, then several times, each awaited."""
    first, _ = _seconds(work, device), _seconds(work, device)
    each: list[float] = []
    while len(each) < _LEAST_CALLS or (sum(each) < most_seconds and len(each) < _MOST_CALLS):
        each.append(_seconds(work, device))
    return Times(first, statistics.median(each), min(each), max(each))


def _seconds(work: Callable[[], object], device: str) -> float:
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def wait(device: str) -> None:
    """Wait for the device to have done all that was asked of it."""
    if device == "cuda":
        torch.cuda.synchronize()


def peak_gb(device: str) -> float | None:
    """Return the peak of allocated memory since `reset_peak`; None on a CPU, which does not count it."""
    return round(torch.cuda.max_memory_allocated() / 1e9, 2) if device == "cuda" else None


def reset_peak(device: str) -> None:
    """Begin to count the peak again."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
