"""The loader: each clip of an epoch once on all ranks together, whatever happens between two steps."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from loader_footage import TABLE, dataset_of, make_footage, trained
from PIL import Image
from refused import refused

import reelworks as rw
from reelworks.testing import sample_catalog, sample_dataset, sample_folder


@pytest.fixture
def footage(tmp_path: Path) -> Path:
    return make_footage(tmp_path / "footage")


def epoch_of(loaders: list[rw.Loader], steps: int | None = None) -> Counter[tuple[int, int]]:
    """What the next steps of an epoch train, on all ranks together; the ranks walk in step."""
    found: Counter[tuple[int, int]] = Counter()
    for number, together in enumerate(zip(*loaders, strict=True), 1):
        assert len({(step.number, step.epoch, step.planned) for step in together}) == 1
        found.update(sum((trained(step) for step in together), Counter()))
        if number == steps:
            break
    return found


@pytest.mark.parametrize("world", [1, 2, 3])
def test_each_epoch_trains_each_clip_once(footage: Path, world: int) -> None:
    data = dataset_of(footage)
    loaders = [rw.Loader(data, micro_batches_per_step=6, rank=r, world_size=world) for r in range(world)]
    for epoch in range(2):
        found = epoch_of(loaders)
        assert set(found.values()) == {1}
        assert len(found) == 15
        assert [loader.epoch for loader in loaders] == [epoch] * world


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_a_state_loads_at_another_number_of_ranks(footage: Path, before: int, after: int) -> None:
    data = dataset_of(footage)
    ranks = [rw.Loader(data, micro_batches_per_step=2, rank=r, world_size=before) for r in range(before)]
    found = epoch_of(ranks, steps=2)
    states = [loader.state_dict() for loader in ranks]
    assert all(state == states[0] for state in states)
    state = json.loads(json.dumps(states[0]))  # any serializer keeps it
    others = [rw.Loader(data, micro_batches_per_step=2, rank=r, world_size=after) for r in range(after)]
    for loader in others:
        loader.load_state_dict(state)
        assert loader.step == 2
    found.update(epoch_of(others))
    assert set(found.values()) == {1}
    assert len(found) == 15


def test_new_files_and_other_buckets_lose_and_repeat_nothing(footage: Path, tmp_path: Path) -> None:
    """With a record the rest of the epoch is planned anew: new clips join, and what was trained stays trained."""
    run = tmp_path / "run"
    loader = rw.Loader(dataset_of(footage), micro_batches_per_step=1, record_to=run)
    found = epoch_of([loader], steps=2)
    state = loader.state_dict()
    Image.new("RGB", (32, 32)).save(footage / "new.png")
    (footage / "new.txt").write_text("a new one", encoding="utf-8")
    (footage / "00.png").unlink()
    wider = rw.BucketTable.from_entries(
        [rw.BucketEntry("32px", num_frames=[1, 3], batch_size=[2, 1])], geometry=rw.Geometry((1, 1, 1), (1, 4, 4))
    )
    again = rw.Loader(dataset_of(footage, wider), micro_batches_per_step=1, record_to=run)
    gone = {key for key in found if key[0] not in set(again.dataset.rows.uid.tolist())}
    again.load_state_dict(state)
    assert "1 clip added, 1 removed" in again.changes[0]
    found.update(epoch_of([again]))
    assert set(found.values()) == {1}
    assert found.keys() - gone == {(uid, 0) for uid in again.dataset.rows.uid.tolist()}


def test_a_record_that_is_there_is_not_written_again(footage: Path, tmp_path: Path) -> None:
    """A kill while it is replaced would lose it, and with it the way back into the epoch."""
    run = tmp_path / "run"
    loader = rw.Loader(dataset_of(footage), micro_batches_per_step=1, record_to=run)
    epoch_of([loader], steps=2)
    before = {file: file.stat().st_ino for file in run.rglob("*.parquet")}
    again = rw.Loader(dataset_of(footage), micro_batches_per_step=1, record_to=run)
    again.load_state_dict(loader.state_dict())
    epoch_of([again], steps=1)
    assert before
    assert {file: file.stat().st_ino for file in run.rglob("*.parquet")} == before


def test_a_record_that_cannot_be_written_is_told(footage: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file", encoding="utf-8")
    loader = rw.Loader(dataset_of(footage), record_to=tmp_path / "run")
    with refused("file-unwritable", "record_to"):
        epoch_of([loader], steps=1)


def test_two_datasets_of_one_name_are_refused(footage: Path) -> None:
    datasets = (rw.DatasetConfig(path=str(footage)), rw.DatasetConfig(path=str(footage), repeats=3))
    with refused("duplicate-dataset-name"):
        rw.DataSpec(datasets)


def test_without_a_record_changed_data_are_refused(footage: Path) -> None:
    loader = rw.Loader(dataset_of(footage))
    epoch_of([loader], steps=1)
    (footage / "00.png").unlink()
    other = rw.Loader(dataset_of(footage))
    with refused("data-changed", "record_to"):
        other.load_state_dict(loader.state_dict())


def test_weights_of_a_step_sum_to_one_and_are_zero_where_nothing_counts(footage: Path) -> None:
    (footage / "05.png").write_bytes((footage / "05.png").read_bytes()[:40])
    data = rw.Dataset(
        rw.Catalog.open(dataset_of(footage).catalog.path), TABLE, seed=7
    )  # which knows that one picture is damaged
    loaders = [rw.Loader(data, micro_batches_per_step=3, rank=r, world_size=3) for r in range(3)]
    for together in zip(*loaders, strict=True):
        batches = [micro_batch for step in together for micro_batch in step]
        assert sum(float(m.loss_weight.sum()) for m in batches) == pytest.approx(1)
        for m in batches:
            assert m.frames.shape[0] == len(m.captions) == len(m.loss_weight)
            assert not m.is_idle or not m.loss_weight.any()


def test_a_step_that_is_passed_over_is_never_empty(footage: Path) -> None:
    """Whoever collects steps before going through them is told, since an empty step would train nothing."""
    steps = list(rw.Loader(dataset_of(footage)))
    with refused("step-is-over", "step", says="were dropped"):
        list(steps[0])


def test_a_step_is_iterated_once_however_far(footage: Path) -> None:
    """After a look at its first micro-batch, the rest alone would be trained, and all counted."""
    step = next(iter(rw.Loader(dataset_of(footage), micro_batches_per_step=2)))
    next(iter(step))
    with refused("step-is-over", "step", says="being iterated already"):
        list(step)


def test_only_an_iteration_takes_steps_and_micro_batches(footage: Path) -> None:
    """Other questions, which Python answers by iterating, would count clips that nobody saw as trained, or as skipped."""
    loader = rw.Loader(dataset_of(footage), micro_batches_per_step=2)
    step = next(iter(loader))
    before = loader.state_dict()
    for unasked in (step, loader):
        with pytest.raises(TypeError, match="not a container"):
            "labels" in unasked  # noqa: B015
    with pytest.raises(TypeError):
        reversed(step)
    assert loader.state_dict() == before
    assert len(list(step)) == 2


def test_a_broken_loop_goes_on_behind_the_step_that_it_saw(footage: Path) -> None:
    loader = rw.Loader(dataset_of(footage))
    found = epoch_of([loader], steps=3)
    found.update(epoch_of([loader]))
    assert set(found.values()) == {1}
    assert len(found) == 15


def test_a_dataset_that_no_scan_knows_is_refused(footage: Path) -> None:
    data = dataset_of(footage)
    (known,) = data.spec.datasets
    other = known.model_copy(update={"name": "dog"})
    with refused("dataset-not-scanned", says=known.dataset_name):
        rw.Dataset(data.catalog, data.table, rw.DataSpec((known, other)))


@pytest.mark.parametrize("short_clips", ["reject", "hold", "loop"])
def test_short_clips_are_all_trained_or_all_left_out_by_one_setting(short_clips: str) -> None:
    """What the bucket table takes is what the decoder makes of it."""
    entry = rw.BucketEntry("64px", num_frames=[1, 17], batch_size=[4, 2])
    table = rw.BucketTable.from_entries([entry], geometry=rw.Geometry((4, 8, 8), (1, 2, 2)))
    (footage,) = sample_dataset().spec.datasets
    spec = rw.DataSpec((footage,), data=rw.DataConfig(short_clips=short_clips))
    data = rw.Dataset(sample_catalog(), table, spec)
    decoded = [m.is_valid.tolist() for step in rw.Loader(data) for m in step]
    left_out = rw.plan(data.with_table(table)).rejected.by_reason()
    assert (sum(map(sum, decoded)), left_out) == {"reject": (8, {"too_short": 4})}.get(short_clips, (12, {}))


def test_a_state_goes_through_torch(footage: Path) -> None:
    loader = rw.Loader(dataset_of(footage))
    epoch_of([loader], steps=2)
    torch.save(loader.state_dict(), file := io.BytesIO())
    file.seek(0)
    other = rw.Loader(dataset_of(footage))
    other.load_state_dict(torch.load(file, weights_only=True))
    assert (other.step, other.state_dict()) == (2, loader.state_dict())


def test_the_environment_tells_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = rw.Loader(sample_dataset())
    assert (loader.rank, loader.world_size, loader.micro_batches_per_step) == (1, 4, 4)
    assert rw.Loader(sample_dataset(), rank=0, world_size=1).world_size == 1
    with refused("rank-outside-world", "rank", says="rank from 0 to 3"):
        rw.Loader(sample_dataset(), rank=4)


@pytest.mark.slow
def test_ours_resumes_exactly_in_workers_and_over_epochs(footage: Path) -> None:
    data = dataset_of(footage)
    rw.testing.assert_exact_resume(lambda: rw.Loader(data, micro_batches_per_step=2), steps=12, at=[0, 3, 4, 9])


@pytest.mark.parametrize("repeats", [1, 1.5, 10])
def test_a_clip_that_is_shown_several_times_counts_once_where_clips_are_told(repeats: float) -> None:
    footage = rw.DatasetConfig(path=str(sample_folder()), repeats=repeats)
    dataset = rw.Dataset(sample_catalog(), TABLE, rw.DataSpec((footage,), split=1.0))
    with refused("empty-epoch", "split", says="12 of 12 clips are held out"):
        rw.Loader(dataset)
    large = rw.BucketTable.from_entries(
        [rw.BucketEntry("2160p", num_frames=[65])], geometry=rw.Geometry((4, 8, 8), (1, 2, 2))
    )
    with refused("empty-epoch", "entries") as caught:
        rw.Loader(unfit := rw.Dataset(sample_catalog(), large, rw.DataSpec((footage,))))
    told = {reason: int(number) for reason, number in re.findall(r"([a-z_]+): (\d+)", caught.value.problem)}
    assert told == rw.plan(unfit).rejected.by_reason()
    assert sum(told.values()) == 12


def test_clips_that_are_left_out_are_told_once_by_the_first_rank_and_named(tmp_path, caplog):
    """Whoever forgot captions hears of it before the first step; what was filtered out on purpose is not told."""
    footage = make_footage(tmp_path / "footage", pictures=9, clips=1)
    for name in ("00", "01", "02", "03"):
        (footage / f"{name}.txt").unlink()
    data = dataset_of(footage)
    for rank in range(2):
        loader = rw.Loader(data, rank=rank, world_size=2, all_reduce=lambda counts: None)
        for _ in range(2):
            list(loader)
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("4 of 10 clips are not trained")
    assert re.search(r"no_caption: (footage/0\d.png, ){3}and 1 more$", told)
    left_out = rw.plan(data).rejected
    assert left_out.paths("no_caption") == [f"footage/0{i}.png" for i in range(4)]
    assert (left_out.by_reason(), len(left_out), left_out.paths("too_small")) == ({"no_caption": 4}, 4, [])
    with refused("argument-invalid", "reason", says="no_caption"):
        left_out.paths("no_captions")

    caplog.clear()
    chosen = rw.DatasetConfig(path=str(footage), filter="num_frames > 1")
    list(rw.Loader(rw.Dataset(data.catalog, TABLE, rw.DataSpec((chosen,)))))
    assert "no_caption" in caplog.text
    assert "filtered" not in caplog.text


def test_lines_of_an_exclude_file_that_name_no_clip_are_told_once(footage: Path, tmp_path: Path, caplog) -> None:
    """Such a clip is trained, whatever its reader believes."""
    lines = tmp_path / "exclude.txt"
    data = dataset_of(footage)
    label = data.rows.labels([0])[0]
    lines.write_text(f"{label}\n{Path(label).name}\n{footage / '00.png'}\n", encoding="utf-8")
    data = rw.Dataset(data.catalog, data.table, rw.DataSpec(data.spec.datasets, exclude_file=str(lines)))
    assert rw.plan(data).rejected.by_reason() == {"in_exclude_file": 1}
    list(rw.Loader(data))
    (told,) = [text for record in caplog.records if "exclude.txt" in (text := record.getMessage())]
    assert "2 lines" in told
    assert f"{Path(label).name}, {footage / '00.png'}" in told
