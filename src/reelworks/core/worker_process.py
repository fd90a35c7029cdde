"""Manners of a process that serves another: it leaves signals to its parent, and does not outlive it."""

from __future__ import annotations

import os
import signal
import threading
import time

_LOOK_EVERY_SECONDS = 1.0


def serve() -> None:
    """Prepare a spawned worker.

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
