"""Signals that ask a training to save and leave: SIGTERM, SIGUSR1 and Ctrl-C, on Windows Ctrl-Break."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from typing import Any

from reelworks.core import system
from reelworks.core.log import logger


class Stopped(BaseException):
    """A signal came between two stages, where all is saved; no handler of errors may keep it."""


class StopSignals(AbstractContextManager["StopSignals"]):
    """Receives signals from `begin_stage` on, also between stages, so that none is lost where a stage ends.

    As a context, it lets them do what they did before at its end.

    Attributes:
        received: Those that came while a stage was trained.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._former: dict[int, Any] = {}
        self._is_between = False

    def __exit__(self, *_: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Let signals do what they did before."""
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}

    def begin_stage(self) -> None:
        """Keep signals until a step is done. A second Ctrl-C does what it usually does."""
        self._is_between = False
        if not self._former:
            for number in system.STOPS:
                self._former[number] = signal.signal(number, self._receive)

    def end_stage(self) -> None:
        """Let a signal raise `Stopped`: encoding for the next stage may take longer than a scheduler waits.

        Raises:
            Stopped: One has come since the stage ended.
        """
        self._is_between = True
        if self.received:
            raise Stopped

    def _receive(self, number: int, _frame: object) -> None:
        if self._is_between:
            self._is_between = False
            raise Stopped
        self.received.append(number)
        if number == signal.SIGINT:
            logger.info("Ctrl-C: saves after the next step and leaves; press it again to leave at once without a save")
            signal.signal(number, self._former[number])
