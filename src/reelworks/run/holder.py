"""Identify the process that holds a lock."""

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
        pid: Process id, for messages only: another process may have it by now.
        host: Name of the machine.
        started: When the process took the lock, in seconds since 1970, by its own clock.
        token: Random text that distinguishes holders.
    """

    pid: int
    host: str
    started: float
    token: str

    @classmethod
    def here(cls) -> Self:
        """Return an owner for this process, with the present time and a new token."""
        return cls(os.getpid(), socket.gethostname(), time.time(), uuid.uuid4().hex)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse the result of `to_json`; return None for any other text."""
        try:
            owner = json.loads(text)
            return cls(int(owner["pid"]), str(owner["host"]), float(owner["started"]), str(owner["token"]))
        except (ValueError, KeyError, TypeError):
            return None

    def to_json(self, **more: int) -> str:
        """Return the owner, and more fields, as one line of JSON."""
        return json.dumps({**asdict(self), **more})

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.started).astimezone()
        return f"process {self.pid} on {self.host}, since {since:%Y-%m-%d %H:%M:%S %z}"


class LockedError(Exception):
    """Another process holds the lock; `holder` is None if it is not known which."""

    def __init__(self, holder: LockOwner | None) -> None:
        self.holder = holder
        super().__init__("by an unknown process" if holder is None else str(holder))
