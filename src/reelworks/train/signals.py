"""Asked to save and leave."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Signals:
    """Remembers that somebody asked the run to save and leave.

    Attributes:
        name: Of the signal; empty until one came.
    """

    name: str = ""

    @contextmanager
    def listening(self) -> Iterator[Signals]:
        """Take SIGTERM and SIGUSR1 for the time of training.

        Once more is no more: a scheduler and a launcher may both pass on the same request.
        """
        former = {s: signal.signal(s, self._remember) for s in (signal.SIGTERM, signal.SIGUSR1)}
        try:
            yield self
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.name = signal.Signals(number).name
