"""Catalogs, datasets and loaders in other processes and in other programs' hands: each works, or is refused in words."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import children
import pytest
import torch
from refused import refused
from torch.utils.data import DataLoader

import reelworks as rw
from reelworks.core import system
from reelworks.testing import sample_catalog, sample_dataset, sample_folder

# What Python 3.12 says of forks of a process with threads.
HAS_FORKS = pytest.mark.skipif(system.WINDOWS, reason="Windows has no forks")
FORKS = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def steps_of(loader: rw.Loader, count: int | None = None) -> list[tuple[int, int, list[list[int]]]]:
    """The next steps: number, epoch, and the uids of each micro-batch."""
    found = []
    for step in loader:
        found.append((step.number, step.epoch, [m.request.uids.tolist() for m in step]))
        if len(found) == count:
            break
    return found


def a_loader(**settings: Any) -> rw.Loader:
    return rw.Loader(sample_dataset(), micro_batches_per_step=1, **settings)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize("before", [0, 2, 4, 5])
def test_a_copy_goes_on_where_its_loader_is(copied: Any, before: int) -> None:
    loader = a_loader()
    steps_of(loader, before) if before else None
    other = copied(loader)
    assert (other.step, other.state_dict()) == (loader.step, loader.state_dict())
    assert steps_of(other) == steps_of(loader)
    assert steps_of(other) == steps_of(loader)  # and the next epoch


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_copied_dataset_has_the_same_clips_and_plans(copied: Any) -> None:
    dataset = sample_dataset(seed=3)
    dataset.plan(dataset.plan_spec(1, 1), 0)  # what is cached must not go along, nor be missed
    other = copied(dataset)
    assert other.digest == dataset.digest
    assert other.spec == dataset.spec
    for epoch in range(2):
        spec = dataset.plan_spec(2, 1)
        assert other.plan(spec, epoch).digest() == dataset.plan(spec, epoch).digest()
    assert len(pickle.dumps(dataset)) < 20_000


def test_a_dataset_of_some_rows_keeps_them() -> None:
    catalog, table = sample_catalog(), sample_dataset().table
    some = catalog.rows_at(catalog.live().ordinal[2:9])
    dataset = rw.Dataset(
        catalog, table, rows=some, companion_rows=some.take(some.ordinal[:0]), spec=sample_dataset().spec
    )
    other = pickled(dataset)
    assert other.rows.ordinal.tolist() == some.ordinal.tolist()
    assert other.digest == dataset.digest


def test_the_exclude_list_of_a_copy_is_the_one_that_was_read(tmp_path: Path) -> None:
    file = tmp_path / "exclude.txt"
    file.write_text("footage/picture-0.png\n", encoding="utf-8")
    plain = sample_dataset()
    spec = type(plain.spec)(plain.spec.datasets, exclude_file=str(file))
    dataset = rw.Dataset(plain.catalog, plain.table, spec)
    sent = pickle.dumps(dataset)
    file.write_text("", encoding="utf-8")
    assert len(pickle.loads(sent).entries(0)) == len(dataset.entries(0)) == 11


def test_a_catalog_pickles_its_version_and_its_absolute_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    media = shutil.copytree(sample_folder(), tmp_path / "footage")
    monkeypatch.chdir(tmp_path)
    first = rw.Catalog.scan("footage", to="catalog", workers=1)
    sent = pickle.dumps(first)
    (media / "clip-0.mp4").unlink()
    rw.Catalog.scan("footage", to="catalog", workers=1)
    monkeypatch.chdir("/")
    other = pickle.loads(sent)
    assert (other.version, len(other.live())) == (1, 12)
    assert copy.deepcopy(first) is first
    shutil.rmtree(tmp_path / "catalog")
    with refused("no-catalog"):
        pickle.loads(sent)
    rw.Catalog.scan(media, to=tmp_path / "catalog", workers=1)
    with refused("catalog-replaced", "catalog"):
        pickle.loads(sent)


def tell(sent: bytes, file: Path) -> None:
    os.chdir("/")
    dataset, loader = pickle.loads(sent)
    file.write_text(f"{dataset.digest} {[step.number for step in loader]}", encoding="utf-8")


@pytest.mark.slow
def test_another_process_gets_the_dataset(tmp_path: Path) -> None:
    loader = a_loader()
    steps_of(loader, 2)
    sent = pickle.dumps((loader.dataset, loader))
    assert children.ended([children.process(tell, sent, tmp_path / "told")]) == [0]
    assert (tmp_path / "told").read_text(
        encoding="utf-8"
    ) == f"{loader.dataset.digest} {[n for n, *_ in steps_of(loader)]}"


@HAS_FORKS
@FORKS
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.slow
def test_a_fork_after_the_first_iteration_starts_decoders_of_its_own(num_workers: int) -> None:
    loader = a_loader(num_workers=num_workers)
    steps_of(loader, 2)
    live = iter(copy.deepcopy(loader))
    next(live)

    def child(pipe: Any) -> None:
        try:
            try:
                next(live)
            except RuntimeError as error:
                pipe.send(str(error))
            pipe.send(steps_of(loader))
            loader.close()
        except BaseException as error:
            pipe.send(repr(error))

    ours, theirs = multiprocessing.Pipe()
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        child(theirs)
        os._exit(0)
    assert ours.poll(60)
    assert "iterate the loader anew" in ours.recv()
    assert ours.poll(60)
    found = ours.recv()
    os.waitpid(pid, 0)
    assert found == steps_of(loader)  # the parent's decoders still work
    loader.close()


def test_a_second_iteration_takes_over_and_the_first_one_says_so() -> None:
    loader = a_loader()
    first, second = iter(loader), iter(loader)
    left = next(first)
    list(next(second))
    assert loader.step == 1
    with refused("step-is-over", says="were dropped"):
        list(left)
    with pytest.raises(RuntimeError, match="another iteration of this loader began"):
        next(first)
    assert next(second).number == 2
    with pytest.raises(RuntimeError, match=r"copy\.deepcopy\(loader\)"):
        list(zip(loader, loader, strict=True))


def test_an_iteration_that_another_thread_overtakes_at_its_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first step is the other one's, too; it ends with an error, and not as if the epoch had ended."""
    loader, others = a_loader(), []

    def begin_another(*_: object) -> None:
        monkeypatch.undo()
        others.append(iter(loader))
        list(next(others[0]))

    monkeypatch.setattr("reelworks.data.loader.left_out.warn", begin_another)
    first = iter(loader)
    with pytest.raises(RuntimeError, match="another iteration of this loader began"):
        list(first)
    assert next(others[0]).number > 1


