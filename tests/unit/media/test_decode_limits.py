"""A decoder that never returns costs its clip alone, wherever clips are decoded."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import media_makers as media
import numpy as np
import places
import pytest

from reelworks.core.shape import Shape
from reelworks.data.media import decode, decode_pool
from reelworks.data.media.decode import MediaError, Request
from reelworks.data.media.decode_pool import DecodePool, Failure

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


def test_a_clip_without_a_pool_has_a_limit(requests: list[Request], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_pool, "MOST_SECONDS", 0.5)
    assert decode_pool.load(requests[0]).shape == (1, 4, 4, 3)
    with pytest.raises(MediaError, match=STOPPED):
        decode_pool.load(requests[1])
