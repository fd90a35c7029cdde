"""What is ours is found, changed by renames and told; what is not ours is never touched."""

import errno
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import durable
import places
import pytest
from checkpoint_helpers import Killed, write_plain
from refused import refused

from reelworks.core import storage
from reelworks.data.checkpoint import listing, manifest, names, retention
from reelworks.data.checkpoint.config import CheckpointsConfig
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.manifest import BadCheckpoint
from reelworks.data.checkpoint.store import CheckpointStore

FOREIGN = [
    "step-12", "step-000000012.bak", "old-step-000000012", "step-0000000012", "notes.txt", ".tmp-mine",
    ".trash-step-000000001-save", "step-00000001a", ".latest.tmp", "global_step500",
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "checkpoints")


def fill(store: CheckpointFolder, *steps: int) -> None:
    for step in steps:
        write_plain(store, step, save_id=str(step))


@pytest.mark.parametrize("step", [0, 12, 999_999_999, 1_000_000_000])
def test_names_are_read_back(step: int) -> None:
    assert names.parse_step(names.of_step(step)) == step


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_names_are_not_ours(name: str) -> None:
    assert names.parse_step(name) is None
    assert not names.is_leftover(name)


def test_looking_creates_nothing(store: CheckpointFolder) -> None:
    assert (store.list(), store.steps(), store.sweep(), store.history()) == ([], [], [], [])
    assert not store.root.exists()


def test_listing_tells_the_broken_apart(store: CheckpointFolder) -> None:
    fill(store, 300, 100, 1_000_000_000)
    (store.root / "step-000000200").mkdir()
    places.link(store.root / "step-000000400", store.path(100))
    good, broken = store.scan()
    assert [c.step for c in good] == [100, 300, 1_000_000_000]
    assert broken == {200: "manifest.json is missing"}


def test_metrics_arrive_late_and_belong_to_one_save(store: CheckpointFolder) -> None:
    write_plain(store, 100, {"loss": 3.0, "odd": math.inf}, save_id="first")
    store.record_metrics(100, {"loss": 3.5, "fid": math.nan}, {"loss": "a"})
    assert store.list()[0].measured_on["loss"] == "a"
    store.record_metrics(100, {"loss": 2.0})
    assert store.list()[0].measured_on["loss"] == ""
    metrics = store.list()[0].metrics
    assert metrics["loss"] == 2.0
    assert math.isnan(metrics["fid"])
    assert math.isnan(metrics["odd"])
    store.quarantine(100, "test")
    write_plain(store, 100, save_id="second")
    assert store.list()[0].metrics == {}
    with pytest.raises(BadCheckpoint):
        store.record_metrics(200, {"loss": 1.0})


def test_a_torn_history_line_is_passed_over(store: CheckpointFolder) -> None:
    fill(store, 100)
    store.record_metrics(100, {"loss": 2.0})
    with (store.root / "history.jsonl").open("a", encoding="utf-8") as f:
        f.write('{"event": "metrics", "step": 100, "sa')
    store.record_metrics(100, {"fid": 1.0})
    assert store.list()[0].metrics == {"loss": 2.0, "fid": 1.0}


def test_damaged_history_lines_cost_no_checkpoint(store: CheckpointFolder) -> None:
    """A line may still be JSON after storage has changed a letter of it."""
    fill(store, 1)
    store.record_metrics(1, {"loss": 0.5})
    lines = ['{"time": 1, "event": "metrics", "step": 1}', '{"time": 2, "evenu": "saved", "step": 3}', "5"]
    lines.append('{"time": 3, "event": "deleted", "step": 2}')
    save_id = store.info(1).manifest.save_id
    for odd in (
        {"event": "metrics", "metrics": {"loss": "abc"}},
        {"event": "metrics", "metrics": [1]},
        {"event": "metrics", "metrics": {"loss": True}},
        {"event": "deleted", "reasons": "abc"},
        {"event": "deleted", "reasons": [1]},
        {"event": "saved", "bytes": "many", "metrics": {"loss": 9.0}},
        {"event": ["saved"]},
        {"event": "deleted", "time": "noon"},
    ):
        lines.append(json.dumps({"time": 4, "step": 1, "save_id": save_id, **odd}))
    with (store.root / "history.jsonl").open("a", encoding="utf-8") as f:
        f.writelines(f"{line}\n" for line in lines)
    fresh = CheckpointFolder(store.root)
    assert fresh.info(1).metrics == {"loss": 0.5}
    assert [e["step"] for e in fresh.history()] == [1, 1, 2]
    assert listing.explain(fresh, CheckpointsConfig(), 1).metrics == {"loss": 0.5}
    assert listing.explain(fresh, CheckpointsConfig(), 2).now.state == "deleted"


