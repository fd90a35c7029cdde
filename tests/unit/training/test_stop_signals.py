"""Signals that end training: the first ones ask for a save, and a second Ctrl-C is obeyed at once."""

from __future__ import annotations

import logging
import os
import signal
import time

import pytest

from reelworks.training.loop.stop_signals import Stopped, StopSignals


@pytest.fixture
def from_a_terminal():
    """A process that a shell starts in the background ignores Ctrl-C."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("from_a_terminal")
def test_the_first_ctrl_c_is_received_and_told_and_the_second_interrupts(caplog):
    before = signal.getsignal(signal.SIGINT)
    with caplog.at_level(logging.INFO, "reelworks"), StopSignals() as signals:
        signals.begin_stage()
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == [signal.SIGINT]
        assert "press it again to leave at once" in caplog.text
        with pytest.raises(KeyboardInterrupt):
            _kill_and_wait(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_a_second_signal_of_a_scheduler_changes_nothing():
    with StopSignals() as signals:
        signals.begin_stage()
        for _ in range(2):
            _kill_and_wait(signal.SIGTERM)
    assert signals.received == [signal.SIGTERM] * 2


def test_between_two_stages_a_signal_leaves_at_once_and_in_the_next_it_is_kept():
    with StopSignals() as signals:
        signals.begin_stage()
        signals.end_stage()
        with pytest.raises(Stopped):
            _kill_and_wait(signal.SIGTERM)
        signals.begin_stage()
        _kill_and_wait(signal.SIGTERM)
    assert signals.received == [signal.SIGTERM]


def test_a_signal_after_the_end_of_a_stage_leaves_before_the_next():
    with StopSignals() as signals:
        signals.begin_stage()
        _kill_and_wait(signal.SIGTERM)
        with pytest.raises(Stopped):
            signals.end_stage()


@pytest.mark.usefixtures("from_a_terminal")
def test_a_second_ctrl_c_interrupts_in_a_later_stage_too():
    with StopSignals() as signals:
        signals.begin_stage()
        signals.end_stage()
        signals.begin_stage()
        _kill_and_wait(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            _kill_and_wait(signal.SIGINT)


@pytest.mark.usefixtures("from_a_terminal")
@pytest.mark.parametrize("stages", [1, 2])
def test_after_the_last_stage_signals_do_what_they_did_before(stages):
    with StopSignals() as signals:
        for _ in range(stages):
            signals.begin_stage()
        signals.restore()
        with pytest.raises(KeyboardInterrupt):
            _kill_and_wait(signal.SIGINT)
    assert signals.received == []


def _kill_and_wait(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0.01)
