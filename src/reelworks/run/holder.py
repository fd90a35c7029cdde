"""Who holds a lock."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Self


@dataclass(frozen=True)
class LockOwner:
    """A process that holds a lock.

    Attributes:
        pid: Its process id, for people: another process may have it by now.
        host: The machine it runs on.
        started: When it took the lock, in seconds since 1970, by its own clock.
        token: Random; tells two holders apart for good.
    """

    pid: int
    host: str
    started: float
    token: str

    @classmethod
    def here(cls) -> Self:
        """This process, now."""
        return cls(os.getpid(), socket.gethostname(), time.time(), uuid.uuid4().hex)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read what `to_json` wrote; None where it is something else."""
        try:
            told = json.loads(text)
            return cls(int(told["pid"]), str(told["host"]), float(told["started"]), str(told["token"]))
        except (ValueError, KeyError, TypeError):
            return None

    def to_json(self, **more: int) -> str:
        """Return one line of JSON."""
        return json.dumps({**asdict(self), **more})

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.started).astimezone()
        return f"process {self.pid} on {self.host}, since {since:%Y-%m-%d %H:%M:%S %z}"


class LockedError(Exception):
    """Another process holds the lock; it may not be known which."""

    def __init__(self, holder: LockOwner | None) -> None:
        self.holder = holder
        super().__init__("its process is not known" if holder is None else str(holder))