def test_closing_during_an_iteration_is_told_and_a_new_one_goes_on() -> None:
    loader = a_loader()
    live = iter(loader)
    step = next(live)
    loader.close()
    with pytest.raises(RuntimeError, match="closed during this iteration"):
        next(live)
    list(step)  # it is decoded
    assert loader.step == 1
    assert [number for number, *_ in steps_of(loader)] == [2, 3, 4][: len(loader) - 1]
    for _ in loader:
        loader.close()
        break


def test_a_data_loader_around_it() -> None:
    expected = steps_of(a_loader())
    loader = a_loader()
    around = DataLoader(loader, batch_size=None)
    found = [(step.number, step.epoch, [m.request.uids.tolist() for m in step]) for step in around]
    assert (found, loader.step) == (expected, len(expected))
    assert len(around) == len(expected)


def test_workers_of_a_data_loader_are_refused() -> None:
    around = DataLoader(a_loader(), batch_size=None, num_workers=1, multiprocessing_context=children.context())
    with pytest.raises(RuntimeError, match="Give the DataLoader num_workers=0"):
        next(iter(around))


def test_a_loader_of_another_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made before the process group, or pickled into many processes, all would train the first rank's clips."""
    loader, given = a_loader(), a_loader(rank=0, world_size=1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused("rank-changed", "rank", says="init_process_group"):
        next(iter(loader))
    assert next(iter(given)).number == 1
