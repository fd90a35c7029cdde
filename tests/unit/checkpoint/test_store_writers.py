"""One process at a time saves into a store; what it saved last is the newest, and nothing of killed ones is left."""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_helpers import Killed
from refused import refused

import reelworks as rw
from reelworks.core import storage
from reelworks.data.checkpoint import manifest, names, state_file, verify

HOLD = """
import sys, pathlib
from reelworks.data.run import lock
with lock.hold(pathlib.Path(sys.argv[1]), doing="writer", field="root", remedy=""):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> rw.CheckpointStore:
    return rw.CheckpointStore(tmp_path / "checkpoints", policy=rw.Retention(keep_last=1, keep_best=None))


def test_a_second_writer_is_refused_until_the_first_ends(store: rw.CheckpointStore) -> None:
    store.save(1, {"x": 1})
    store.close()
    command = [sys.executable, "-c", HOLD, str(store.root / names.LOCK)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8") as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with refused("run-locked", "root", says="another writer is running in this folder") as error:
            store.save(2, {"x": 2})
        assert "end the other process" in error.value.remedy
        state = {"x": 0}
        assert store.load_latest(state) == 1, "reading needs no lock"
        other.kill()
    store.save(2, {"x": 2})
    assert store.steps() == [2]


def test_stores_of_one_process_share_the_lock(store: rw.CheckpointStore) -> None:
    """As where a cell of a notebook is run again."""
    store.save(1, {"x": 1})
    other = rw.CheckpointStore(store.root)
    other.save(2, {"x": 2})
    store.save(3, {"x": 3})
    shutil.rmtree(store.root)
    store.save(1, {"x": 4})
    assert store.read(1) == {"x": 4}


def test_what_killed_saves_left_is_gone_after_the_next_save(store: rw.CheckpointStore) -> None:
    store.save(1, {"x": 1})
    store.close()
    for name in (names.fresh("tmp", 2), names.fresh("trash", 1), ".latest.01234567.tmp"):
        (store.root / name).mkdir()
    rw.CheckpointStore(store.root).save(2, {"x": 2})
    assert {p.name for p in store.root.iterdir()} == {
        "step-000000001", "step-000000002", names.LOCK, names.HISTORY, names.LATEST,
    }  # fmt: skip


def test_a_save_of_an_earlier_step_is_the_newest_and_stays(
    store: rw.CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Later checkpoints are of another branch: none is deleted, and none is loaded by mistake."""
    store.save(100, {"x": 100})
    with caplog.at_level(logging.WARNING, "reelworks"):
        saved = store.save(10, {"x": 10})
    assert saved.info.path.is_dir()
    state = {"x": 0}
    assert store.load_latest(state) == 10
    assert state == {"x": 10}
    (aside,) = store.root.glob(".aside-step-000000100-*")
    assert f"checkpoint of step 100 is set aside as {aside.name}" in caplog.text


def test_a_step_saved_again_has_the_new_content(store: rw.CheckpointStore) -> None:
    first = store.save(1, {"x": 1})
    assert not store.save(1, {"x": 1}, metrics={"loss": 0.5}).fresh
    assert store.info(1).manifest == first.info.manifest
    assert store.info(1).metrics == {"loss": 0.5}
    assert store.save(1, {"x": 2}).fresh
    assert store.read(1) == {"x": 2}


def test_a_checkpoint_whose_replacement_broke_off_is_read(store: rw.CheckpointStore) -> None:
    """The former one, also where nobody saves or resumes before."""
    store.save(1, {"x": 1})

    def kill(call: str, path: Path) -> None:
        if call == "rename" and path.name.startswith(".tmp-"):
            raise Killed

    with storage.guarded(kill), pytest.raises(Killed):
        store.save(1, {"x": 2})
    assert store.steps() == []
    assert store.read(1) == {"x": 1}


