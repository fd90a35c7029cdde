"""Processes of this machine that are known by more than their id, which another process may have by now."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from reelworks.core import system

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Process:
    """A process.

    Attributes:
        boot: Start of the machine that it belongs to; empty where `started` is a time.
        started: When it began, in ticks since that start, or in milliseconds since 1970 on systems other than Linux.
    """

    pid: int
    boot: str
    started: int

    @classmethod
    def running(cls, pid: int) -> Self | None:
        """Return a process that runs now; None for one that has ended, and for ids that are none."""
        if pid <= 0:
            return None
        with suppress(OSError, psutil.Error, OverflowError):
            if sys.platform == "linux":
                # One that has ended, and whose parent has not asked yet, is a Z; the name before it may hold anything.
                state, *fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
                return None if state in "ZX" else cls(pid, _BOOT.read_text("utf-8").strip(), int(fields[18]))
            found = psutil.Process(pid)
            return cls(pid, "", round(found.create_time() * 1000)) if found.is_running() else None
        return None

    @classmethod
    def here(cls) -> Self:
        """Return this process."""
        process = cls.running(os.getpid())
        assert process is not None
        return process

    @classmethod
    def parse(cls, values: Any) -> Self:
        """Return a process from the values of its fields.

        Raises:
            ValueError, TypeError, KeyError: They are no such values.
        """
        return cls(int(values["pid"]), str(values["boot"]), int(values["started"]))

    def lives(self) -> bool:
        """Return whether it still runs: this very one, not another with its id."""
        return Process.running(self.pid) == self

    def ask_to_end(self) -> bool:
        """Ask it to save and end; returns False if it has ended, or cannot be reached."""
        handle = None
        try:
            if hasattr(os, "pidfd_open"):
                handle = os.pidfd_open(self.pid)  # stays with this process, whoever has its id later
            if not self.lives():
                return False
            if handle is None:
                system.ask_to_end(self.pid)
            else:
                signal.pidfd_send_signal(handle, signal.SIGTERM)
            return True
        except (OSError, OverflowError, ValueError):
            return False
        finally:
            if handle is not None:
                os.close(handle)
