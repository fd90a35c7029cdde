"""No stage of a command is silent: who waits is told for what, for how long, and how far it is."""

from __future__ import annotations

import logging
import re
import time

import pytest

from reelworks.core import log, terminal


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Let a hundredth of the time pass, and return what is said."""
    monkeypatch.setattr(log, "_FIRST_SECONDS", 0.05)
    monkeypatch.setattr(log, "_SECONDS", 0.2)
    caplog.set_level(logging.INFO, logger="reelworks")
    monkeypatch.setattr(log.logger, "propagate", True)
    lines: list[str] = []
    monkeypatch.setattr(caplog.handler, "emit", lambda record: lines.append(record.getMessage()))
    return lines


def test_a_stage_is_told_once_it_lasts_and_then_again_and_again(said: list[str]) -> None:
    with log.stage("merging", lambda: "3 of 4"):
        time.sleep(0.6)
    assert said[0] == "merging"
    assert len(said) >= 2
    assert all(re.fullmatch(r"merging: 3 of 4, \d+ s so far", line) for line in said[1:])  # more on a busy machine


def test_a_short_stage_says_nothing_unless_at_once(said: list[str]) -> None:
    with log.stage("short"):
        pass
    with log.stage("named", at_once=True):
        pass
    time.sleep(0.1)
    assert said == ["named"]


def test_the_innermost_stage_speaks_and_then_the_outer_one_again(said: list[str]) -> None:
    with log.stage("outer"):
        with log.stage("inner"):
            time.sleep(0.15)
        time.sleep(0.4)
    assert said[0] == "inner"
    assert "outer" in said[1]


def test_a_stage_that_fails_is_over(said: list[str]) -> None:
    with pytest.raises(ValueError, match="broken"), log.stage("failing"):
        raise ValueError("broken")
    time.sleep(0.1)
    assert said == []


def test_what_is_printed_meanwhile_counts_as_said(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_FIRST_SECONDS", 0.4)  # so that a busy machine's pauses are no silence
    begun = time.monotonic()
    with log.stage("merging"):
        while time.monotonic() < begun + 0.6:
            terminal.say("a line of a command")
            time.sleep(0.02)
    assert said == []
