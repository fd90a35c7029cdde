"""What users of other loaders look for: what a clip is, transforms, decoders, lengths, and short texts."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_decoders import by_pyav, failing, wrongly_shaped
from refused import refused

import reelworks as rw
from reelworks.data.loader import upload
from reelworks.data.media import decode
from reelworks.testing import sample_catalog, sample_dataset, sample_folder


def batches(loader: rw.Loader) -> list[rw.MicroBatch]:
    return [micro_batch for step in loader for micro_batch in step]


def noisy(micro_batch: rw.MicroBatch) -> rw.MicroBatch:
    """Noise that depends on the micro-batch alone."""
    draw = np.random.default_rng([micro_batch.request.epoch, *micro_batch.uids])
    frames = torch.from_numpy(draw.integers(0, 256, micro_batch.frames.shape, dtype=np.uint8))
    return dataclasses.replace(micro_batch, frames=frames)


def test_each_clip_has_its_path_uid_and_columns() -> None:
    dataset = sample_dataset()
    seen = set()
    for m in batches(rw.Loader(dataset)):
        columns = m.metadata
        assert len(m.paths) == len(m.uids) == len(columns) == len(m.captions)
        for path, uid, clip, caption in zip(m.paths, m.uids, columns, m.captions, strict=True):
            assert path == f"{clip['root']}/{clip['path']}"
            assert (uid, caption) == (clip["uid"], clip["caption"])
            assert clip["kind"] == ("image" if path.endswith(".png") else "video")
            assert clip["scores"] == {}
            seen.add(path)
    assert seen == {str(p) for p in sample_folder().iterdir() if p.suffix != ".txt"}


def test_metadata_has_the_scores_of_a_list(tmp_path: Path) -> None:
    listed = tmp_path / "meta.csv"
    rows = [f"{sample_folder()}/picture-{i}.png,words,{'' if i == 3 else i / 4}" for i in range(8)]
    listed.write_text("\n".join(["path,text,aes", *rows]), encoding="utf-8")
    config = rw.DatasetConfig(path=str(listed), root=str(sample_folder()), filter="aes < 1.5")
    catalog = rw.Catalog.scan(config, to=tmp_path / "catalog", workers=1)
    dataset = rw.Dataset(catalog, sample_dataset().table, rw.DataSpec((config,)))
    found = [clip["scores"] for m in batches(rw.Loader(dataset)) for clip in m.metadata]
    assert sorted(scores["aes"] for scores in found) == [0.0, 0.25, 0.5, 1.0, 1.25]
    assert len(dataset) == 5


def test_several_configs_are_scanned_with_their_companions(tmp_path: Path) -> None:
    import shutil

    clips, control = tmp_path / "clips", tmp_path / "control"
    for folder in (clips, control):
        shutil.copytree(sample_folder(), folder)
    config = rw.DatasetConfig(path=str(clips), control=str(control))
    catalog = rw.Catalog.scan([config], to=tmp_path / "catalog", workers=1)
    dataset = rw.Dataset(catalog, sample_dataset().table, rw.DataSpec((config,)))
    assert (len(dataset), len(pickle.loads(pickle.dumps(dataset)))) == (12, 12)
    assert all("control" in m.companions for m in batches(rw.Loader(dataset)))


def test_an_address_is_scanned_however_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "a.png").write_bytes((sample_folder() / "picture-0.png").read_bytes())
    (tmp_path / "clips" / "meta.csv").write_text("path,text\na.png,words", encoding="utf-8")
    for place in (f"file://{tmp_path}/clips", f"dir://clips::file://{tmp_path}", f"file://{tmp_path}/clips/meta.csv"):
        config = rw.DatasetConfig(path=place)
        given = (place, config, [config], {config.dataset_name: place})
        scanned = [rw.Catalog.scan(one, to=tmp_path / str(i), workers=1).live() for i, one in enumerate(given)]
        found = [(rows.root.to_pylist(), rows.path.to_pylist(), rows.dataset.to_pylist()) for rows in scanned]
        assert found == found[:1] * len(given)


def test_the_length_of_a_dataset_is_that_of_its_first_epoch() -> None:
    dataset = sample_dataset()
    assert len(dataset) == len(dataset.entries(0)) == rw.plan(dataset).clips
    assert bool(dataset)


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.quick_cases(1)
def test_a_transform_sees_each_micro_batch_and_resumes_exactly(before: int) -> None:
    rw.testing.assert_exact_resume(lambda: rw.Loader(sample_dataset(), transform=noisy), steps=5, at=[before])
    plain, changed = (batches(rw.Loader(sample_dataset(), transform=t)) for t in (None, noisy))
    for a, b in zip(plain, changed, strict=True):
        assert (a.paths, a.loss_weight.tolist()) == (b.paths, b.loss_weight.tolist())
        assert not torch.equal(a.frames, b.frames)
        assert torch.equal(b.frames, noisy(a).frames)
        assert b.metadata == a.metadata


@pytest.mark.parametrize(
    "changed",
    [
        lambda m: None,
        lambda m: 3,
        lambda m: m.frames,
        lambda m: dataclasses.replace(m, frames=None),
        lambda m: dataclasses.replace(m, frames=m.frames[1:]),
        lambda m: dataclasses.replace(m, is_valid=~m.is_valid),
        lambda m: dataclasses.replace(m, is_valid=m.is_valid[1:]),
        lambda m: dataclasses.replace(m, is_valid=m.is_valid.logical_not_()),
    ],
)
def test_a_transform_that_returns_something_else_is_refused(changed: Any) -> None:
    loader = rw.Loader(sample_dataset(), transform=changed)
    with refused("transform-result-invalid", "transform", says="dataclasses.replace"):
        batches(loader)


@pytest.mark.parametrize("before", range(3))
def test_a_transform_that_ends_early_loses_no_clip(before: int) -> None:
    """As one does that takes values from an iterator with `next`: the step begins again."""
    left = iter(range(before))
    loader = rw.Loader(sample_dataset(), micro_batches_per_step=2, transform=lambda m: (next(left), m)[1])
    with pytest.raises(RuntimeError, match="StopIteration"):
        batches(loader)
    cursor = loader.state_dict()["cursor"]
    assert (cursor["trained"], cursor["skipped"]) == (6 * (before // 2), 0)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_decoder_of_ones_own_reads_the_same_frames(num_workers: int) -> None:
    plain = batches(rw.Loader(sample_dataset()))
    loader = rw.Loader(sample_dataset(), decoder=by_pyav, num_workers=num_workers)
    own = batches(loader)
    loader.close()
    for a, b in zip(plain, own, strict=True):
        assert a.paths == b.paths
        assert bool(b.is_valid.all())
        # Pillow resizes where libswscale did, and the clips are of one grey.
        assert (a.frames.int() - b.frames.int()).abs().max() <= 3


def test_random_starts_and_ranges_ask_for_the_right_frames() -> None:
    asked = []

    def reader(path: str, numbers: Sequence[int]) -> Any:
        asked.append(list(numbers))
        return by_pyav(path, numbers)

    shape = decode.Shape(5, 64, 64)
    video = next(p for p in sorted(sample_folder().iterdir()) if p.suffix == ".mp4")
    for draw in (0.0, 0.5, 0.99):
        own = decode.Request(video, False, shape, first_frame_draw=draw, first_frame=1, num_frames=8, decoder=reader)
        assert decode.load(own).shape == (5, 64, 64, 3)
    assert asked == [[1, 2, 3, 4, 5], [3, 4, 5, 6, 7], [4, 5, 6, 7, 8]]


@pytest.mark.parametrize(("decoder", "reason"), [(failing, "no such codec"), (wrongly_shaped, "not uint8")])
def test_what_a_decoder_cannot_read_is_a_failed_clip(decoder: Any, reason: str, caplog: Any) -> None:
    loader = rw.Loader(sample_dataset(), decoder=decoder, max_decode_failures=0.5)
    failed = [failure for step in loader for failure in (step.failures, list(step))[0]]
    assert len(failed) <= 4
    assert reason in caplog.text


def test_decoders_that_cannot_be_used_are_refused() -> None:
    with refused("decoder-not-picklable", "decoder", says="top of a module"):
        rw.Loader(sample_dataset(), num_workers=1, decoder=lambda path, numbers: by_pyav(path, numbers))
    with refused("argument-invalid", "decoder", says="a function"):
        rw.Loader(sample_dataset(), decoder="ffmpeg")  # type: ignore[arg-type]


def test_all_that_is_printed_is_a_short_line(tmp_path: Path) -> None:
    dataset = sample_dataset()
    loader = rw.Loader(dataset)
    step = next(iter(loader))
    micro_batch = next(iter(step))
    store = rw.CheckpointStore(tmp_path / "checkpoints")
    for value in (dataset, loader, step, micro_batch, micro_batch.request, sample_catalog(), dataset.table, store):
        assert type(value).__name__ in repr(value)
        assert len(repr(value)) < 260, repr(value)
        assert "\n" not in repr(value)


def test_on_the_cpu_a_device_changes_nothing() -> None:
    plain, on_device = batches(rw.Loader(sample_dataset())), batches(rw.Loader(sample_dataset(), device="cpu"))
    for a, b in zip(plain, on_device, strict=True):
        assert (a.paths, a.is_valid.tolist()) == (b.paths, b.is_valid.tolist())
        assert torch.equal(a.frames, b.frames)


def test_all_tensors_of_a_micro_batch_are_moved() -> None:
    batch = batches(rw.Loader(sample_dataset()))[0]
    batch = dataclasses.replace(batch, companions={"mask": batch.frames}, sound=torch.zeros(1, 2, 1, dtype=torch.int16))
    moved = upload.moved(batch, torch.device("meta"))
    assert moved.sound is not None
    tensors = moved.frames, moved.is_valid, moved.companions["mask"], moved.sound, moved.loss_weight
    assert {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_all_tensors_lie_there_and_hold_the_same_frames() -> None:
    plain, on_device = batches(rw.Loader(sample_dataset())), batches(rw.Loader(sample_dataset(), device="cuda"))
    for a, b in zip(plain, on_device, strict=True):
        assert {b.frames.device.type, b.loss_weight.device.type} == {"cuda"}
        assert torch.equal(a.frames, b.frames.cpu())
