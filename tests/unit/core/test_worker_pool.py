"""A call has its result from a process, or fails alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import worker_calls
from refused import refused

from reelworks.core import system
from reelworks.core.worker_pool import ThreadCalls, WorkerDied, WorkerHung, WorkerPool, WorkerStopped


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool()
    yield pool
    pool.close()
    assert multiprocessing.active_children() == []


def test_many_threads_get_their_own_results(pool: WorkerPool) -> None:
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda i: pool.call(worker_calls.double, i), range(200)))
    assert found == [2 * i for i in range(200)]
    assert len(multiprocessing.active_children()) <= 3


def test_arrays_arrive_whole_and_can_be_written_to(pool: WorkerPool) -> None:
    for found, expected in zip(pool.call(worker_calls.arrays, 0), worker_calls.arrays(0), strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
        assert found.flags.writeable


def test_an_error_is_raised_with_the_traceback_of_the_process_which_serves_on(pool: WorkerPool) -> None:
    assert pool.call(worker_calls.invert, 2) == 0.5
    (process,) = multiprocessing.active_children()
    with pytest.raises(ZeroDivisionError) as caught:
        pool.call(worker_calls.invert, 0)
    assert "in invert" in caught.value.__notes__[0]
    assert pool.call(worker_calls.invert, 4) == 0.25
    assert multiprocessing.active_children() == [process]


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.05])
def test_a_process_that_dies_in_the_middle_of_a_result_costs_that_call_alone(pool: WorkerPool, seconds: float) -> None:
    with ThreadPoolExecutor(2) as threads:
        lost = threads.submit(pool.call, worker_calls.die_while_sending, seconds)
        others = [threads.submit(pool.call, worker_calls.double, i) for i in range(20)]
        assert [other.result() for other in others] == [2 * i for i in range(20)]
        with pytest.raises(WorkerDied):
            lost.result()


def test_a_process_that_is_killed_between_calls_costs_one_call(pool: WorkerPool) -> None:
    assert pool.call(worker_calls.double, 1) == 2
    (process,) = multiprocessing.active_children()
    process.kill()
    process.join()
    with pytest.raises(WorkerDied):
        pool.call(worker_calls.double, 1)
    assert pool.call(worker_calls.double, 1) == 2


def test_a_call_that_takes_too_long_is_ended(pool: WorkerPool, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(WorkerHung):
        pool.call(worker_calls.hang, tmp_path / "begun", timeout_seconds=0.3)
    assert time.monotonic() - began < 30


def test_the_time_until_a_call_begins_does_not_count(pool: WorkerPool) -> None:
    """As of a function whose modules are imported first."""
    slow = worker_calls.MadeBy(time.sleep, (1.0,))
    assert pool.call(worker_calls.is_none, slow, timeout_seconds=0.5)


def test_what_a_process_cannot_read_or_send_is_an_error_of_that_call_and_it_serves_on(pool: WorkerPool) -> None:
    assert pool.call(worker_calls.double, 1) == 2
    (process,) = multiprocessing.active_children()
    with refused("worker-cannot-load", says="invalid literal for int.*'no number'"):
        pool.call(worker_calls.double, worker_calls.MadeBy(int, ("no number",)))
    for function in (worker_calls.lock, worker_calls.raise_lock):
        with pytest.raises(TypeError, match=r"cannot pickle .*lock") as caught:
            pool.call(function, 0)
        assert "sends" in caught.value.__notes__[0]
    assert pool.call(worker_calls.double, 2) == 4
    assert multiprocessing.active_children() == [process]


def test_nobody_waits_for_a_thread_of_a_process_that_has_ended_while_others_run(tmp_path: Path) -> None:
    """As if a module that is imported for a call leaves."""
    pool = WorkerPool(threads=2)
    try:
        with ThreadPoolExecutor(1) as threads:
            beside = threads.submit(pool.call, worker_calls.hang, tmp_path / "begun")
            while not (tmp_path / "begun").exists():  # what had not begun would be made in another process
                time.sleep(0.01)
            with pytest.raises(WorkerDied):
                pool.call(worker_calls.is_none, worker_calls.MadeBy(sys.exit))
            with pytest.raises(WorkerDied):  # as its process is ended, of which a thread is lost
                beside.result()
    finally:
        pool.close()


def test_a_process_runs_several_calls_and_only_the_one_that_hangs_is_to_blame(tmp_path: Path) -> None:
    pool = WorkerPool(threads=2)
    try:
        with ThreadPoolExecutor(2) as threads:
            hangs = threads.submit(pool.call, worker_calls.hang, tmp_path / "begun", 0.5)
            first = threads.submit(pool.call, worker_calls.process_id, tmp_path / "begun").result()
            (process,) = multiprocessing.active_children()
            assert first == process.pid
            other = threads.submit(pool.call, worker_calls.hang, tmp_path / "other")
            with pytest.raises(WorkerHung):
                hangs.result()
            with pytest.raises(WorkerStopped):
                other.result()
        assert pool.call(worker_calls.double, 2) == 4
    finally:
        pool.close()
    assert multiprocessing.active_children() == []


def test_a_call_that_is_alone_shares_its_process_with_no_other(tmp_path: Path) -> None:
    pool = WorkerPool(threads=2)
    (tmp_path / "begun").touch()
    try:
        shared = {pool.call(worker_calls.process_id, tmp_path / "begun") for _ in range(3)}
        alone = {pool.call(worker_calls.process_id, tmp_path / "begun", alone=True) for _ in range(2)}
        assert (len(shared), len(alone | shared)) == (1, 3)
        (process,) = multiprocessing.active_children()
        assert {process.pid} == shared
    finally:
        pool.close()


def test_a_closed_pool_takes_no_calls() -> None:
    pool = WorkerPool()
    pool.close()
    with pytest.raises(WorkerDied):
        pool.call(worker_calls.double, 1)


def test_a_thread_that_has_made_its_call_makes_the_next_one_and_one_that_hangs_none() -> None:
    calls, gate, before = ThreadCalls(), threading.Event(), set(threading.enumerate())

    def thread(hangs: bool) -> threading.Thread:
        if hangs:
            gate.wait()
        return threading.current_thread()

    first = calls.call(thread, False)
    assert calls.call(thread, False) is first
    with pytest.raises(WorkerHung, match=r"more than 0\.05 s"):
        calls.call(thread, True, 0.05)
    second = calls.call(thread, False)
    assert second is not first
    with pytest.raises(TypeError):
        calls.call(len, 0)
    assert calls.call(thread, False) is second
    gate.set()
    del calls
    for each in set(threading.enumerate()) - before:
        each.join(10.0)
    assert set(threading.enumerate()) <= before


@pytest.mark.skipif(system.WINDOWS, reason="signals end processes there")
def test_what_asks_a_whole_job_to_end_ends_no_process_before_its_parent(pool: WorkerPool) -> None:
    """The parent may still have to save; and a terminal that is closed asks all processes that were started in it."""
    assert pool.call(worker_calls.double, 1) == 2
    (worker,) = multiprocessing.active_children()
    for number in system.STOPS:
        os.kill(worker.pid, number)
    assert pool.call(worker_calls.double, 2) == 4
    assert multiprocessing.active_children() == [worker]


@pytest.mark.skipif(system.WINDOWS, reason="nothing interrupts who waits for a lock on Windows")
def test_a_pool_whose_closing_is_interrupted_can_be_closed_again(pool: WorkerPool, tmp_path: Path) -> None:
    """As by a second Ctrl-C: a process that were left would be waited for when the program ends."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda i: pool.call(worker_calls.double, i), range(50)))[-1] == 98
        hangs = threads.submit(pool.call, worker_calls.hang, tmp_path / "begun")
        while not (tmp_path / "begun").exists():
            time.sleep(0.02)
        former = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            with pytest.raises(KeyboardInterrupt):
                pool.close(patience_seconds=30)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
        pool.close(patience_seconds=0.1)
        with pytest.raises(WorkerDied):
            hangs.result()


