"""Log for people and for machines, by the standard `logging`.

Lines for people go to the logger `reelworks`: at INFO what happens, at WARNING what a person should look at. While a
command runs they are printed on the terminal, unless that logger has a handler already:

    logging.getLogger("reelworks").addHandler(my_handler)

Events of a run are records with `kind` and `fields`. An `EventHandler` appends them to the run's file, which is its
single truth and independent of any level or configuration; who wants to read them along gives the logger
`reelworks.events` a handler and the level DEBUG.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from reelworks.core import terminal

if TYPE_CHECKING:
    from rich.console import Console

logger = logging.getLogger("reelworks")
event_logger = logging.getLogger("reelworks.events")
event_logger.propagate = False  # an event is no line for people


class TerminalHandler(logging.Handler):
    """Prints each line as it is, above a progress bar if there is one; warnings say that they are."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__()
        self.console = terminal.console(stderr=stderr)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without time and place: it is read as it comes."""
        text = super().format(record)
        return f"{record.levelname.lower()}: {text}" if record.levelno >= logging.WARNING else text

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line."""
        self.console.print(self.format(record), soft_wrap=True)


class EventHandler(logging.Handler):
    """Writes events to a run's log by `write`, which is given their kind and fields."""

    def __init__(self, write: Callable[..., None]) -> None:
        super().__init__()
        self._write = write
        self._is_lost = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write an event; numbers that are not finite become null, which JSON can say."""
        try:
            self._write(record.__dict__["kind"], **_finite(record.__dict__["fields"]))
        except OSError as error:
            # A full disk is no reason to end a training; its reports will have a gap.
            if not self._is_lost:
                logger.warning("events cannot be written (%s); going on without", error)
            self._is_lost = True


def event_record(kind: str, fields: dict[str, Any]) -> logging.LogRecord:
    """Make the record of an event."""
    extra = {"kind": kind, "fields": fields}
    return event_logger.makeRecord(event_logger.name, logging.DEBUG, "", 0, kind, (), None, extra=extra)


@contextmanager
def to_terminal(*, speaks: bool = True, stderr: bool = False) -> Iterator[None]:
    """Print what `reelworks` logs from INFO on, for as long as it is open, if nobody else has asked for it.

    Ranks after the first, for which `speaks` is False, say nothing to any handler. Lines go to `stderr` where stdout is for
    the answer of a command.
    """
    former_level, former_propagate = logger.level, logger.propagate
    handler = None if logger.handlers else TerminalHandler(stderr=stderr) if speaks else logging.NullHandler()
    if handler is not None:
        logger.addHandler(handler)
        logger.propagate = False
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    if not speaks:
        logger.addFilter(_silent)
    try:
        yield
    finally:
        logger.setLevel(former_level)
        logger.propagate = former_propagate
        logger.removeFilter(_silent)
        if handler is not None:
            logger.removeHandler(handler)


def console() -> Console | None:
    """Return the console that lines are printed on, for what moves below them; None where they go elsewhere."""
    return next((h.console for h in logger.handlers if isinstance(h, TerminalHandler)), None)


def _silent(record: logging.LogRecord) -> bool:
    return False


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
