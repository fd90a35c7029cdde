"""Lines for people are printed once, and the events of a run are written whatever anybody configures of logging."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reelworks.core import log
from reelworks.data.run import events
from reelworks.data.run.events import EventLog

Printed = pytest.CaptureFixture[str]


@pytest.fixture
def handler() -> Iterator[list[str]]:
    """A handler that somebody has given the logger."""
    lines: list[str] = []
    own = logging.Handler()
    own.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log.logger.addHandler(own)
    yield lines
    log.logger.removeHandler(own)


def test_lines_are_printed_as_they_are_and_warnings_marked(capsys: Printed) -> None:
    with log.to_terminal():
        log.logger.info("step 1 [of 3]: %s", "a" * 200)
        logging.getLogger("reelworks.somewhere").warning("the disk is full")
        log.logger.debug("nobody asked for this")
    log.logger.info("after it")
    assert capsys.readouterr().out == f"step 1 [of 3]: {'a' * 200}\nwarning: the disk is full\n"
    assert log.console() is None
    assert (log.logger.handlers, log.logger.level, log.logger.propagate) == ([], logging.NOTSET, True)


def test_whoever_has_a_handler_gets_the_lines_instead_of_the_terminal(capsys: Printed, handler: list[str]) -> None:
    log.logger.setLevel(logging.WARNING)
    with log.to_terminal():
        log.logger.info("step 1")
        log.logger.warning("the disk is full")
    log.logger.setLevel(logging.NOTSET)
    assert handler == ["the disk is full"]
    assert capsys.readouterr() == ("", "")


def test_other_ranks_say_nothing_to_anybody(capsys: Printed, handler: list[str]) -> None:
    with log.to_terminal(speaks=False):
        log.logger.warning("the disk is full")
    assert handler == []
    log.logger.handlers.clear()
    with log.to_terminal(speaks=False):
        log.logger.warning("the disk is full")
    assert capsys.readouterr() == ("", "")


def test_events_are_appended_and_numbers_that_json_lacks_are_null(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    written = log.EventHandler(EventLog(file).write)
    logging.disable(logging.CRITICAL)  # which somebody may do; the run's account does not depend on it
    try:
        written.handle(log.event_record("step", {"step": 1, "loss": float("nan"), "by": {"a": float("inf"), "b": 2}}))
        written.handle(log.event_record("stop", {"reason": "finished"}))
    finally:
        logging.disable(logging.NOTSET)
    first, second = events.read(file)
    assert (first["kind"], first["loss"], first["by"]) == ("step", None, {"a": None, "b": 2})
    assert (second["kind"], second["reason"]) == ("stop", "finished")


def test_a_disk_that_takes_no_events_is_warned_of_once(capsys: Printed) -> None:
    def full(kind: str, **fields: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    written = log.EventHandler(full)
    with log.to_terminal():
        for _ in range(3):
            written.handle(log.event_record("step", {}))
    assert capsys.readouterr().out == (
        "warning: events cannot be written ([Errno 28] No space left on device); going on without\n"
    )
