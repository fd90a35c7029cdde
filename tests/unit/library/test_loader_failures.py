"""Clips that cannot be decoded: weights sum to 1 over the others, counts are true, and nothing happens in silence."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import children
import pytest
import torch.distributed as dist
from loader_footage import TABLE, SumOfThreads, dataset_of, make_footage, trained
from PIL import Image
from refused import refused

import reelworks as rw
from reelworks.core import files, retry
from reelworks.core.errors import UserError
from reelworks.data.loader import failures
from reelworks.data.loader import loader as rw_loader
from reelworks.data.media import location

PER_STEP = 2


@pytest.fixture
def footage(tmp_path: Path) -> Path:
    return make_footage(tmp_path / "footage", pictures=9, clips=2)


def counts(loader: rw.Loader) -> tuple[int, int, int, int]:
    cursor = loader.state_dict()["cursor"]
    return cursor["planned"], cursor["trained"], cursor["failed"], cursor["skipped"]


def damage(footage: Path) -> dict[str, str]:
    """Cut a picture, and delete a clip, after they were scanned; returns the ends of their paths."""
    (footage / "03.png").write_bytes((footage / "03.png").read_bytes()[:40])
    (footage / "clip-1.mp4").unlink()
    return {"03.png", "clip-1.mp4"}


@pytest.mark.parametrize("world", [1, 2, 3])
def test_weights_sum_to_one_over_what_is_valid_on_all_ranks(footage: Path, world: int) -> None:
    data, damaged = dataset_of(footage), damage(footage)
    total, steps, found = SumOfThreads(world), [], Counter()
    loaders = [
        rw.Loader(
            data, micro_batches_per_step=PER_STEP, rank=r, world_size=world, max_decode_failures=0.3, all_reduce=total
        )
        for r in range(world)
    ]

    def train(loader: rw.Loader) -> None:
        for step in loader:
            batches = list(step)
            weight = sum(float(m.loss_weight.sum()) for m in batches)
            valid = sum(int(m.is_valid.sum()) for m in batches)
            steps.append((step.number, step.planned, step.valid, weight, valid, step.failures))
            found.update(trained(batches))

    threads = [threading.Thread(target=train, args=(loader,)) for loader in loaders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failures = [clip for *_, of_rank in steps for clip in of_rank]
    assert {Path(clip.path).name for clip in failures} == damaged
    assert len(failures) == 2
    assert {clip.uid for clip in failures}.isdisjoint(uid for uid, _ in found)
    assert all(clip.reason for clip in failures)
    assert set(found.values()) == {1}
    assert len(found) == 9
    assert len({str(loader.state_dict()) for loader in loaders}) == 1
    assert counts(loaders[0]) == (11, 9, 2, 0)
    for number in {n for n, *_ in steps}:
        ranks = [each for each in steps if each[0] == number]
        assert len({(planned, valid) for _, planned, valid, *_ in ranks}) == 1
        assert sum(weight for *_, weight, _, _ in ranks) == pytest.approx(1)
        assert sum(valid for *_, valid, _ in ranks) == ranks[0][2]
        assert ranks[0][1] - ranks[0][2] == sum(len(failed) for *_, failed in ranks)


def test_failed_clips_are_named_by_a_warning_and_in_the_records(
    footage: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, damaged = dataset_of(footage), damage(footage)
    loader = rw.Loader(data, record_to=tmp_path / "run", max_decode_failures=0.3)
    with caplog.at_level(logging.WARNING, "reelworks"):
        failed = [(step.number, clip.path) for step in loader for _ in [list(step)] for clip in step.failures]
    assert [name for name in damaged if name in caplog.text] == [*damaged]
    lines = files.read_json_lines(tmp_path / "run" / "coverage" / "epoch-000000.jsonl")
    assert [(line["step"], line["path"]) for line in lines] == failed
    assert {Path(path).name for _, path in failed} == damaged


def test_each_epoch_names_its_first_failed_clips(caplog: pytest.LogCaptureFixture) -> None:
    """And says once that there are more, however many failed in epochs before."""
    warnings = failures.FailureWarnings()
    with caplog.at_level(logging.WARNING, "reelworks"):
        for epoch in range(3):
            for step in (1, 2):
                clips = [
                    failures.FailedClip(n, 0, 0, f"{epoch}-{step}-{n}.mp4", "damaged") for n in range(15 * (epoch != 1))
                ]
                warnings.warn(epoch, step, [*clips, failures.FailedClip(99, 0, 0, f"{epoch}-{step}.mp4", "gone")])
    for epoch, named in ((0, 20), (1, 2), (2, 20)):
        assert len([line for line in caplog.messages if f": {epoch}-" in line]) == named
        assert len([line for line in caplog.messages if f"more clips of epoch {epoch}" in line]) == (named == 20)


def test_ranks_that_do_not_know_of_each_other_say_so(footage: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Weights then agree on all ranks, though they sum to less than 1."""
    data, _ = dataset_of(footage), damage(footage)
    loaders = [
        rw.Loader(data, micro_batches_per_step=PER_STEP, rank=r, world_size=2, max_decode_failures=1) for r in (0, 1)
    ]
    with caplog.at_level(logging.WARNING, "reelworks"):
        for together in zip(*loaders, strict=True):
            weights = [w for step in together for m in step for w in m.loss_weight.tolist() if w]
            assert weights == pytest.approx([1 / together[0].planned] * len(weights))
    assert "give the loader all_reduce" in caplog.text


