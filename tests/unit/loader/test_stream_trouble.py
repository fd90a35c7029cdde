"""A worker that is killed, crashes or hangs costs at most the clip that is to blame, and outlives nobody."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import killing
import places
import psutil
import pytest
import stream_crash
from stream_crash import Deadly, Hanging
from stream_works import CLIP_BYTES, LONG_SECONDS, greys, request, work

from reelworks.core import system
from reelworks.data.loader import prefetch
from reelworks.data.loader.prefetch import read_ahead
from reelworks.data.media import decode_pool
from reelworks.data.media.decode_pool import DecodePool


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A picture that nobody writes: looking for it waits for ever, as on a dead mount."""
    if system.WINDOWS:
        pytest.skip("Windows has no pipes with a place in a folder")
    path = Hanging(tmp_path / "hangs.png")
    places.pipe(path)
    return path


def wait_until(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happens():
        assert time.monotonic() < deadline, "it never happens"
        time.sleep(0.02)


@contextmanager
def opened_too(pipe: Path) -> Iterator[None]:
    """Open a pipe once a worker has opened it, which then waits for what is never written."""
    files: list[int] = []

    def opens() -> bool:
        with suppress(OSError):  # nobody reads yet
            files.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return bool(files)

    wait_until(opens)
    try:
        yield
    finally:
        os.close(files[0])


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def opened_files() -> int:
    return 0 if system.WINDOWS else len(list(Path("/proc/self/fd").iterdir()))  # there, libraries keep handles


def workers() -> list[int]:
    return [process.pid for process in multiprocessing.active_children() if process.pid]


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_workers_killed_at_random_moments_lose_no_clip_and_leave_nothing(pictures: list[Path], kills: int) -> None:
    chance, pool, got = random.Random(kills), DecodePool(2, LONG_SECONDS), []
    resource_tracker.ensure_running()  # which the first process of all starts, and which stays
    files = opened_files()
    steps = 40 * kills
    try:
        for batch in read_ahead(
            (work(plan_step, pictures[plan_step % 20 :][:4]) for plan_step in range(steps)), pool, 40 * CLIP_BYTES
        ):
            got.append(greys(batch))
            assert not batch.failures
            if len(got) % 30 == 10 and (alive := workers()):
                time.sleep(chance.random() / 20)
                psutil.Process(chance.choice(alive)).kill()
    finally:
        pool.close()
    assert got == [list(range(plan_step % 20, plan_step % 20 + 4)) for plan_step in range(steps)]
    assert workers() == []
    del batch
    gc.collect()
    assert opened_files() <= files
    if not system.WINDOWS:
        assert "memfd:reelworks" not in Path("/proc/self/maps").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_neighbours_of_a_clip_that_kills_are_not_to_blame(pictures: list[Path], tmp_path: Path) -> None:
    """Both threads of a process share its death, again and again."""
    deadly: list[Any] = [Deadly(tmp_path / f"{i}", 99, pictures[i]) for i in range(2)]
    pool = DecodePool(1, LONG_SECONDS)
    try:
        steps = [[deadly[0], pictures[1], pictures[2]], [pictures[3], deadly[1], pictures[4]]]
        batches = list(read_ahead((work(plan_step, paths) for plan_step, paths in enumerate(steps)), pool))
    finally:
        pool.close()
    assert [batch.is_valid.tolist() for batch in batches] == [[False, True, True], [True, False, True]]
    assert [greys(batch) for batch in batches] == [[0, 1, 2], [3, 0, 4]]


@pytest.mark.slow
def test_only_the_clip_that_kills_again_and_again_is_to_blame(pictures: list[Path], tmp_path: Path) -> None:
    once, always = tmp_path / "once", tmp_path / "always"
    paths: list[Any] = list(pictures[:8])
    paths[2] = Deadly(once, 1, pictures[2])
    paths[5] = Deadly(always, 99, pictures[5])
    pool = DecodePool(1, LONG_SECONDS)
    try:
        batches = list(
            read_ahead((work(plan_step, paths[plan_step : plan_step + 2]) for plan_step in (0, 2, 4, 6)), pool)
        )
    finally:
        pool.close()
    assert [greys(batch) for batch in batches] == [[0, 1], [2, 3], [4, 0], [6, 7]]
    assert [batch.is_valid.tolist() for batch in batches] == [[True] * 2, [True] * 2, [True, False], [True] * 2]
    assert batches[2].failures == ((1, "the decoder crashed on it"),)
    assert once.read_bytes() == b"x"
    # It may be a victim of the other one before it has begun; then it is alone, twice.
    assert always.read_bytes() in (b"xx", b"xxx")


def test_a_clip_that_hangs_is_ended_named_and_not_tried_again(pictures: list[Path], pipe: Path) -> None:
    """The other clips are none the worse for it."""
    pool = DecodePool(2, timeout_seconds=1.0)
    steps = [[pictures[0], pictures[1]], [pictures[2], pipe, pictures[3]], pictures[4:8]]
    try:
        batches = list(read_ahead((work(plan_step, paths) for plan_step, paths in enumerate(steps)), pool))
    finally:
        pool.close()
    assert [greys(batch) for batch in batches] == [[0, 1], [2, 0, 3], [4, 5, 6, 7]]
    assert [batch.failures for batch in batches] == [(), ((1, "decoding took more than 1 s and was stopped"),), ()]
    with pytest.raises(OSError, match="No such device") as nobody_reads:
        os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    assert nobody_reads.value.errno == errno.ENXIO


def test_a_worker_that_hangs_is_killed_when_the_pool_closes(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not when the time for its clip is over."""
    monkeypatch.setattr(decode_pool, "_PATIENCE_SECONDS", 0.1)
    of_others = {*workers()}  # which on a busy machine end late
    pool = DecodePool(1, LONG_SECONDS)
    pool.submit(request(pipe))
    # A worker that is not killed is released as the pipe is closed, and killed here, so that all tests end.
    try:
        with ThreadPoolExecutor(1) as thread, opened_too(pipe):
            (pid,) = {*workers()} - of_others
            thread.submit(pool.close).result(LONG_SECONDS / 2)
            assert is_gone(pid)
    finally:
        for left in workers():
            psutil.Process(left).kill()


def test_workers_do_not_outlive_a_killed_trainer() -> None:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("spawn")
    trainer = context.Process(target=stream_crash.start_workers_and_die, args=(sender,))
    trainer.start()
    (pid,) = receiver.recv()
    trainer.join()
    assert trainer.exitcode == killing.SELF_KILLED
    wait_until(lambda: is_gone(pid))


def test_a_clip_that_takes_long_is_waited_for_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A decoder that hangs is stopped by `timeout_seconds` of its pool, and a slow disk may take longer."""
    monkeypatch.setattr(prefetch, "_WARN_SECONDS", 0.02)
    job: Future[Any] = Future()
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(prefetch._result, job, Path("slow.mp4"))
        while len(caplog.records) < 2 and not waiting.done():
            time.sleep(0.01)
        job.set_result(None)
        assert waiting.result() is None
    assert {record.getMessage() for record in caplog.records} == {
        "still waiting after 0.02 s for a clip to be decoded: slow.mp4"
    }
