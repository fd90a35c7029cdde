"""Retention on disk: budgets count what is there, readers and late pins are heard, every deletion is explained."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import children
import pytest
from checkpoint_helpers import write_plain

from reelworks.core import storage
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import listing, names, read_lock, retention, save
from reelworks.data.checkpoint.config import CheckpointsConfig
from reelworks.data.checkpoint.folder import CheckpointFolder

LAST_1 = CheckpointsConfig(keep_last=1, keep_best=None)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointFolder:
    made = CheckpointFolder(tmp_path / "checkpoints")
    for step in (100, 200, 300):
        write_plain(made, step, save_id=str(step))
    return made


def kept(store: CheckpointFolder, **policy: object) -> list[int]:
    made = CheckpointsConfig(**{"keep_last": 3, "keep_best": None, **policy})
    return [d.step for d in retention.plan(store, made) if d.keep]


def test_max_disk_counts_everything_in_the_folder(store: CheckpointFolder) -> None:
    """Checkpoints, the next save, what is deleted and not unlinked yet, and what was set aside."""
    one = store.info(300).num_bytes
    rest = retention.folder_bytes(store.root) - 3 * one
    budget = f"{4 * one + rest}B"
    assert kept(store, max_disk=budget) == [100, 200, 300]
    in_flight = store.root / names.fresh("tmp", 400)
    in_flight.mkdir()
    (in_flight / "shard").write_bytes(bytes(one))
    assert kept(store, max_disk=budget) == [100, 200, 300], "the next save is the one in flight"
    for name in (names.fresh("trash", 50), names.fresh("bad", 60)):
        (store.root / name).mkdir()
        (store.root / name / "file").write_bytes(b"x")
        assert kept(store, max_disk=budget) == [200, 300]
        shutil.rmtree(store.root / name)


def test_min_free_looks_at_the_disk(store: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    one = store.info(300).num_bytes
    usage = shutil.disk_usage(store.root)._replace(free=10 * one)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert kept(store, min_free=f"{9 * one}B") == [100, 200, 300]
    assert kept(store, min_free=f"{9 * one + 1}B") == [200, 300]
    assert kept(store, min_free="1TB") == [300]


def _read(path: Path, ready: Any, done: Any) -> None:
    with read_lock.reading(path):
        ready.set()
        done.wait(120)


def test_what_another_process_reads_stays_until_it_ends(store: CheckpointFolder) -> None:
    ready, done = children.context().Event(), children.context().Event()
    reader = children.process(_read, store.path(100), ready, done)
    reader.start()
    assert ready.wait(120)
    decisions = retention.apply_retention(store, LAST_1)
    assert [(d.step, d.keep) for d in decisions] == [(100, True), (200, False), (300, True)]
    assert decisions[0].reasons == ("in use",)
    reader.kill()
    reader.join()
    assert [d.step for d in retention.apply_retention(store, LAST_1) if not d.keep] == [100]
    with pytest.raises(UserError, match="does not exist any more"), read_lock.reading(store.path(100)):
        pass


def test_a_pin_that_comes_while_deleting_is_heard(store: CheckpointFolder) -> None:
    """Between the plan and the rename, and even between the rename and the unlinking."""

    def pin_at_rename(call: str, path: Path) -> None:
        if call == "rename" and path == store.path(100):
            pins = store.root / names.PINS
            pins.mkdir(exist_ok=True)
            (pins / names.of_step(100)).touch()

    with storage.guarded(pin_at_rename):
        decisions = retention.apply_retention(store, LAST_1)
    assert decisions[0].reasons == ("the checkpoint is pinned",)
    assert [(d.step, d.keep) for d in decisions] == [(100, True), (200, False), (300, True)]
    assert store.steps() == [100, 300]
    assert retention.whole(store)[0].pinned


def test_a_pin_that_comes_too_late_is_refused_and_leaves_nothing(store: CheckpointFolder) -> None:
    def delete_at_pin(call: str, path: Path) -> None:
        if call == "open" and path.parent.name == names.PINS:
            store.path(100).rename(store.root / names.fresh("trash", 100))

    with storage.guarded(delete_at_pin), pytest.raises(UserError, match="there is no checkpoint"):
        store.pin(100)
    assert not store.is_pinned(100)


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("dies_at", ["rename", "fsync", "unlink", "rmdir"])
def test_no_death_leaves_a_deletion_unexplained(store: CheckpointFolder, dies_at: str) -> None:
    def die(call: str, path: Path) -> None:
        if call == dies_at:
            raise Killed

    with storage.guarded(die), pytest.raises(Killed):
        retention.apply_retention(store, LAST_1)
    told = {event["step"]: event["reasons"] for event in store.history() if event["event"] == "deleting"}
    gone = {100, 200, 300} - set(store.steps())
    assert gone <= told.keys()
    assert all("not among the last 1" in told[step] for step in gone)


@pytest.mark.parametrize("epochs", [100, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_long_run_leaves_what_the_policy_says(tmp_path: Path, epochs: int) -> None:
    """And a history that says of everything that was saved and is gone why it went."""
    store = CheckpointFolder(tmp_path / "run" / "checkpoints")
    policy = CheckpointsConfig(every_steps=10, keep_last=2, keep_every=2 * epochs)
    last, turn = 10 * epochs, 42 * epochs // 10
    for step in range(10, last + 1, 10):
        # Better and better until the turn, then worse again.
        save_somehow(store, step, {"validation/loss": abs(step - turn) / 100})
        retention.apply_retention(store, policy)
    stays = sorted({*range(2 * epochs, last + 1, 2 * epochs), turn, last - 10, last})
    assert store.steps() == stays
    assert {path.name for path in store.root.iterdir()} == {
        *map(names.of_step, stays), "history.jsonl", "latest",
    }  # fmt: skip
    history = store.history()
    saved = {event["step"] for event in history if event["event"] == "saved"}
    why = {event["step"]: event["reasons"] for event in history if event["event"] == "deleted"}
    assert saved == {*range(10, last + 1, 10)}
    assert why.keys() == saved - {*stays}
    assert all("not among the last 2" in reasons for reasons in why.values())
    assert f"not among the best 1 by validation/loss ({(turn - 10) / 100:.6g})" in why[10]
    assert list(listing.explain(store, policy, 10).now.reasons) == why[10]


def save_somehow(store: CheckpointFolder, step: int, metrics: dict[str, float]) -> None:
    """Save by torch now and then, and between by what is quicker and as good to all that does not load it."""
    if step % 200 == 0:
        save.save(store, step, {"model": {}}, metrics=metrics)
    else:
        write_plain(store, step, metrics, str(step))
        store.record_saved(store.info(step), 0.0)


def test_a_line_of_metrics_counts_when_it_is_whole(store: CheckpointFolder) -> None:
    """A reader that looked while another process wrote it reads it again from its beginning."""
    line = b'{"time": 1.0, "event": "metrics", "step": 100, "save_id": "100", "metrics": {"loss": 0.5}}\n'
    for part, metrics in ((line[:40], {}), (line[40:], {"loss": 0.5})):
        storage.append(store.root / names.HISTORY, part)
        assert store.info(100).metrics == metrics


def test_a_save_in_progress_takes_the_space_of_the_next_one(
    store: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the same checkpoints stay, however much of it is written already."""
    one, usage = store.info(300).num_bytes, shutil.disk_usage(store.root)
    begun = store.root / names.fresh("tmp", 400) / "tensors"

    def disk(_: object) -> object:
        return usage._replace(free=2 * one - (retention.folder_bytes(begun) if begun.exists() else 0))

    monkeypatch.setattr(shutil, "disk_usage", disk)
    before = [kept(store, min_free=f"{n * one}B") for n in (1, 2, 3)]
    assert before == [[100, 200, 300], [200, 300], [300]]
    begun.mkdir(parents=True)
    (begun / "rank-00000.safetensors").write_bytes(bytes(one))
    assert [kept(store, min_free=f"{n * one}B") for n in (1, 2, 3)] == before
