"""Log for people and for machines, by the standard `logging`.

Lines for people go to the logger `reelworks`: at INFO what happens, at WARNING what a person should look at. While a
command runs they are printed on the terminal, unless that logger has a handler already:

    logging.getLogger("reelworks").addHandler(my_handler)

What may take more than a second is a `stage`, which says what it does and goes on saying so: no command is silent for long,
since each is a stage as a whole.

Events of a run are records with `kind` and `fields`. An `EventHandler` appends them to the run's file, which is its
single truth and independent of any level or configuration; who wants to read them along gives the logger
`reelworks.events` a handler and the level DEBUG.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from reelworks.core import results, terminal

if TYPE_CHECKING:
    from rich.console import Console

logger = logging.getLogger("reelworks")
event_logger = logging.getLogger("reelworks.events")
event_logger.propagate = False  # an event is no line for people


_FIRST_SECONDS, _SECONDS = 1.0, 10.0
_stages: list[_Stage] = []  # the innermost last, which speaks


class _Stage:
    """Says what is done once nothing was said for a second, and again whenever nothing was said for ten."""

    def __init__(self, text: str, progress: Callable[[], str] | None, told: bool) -> None:
        self._text, self._progress, self._told = text, progress, told
        self._began = self._spoke = time.monotonic()
        self.ended = threading.Event()

    def watch(self) -> None:
        """Speak until the stage ends."""
        while not self.ended.wait(max(self._due() - time.monotonic(), _FIRST_SECONDS / 10)):
            if time.monotonic() >= self._due() and _stages and _stages[-1] is self:  # an inner one says more
                self._speak()

    def _due(self) -> float:
        return max(self._spoke, terminal.last_output()) + (_SECONDS if self._told else _FIRST_SECONDS)

    def _speak(self) -> None:
        seconds = f"{time.monotonic() - self._began:.0f} s so far"
        so_far = seconds if self._progress is None else f"{self._progress()}, {seconds}"
        logger.info(f"{self._text}: {so_far}" if self._told else self._text)
        self._told, self._spoke = True, time.monotonic()


@contextmanager
def stage(text: str, progress: Callable[[], str] | None = None, *, at_once: bool = False) -> Iterator[None]:
    """Say what is done after a second of silence, or `at_once`; after ten more how long it takes, and how far it is."""
    if at_once:
        logger.info(text)
    opened = _Stage(text, progress, at_once)
    _stages.append(opened)
    threading.Thread(target=opened.watch, name="stage", daemon=True).start()
    try:
        yield
    finally:
        _stages.remove(opened)
        opened.ended.set()


class TerminalHandler(logging.Handler):
    """Prints each line as it is, above a progress bar if there is one; warnings say that they are."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__()
        self._stderr = stderr

    @cached_property
    def console(self) -> Console:
        """The console that lines are printed on; made for the first one, since that takes longer than most commands."""
        return terminal.console(stderr=self._stderr)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without time and place: it is read as it comes."""
        text = terminal.plain(super().format(record))
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
            self._write(record.__dict__["kind"], **results.as_json(record.__dict__["fields"]))
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
def to_terminal(*, speaks: bool = True, stderr: bool = False, quiet: bool = False) -> Iterator[None]:
    """Print what `reelworks` logs from INFO on, for as long as it is open, if nobody else has asked for it.

    Ranks after the first, for which `speaks` is False, say nothing to any handler. Lines go to `stderr` where stdout is for
    the answer of a command; warnings alone if `quiet`.
    """
    former_level, former_propagate = logger.level, logger.propagate
    handler: logging.Handler | None = None
    if not logger.handlers:
        handler = TerminalHandler(stderr=stderr) if speaks else logging.NullHandler()
        handler.setLevel(logging.WARNING if quiet else logging.NOTSET)
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
