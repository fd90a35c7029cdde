"""Micro-batches come in the plan's order, and a clip that fails costs its own place alone."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from stream_works import CLIP_BYTES, LONG_SECONDS, greys, request, work

from reelworks.core.shared_array import Slot
from reelworks.data.loader.micro_batch import MicroBatchRequest
from reelworks.data.loader.position import Counts, next_epoch
from reelworks.data.loader.prefetch import read_ahead
from reelworks.data.loader.step import StepClips
from reelworks.data.loader.step_source import StepSource
from reelworks.data.media.decode import Request
from reelworks.data.media.decode_pool import Decoded, DecodePool, Failure
from reelworks.testing import sample_dataset


class Watched(DecodePool):
    """A pool that remembers in which order clips were finished."""

    on_submit: Callable[[Request], None] = staticmethod(lambda request: None)
    cancelled = 0

    def submit(self, request: Request, into: Slot | None = None) -> Future[Decoded]:
        number = next(self.numbers)
        self.on_submit(request)
        job = super().submit(request, into)
        job.add_done_callback(lambda job: self.note(number, job))
        return job

    def note(self, number: int, job: Future[Decoded]) -> None:
        self.finished.append(number)
        self.cancelled += job.cancelled()

    @cached_property
    def numbers(self) -> Iterator[int]:
        return itertools.count()

    @cached_property
    def finished(self) -> list[int]:
        return []


@pytest.mark.parametrize(("num_workers", "budget"), [(0, 1), (0, 10**9), (1, 4000), (2, 10**9)])
@pytest.mark.quick_cases(1)
def test_order_and_contents_are_those_of_the_work_for_any_number_of_workers(
    pictures: list[Path], tmp_path: Path, num_workers: int, budget: int
) -> None:
    """Clips finish out of order, and some fail; neither shows in what is delivered."""
    slow, bad, none = tmp_path / "slow.png", tmp_path / "bad.png", tmp_path / "none.png"
    Image.new("L", (4000, 4000), 99).save(slow, compress_level=1)
    bad.write_text("no picture", encoding="utf-8")
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
        source = (work(plan_step, order) for plan_step, order in enumerate(orders))
        batches = list(read_ahead(source, pool, budget))
    finally:
        pool.close()
    assert [greys(batch) for batch in batches] == [[99, 3], [8], [0, 0, 2], [3, 3], [99, 22, 0], [7, 99], [1]]
    assert [batch.request.plan_step for batch in batches] == list(range(7))
    assert [[place for place, _ in batch.failures] for batch in batches] == [[], [], [1], [], [2], [], []]
    assert all(batch.is_valid.sum() + len(batch.failures) == len(batch.is_valid) for batch in batches)
    if budget > 1:
        assert pool.finished != sorted(pool.finished), "nothing finished out of order"


def test_a_clip_that_fails_counts_nothing_and_tells_why(pictures: list[Path], tmp_path: Path) -> None:
    pool = DecodePool(0, LONG_SECONDS)
    (tmp_path / "bad.png").write_text("no picture", encoding="utf-8")
    bad, none = tmp_path / "bad.png", tmp_path / "none.png"
    works = [
        work(0, [pictures[9], bad, pictures[4], none]),
        work(1, [bad, pictures[6]], real=[True, False]),
        work(2, [pictures[1], bad], is_idle=True),
        work(3, [pictures[2]]),
    ]
    first, padded, filler, last = read_ahead(works, pool)
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


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(clips=st.lists(st.integers(1, 4), min_size=1, max_size=12), budget=st.integers(0, 12))
def test_no_more_is_read_ahead_than_the_budget_or_one_micro_batch(
    pictures: list[Path], clips: list[int], budget: int
) -> None:
    """And something always is, so that a clip larger than the budget stops nothing."""
    pool = Watched(0, LONG_SECONDS)
    submitted, delivered = [], 0
    pool.on_submit = lambda request: submitted.append(request.path)
    works = [work(plan_step, pictures[:n]) for plan_step, n in enumerate(clips)]
    for batch in read_ahead(works, pool, budget_bytes=budget * CLIP_BYTES):
        delivered += clips[batch.request.plan_step]
        ahead, rest = len(submitted) - delivered, clips[batch.request.plan_step + 1 :]
        assert ahead <= max(budget, *rest[:1]) if rest else ahead == 0
        assert ahead >= sum(rest[:1])
    pool.close()
    assert (delivered, len(submitted)) == (sum(clips), sum(clips))


@pytest.mark.parametrize(
    ("clips", "at_once"), [(0, 1), (6, 2), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, 4), (20, 1)))]
)
def test_a_long_queue_is_bounded_and_refilled_by_a_few_small_micro_batches_at_a_time(
    pictures: list[Path], clips: int, at_once: int
) -> None:
    taken, added = list[int](), list[int]()

    def source() -> Iterator[MicroBatchRequest]:
        for plan_step in range(200):
            taken.append(plan_step)
            yield work(plan_step, [pictures[0]] * clips)

    pool = DecodePool(0, LONG_SECONDS)
    for delivered, _ in enumerate(read_ahead(source(), pool), start=1):
        assert len(taken) - delivered <= 65  # those that are queued, and the next one
        added.append(len(taken) - sum(added))
    pool.close()
    assert set(added[40:120]) == ({1} if at_once == 1 else {0, at_once})


def test_an_error_of_the_source_comes_after_all_that_it_gave(pictures: list[Path]) -> None:
    def source() -> Iterator[MicroBatchRequest]:
        yield from (work(plan_step, [pictures[plan_step]]) for plan_step in range(5))
        raise ValueError("no next epoch")

    pool, got = DecodePool(0, LONG_SECONDS), []
    with pytest.raises(ValueError, match="no next epoch"):
        got.extend(greys(batch) for batch in read_ahead(source(), pool))
    pool.close()
    assert got == [[0], [1], [2], [3], [4]]


class Gated(type(Path())):  # type: ignore[misc]
    """A file that can be looked at once the gate is open."""

    gate = threading.Event()

    def stat(self, **how: Any) -> Any:
        self.gate.wait()
        return super().stat(**how)


def test_what_is_left_behind_is_not_decoded(pictures: list[Path]) -> None:
    pool = Watched(0, LONG_SECONDS)
    batches = read_ahead(
        [work(0, [pictures[0]]), *(work(plan_step, [Gated(pictures[1])] * 2) for plan_step in (1, 2, 3))], pool
    )
    assert greys(next(batches)) == [0]
    batches.close()
    assert pool.cancelled >= 4  # at once: who goes on with the pool does not wait for them
    Gated.gate.set()
    pool.close()
    assert len(pool.finished) == 7


def test_micro_batches_tell_how_far_decoding_is_ahead(pictures: list[Path]) -> None:
    pool = Watched(0, LONG_SECONDS)
    batches = read_ahead((work(plan_step, pictures[:2]) for plan_step in range(3)), pool)
    first = next(batches).stream
    assert 0 <= first.queue_bytes <= 4 * CLIP_BYTES
    assert first.wait_seconds > 0
    while len(pool.finished) < 6:  # until all that was queued is decoded
        time.sleep(0.001)
    second, third = (batch.stream for batch in batches)
    pool.close()
    assert second.queue_bytes == 2 * CLIP_BYTES
    assert third.queue_bytes == 0
    assert third.decode_p50_seconds is not None
    assert third.decode_p99_seconds is not None
    assert 0 < third.decode_p50_seconds <= third.decode_p99_seconds


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


def test_the_next_epoch_is_decoded_before_the_last_step_of_this_one() -> None:
    """Whatever is decoded ahead, the micro-batches and their order are those of the plans."""
    sample = sample_dataset()
    begun, _ = next_epoch(sample, sample.plan_spec(1, 1), None)
    source = StepSource(sample, 0, 1, max_epochs=2)
    clips = begun.plan.planned
    orders = []
    for budget in (0, 10**9):
        pool = Watched(0, LONG_SECONDS)
        submitted: list[Request] = []
        pool.on_submit = submitted.append
        order: list[tuple[int, list[int]]] = []
        for batch in read_ahead(source.requests_from(begun), pool, budget):
            order.append((batch.request.epoch, batch.request.uids.tolist()))
            if (batch.request.epoch, batch.request.plan_step) == (0, begun.plan.num_steps - 1):
                assert len(submitted) > clips, "nothing of the next epoch is begun"
        pool.close()
        orders.append(order)
    assert orders[0] == orders[1] == [(work.epoch, work.uids.tolist()) for work in source.requests_from(begun)]
    assert [sum(len(uids) for number, uids in orders[0] if number == epoch) for epoch in (0, 1)] == [clips, clips]


@given(*[st.integers(0, 9)] * 4)
def test_each_clip_of_a_step_is_counted_once(trained: int, failed: int, repeated: int, failed_repeats: int) -> None:
    """Repeats that fill micro-batches are counted apart, and only where they were trained."""
    before = Counts(planned=99, trained=1, failed=2, skipped=3, repeated=4)
    first, more = trained + failed, repeated + failed_repeats
    clips = StepClips(first + more, first, failed + failed_repeats, failed)
    assert clips.valid == trained + repeated
    assert clips.add_to(before, trained=True) == Counts(99, 1 + trained, 2 + failed, 3, 4 + repeated)
    assert clips.add_to(before, trained=False) == Counts(99, 1, 2 + failed, 3 + trained, 4)
