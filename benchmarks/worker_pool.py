"""How fast frames come back from worker processes, and what it costs that one of them is killed over a result.

`python -m benchmarks.worker_pool` lets two processes return clips of 65 frames of 720p, single frames, and small values,
in turn by `core.worker_pool`, by the standard library's `ProcessPoolExecutor` and, where it is installed, by
`pebble.ProcessPool`. `speed` is each one's rate over the standard library's, the median of pairs. Then one of two processes is killed
at different moments around its sending of a clip: `lost` counts the other clips that failed with it, and `waited_for` those
that still had no result after some seconds, over all trials.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks._results import AT_START, keep
from reelworks.core import machine
from reelworks.core.worker_pool import WorkerPool

RESULTS = Path(__file__).parent / "results" / "worker_pool.json"
PROCESSES = 2
FRAME = (720, 1280, 3)
CLIP_FRAMES = 65
TIMEOUT_SECONDS = 60.0
GIVE_UP_SECONDS = 20.0
_SPAWN = multiprocessing.get_context("spawn")
Submit = Callable[[Callable[[int], Any], int], "Future[Any]"]


def clip(_: int) -> NDArray[np.uint8]:
    """Return the frames of a clip; nothing is decoded, so that sending them is what is measured."""
    return np.ones((CLIP_FRAMES, *FRAME), dtype=np.uint8)


def frame(_: int) -> NDArray[np.uint8]:
    return np.ones(FRAME, dtype=np.uint8)


def value(number: int) -> int:
    return number


def killed_clip(milliseconds: int) -> NDArray[np.uint8]:
    """Return the frames of a clip, and be killed some time later."""
    threading.Timer(milliseconds / 1000, psutil.Process().kill).start()
    return clip(0)


@contextmanager
def ours() -> Iterator[Submit]:
    threads, pool = ThreadPoolExecutor(PROCESSES), WorkerPool()
    yield lambda function, argument: threads.submit(pool.call, function, argument, TIMEOUT_SECONDS)
    threads.shutdown(wait=False, cancel_futures=True)
    pool.close()


@contextmanager
def standard_library() -> Iterator[Submit]:
    with ProcessPoolExecutor(PROCESSES, mp_context=_SPAWN) as pool:
        yield pool.submit


@contextmanager
def pebble_pool() -> Iterator[Submit]:
    import pebble

    pool: Any = pebble.ProcessPool(PROCESSES, context=_SPAWN)
    yield lambda function, argument: pool.schedule(function, args=(argument,), timeout=TIMEOUT_SECONDS)
    pool.stop()
    pool.join()


def pools() -> dict[str, Callable[[], Any]]:
    """Return the ways to compare by name."""
    there = {"ours": ours, "standard_library": standard_library}
    return there | ({"pebble": pebble_pool} if importlib.util.find_spec("pebble") else {})


def results_per_second(submit: Submit, function: Callable[[int], Any], count: int) -> float:
    """Rate with a few calls in flight, as a loader has."""
    waiting: deque[Future[Any]] = deque()
    began = time.perf_counter()
    for number in range(count):
        waiting.append(submit(function, number))
        if len(waiting) == 2 * PROCESSES:
            waiting.popleft().result()
    for future in waiting:
        future.result()
    return count / (time.perf_counter() - began)


def speeds(function: Callable[[int], Any], count: int, trials: int) -> dict[str, Any]:
    """Rates of all ways, taken in turn, and each one's ratio to the standard library's."""
    rates: dict[str, list[float]] = {name: [] for name in pools()}
    for _ in range(trials):
        for name, make in pools().items():
            with make() as submit:
                results_per_second(submit, value, 10 * PROCESSES)
                rates[name].append(results_per_second(submit, function, count))
    base = rates["standard_library"]
    return {
        name: {
            "per_second": round(statistics.median(own), 2),
            "speed": round(statistics.median(a / b for a, b in zip(own, base, strict=True)), 2),
        }
        for name, own in rates.items()
    }


def kill_one(name: str, milliseconds: int, report: Any) -> None:
    """Send how many of five clips were lost and are waited for when the process of a sixth is killed; then end."""
    with pools()[name]() as submit:
        results_per_second(submit, clip, PROCESSES)
        submit(killed_clip, milliseconds)
        others = [submit(clip, number) for number in range(5)]
        done, missing = wait(others, timeout=GIVE_UP_SECONDS)
        report.send((sum(other.exception() is not None for other in done), len(missing)))
        for process in multiprocessing.active_children():
            process.kill()
        os._exit(0)  # a pool that waits for ever cannot be closed


def kills(trials: int) -> dict[str, Any]:
    """Clips lost and waited for by each way, over kills at different moments."""
    found = {}
    for name in pools():
        totals = np.zeros(2, dtype=np.int64)
        for trial in range(trials):
            receiver, sender = _SPAWN.Pipe(duplex=False)
            process = _SPAWN.Process(target=partial(kill_one, name, 50 * trial, sender))
            process.start()
            totals += receiver.recv()
            process.join()
        found[name] = {"of": 5 * trials, "lost": int(totals[0]), "waited_for": int(totals[1])}
    return found


def main() -> None:
    """Measure, print, and save if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    args = parser.parse_args()
    seen: dict[str, Any] = {
        "clips_of_180_MB": speeds(clip, 10, args.trials),
        "frames_of_2.8_MB": speeds(frame, 200, args.trials),
        "small_values": speeds(value, 2000, args.trials),
        "kills": kills(args.kills),
        "cores": machine.cores(),
        "python": platform.python_version(),
        "pebble": importlib.metadata.version("pebble") if "pebble" in pools() else None,
        **AT_START,
    }
    print(json.dumps(seen, indent=2))
    if args.save:
        keep(RESULTS, seen)


if __name__ == "__main__":
    main()