def test_more_failures_than_allowed_stop_the_loop_and_are_named(footage: Path) -> None:
    data, _ = dataset_of(footage), damage(footage)
    with refused("too-many-decode-failures", "max_decode_failures", says=r"2 of the epoch's 11 clips.*03\.png|clip-1"):
        for step in (loader := rw.Loader(data)):
            list(step)
    assert counts(loader)[2] <= 1  # the step that went too far is not counted
    with refused("argument-invalid", "max_decode_failures"):
        rw.Loader(data, max_decode_failures=10)


@pytest.mark.parametrize("world", [1, 2])
def test_a_deleted_folder_is_no_epoch_of_nothing(footage: Path, world: int) -> None:
    data = dataset_of(footage)
    shutil.rmtree(footage)
    with refused("too-many-decode-failures", "max_decode_failures", says="footage"):
        next(iter(rw.Loader(data, micro_batches_per_step=2, rank=0, world_size=world)))


def test_an_epoch_of_nothing_stops_whatever_share_may_fail(footage: Path) -> None:
    data = dataset_of(footage)
    shutil.rmtree(footage)
    with refused("no-clip-decoded", "dataset", says="footage"):
        next(iter(rw.Loader(data, max_decode_failures=1)))


def test_a_step_without_a_valid_clip_is_passed_over(footage: Path) -> None:
    """Nothing in it can be trained: an optimizer's step would only decay the weights."""
    data = dataset_of(footage)
    for clip in footage.glob("*.mp4"):
        clip.unlink()  # both are one micro-batch
    loader = rw.Loader(data, micro_batches_per_step=1, max_decode_failures=0.3)
    numbers = [step.number for step in loader if trained(step)]
    assert len(numbers) == len(loader) - 1
    assert loader.step == len(loader)
    assert counts(loader) == (11, 9, 2, 0)


