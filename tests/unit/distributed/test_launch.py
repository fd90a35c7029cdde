"""The launcher ends with the code of the rank that failed first, whatever its end was, and leaves none behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from reelworks.core import system
from reelworks.training.loop import launch

SLEEPS = "import time; time.sleep(60)"


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        (["exit(0)", "exit(0)"], 0),
        (["exit(0)", "exit(3)"], 3),
        (["exit(75)", "exit(75)"], 75),
        # As a shell tells of it; Windows knows no signals.
        (["import os; os.kill(os.getpid(), 9)", SLEEPS], 9 if system.WINDOWS else 128 + 9),
        # Nobody asked the launcher to end, so that the others would wait for this one.
        (["import os; os.kill(os.getpid(), 15)", SLEEPS], 15 if system.WINDOWS else 128 + 15),
        ([SLEEPS, "exit(2)"], 2),
        # Those that saved on a signal end by themselves, however long the first one copies to the mirror.
        (["import time; time.sleep(0.5); exit(75)", "exit(75)"], 75),
        (["import time; time.sleep(0.5); exit(3)", "exit(75)"], 3),
    ],
)
def test_the_code_is_that_of_the_first_to_fail(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ends: list[str], code: int
) -> None:
    """What a signal has ended could not tell why, and the launcher does."""
    started: list[subprocess.Popen[bytes]] = []

    def start(rank: int, *_: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", ends[rank]]))
        return started[-1]

    monkeypatch.setattr(launch, "_start", start)
    monkeypatch.setattr(launch, "_GRACE_SECONDS", 0.05)
    monkeypatch.setattr(launch.system, "handle_stops", lambda _: None)
    assert launch.launch(len(ends), []) == code
    assert None not in [rank.poll() for rank in started]
    if not system.WINDOWS:
        told = capfd.readouterr().err
        assert ("rank 0 was ended by" in told) == (code > 128)
        assert ("CPU memory is full" in told) == (code == 128 + signal.SIGKILL)


@pytest.mark.skipif(system.WINDOWS, reason="signals end processes there")
def test_ctrl_c_ends_a_rank_alike_whenever_it_comes(capfd: pytest.CaptureFixture[str]) -> None:
    """Also while Python itself starts."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
    codes = set()
    for seconds in (0.0, 0.01, 0.02, 0.03):
        rank = launch._start(0, 1, 1, ["--version"])
        time.sleep(seconds)
        rank.send_signal(signal.SIGINT)
        codes.add(rank.wait())
    signal.signal(signal.SIGINT, former)
    assert codes == {128 + signal.SIGINT}
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.skipif(system.WINDOWS, reason="signals end processes there")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 128 + signal.SIGINT)],
)
@pytest.mark.parametrize("to_all", [False, True])
def test_what_asks_to_end_while_ranks_start_is_a_stop(
    monkeypatch: pytest.MonkeyPatch, number: int, code: int, to_all: bool
) -> None:
    """They cannot handle it yet, whether it is passed on or sent to all. At Ctrl-C, one that has begun nothing has its own code."""
    started: list[subprocess.Popen[bytes]] = []

    def start(rank: int, *_: object) -> subprocess.Popen[bytes]:
        # No Python: one that a signal reaches as it begins ends by it or with 1, as it comes.
        started.append(subprocess.Popen(["sleep", "60"]))
        if rank == 0:
            signal.raise_signal(number)
        if to_all:
            started[-1].send_signal(number)
            started[-1].wait()
        return started[-1]

    monkeypatch.setattr(launch, "_start", start)
    monkeypatch.setattr(launch, "_GRACE_SECONDS", 0.05)
    former = {each: signal.getsignal(each) for each in system.STOPS}
    try:
        assert launch.launch(2, []) == code
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)
    assert None not in [rank.poll() for rank in started]
