"""A decoder that never returns costs its clip alone, wherever clips are decoded."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import media_makers as media
import numpy as np
import places
import pytest

from reelworks.core import worker_pool
from reelworks.core.shape import Shape
from reelworks.core.worker_pool import WorkerDied
from reelworks.data.media import decode, decode_pool
from reelworks.data.media.decode import Request
from reelworks.data.media.decode_pool import DecodePool, Failure
from reelworks.data.media.reading import MediaError

STOPPED = "decoding took more than 0.5 s and was stopped"


@pytest.fixture
def requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Three pictures, of which the second is decoded without an end."""
    real, pipe = decode.load, tmp_path / "pipe"
    places.pipe(pipe)

    def load(request: Request) -> Any:
        return pipe.read_bytes() if request.path.name == "1.png" else real(request)

    monkeypatch.setattr(decode, "load", load)
    for i in range(3):
        media.write_picture(tmp_path / f"{i}.png", i)
    return [Request(tmp_path / f"{i}.png", is_image=True, shape=Shape(1, 4, 4)) for i in range(3)]


def test_in_threads_others_go_on(requests: list[Request]) -> None:
    """As many hang as there are threads, and the clips behind them are decoded."""
    with closing(DecodePool(0, timeout_seconds=0.5)) as pool:
        first, endless, _, more, last = [pool.submit(requests[i]) for i in (0, 1, 2, 1, 0)]
        assert endless.result() == more.result() == Failure(STOPPED)
        np.testing.assert_array_equal(first.result(), last.result())


def test_who_collects_the_owner_of_a_pool_waits_for_no_clip(
    requests: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector may run in a thread that begins, and holds a lock which every thread needs to end."""
    monkeypatch.setattr(worker_pool, "_PATIENCE_SECONDS", 1.0)
    pool, owner = DecodePool(0, timeout_seconds=60.0), set()
    pool.close_after(owner)
    endless = pool.submit(requests[1])
    began = time.monotonic()
    del owner
    assert time.monotonic() - began < 0.5
    endless.result(20.0)
    with pytest.raises(RuntimeError, match="the decoders were closed"):
        pool.require_open()


def test_a_clip_without_a_pool_has_a_limit(requests: list[Request], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_pool, "MOST_SECONDS", 0.5)
    assert decode_pool.load(requests[0]).shape == (1, 4, 4, 3)
    with pytest.raises(MediaError, match=STOPPED):
        decode_pool.load(requests[1])


def test_a_clip_whose_process_died_is_tried_again_in_one_of_its_own(
    requests: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside others that kill it, again and again, no clip would be decoded; see `test_stream_trouble` for real deaths."""

    class Deadly:
        """Processes in which another clip runs that kills them, but for those that run a single one."""

        def __init__(self, threads: int, *, setting: str) -> None:
            self.threads = threads

        def call(
            self, function: Any, value: Any, timeout_seconds: float, *, into: Any = None, alone: bool = False
        ) -> Any:
            if not alone:
                raise WorkerDied
            return function(value)

        def close(self, patience_seconds: float) -> None:
            """Nothing runs."""

    monkeypatch.setattr(decode_pool, "WorkerPool", Deadly)
    with closing(DecodePool(1, timeout_seconds=5)) as pool:
        np.testing.assert_array_equal(pool.submit(requests[0]).result(), decode.load(requests[0]))
