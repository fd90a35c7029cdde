"""Signals that end training: the first ones ask for a save, and a second Ctrl-C is obeyed at once."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from reelworks.core import system
from reelworks.data.distributed.config import ParallelConfig
from reelworks.data.distributed.mesh import World
from reelworks.data.distributed.watch import Watch
from reelworks.training.loop import stop_signals
from reelworks.training.loop.stop_signals import Stopped, StopRequest, StopSignals


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


def test_before_the_first_step_a_signal_leaves_with_the_requeue_code_and_ctrl_c_is_ctrl_c(from_a_terminal):
    """Fetching, scanning and encoding may last for hours, and the same command goes on with what they have done."""
    for number in system.STOPS:
        if signal.getsignal(number) == signal.SIG_IGN:  # of a closed terminal, below nohup
            continue
        left = KeyboardInterrupt if number == signal.SIGINT else SystemExit
        with pytest.raises(left) as ended, StopSignals():
            _kill_and_wait(number)
        assert getattr(ended.value, "code", 75) == 75


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_something_swallows_is_not_lost():
    class Swallows:
        def __del__(self):
            _kill_and_wait(signal.SIGTERM)

    with StopSignals() as signals:
        Swallows()
        with pytest.raises(Stopped):
            signals.begin_stage()


def test_what_does_not_end_after_a_signal_is_left():
    """As a question to a silent storage, which the threads of a scan wait for."""
    program = (
        "import os, signal, time\nfrom reelworks.training.loop import stop_signals\n"
        "stop_signals._UNWIND_SECONDS = 0.2\nwith stop_signals.StopSignals():\n"
        "    try:\n        os.kill(os.getpid(), signal.SIGTERM)\n        time.sleep(60)\n"
        "    finally:\n        time.sleep(60)\n"
    )
    done = _run(program)
    assert done.returncode == 75
    assert "the same command goes on" in done.stdout


def test_a_program_that_has_caught_the_end_of_its_training_goes_on():
    program = (
        "import os, signal, time\nfrom reelworks.training.loop import stop_signals\n"
        "stop_signals._UNWIND_SECONDS = 0.2\ntry:\n    with stop_signals.StopSignals():\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n        time.sleep(60)\n"
        "except SystemExit:\n    time.sleep(0.6)\nprint('goes on')"
    )
    assert (done := _run(program)).returncode == 0, done.stderr
    assert done.stdout == "goes on\n"


def test_a_rank_that_has_saved_leaves_another_one_the_time_to_do_so():
    program = (
        "import subprocess, sys\nfrom reelworks.training.loop import launch\nlaunch._GRACE_SECONDS = 0.05\n"
        "saves = '; import time; time.sleep(0.6); print(\"saved\", flush=True); sys.exit(75)'\n"
        "launch._start = lambda rank, *_: subprocess.Popen(\n"
        "    [sys.executable, '-c', 'import sys' + (saves if rank else '; sys.exit(75)')])\n"
        "sys.exit(launch.launch(2, []))"
    )
    done = _run(program)
    assert (done.returncode, done.stdout) == (75, "saved\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_does_what_it_did_before():
    program = (
        "import multiprocessing, time\nfrom reelworks.training.loop.stop_signals import StopSignals\n"
        "fork = multiprocessing.get_context('fork')\nbegun = fork.Event()\nwith StopSignals():\n"
        "    child = fork.Process(target=lambda: begun.set() or time.sleep(60))\n"
        "    child.start()\n    begun.wait()\n    child.terminate()\n    child.join(30)\nprint(child.exitcode)"
    )
    assert _run(program).stdout.strip() == f"-{int(signal.SIGTERM)}"


def test_a_rank_that_waits_for_the_first_one_leaves_too(tmp_path):
    watch = Watch(dist.FileStore(str(tmp_path / "store")), 1, 2, ParallelConfig())
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(Stopped), StopSignals():
        World(1, 2, torch.device("cpu"), watch=watch).wait()


def test_a_training_in_a_thread_leaves_signals_to_the_program():
    before = signal.getsignal(signal.SIGTERM)

    def train():
        with StopSignals() as signals:
            signals.begin_stage()
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(train).result() == before


def test_a_second_signal_of_a_scheduler_changes_nothing():
    with StopSignals() as signals:
        signals.begin_stage()
        for _ in range(2):
            _kill_and_wait(signal.SIGTERM)
    assert signals.received == [signal.SIGTERM] * 2


@pytest.mark.parametrize("number", system.STOPS, ids=lambda number: number.name)
def test_whatever_the_system_ends_programs_with_is_received(number):
    former = signal.signal(number, signal.SIG_DFL)  # these tests may run below nohup
    with StopSignals() as signals:
        signals.begin_stage()
        _kill_and_wait(number)
    signal.signal(number, former)
    assert signals.received == [number]


@pytest.mark.skipif(system.WINDOWS, reason="Windows does not tell programs of a terminal that is closed")
def test_below_nohup_a_closed_terminal_stays_ignored():
    """As is each other limit that POSIX names, and the signals that schedulers send before they kill."""
    assert {"SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"} <= {number.name for number in system.STOPS}
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            signals.begin_stage()
            _kill_and_wait(signal.SIGHUP)
        assert signals.received == []
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, former)


def test_a_handler_that_is_not_of_python_stays(monkeypatch):
    """Python knows it as None, which cannot be set again: as of a program in C that trains."""
    known = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGTERM else known(number))
    before = known(signal.SIGTERM)
    with StopSignals() as signals:
        signals.begin_stage()
        assert known(signal.SIGTERM) == before


@pytest.mark.parametrize("number", [each for each in system.STOPS if each.name != "SIGHUP"], ids=lambda each: each.name)
def test_any_other_signal_is_received_even_where_it_was_ignored(number):
    """As Ctrl-C is by what a shell starts in the background, which `kill -INT` asks to save."""
    former = signal.signal(number, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            signals.begin_stage()
            _kill_and_wait(number)
        assert signals.received == [number]
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, former)


def test_the_longest_time_of_a_pause_in_which_nobody_asks_is_known(monkeypatch):
    """Whoever cuts it into parts waits for the longest of them; who asks alone answers for itself."""
    clock = iter([0, 1, 4, 6, 10, 18, 20])
    monkeypatch.setattr(stop_signals.time, "monotonic", lambda: next(clock))
    with StopSignals() as signals:
        stops = StopRequest(signals, World(0, 1, torch.device("cpu")))
        with stops.pause():
            assert not stops()
            assert not stops()
        assert stops.most_seconds == 3
        signals.received.append(signal.SIGTERM)
        with stops.pause():
            assert stops(alone=True)
        assert (stops.most_seconds, stops.is_agreed) == (8, False)
        assert stops.agree()
        assert stops.is_agreed


def test_between_two_stages_a_signal_leaves_at_once_and_in_the_next_it_is_kept():
    with StopSignals() as signals:
        signals.begin_stage()
        signals.end_stage()
        with pytest.raises(Stopped):
            _kill_and_wait(signal.SIGTERM)
    with StopSignals() as signals:
        signals.begin_stage()
        signals.end_stage()
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


def _run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, timeout=50, check=False, capture_output=True, encoding="utf-8")


def _kill_and_wait(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0.01)
