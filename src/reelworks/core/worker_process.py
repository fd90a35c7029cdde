"""Manners of a process that serves another: it leaves signals to its parent, and does not outlive it.

And of the pool that it serves in: a process that dies is noticed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_LOOK_EVERY_SECONDS = 1.0


def serve() -> None:
    """Prepare a spawned worker; give it to a process pool as its initializer.

    Ctrl-C and a scheduler's signal reach every process of a job: the parent decides what they mean. A
    parent that is killed cannot tell anybody, so the worker looks for itself.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """End this process soon after its parent, however that ended."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_SECONDS)
    os._exit(1)


def submit(pool: Executor, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
    """Queue a call in a pool of threads, or of processes which it starts as it needs them.

    Python's pool of processes looks whom to watch before it starts another one. If that dies and nothing
    else happens in the pool, it is waited for without end; so a call of nothing follows each start.

    Raises:
        BrokenExecutor: A process of the pool has died.
    """
    if not isinstance(pool, ProcessPoolExecutor):
        return pool.submit(function, *args, **kwargs)
    before = len(pool._processes)
    future = pool.submit(function, *args, **kwargs)
    while len(pool._processes) > before:
        before = len(pool._processes)
        pool.submit(int)
    return future
