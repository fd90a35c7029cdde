"""Processes of this machine that are known by more than their id, which another process may have by now."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Process:
    """A process.

    Attributes:
        boot: Start of the machine that it belongs to; empty where the system tells none.
        started: When it began, in ticks since that start; 0 where the system tells nothing.
    """

    pid: int
    boot: str
    started: int

    @classmethod
    def running(cls, pid: int) -> Self | None:
        """Return a process that runs now; None for one that has ended, and for ids that are none."""
        if pid <= 0:
            return None
        try:
            # One that has ended, and whose parent has not asked yet, is a Z; the name before it may hold anything.
            state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            return None if state in "ZX" else cls(pid, _BOOT.read_text().strip(), int(fields[18]))
        except OSError:
            if Path("/proc/self/stat").exists():
                return None
        with suppress(OSError):  # a system without /proc
            os.kill(pid, 0)
            return cls(pid, "", 0)
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

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to it; returns False if it has ended, or cannot be told from others."""
        if not self.boot:
            return False
        try:
            handle = os.pidfd_open(self.pid)  # stays with this process, whoever has its id later
        except (OSError, OverflowError, ValueError):
            return False
        try:
            if not self.lives():
                return False
            signal.pidfd_send_signal(handle, number)
            return True
        except (ProcessLookupError, PermissionError):
            return False
        finally:
            os.close(handle)
