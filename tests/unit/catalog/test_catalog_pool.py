"""Every item gets its result, in order, whatever dies on the way."""

from __future__ import annotations

import subprocess
import sys
import threading

import catalog_crash
import pytest

from reelworks.core import worker_pool
from reelworks.core.worker_pool import WorkerPool
from reelworks.data.catalog.scan import probe_pool


def run(items, function, *, most_seconds=60.0, failed=catalog_crash.minus_one, **how) -> list:
    return list(probe_pool.map_ordered(function, items, failed=failed, most_seconds=lambda chunk: most_seconds, **how))


@pytest.mark.parametrize("count", [0, 1, 7, 100])
def test_threads_keep_the_order(count: int) -> None:
    items = iter(range(count))
    assert run(items, lambda x: 2 * x, workers=3, processes=None) == [2 * i for i in range(count)]


def test_what_is_waited_for_is_told_until_it_is_there(monkeypatch) -> None:
    monkeypatch.setattr(probe_pool, "_TOLD_SECONDS", 0.01)
    read = threading.Event()
    monkeypatch.setattr(probe_pool.logger, "info", lambda line: told.append(line) or (len(told) > 1 and read.set()))
    told: list[str] = []
    name = "film {}.mp4".format
    assert run([1, 2, 3], lambda _: read.wait(9), workers=1, processes=None, name=name, chunk_size=2) == [True] * 3
    assert told[0] == told[1] == "still waiting after 0.01 s for film 1.mp4 to be read, or for what is after it"


def test_an_error_of_the_function_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run([1, 0], lambda x: 1 // x, workers=2, processes=None)


@pytest.mark.slow
def test_a_crash_costs_only_its_item() -> None:
    expected = [-1 if i == 13 else 2 * i for i in range(20)]
    found = run(range(20), catalog_crash.double_unless_deadly, workers=1, processes=WorkerPool(), chunk_size=3)
    assert found == expected


@pytest.mark.parametrize(("pool", "seconds"), [(None, 0.5), pytest.param(WorkerPool, 2.0, marks=pytest.mark.slow)])
def test_a_hang_costs_only_its_item(pool: type[WorkerPool] | None, seconds: float) -> None:
    """It is tried alone once more; what hangs in a thread does not keep the program from ending."""
    found = run(
        range(12, 20),
        catalog_crash.double_unless_endless,
        failed=lambda item, reason: (item, reason),
        most_seconds=seconds,
        workers=2,
        processes=pool and pool(),
        chunk_size=3,
    )
    stopped = (13, f"it took more than {seconds:g} s and was stopped")
    assert found == [stopped if i == 13 else 2 * i for i in range(12, 20)]


def test_a_program_ends_while_a_thread_hangs() -> None:
    code = """
import time
from reelworks.core.worker_pool import ThreadCalls
try:
    ThreadCalls().call(time.sleep, 1000, 0.1)
except Exception as error:
    print(type(error).__name__)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, encoding="utf-8"
    )
    assert ended.stdout == "WorkerHung\n"


def test_leaving_early_does_not_wait_for_what_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_PATIENCE_SECONDS", 0.1)
    function, how = catalog_crash.double_unless_endless, {"failed": catalog_crash.minus_one, "processes": None}
    items = probe_pool.map_ordered(function, [1, 13], workers=2, most_seconds=lambda chunk: 1e6, chunk_size=1, **how)
    assert next(items) == 2
    items.close()


def test_an_error_of_time_is_not_a_hang() -> None:
    with pytest.raises(TimeoutError, match="of the function"):
        worker_pool.ThreadCalls().call(_out_of_time, 0, 60.0)


def _out_of_time(value: int) -> int:
    raise TimeoutError("of the function")