def test_what_a_training_deletes_meanwhile_is_not_damage(
    store: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks has listed the folder before."""
    fill(store, 1, 2)
    monkeypatch.setattr(store, "steps", lambda: [1, 2, 3])
    good, broken = store.scan()
    assert ([info.step for info in good], broken) == ([1, 2], {})
    assert [row.step for row in listing.verified(store, [1, 2, 3], full=True)] == [1, 2]


def test_pins(store: CheckpointFolder) -> None:
    fill(store, 100, 200)
    store.pin(100)
    assert [c.pinned for c in store.list()] == [True, False]
    with refused("checkpoint-pinned", "step"):
        store.remove(100, ("test",))
    with refused("no-such-checkpoint", "step", says="steps with a checkpoint: 100, 200"):
        store.pin(300)
    store.unpin(100)
    store.unpin(100)
    store.remove(100, ("over the limit",))
    assert store.steps() == [200]
    assert [(e["event"], e["step"]) for e in store.history()] == [
        ("pin", 100), ("unpin", 100), ("deleting", 100), ("deleted", 100),
    ]  # fmt: skip
    assert store.history()[-1]["reasons"] == ["over the limit"]


def test_a_pin_that_is_taken_off_does_not_come_back(store: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one lost, whenever the power fails afterwards."""
    synced = durable.Synced()
    monkeypatch.setattr(os, "fsync", synced.sync)
    fill(store, 100)
    pin = store.root / names.PINS / names.of_step(100)
    store.pin(100)
    assert synced.has_name(pin)
    store.unpin(100)
    assert not synced.has_name(pin)


def test_a_full_disk_is_emptied_before_the_history_is_told(store: CheckpointFolder) -> None:
    fill(store, 100, 200)
    (store.root / names.HISTORY).unlink(missing_ok=True)
    places.link(store.root / names.HISTORY, "/dev/full")
    with pytest.raises(OSError, match="No space left"):
        store.remove(100, ("over the limit",))
    assert store.steps() == [200]
    assert not list(store.root.glob(".trash*"))


def test_what_cannot_be_removed_now_stays_for_the_next_sweep(store: CheckpointFolder) -> None:
    """Network file systems keep a folder whose files are open; no training must fail of that."""
    leftovers = [store.root / names.fresh("trash", step) for step in (1, 2)]
    for path in leftovers:
        path.mkdir(parents=True)

    def busy(call: str, path: Path) -> None:
        if path == leftovers[0]:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    with storage.guarded(busy):
        assert store.sweep() == [leftovers[1].name]
    assert store.sweep() == [leftovers[0].name]


def test_sweep_takes_leftovers_and_nothing_else(store: CheckpointFolder) -> None:
    fill(store, 100)
    for name in FOREIGN:
        (store.root / name).mkdir()
    quarantined = store.quarantine(100, "test")
    (store.root / ".tmp-step-000000200-0123456789ab" / "tensors").mkdir(parents=True)
    (store.root / ".trash-step-000000100-0123456789ab").mkdir()
    (store.root / ".latest.01234567.tmp").touch()
    before = {p.name for p in store.root.iterdir()}
    swept = store.sweep()
    assert swept == [
        ".latest.01234567.tmp", ".tmp-step-000000200-0123456789ab", ".trash-step-000000100-0123456789ab",
    ]  # fmt: skip
    assert {p.name for p in store.root.iterdir()} == before - set(swept)
    assert {*FOREIGN, quarantined.name} <= before - set(swept)
    assert store.sweep() == []


def test_retention_counts_only_whole_checkpoints(store: CheckpointFolder) -> None:
    """A truncated newest one must not cost the last good one, and is left for a person to see."""
    fill(store, 100, 200, 300)
    (store.path(300) / "cursor.json").write_bytes(b"")
    policy = CheckpointsConfig(keep_last=1, keep_best=None)
    assert [(d.step, d.keep) for d in retention.plan(store, policy)] == [(100, False), (200, True)]
    assert store.steps() == [100, 200, 300]
    decisions = retention.apply_retention(store, policy)
    assert store.steps() == [200, 300]
    assert all(d.keep for d in retention.apply_retention(store, policy))
    assert store.history()[-1]["reasons"] == list(decisions[0].reasons)
    assert not list(store.root.glob(".trash*"))


@pytest.mark.parametrize("killed_at", [1, 2])
def test_a_kill_while_a_step_is_replaced_loses_neither_save(store: CheckpointFolder, killed_at: int) -> None:
    fill(store, 100)
    (store.root / "new").mkdir()
    former = store.info(100)
    renames = []

    def kill(call: str, path: Path) -> None:
        renames.append(call)
        if renames.count("rename") == killed_at:
            raise Killed

    with storage.guarded(kill), pytest.raises(Killed):
        store.publish(store.root / "new", 100)
    assert store.sweep() == []
    assert store.list() == [former]
    store.publish(store.root / "new", 100)
    assert [path.name for path in store.root.iterdir()] == ["step-000000100"]


def test_only_the_newest_few_bad_checkpoints_stay(store: CheckpointFolder) -> None:
    """By the time at which they were set aside: a run may have gone back to earlier steps. Nobody else's files go."""
    fill(store, *range(5))
    moved, notes = [], store.root / ".bad-ideas"
    notes.mkdir()
    for step in (3, 4, 1, 2, 0):
        moved.append(store.quarantine(step, "test").name)
        assert {path.name for path in store.root.glob(".bad-*")} == {*moved[-3:], notes.name}
        time.sleep(0.02)  # more than a tick of the file system's clock
    fill(store, 7)
    assert store.set_aside(7, "test").name.startswith(".aside-step-000000007-")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"step": 101}, "is of step 101"),
        ({"format": 3}, "has format 3, this version of Reelworks reads up to 2"),
        ({"format": None}, "has no format version"),
        ({"files": [{"path": "../x", "size": 0, "digest": "0" * 32}]}, "does not lie inside"),
        ({"files": [{"path": "x", "size": -1, "digest": "0" * 32}]}, "files.0.size"),
        ({"files": [{"path": "x", "size": 0, "digest": "0" * 32}] * 2}, "listed twice"),
        ({"total_bytes": 7}, "not the sum"),
        ({"world_size": "1"}, "world_size"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_manifests_are_read_strictly(store: CheckpointFolder, change: dict[str, object], reason: str) -> None:
    file = write_plain(store, 100) / "manifest.json"
    content = {**json.loads(file.read_text(encoding="utf-8")), **change}
    del content["digest"]
    file.write_text(json.dumps({**content, "digest": manifest.digests.digest_json(content)}), encoding="utf-8")
    with pytest.raises(BadCheckpoint, match=reason):
        store.info(100)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": NaN}', '{"format": 1, "step": NaN}', "\x00" * 50, "[" * 100_000]
)
def test_damaged_manifests_are_told(store: CheckpointFolder, text: str) -> None:
    (write_plain(store, 100) / "manifest.json").write_text(text, encoding="utf-8")
    with pytest.raises(BadCheckpoint):
        store.info(100)


def test_an_edited_manifest_is_noticed(store: CheckpointFolder) -> None:
    file = write_plain(store, 100, {"loss": 3.25}) / "manifest.json"
    file.write_text(file.read_text(encoding="utf-8").replace("3.25", "3.24"), encoding="utf-8")
    with pytest.raises(BadCheckpoint, match="was changed"):
        store.info(100)


def test_listing_needs_no_torch() -> None:
    modules = ["listing", "read_lock", "manifest", "disk_space", "retention", "store", "verify"]
    code = "import sys\n" + "".join(f"import reelworks.data.checkpoint.{m}\n" for m in modules)
    subprocess.run([sys.executable, "-c", code + "sys.exit('torch' in sys.modules)"], check=True)


def test_what_a_killed_process_had_replaced_never_comes_back(store: CheckpointFolder) -> None:
    """Not even when its replacement is gone, as after training went back to an earlier step."""
    fill(store, 100)
    (store.root / "new").mkdir()

    def kill(call: str, path: Path) -> None:
        if call == "rmdir":
            raise Killed

    with storage.guarded(kill), pytest.raises(Killed):
        store.publish(store.root / "new", 100)
    (replaced,) = store.root.glob(".old-*")
    assert store.sweep() == [replaced.name]
    store.set_aside(100, "test")
    store.recover()
    assert store.steps() == []


def test_what_a_process_was_replacing_when_it_was_killed_is_loaded(tmp_path: Path) -> None:
    saved, state = CheckpointStore(tmp_path), {"a": 1}
    saved.save(7, state)
    path = CheckpointFolder(tmp_path).path(7)
    path.rename(path.with_name(names.fresh("old", 7)))
    assert CheckpointStore(tmp_path).load_latest(state) == 7
