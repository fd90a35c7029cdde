"""A watch tells which rank ended the run, and ends no run that goes on."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch.distributed as dist

from reelworks.data.distributed import watch
from reelworks.data.distributed.config import ParallelConfig
from reelworks.data.distributed.watch import Watch


class LeftError(Exception):
    """Raised in place of the end of the process."""


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Watch]:
    """Three watches on one store, whose threads do not run: a test lets them beat and listen."""

    def leave(self: Watch, verdict: str) -> None:
        raise LeftError(verdict)

    monkeypatch.setattr(Watch, "_leave", leave)
    store = dist.FileStore(str(tmp_path / "store"))
    made = [Watch(store, rank, 3, ParallelConfig()) for rank in range(3)]
    for one in made:
        one._beat()
    return made


def verdict(of: Watch) -> str | None:
    of._listen()
    return of._verdict()


def test_ranks_that_beat_are_left_alone(ranks: list[Watch]) -> None:
    first = ranks[0]
    for step in (1, 2):
        for one in ranks:
            one.mark("waiting for clips", step)
            one._beat()
        assert verdict(first) is None


def test_a_rank_that_stops_beating_is_named_with_its_clips(ranks: list[Watch], monkeypatch: pytest.MonkeyPatch) -> None:
    first = ranks[0]
    for one in ranks:
        one.mark("in a forward and backward pass", 7, lambda rank: [f"clip-of-{rank}.mp4"])
        one._beat()
    assert verdict(first) is None
    ranks[0]._limits = ParallelConfig(lost_seconds=0.05)
    time.sleep(0.1)
    ranks[1]._beat()
    told = verdict(first)
    assert told is not None
    assert told.startswith(f"rank 2 on {first._host} was lost at step 7, in a forward and backward pass")
    assert "(clips: clip-of-2.mp4)" in told


def test_a_rank_that_ended_in_order_is_not_missed(ranks: list[Watch]) -> None:
    ranks[2]._ended = True
    ranks[2]._beat()
    ranks[0]._limits = ParallelConfig(lost_seconds=0.05)
    ranks[0]._listen()
    time.sleep(0.1)
    ranks[1]._beat()
    assert verdict(ranks[0]) is None


def test_the_slowest_rank_of_a_step_that_does_not_go_on_is_named(ranks: list[Watch]) -> None:
    """All began the step, and one waits for its clips while the others have gone further."""
    for one in ranks:
        one._limits = ParallelConfig(step_seconds=0.05)
        one.mark("waiting for clips", 3, lambda rank: [f"clip-of-{rank}.mp4"])
    for one in (ranks[0], ranks[2]):
        one.mark("in a forward and backward pass", 3)
    time.sleep(0.1)
    for one in ranks:
        one._beat()
    told = verdict(ranks[0])
    assert told is not None
    begins = (
        rf"rank 1 on {re.escape(ranks[0]._host)} did not go on for \d+ s \(parallel.step_seconds = 0.05\) at step 3"
    )
    assert re.match(begins, told)
    assert told.endswith("waiting for clips (clips: clip-of-1.mp4)")


def test_a_phase_without_a_limit_may_last(ranks: list[Watch]) -> None:
    for one in ranks:
        one._limits = ParallelConfig(step_seconds=0.05)
        one.mark("after it", 3, limited=False)
    time.sleep(0.1)
    for one in ranks:
        one._beat()
    assert verdict(ranks[0]) is None


def test_an_error_of_one_rank_is_told_after_the_others_had_time_to_raise_it(
    ranks: list[Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks[1]._fault, ranks[1]._ended = "ValueError: a weight is missing", True
    ranks[1]._beat()
    assert verdict(ranks[0]) is None
    monkeypatch.setattr(watch, "_GRACE_SECONDS", 0.05)
    time.sleep(0.1)
    assert verdict(ranks[0]) == f"rank 1 on {ranks[0]._host} failed: ValueError: a weight is missing"


@pytest.mark.parametrize(
    ("error", "told"), [(SystemExit(75), None), (ValueError("no weight"), "ValueError: no weight")]
)
def test_a_rank_that_leaves_with_a_code_has_not_failed(
    ranks: list[Watch], monkeypatch: pytest.MonkeyPatch, error: BaseException, told: str | None
) -> None:
    monkeypatch.setattr(watch, "_GRACE_SECONDS", 0.05)
    with pytest.raises(type(error)), ranks[1]:
        raise error
    ranks[0]._listen()
    time.sleep(0.1)
    assert verdict(ranks[0]) == (told and f"rank 1 on {ranks[0]._host} failed: {told}")


def test_whoever_meets_again_waits_for_all_again(ranks: list[Watch]) -> None:
    for _ in range(3):
        assert [one.meets(0.0) for one in ranks] == [False, False, True]
    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(lambda one: one.meets(60.0), ranks))


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:1"), True),
        (dist.DistBackendError("NCCL communicator was aborted"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("gloo/"), False),
    ],
)
def test_errors_of_collectives_are_known(error: Exception, is_one: bool) -> None:
    assert watch._is_of_communication(error) is is_one


def test_a_rank_that_leaves_in_order_takes_the_others_along(
    ranks: list[Watch], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left: list[tuple[int, int]] = []

    def leave(code: int) -> None:
        left.append((len(left), code))
        raise LeftError

    monkeypatch.setattr(watch.os, "_exit", leave)
    monkeypatch.setattr(watch, "BEAT_SECONDS", 0.01)
    ranks[1].take_along(75, "stopped after step 3")
    for one in (ranks[0], ranks[2]):
        with pytest.raises(LeftError):
            one._run()
    ranks[1]._stop.set()
    ranks[1]._run()  # it ends by itself
    assert left == [(0, 75), (1, 75)]
    assert capsys.readouterr().out == "stopped after step 3\n"


def test_ranks_that_failed_end_after_the_first_one_if_that_stays(
    ranks: list[Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launchers end all ranks after one that failed, while the first may still copy a checkpoint to the mirror."""
    monkeypatch.setattr(watch, "_STAY_SECONDS", 0.1)
    first, second, third = ranks
    ends: dict[str, float] = {}

    def end(rank: Watch, name: str) -> None:
        with suppress(ValueError), rank:
            raise ValueError("no step was finite")
        ends[name] = time.monotonic()

    began = time.monotonic()
    end(third, "alone")  # the others go on
    assert ends["alone"] - began < 5.0
    first._limits = ParallelConfig(step_seconds=0.05)
    first.mark("in a forward and backward pass", 3)
    first.stay()
    thread = threading.Thread(target=end, args=(second, "beside the first"))
    thread.start()
    time.sleep(0.3)
    assert verdict(first) is None
    assert thread.is_alive()
    first._ended = True
    first._beat()
    thread.join(10.0)
    assert "beside the first" in ends

    monkeypatch.setattr(watch, "_GRACE_SECONDS", 0.0)
    first._suspects = True  # it failed because another one has ended, which is what is told
    assert "no step was finite" in str(verdict(first))
