"""Every item gets its result, in order, whatever dies on the way."""

from __future__ import annotations

import catalog_crash
import pytest

from reelworks.catalog import probe_pool
from reelworks.core.worker_pool import WorkerPool


def run(items, function, **how) -> list[int]:
    return list(probe_pool.map_ordered(function, items, crashed=catalog_crash.minus_one, **how))


@pytest.mark.parametrize("count", [0, 1, 7, 100])
def test_threads_keep_the_order(count: int) -> None:
    items = iter(range(count))
    assert run(items, lambda x: 2 * x, workers=3, processes=None) == [2 * i for i in range(count)]


def test_an_error_of_the_function_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run([1, 0], lambda x: 1 // x, workers=2, processes=None)


def test_a_crash_costs_only_its_item() -> None:
    expected = [-1 if i == 13 else 2 * i for i in range(20)]
    found = run(range(20), catalog_crash.double_unless_deadly, workers=1, processes=WorkerPool(), chunk_size=3)
    assert found == expected
