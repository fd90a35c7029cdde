"""Memory that other processes write to, and that is gone when its last user ends."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import worker_calls

from reelworks.core.shared_array import SharedArray
from reelworks.core.worker_pool import WorkerDied, WorkerPool


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool()
    yield pool
    pool.close()


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("shared", [True, False])
def test_a_result_that_fills_its_place_lies_there_and_nowhere_else(pool: WorkerPool, shared: bool) -> None:
    """Through shared memory, and through the pipe where there is none."""
    memory = SharedArray((3, 500, 1001), shared=shared)
    for index, value in ((0, 7), (2, 9)):
        slot = memory.slot(index)
        found = pool.call(worker_calls.filled, (value, (500, 1001)), into=slot)
        assert np.may_share_memory(found, memory.array[index])
    assert (memory.file is not None) == (shared and hasattr(os, "memfd_create"))
    assert [int(part.min()) for part in memory.array] == [int(part.max()) for part in memory.array] == [7, 0, 9]


def test_another_result_comes_by_the_pipe_and_leaves_the_memory_alone(pool: WorkerPool) -> None:
    memory = SharedArray((2, 8, 8))
    found = pool.call(worker_calls.filled, (5, (8, 9)), into=memory.slot(1))
    assert (found == 5).all()
    assert found.shape == (8, 9)
    assert not memory.array.any()
    with pytest.raises(ZeroDivisionError):
        pool.call(worker_calls.invert, 0, into=memory.slot(1))


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no anonymous files")
@pytest.mark.slow
def test_no_file_stays_open_and_none_has_a_name(pool: WorkerPool) -> None:
    """Also when the process is killed while it writes."""
    pool.call(worker_calls.double, 1)
    before = open_files()
    memory = SharedArray((2, worker_calls.BYTES_THAT_TAKE_A_WHILE))
    assert memory.file is not None
    assert Path(f"/proc/self/fd/{memory.file}").readlink().name.startswith("memfd:")
    with pytest.raises(WorkerDied):
        pool.call(worker_calls.die_while_sending, 0.0, into=memory.slot(0))
    pool.call(worker_calls.filled, (1, (worker_calls.BYTES_THAT_TAKE_A_WHILE,)), into=memory.slot(1))
    memory.close_file()
    kept = memory.array
    del memory
    assert kept[1].all()
    del kept
    assert open_files() <= before