def test_a_disk_that_fails_to_delete_does_not_fail_the_save(
    store: rw.CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.save(1, {"x": 1})

    def fail(call: str, path: Path) -> None:
        if call == "rename" and path.name == "step-000000001":
            raise OSError(5, "Input/output error")

    with storage.guarded(fail), caplog.at_level(logging.WARNING, "reelworks"):
        assert store.save(2, {"x": 2}).fresh
    assert "old checkpoints were not deleted" in caplog.text
    assert store.steps() == [1, 2]


def test_messages_name_nothing_of_recipes_or_commands(store: rw.CheckpointStore) -> None:
    """Whoever has a loop of their own has neither."""
    store.save(1, {"x": 1})
    (store.path(1) / "state.json").write_text("{}", encoding="utf-8")
    works = {
        "no-good-checkpoint": lambda: store.load_latest({"x": 0}),
        "checkpoint-bad": lambda: store.load(1, {}),
        "no-such-checkpoint": lambda: store.load(7, {}),
        "argument-invalid": lambda: store.save(-1, {}),
    }
    for code, work in works.items():
        with refused(code) as error:
            work()
        assert not any(word in str(error.value) for word in ("--", "recipe", "[checkpoints]", "reelworks "))


class During:
    """An object in whose loading something happens, as in another process."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self.happens = happens

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.happens()


def test_a_reader_never_ends_a_training_that_saves_the_step_again(store: rw.CheckpointStore) -> None:
    """What is read stays until a later save, and then goes."""
    names_of = lambda: [path.name for path in store.root.glob(".old-*")]  # noqa: E731
    store.save(1, {"slow": During(lambda: None), "x": 1})
    seen: list[list[str]] = []

    def replace() -> None:
        for x in (2, 3):
            store.save(1, {"slow": During(lambda: None), "x": x})
            seen.append(names_of())

    assert store.load_latest({"slow": During(replace)}) == 1
    assert [len(found) for found in seen] == [1, 1], "the one that is read alone"
    assert store.read(1)["x"] == 3
    store.save(2, {"x": 4})
    assert names_of() == []


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_anew_and_not_called_bad(
    store: rw.CheckpointStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At each file that is read of it."""
    real, read = verify.check_file, 0
    for at in range(3):
        store.save(1, {"x": torch.full((9,), 2.0 * at)})
        read = 0

        def replacing(path: Path, entry: manifest.FileEntry, full: bool, at: int = at) -> None:
            nonlocal read
            read += 1
            if read == at + 1:
                store.save(1, {"x": torch.full((9,), 2.0 * at + 1)})
            real(path, entry, full)

        for module in (verify, state_file):
            monkeypatch.setattr(module, "check_file", replacing)
        state = {"x": torch.zeros(9)}
        assert store.load_latest(state) == 1
        monkeypatch.undo()
        assert read > at
        assert state["x"].tolist() == [2.0 * at + 1] * 9
    assert "skipped" not in caplog.text


def test_a_handler_of_a_signal_may_save_while_a_save_is_under_way(store: rw.CheckpointStore) -> None:
    """As one does that saves before the program is ended."""

    class Interrupted:
        def state_dict(self) -> dict[str, int]:
            signal.raise_signal(signal.SIGINT)
            return {"a": 1}

        def load_state_dict(self, state: dict[str, int]) -> None: ...

    former = signal.signal(signal.SIGINT, lambda *_: store.save(5, {"part": {"a": 2}}))
    try:
        store.save(5, {"part": Interrupted()})
    finally:
        signal.signal(signal.SIGINT, former)
    assert store.read(5) == {"part": {"a": 1}}
    assert store.steps() == [5]


def test_what_no_file_system_takes_is_no_path() -> None:
    with refused("argument-invalid", "root"):
        rw.CheckpointStore("a\0b")


@pytest.mark.parametrize("value", [10**400, torch.ones(2), torch.ones(1, device="meta"), None, 1j])
def test_what_is_no_number_is_no_metric(tmp_path: Path, value: Any) -> None:
    with refused("metric-invalid", "metrics"):
        rw.CheckpointStore(tmp_path).save(1, {}, metrics={"loss": value})
