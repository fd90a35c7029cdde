"""Processes that are killed, as by a lack of memory, and the exit codes that they have then."""

import signal

import psutil

from reelworks.core import system

SELF_KILLED = int(signal.SIGTERM) if system.WINDOWS else -signal.SIGKILL  # by `kill_self`
KILLED = 1 if system.WINDOWS else -signal.SIGKILL  # by `subprocess.Popen.kill`


def kill_self() -> None:
    """End this process at once."""
    psutil.Process().kill()
