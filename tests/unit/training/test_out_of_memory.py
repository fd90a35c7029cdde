"""A failed allocation names the bucket and the batch size; other errors pass."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from refused import refused

from reelworks.core.shape import Geometry
from reelworks.data.buckets import table
from reelworks.data.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.training.loop.training_loop import Trainer
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


def test_a_step_that_memory_is_too_small_for_names_the_bucket_of_its_micro_batch(bucket, tmp_path):
    def run(_, **more):
        raise torch.OutOfMemoryError("CUDA out of memory")

    trainer = SimpleNamespace(
        _world=SimpleNamespace(device=CPU, rank=0),
        _train_step=SimpleNamespace(run=run),
        _examples=SimpleNamespace(of_step=lambda *_, **more: ()),
        _folder=SimpleNamespace(snapshot_file=lambda rank: tmp_path / "snapshot.pickle"),
        data=SimpleNamespace(table=SimpleNamespace(buckets=[bucket])),
    )
    position = SimpleNamespace(plan=None, plan_step=0, global_step=6)
    batches = SimpleNamespace(batches_of_step=lambda _: (), request=SimpleNamespace(bucket=0))
    with refused("out-of-memory", "bucket.batch_size", says=f"3 for {bucket.name}.*step 7"):
        Trainer._run_step(trainer, position, batches, None)
    batches.request = None  # not of a micro-batch
    with pytest.raises(torch.OutOfMemoryError):
        Trainer._run_step(trainer, position, batches, None)


@pytest.mark.parametrize(
    ("policy", "most", "told"),
    [("stop", 3, "step 3 had"), ("skip", 1, "step 1 had"), ("skip", 2, "2 consecutive steps, the last being 3,")],
)
def test_steps_that_are_not_finite_are_counted_as_they_follow_each_other(policy, most, told):
    train = SimpleNamespace(non_finite=policy, max_non_finite=most)
    trainer = SimpleNamespace(_recipe=SimpleNamespace(train=train), _consecutive_non_finite=0)
    with refused("non-finite", "train.learning_rate", says=told):
        for step, finite in enumerate([policy == "stop" or most > 1, policy == "stop", False], 1):
            Trainer._require_finite(trainer, step, SimpleNamespace(finite=finite, blame=None))
