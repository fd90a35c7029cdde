"""Micro-batches come in the plan's order, and a clip that fails costs its own place alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path

import pytest
from PIL import Image
from stream_works import LONG_SECONDS, greys, request, work

from reelworks.data.loader import MicroBatchRequest, read_ahead
from reelworks.media.decode import DecodePool, Failure, Frames, Request


class Watched(DecodePool):
    """A pool that remembers in which order clips were finished."""

    def submit(self, request: Request) -> Future[Frames | Failure]:
        number = next(self.numbers)
        job = super().submit(request)
        job.add_done_callback(lambda _: self.finished.append(number))
        return job

    @cached_property
    def numbers(self) -> Iterator[int]:
        return itertools.count()

    @cached_property
    def finished(self) -> list[int]:
        return []


@pytest.mark.parametrize(("num_workers", "depth"), [(0, 1), (0, 9), (1, 2), (3, 4)])
def test_order_and_contents_are_those_of_the_work_for_any_number_of_workers(
    pictures: list[Path], tmp_path: Path, num_workers: int, depth: int
) -> None:
    """Clips finish out of order, and some fail; neither shows in what is delivered."""
    slow, bad, none = tmp_path / "slow.png", tmp_path / "bad.png", tmp_path / "none.png"
    Image.new("L", (4000, 4000), 99).save(slow, compress_level=1)
    bad.write_text("no picture")
    p = pictures
    orders = [
        [slow, p[3]],
        [p[8]],
        [p[0], bad, p[2]],
        [p[3], p[3]],
        [slow, p[22], none],
        [p[7], slow],
        [p[1]],
    ]
    pool = Watched(num_workers, LONG_SECONDS)
    try:
        source = (work(row, order) for row, order in enumerate(orders))
        batches = list(read_ahead(source, pool, depth=depth))
    finally:
        pool.close()
    assert [greys(batch) for batch in batches] == [[99, 3], [8], [0, 0, 2], [3, 3], [99, 22, 0], [7, 99], [1]]
    assert [batch.work.row for batch in batches] == list(range(7))
    assert [[place for place, _ in batch.failures] for batch in batches] == [[], [], [1], [], [2], [], []]
    assert all(batch.is_valid.sum() + len(batch.failures) == len(batch.is_valid) for batch in batches)
    if num_workers != 1:
        assert pool.finished != sorted(pool.finished), "nothing finished out of order"


def test_a_clip_that_fails_counts_nothing_and_tells_why(pictures: list[Path], tmp_path: Path) -> None:
    pool = DecodePool(0, LONG_SECONDS)
    (tmp_path / "bad.png").write_text("no picture")
    bad, none = tmp_path / "bad.png", tmp_path / "none.png"
    works = [
        work(0, [pictures[9], bad, pictures[4], none]),
        work(1, [bad, pictures[6]], real=[True, False]),
        work(2, [pictures[1], bad], is_idle=True),
        work(3, [pictures[2]]),
    ]
    first, padded, filler, last = read_ahead(works, pool, depth=2)
    pool.close()
    assert greys(first) == [9, 0, 4, 0]
    assert first.is_valid.tolist() == [True, False, True, False]
    assert [place for place, _ in first.failures] == [1, 3]
    assert "not a picture" in first.failures[0][1]
    assert "No such file" in first.failures[1][1]
    assert padded.is_valid.tolist() == [False, False]
    assert [place for place, _ in padded.failures] == [0]
    assert (filler.is_valid.tolist(), filler.failures) == ([False, False], ())
    assert (greys(last), last.is_valid.tolist()) == ([2], [True])
    assert works[0].real.all()  # what was asked for is left as it was


def test_no_more_is_read_ahead_than_asked_for(pictures: list[Path]) -> None:
    taken: list[int] = []

    def source() -> Iterator[MicroBatchRequest]:
        for row in range(8):
            taken.append(row)
            yield work(row, [pictures[row]])

    pool = DecodePool(0, LONG_SECONDS)
    for batch in read_ahead(source(), pool, depth=3):
        assert len(taken) == min(batch.work.row + 3, 8)
    pool.close()
    assert len(taken) == 8


def test_a_closed_pool_drops_what_is_queued(pictures: list[Path]) -> None:
    pool = DecodePool(0, LONG_SECONDS)
    jobs = [pool.submit(request(path)) for path in pictures * 10]
    pool.close()
    assert all(job.done() for job in jobs)
    assert any(job.cancelled() for job in jobs)


def test_a_failure_is_a_value() -> None:
    pool = DecodePool(0, LONG_SECONDS)
    result = pool.submit(request(Path("none.png"))).result()
    pool.close()
    assert isinstance(result, Failure)
    assert "No such file" in result.reason
