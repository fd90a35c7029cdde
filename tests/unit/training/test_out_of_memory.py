"""A failed allocation names the bucket and the batch size; other errors pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from refused import refused

from reelworks.core.shape import Geometry
from reelworks.data.buckets import table
from reelworks.data.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.training.step import out_of_memory

CPU = torch.device("cpu")


@pytest.fixture
def bucket():
    entry = BucketEntryConfig(resolution="32x32", num_frames=4, batch_size=3)
    return table.build([entry], BucketsConfig(), Geometry((1, 8, 8), (1, 2, 2))).buckets[0]


def test_an_allocation_that_fails_names_bucket_and_batch_size(bucket, tmp_path):
    file = tmp_path / "snapshot.pickle"
    with (
        refused("out-of-memory", "bucket.batch_size", says=f"3 for {bucket.name}.*step 7.*host memory"),
        out_of_memory.naming_bucket(bucket, CPU, file, what="a micro-batch of step 7"),
    ):
        torch.empty(2**60)
    assert not file.exists(), "there is no GPU whose memory could be shown"
    with refused("out-of-memory"), out_of_memory.naming_bucket(bucket, CPU, what="it"):
        bytearray(2**60)


def test_half_a_snapshot_is_none(monkeypatch, tmp_path):
    """As where the disk fails meanwhile, or the process is killed."""
    file = tmp_path / "profiles" / "snapshot.pickle"

    def dump(path):
        assert not file.exists()
        Path(path).write_bytes(b"half")
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", dump)
    assert out_of_memory.snapshot(torch.device("cuda"), file) is None
    assert not list(file.parent.iterdir())


def test_another_error_is_not_a_lack_of_memory(bucket):
    with pytest.raises(RuntimeError, match="shape"), out_of_memory.naming_bucket(bucket, CPU, what="it"):
        torch.zeros(2, 3) @ torch.zeros(2, 3)