def test_a_program_that_forgets_to_close_its_pool_ends(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import weakref, math\n"
        "class Thing: pass\n"
        "thing = Thing(); weakref.finalize(thing, int)\n"  # the order of exit handlers
        "from reelworks.core.worker_pool import WorkerPool\n"
        "if __name__ == '__main__':\n"
        "    print(WorkerPool().call(math.factorial, 5))\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=300, encoding="utf-8")
    assert (done.stdout, done.stderr, done.returncode) == ("120\n", "", 0)


@pytest.mark.parametrize(
    ("given", "told"), [("-c", "Can't get attribute 'double'"), ("-", "<stdin> is no file")], ids=["command", "stdin"]
)
def test_a_program_that_processes_cannot_import_is_told_what_they_lack_and_ends(given: str, told: str) -> None:
    """A function of a notebook is one of a program without a file, too."""
    program = (
        "from reelworks.core.worker_pool import WorkerPool\n"
        "def double(value): return 2 * value\n"
        "WorkerPool(threads=2, setting='data.num_workers').call(double, 2)\n"
    )
    command = [sys.executable, given, *([program] if given == "-c" else [])]
    done = subprocess.run(command, input=program, capture_output=True, text=True, timeout=100, encoding="utf-8")
    assert done.returncode == 1
    assert done.stderr.count("Traceback") <= 2  # one in the process, and the one that it is the cause of
    assert "num_workers = 0" in done.stderr
    assert told in done.stderr


def test_a_daemonic_process_which_may_start_none_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="daemonic"):
        multiprocessing.get_context("spawn").Process().start()
    with refused("workers-impossible", "data.num_workers", says="daemon=False; or set num_workers = 0"):
        WorkerPool(setting="data.num_workers")
    with refused("workers-impossible", says="daemon=False$") as caught:  # as where a scan opens many files
        WorkerPool()
    assert caught.value.field is None


def test_a_script_without_its_guard_is_told_so_and_not_run_again_and_again(tmp_path):
    """Each process imports the script, which starts processes as it is imported: that cannot go right."""
    script = tmp_path / "script.py"
    script.write_text(
        f"import os\nopen({str(tmp_path / 'ran')!r}, 'a').write('.')\n"
        "from reelworks.core.worker_pool import WorkerPool\nWorkerPool().call(abs, -1)\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, encoding="utf-8")
    assert done.returncode == 1
    assert "a worker process failed as it started" in done.stderr
    assert '`if __name__ == "__main__":`' in done.stderr
    assert (tmp_path / "ran").read_text(encoding="utf-8") == ".."  # by the script, and by one process
