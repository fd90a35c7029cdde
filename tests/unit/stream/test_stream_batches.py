"""Micro-batches come in the plan's order, and a clip that fails costs its own place alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from stream_crash import Deadly

from reelworks.core.shape import Shape
from reelworks.media.load import Request
from reelworks.stream import workers
from reelworks.stream.batches import MicroBatch, Work, read_ahead
from reelworks.stream.workers import DecodePool, Failure

SHAPE = Shape(1, 16, 16)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Picture `i` is of grey `i`."""
    folder = tmp_path_factory.mktemp("pictures")
    paths = [folder / f"{i:02}.png" for i in range(24)]
    for i, path in enumerate(paths):
        Image.new("L", (16, 16), i).save(path)
    return paths


@pytest.fixture(params=[0, 2], ids=["threads", "processes"])
def pool(request: pytest.FixtureRequest) -> Iterator[DecodePool]:
    made = DecodePool(request.param)
    yield made
    made.close()


def request(path: Path | Deadly) -> Request:
    return Request(path, True, SHAPE)  # type: ignore[arg-type]


def work(row: int, paths: list[Any], real: list[bool] | None = None, filler: bool = False) -> Work:
    n = len(paths)
    return Work(
        epoch=0,
        row=row,
        index=0,
        last=True,
        filler=filler,
        bucket=0,
        shape=SHAPE,
        uids=np.arange(n, dtype=np.uint64),
        copies=np.zeros(n, dtype=np.int64),
        real=np.array(real or [True] * n),
        requests=tuple(request(path) for path in paths),
        captions=("",) * n,
        fps=(24.0,) * n,
    )


def greys(batch: MicroBatch) -> list[int]:
    assert batch.frames.dtype == torch.uint8
    assert batch.frames.shape == (len(batch.work.requests), 1, 16, 16, 3)
    assert (batch.frames == batch.frames[:, :1, :1, :1, :1]).all()
    return batch.frames[:, 0, 0, 0, 0].tolist()


def test_the_order_is_that_of_the_work(pool: DecodePool, pictures: list[Path], tmp_path: Path) -> None:
    orders = [[5, 3], [8], [0, 1, 2], [3, 3], [23, 22, 21, 20], [7, 9], [11]]
    batches = list(
        read_ahead((work(row, [pictures[i] for i in o]) for row, o in enumerate(orders)), pool, depth=3)
    )
    assert [greys(batch) for batch in batches] == orders
    assert [batch.work.row for batch in batches] == list(range(len(orders)))
    assert all(batch.counts.all() and not batch.failures for batch in batches)


def test_a_clip_that_fails_counts_nothing_and_tells_why(
    pool: DecodePool, pictures: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "bad.png").write_text("no picture")
    bad, none = tmp_path / "bad.png", tmp_path / "none.png"
    works = [
        work(0, [pictures[9], bad, pictures[4], none]),
        work(1, [bad, pictures[6]], real=[True, False]),
        work(2, [pictures[1], bad], filler=True),
        work(3, [pictures[2]]),
    ]
    first, padded, filler, last = read_ahead(works, pool, depth=2)
    assert greys(first) == [9, 0, 4, 0]
    assert first.counts.tolist() == [True, False, True, False]
    assert [place for place, _ in first.failures] == [1, 3]
    assert "not a picture" in first.failures[0][1]
    assert "No such file" in first.failures[1][1]
    assert padded.counts.tolist() == [False, False]
    assert [place for place, _ in padded.failures] == [0]
    assert (filler.counts.tolist(), filler.failures) == ([False, False], ())
    assert (greys(last), last.counts.tolist()) == ([2], [True])
    assert works[0].real.all()  # what was asked for is left as it was


def test_no_more_is_read_ahead_than_asked_for(pictures: list[Path]) -> None:
    taken: list[int] = []

    def source() -> Iterator[Work]:
        for row in range(8):
            taken.append(row)
            yield work(row, [pictures[row]])

    pool = DecodePool(0)
    for batch in read_ahead(source(), pool, depth=3):
        assert len(taken) == min(batch.work.row + 3, 8)
    pool.close()
    assert len(taken) == 8


def test_a_killed_worker_loses_no_clip(pictures: list[Path]) -> None:
    pool = DecodePool(2)
    try:
        batches = read_ahead((work(row, pictures[row : row + 3]) for row in range(12)), pool, depth=4)
        got = [greys(next(batches))]
        os.kill(next(iter(pool._executor._processes)), signal.SIGKILL)  # type: ignore[attr-defined]
        got += [greys(batch) for batch in batches]
        assert got == [[row, row + 1, row + 2] for row in range(12)]
    finally:
        pool.close()


def test_only_the_clip_that_kills_again_and_again_is_to_blame(pictures: list[Path], tmp_path: Path) -> None:
    once, always = tmp_path / "once", tmp_path / "always"
    paths: list[Any] = list(pictures[:8])
    paths[2] = Deadly(once, 1, pictures[2])
    paths[5] = Deadly(always, 99, pictures[5])
    pool = DecodePool(1)
    try:
        batches = list(read_ahead((work(row, paths[row : row + 2]) for row in (0, 2, 4, 6)), pool, depth=4))
    finally:
        pool.close()
    assert [greys(batch) for batch in batches] == [[0, 1], [2, 3], [4, 0], [6, 7]]
    assert [batch.counts.tolist() for batch in batches] == [[True] * 2, [True] * 2, [True, False], [True] * 2]
    assert batches[2].failures == ((1, "the decoder crashed on it"),)
    assert once.read_bytes() == b"x"
    assert always.read_bytes() == b"xx"  # the first of its three tries was lost to the other clip


def test_a_closed_pool_drops_what_is_queued(pictures: list[Path]) -> None:
    pool = DecodePool(0)
    jobs = [pool.submit(request(path)) for path in pictures * 10]
    pool.close()
    assert all(job.future.done() for job in jobs)
    assert any(job.future.cancelled() for job in jobs)


def test_a_failure_is_a_value() -> None:
    pool = DecodePool(0)
    result = pool.result(pool.submit(request(Path("none.png"))))
    pool.close()
    assert isinstance(result, Failure)
    assert "No such file" in result.reason


def test_a_worker_that_hangs_is_killed_when_the_pool_closes(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_PATIENCE_SECONDS", 0.2)
    pipe = tmp_path / "nobody-writes.png"
    os.mkfifo(pipe)
    pool = DecodePool(1)
    pool.submit(Request(pipe, True, Shape(1, 8, 8)))
    time.sleep(1.0)
    (process,) = pool._executor._processes.values()
    assert process.is_alive()
    pool.close()
    assert not process.is_alive()


def _start_workers_and_die(pids):
    pool = DecodePool(1)
    pool.submit(Request(Path("nowhere.png"), True, Shape(1, 8, 8))).future.result()
    pids.send([process.pid for process in pool._executor._processes.values()])
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_do_not_outlive_a_killed_trainer():
    receiver, sender = multiprocessing.Pipe(duplex=False)
    trainer = multiprocessing.get_context("spawn").Process(target=_start_workers_and_die, args=(sender,))
    trainer.start()
    (pid,) = receiver.recv()
    trainer.join()
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the worker lives on"
        time.sleep(0.1)
