"""Setup of worker processes: ignore signals meant for the parent, and exit when the parent ends."""

from __future__ import annotations

import os
import signal
import threading
import time

_CHECK_EVERY_SECONDS = 1.0


def serve() -> None:
    """Prepare a spawned worker process.

    Ctrl-C and a scheduler's signals reach every process of a job, but only the parent handles them. A parent
    that is killed cannot stop its workers, so each worker checks whether it is alive.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """Start a thread that ends this process soon after its parent, even if that was killed."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_CHECK_EVERY_SECONDS)
    os._exit(1)
