"""The search finds the largest batch size within its limits, in few trials."""

from __future__ import annotations

import multiprocessing
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from reelworks.core import machine
from reelworks.training.memory import workbench
from reelworks.training.memory.search import Limits, Trial, largest_batch


@given(
    base=st.integers(0, 10_000),
    clip=st.integers(1, 500),
    fails_from=st.integers(1, 600),
    memory=st.integers(1, 100_000),
    ms=st.none() | st.integers(1, 5000),
    most=st.integers(1, 512),
)
def test_it_is_the_largest_within_limits(
    base: int, clip: int, fails_from: int, memory: int, ms: int | None, most: int
) -> None:
    limits = Limits(memory, ms, most)
    tried: list[int] = []

    def measure(size: int) -> Trial | None:
        tried.append(size)
        return Trial("b", 1, size, 7.0 * size, base + clip * size) if size < fails_from else None

    size, trials = largest_batch(measure, limits)
    fitting = [n for n in range(1, most + 1) if n < fails_from and base + clip * n <= memory]
    fitting = [n for n in fitting if n == 1 or ms is None or 7 * n <= ms]
    assert size == max(fitting, default=0)
    assert {t.batch_size for t in trials} == {n for n in tried if n < fails_from}
    assert len(tried) == len(set(tried)) <= 20
    # However promising two small ones are, none is more than four times as large as one that fits.
    assert all(n <= 4 * max([1, *fitting[: max(tried[:i], default=0)]]) for i, n in enumerate(tried))


def test_a_network_that_ends_its_process_as_it_is_built_is_told_with_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the system does with what it has no memory for."""
    anything: Any = None
    dies = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=lambda **_: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(workbench, "get_context", lambda _: dies)
    with refused("out-of-memory", "--memory", says="5 GB"):
        workbench.ChildProcess(anything, 5 * 10**9).trial(anything, 1)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_process_that_found_no_memory_goes_on_where_its_memory_can_be_freed(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """On a CPU another one is started for the next trial; what it measured or could not do is told as it is."""
    monkeypatch.setattr(machine, "default_device", lambda: torch.device(device))
    anything: Any = None
    child, (ours, theirs), ended = workbench.ChildProcess(anything, 10**9), multiprocessing.Pipe(), []
    process: Any = SimpleNamespace(
        is_alive=lambda: True,
        sentinel=multiprocessing.Pipe()[0],
        join=ended.append,
        kill=lambda: ended.append("killed"),
    )
    child._process, child._pipe = process, ours
    theirs.send(told := Trial("b", 1, 2, 3.0, 4))
    assert child.trial(anything, 2) == told
    theirs.send(ValueError("no such kernel"))
    with pytest.raises(ValueError, match="no such kernel"):
        child.trial(anything, 2)
    theirs.send(None)
    assert child.trial(anything, 2) is None
    assert (child._process, ended) == ((None, [10, "killed"]) if device == "cpu" else (process, []))