def test_steps_without_a_clip_end_the_loop_only_if_they_follow_each_other(footage: Path) -> None:
    """As many of them between good ones are what `max_decode_failures` is for."""
    for i in range(9, 24):
        Image.new("RGB", (32, 32), (10 * i, 0, 0)).save(footage / f"{i:02}.png")
        (footage / f"{i:02}.txt").write_text(f"picture {i}", encoding="utf-8")
    entry = rw.BucketEntry("32px", num_frames=[1, 5], batch_size=1)
    table = rw.BucketTable.from_entries([entry], geometry=rw.Geometry((1, 1, 1), (1, 4, 4)), aspect_ratios=["1:1"])
    data = dataset_of(footage, table)
    paths = [path for step in rw.Loader(data) for m in step for path in m.paths]
    for path in paths[::2]:
        Path(path).unlink()
    loader = rw.Loader(data, max_decode_failures=0.6)
    assert sum((trained(step) for step in loader), Counter()).total() == len(paths) // 2
    assert counts(loader) == (26, 13, 13, 0)


def rank_of_two(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    data = rw.Dataset(rw.Catalog.open(folder / "catalog"), TABLE, seed=7)
    loader = rw.Loader(data, micro_batches_per_step=2, max_decode_failures=0.3)
    told = [[step.number, step.valid, sum(float(m.loss_weight.sum()) for m in step)] for step in loader]
    (folder / f"{rank}.json").write_text(json.dumps([told, loader.state_dict()["cursor"]["failed"]]), encoding="utf-8")
    dist.destroy_process_group()


def test_the_process_group_counts(footage: Path, tmp_path: Path) -> None:
    dataset_of(footage)
    damage(footage)
    ranks = [children.process(rank_of_two, rank, tmp_path) for rank in (0, 1)]
    assert children.ended(ranks) == [0, 0]
    told, failed = zip(
        *(json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)), strict=True
    )
    assert failed == (2, 2)
    for one, other in zip(*told, strict=True):
        assert one[:2] == other[:2]
        assert one[2] + other[2] == pytest.approx(1)


@pytest.mark.parametrize("world", [1, 2])
def test_a_storage_that_is_away_ends_loading_before_the_step(
    footage: Path, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On all ranks, though one alone notices; no clip counts as failed, and the same loaders go on."""
    data, total, errors, found = dataset_of(footage), SumOfThreads(world), list[str](), Counter()
    monkeypatch.setattr(rw_loader, "AWAY_SECONDS", 0.05)
    monkeypatch.setattr(retry, "WAITS_SECONDS", ())
    answers, given = {"now": False}, location.local

    @contextmanager
    def local(file: Path) -> Iterator[Path]:
        if file.name == "03.png" and not answers["now"]:
            raise OSError(errno.ENOTCONN, "the mount is away")
        with given(file) as path:
            yield path

    monkeypatch.setattr(location, "local", local)
    monkeypatch.setattr(location, "answers", lambda file: answers["now"])
    loaders = [
        rw.Loader(data, micro_batches_per_step=PER_STEP, rank=r, world_size=world, all_reduce=total)
        for r in range(world)
    ]

    def train(loader: rw.Loader) -> None:
        try:
            for step in loader:
                found.update(trained(list(step)))
        except UserError as error:
            errors.append(error.code)

    for expected in (["storage-away"] * world, []):
        threads = [threading.Thread(target=train, args=(loader,)) for loader in loaders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == expected
        assert len({loader.step for loader in loaders}) == 1
        assert counts(loaders[0])[2:] == (0, 0)
        errors.clear()
        answers["now"] = True
    assert set(found.values()) == {1}
    assert len(found) == counts(loaders[0])[1] == 11


def test_a_failure_of_any_words_is_recorded(footage: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "reelworks")  # no process of tests can send such words to another

    def failing(path: str, numbers: list[int]) -> None:
        raise ValueError("\ud800 is no character")

    loader = rw.Loader(dataset_of(footage), record_to=tmp_path / "run", max_decode_failures=1.0, decoder=failing)
    assert sum(len(list(step)) for step in loader) > 0
    lines = files.read_json_lines(tmp_path / "run" / "coverage" / "epoch-000000.jsonl")
    assert {line["reason"] for line in lines} == {"ValueError: \ud800 is no character"}
