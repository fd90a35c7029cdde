"""Losses of clips are read as they were written or refused, and take few bytes each."""

from __future__ import annotations

import numpy as np
import pytest

from reelworks.annexes.learning.losses import ClipLossError, ClipLosses, LossesAbout, Usual

ABOUT = LossesAbout(
    step=7,
    trained=90,
    visits=3,
    last=6,
    buckets=("480p 16:9 ×17", "480p 1:1 ×1"),
    usual=Usual([0.1, 0.3], [4.0, 128.0], {"480p 16:9 ×17": 1.25}, {"480p 16:9 ×17": 3.0}),
    course=((1, (1.5, 0.0)), (4, (0.1 + 0.2, 2.0))),
)


def table(clips: int, *, measured: float) -> ClipLosses:
    """Losses as a training of a few epochs leaves them."""
    chance = np.random.default_rng(3)
    known = ClipLosses.empty(ABOUT, clips)
    known.key[:] = chance.integers(0, 1 << 64, clips, dtype=np.uint64)
    known.bucket[:] = chance.integers(0, 12, clips)
    known.shown[:] = chance.integers(3, 6, clips)
    for column in (known.first, known.longer, known.recent):
        column[:] = chance.normal(0, 0.3, clips)
    some = chance.random(clips) < measured
    known.measured[some] = 1
    for column in (known.level, known.gain):
        column[some] = chance.normal(0, 0.3, int(some.sum()))
    return known


def test_a_table_is_read_as_it_was_written_without_clips_that_are_unknown():
    whole = table(50, measured=0.5)
    whole.shown[:10] = 0
    whole.measured[:9] = 0
    whole.measured[9] = 1
    data = whole.to_bytes()
    read = ClipLosses.from_bytes(data)
    kept = whole.take(np.arange(9, 50))
    kept = kept.take(np.argsort(kept.key))
    assert read.about == ABOUT
    for name, values in kept.columns().items():
        np.testing.assert_array_equal(read.columns()[name], values, err_msg=name)
        assert read.columns()[name].dtype == values.dtype
    assert whole.take(np.random.default_rng(0).permutation(50)).to_bytes() == data


@pytest.mark.parametrize("spoil", [lambda data: data[:-9], lambda data: b"", lambda data: b"x" * 100])
def test_a_torn_file_is_refused(spoil):
    with pytest.raises(ClipLossError):
        ClipLosses.from_bytes(spoil(table(5, measured=1.0).to_bytes()))


def test_ten_million_clips_take_less_than_200_megabytes():
    # Of three epochs 2 % are forward passes of measurements, of at most a clip in fifteen.
    clips = 200_000
    assert len(table(clips, measured=1 / 15).to_bytes()) * 10_000_000 / clips < 200e6
