"""Signals that ask a training to save and leave, `system.STOPS`, and what all ranks know of them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Self

from reelworks.core import system, terminal
from reelworks.core.log import logger
from reelworks.training.loop.launch import EXIT_REQUEUE

if TYPE_CHECKING:
    from reelworks.data.distributed.mesh import World


# A question to a silent storage, which other threads wait for, may last longer than schedulers wait; nothing is to be saved then.
_UNWIND_SECONDS = 10.0


class Stopped(SystemExit):
    """A signal came before the first stage or between two, where all is saved."""

    def __init__(self) -> None:
        super().__init__(EXIT_REQUEUE)


class StopSignals(AbstractContextManager["StopSignals"]):
    """Receives signals while it is open, so that none is lost where a stage begins or ends; Ctrl-C from the first stage on.

    Where no stage is trained, they raise `Stopped`: scanning, encoding or fetching may take longer than a scheduler waits.
    A thread that is not the main one receives none.

    Attributes:
        received: Those that came.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._former: dict[signal.Signals, Any] = {}
        self._is_between, self._pid = True, os.getpid()
        self._end = threading.Timer(_UNWIND_SECONDS, _leave)
        self._end.daemon = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._former = system.handle_stops(self._receive)
            self._handle_ctrl_c(self._former.get(signal.SIGINT))
        return self

    def __exit__(self, *_: object) -> None:
        self._end.cancel()
        self.restore()

    def _handle_ctrl_c(self, handler: Any) -> None:
        if signal.SIGINT in self._former:
            signal.signal(signal.SIGINT, handler)

    def restore(self) -> None:
        """Let signals do what they did before."""
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}

    def begin_stage(self) -> None:
        """Keep signals until a step is done. A second Ctrl-C does what it usually does.

        Raises:
            Stopped: One has come before, and whatever ran then kept the error.
        """
        self._is_between = False
        self._handle_ctrl_c(self._receive)
        if self.received:
            raise Stopped

    def end_stage(self) -> None:
        """Let a signal raise `Stopped` until the next stage begins.

        Raises:
            Stopped: One has come since the stage ended.
        """
        self._is_between = True
        if self.received:
            raise Stopped

    def _receive(self, number: int, _frame: object) -> None:
        if os.getpid() != self._pid:  # a process that was forked
            signal.signal(number, self._former[signal.Signals(number)])
            signal.raise_signal(number)
            return
        self.received.append(number)
        if self._is_between:
            self._is_between = False
            self._end.start()
            raise Stopped
        if number == signal.SIGINT:
            logger.info(
                "Ctrl-C: saves after the next step at the latest, and leaves; press it again to leave at once without a save"
            )
            self._handle_ctrl_c(self._former[signal.SIGINT])


def _leave() -> None:
    terminal.say("stopped while something was waited for that does not end; the same command goes on")
    os._exit(EXIT_REQUEUE)


class StopRequest:
    """Whether all ranks leave, since a signal came to one; what lasts in a pause between steps asks it between its parts.

    Attributes:
        is_agreed: Whether all ranks know that they leave.
        most_seconds: Longest time of a pause in which nothing asked, so that a signal waited.
    """

    def __init__(self, signals: StopSignals, world: World) -> None:
        self._signals, self._world = signals, world
        self.is_agreed, self.most_seconds = False, 0.0
        self._asked = 0.0

    def agree(self) -> bool:
        """Whether a signal has come to any rank. Collective."""
        self.is_agreed = self.is_agreed or self._world.any(self.is_asked)
        return self.is_agreed

    @property
    def is_asked(self) -> bool:
        """Whether a signal came to this rank."""
        return bool(self._signals.received)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Measure a pause."""
        self._asked = time.monotonic()
        yield
        self._measure()

    def __call__(self, *, alone: bool = False) -> bool:
        """Whether what this pause does is to be cut short, since the next start makes it up. Collective, unless `alone`."""
        self._measure()
        return self.is_asked if alone else self.agree()

    def _measure(self) -> None:
        now = time.monotonic()
        self.most_seconds, self._asked = max(self.most_seconds, now - self._asked), now
