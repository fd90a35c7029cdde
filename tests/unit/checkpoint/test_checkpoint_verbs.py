"""The verbs say what the folder and its history say, as tables and as JSON, and change only what they name."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_recipe
import torch
from checkpoint_helpers import write_plain
from refused import refused
from safetensors.torch import load_file
from typer.testing import CliRunner

from reelworks.annexes.page import checkpoints_api
from reelworks.commands.main import app
from reelworks.core import storage
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import retention, save
from reelworks.data.checkpoint.config import CheckpointsConfig, KeepBest
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import lock
from reelworks.data.run.folder import RunFolder
from reelworks.training.recipe import recipe_file

POLICY = CheckpointsConfig(keep_last=2, keep_best=KeepBest(metric="loss"))
RECIPE = tiny_recipe.least(train={"max_steps": 4}, checkpoints={"keep_last": 2, "keep_best": {"metric": "loss"}})


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.recipe_file.write_text(recipe_file.dump(recipe_file.parse(RECIPE)), encoding="utf-8")
    return folder


@pytest.fixture
def store(run: RunFolder) -> CheckpointFolder:
    """Saves of steps 1 to 4, of which the second is the best."""
    made = CheckpointFolder(run.checkpoints_folder)
    for step, loss in enumerate((3.0, 1.0, 2.0, 4.0), 1):
        write_plain(made, step, {"loss": loss}, save_id=str(step))
        made.record_saved(made.info(step), 0.1)
    return made


def call(*arguments: object, code: int = 0) -> str:
    ran = CliRunner().invoke(app, ["checkpoints", *map(str, arguments)], catch_exceptions=True)
    if isinstance(ran.exception, UserError):
        raise ran.exception
    assert ran.exit_code == code, ran.output
    return ran.output


def told(*arguments: object, code: int = 0) -> Any:
    return json.loads(call(*arguments, "--json", code=code))


def zero_tensors(store: CheckpointFolder, step: int) -> None:
    file = store.path(step) / "tensors" / "rank-00000.safetensors"
    file.write_bytes(bytes(file.stat().st_size))


def test_ls_tells_the_room_on_the_disk_that_holds_the_checkpoints(
    run: RunFolder, store: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may be another one than the run's: `checkpoints` may be a link."""
    rooms = {store.root: 7 * 10**9, run.path: 5 * 10**9}
    usage = shutil.disk_usage(run.path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=rooms[Path(path)]))
    assert "7 GB free" in call("ls", run.path)
    shutil.rmtree(store.root)
    assert "5 GB free" in call("ls", run.path)


def test_ls_says_of_each_why_it_stays_or_goes(run: RunFolder, store: CheckpointFolder) -> None:
    (store.path(3) / "cursor.json").write_bytes(b"")
    zero_tensors(store, 4)
    rows = told("ls", run.path)
    assert [(row["step"], row["state"]) for row in rows] == [(1, "goes"), (2, "kept"), (3, "damaged"), (4, "kept")]
    assert rows[1]["reasons"] == ["among the last 2", "the best by loss (1)"]
    assert rows[2]["reasons"] == ["cursor.json has 0 bytes instead of 2"]
    assert rows[0]["metrics"] == {"loss": 3.0}
    shutil.rmtree(store.path(3))
    text = call("ls", run.path)
    assert "4 checkpoints" not in text
    assert "3 checkpoints, 606 B" in text
    assert "among the last 2" in text


def test_show_names_every_file(run: RunFolder, store: CheckpointFolder) -> None:
    assert [file["path"] for file in told("show", run.path)["files"]] == [
        "tensors/rank-00000.safetensors",
        "cursor.json",
    ]
    assert "step 4: the newest" in call("show", run.path)
    (store.path(2) / "manifest.json").unlink()
    assert "step 2: damaged: manifest.json is missing" in call("show", run.path, 2)
    with refused("no-such-checkpoint", "step", says="steps with a checkpoint: 1, 2, 3, 4"):
        call("show", run.path, 7)


def test_verify_ends_with_1_if_one_is_bad(run: RunFolder, store: CheckpointFolder) -> None:
    assert "4 of 4 good" in call("verify", run.path, "--full")
    zero_tensors(store, 2)
    assert "4 of 4 good" in call("verify", run.path), "sizes alone do not tell"
    assert "step 2: bad: tensors/rank-00000.safetensors has changed since" in call("verify", run.path, "--full", code=1)
    rows = told("verify", run.path, 3, "--full")
    assert [(row["step"], row["good"]) for row in rows] == [(3, True)]
    assert store.steps() == [1, 2, 3, 4], "looking changes nothing"
    with refused("no-such-checkpoint", "step"):
        call("verify", run.path, 9)


@pytest.mark.parametrize("through", ["command", "page"])
def test_prune_ends_where_its_lock_is_lost(run: RunFolder, store: CheckpointFolder, through: str) -> None:
    """What another process may have saved since is not deleted."""
    run.recipe_file.write_text(run.recipe_file.read_text(encoding="utf-8").replace("keep_last = 2", "keep_last = 1"))

    def lose(call: str, path: Path) -> None:
        if call == "rename" and path == store.path(1):
            run.lock_file.unlink()

    with (
        storage.guarded(lose),
        refused("lock-lost", {"command": "RUN", "page": "run"}[through], says="lock file was removed"),
    ):
        call("prune", run.path) if through == "command" else checkpoints_api.prune(run)
    assert store.steps() == [2, 3, 4]


def test_prune_deletes_with_reasons_and_only_while_nobody_trains(run: RunFolder, store: CheckpointFolder) -> None:
    dry = told("prune", run.path, "--dry-run")
    assert [row["step"] for row in dry["deleted"]] == [1]
    assert store.steps() == [1, 2, 3, 4]
    with lock.hold(run.lock_file), refused("run-locked", "RUN") as error:
        call("prune", run.path)
    assert "--dry-run" in error.value.remedy
    with lock.hold(run.lock_file):
        assert "would delete step 1" in call("prune", run.path, "--dry-run")
    leftover = store.root / ".tmp-step-000000009-0123456789ab"
    leftover.mkdir()
    text = call("prune", run.path)
    assert "deleted step 1 (202 B): not among the last 2; not among the best 1 by loss (3)" in text
    assert "1 of 4 checkpoints, 202 B" in text
    assert store.steps() == [2, 3, 4]
    assert not leftover.exists()
    again = told("prune", run.path, "--set", "checkpoints.keep_last=1")
    assert [row["step"] for row in again["deleted"]] == [3]


def test_explain_knows_what_is_there_and_what_is_gone(run: RunFolder, store: CheckpointFolder) -> None:
    store.record_metrics(1, {"fid": 7.5})
    retention.apply_retention(store, POLICY)
    gone = told("explain", run.path, 1)
    assert (gone["state"], gone["metrics"]) == ("deleted", {"loss": 3.0, "fid": 7.5})
    assert gone["reasons"] == ["not among the last 2", "not among the best 1 by loss (3)"]
    assert gone["saved"]
    text = call("explain", run.path, 1)
    assert "step 1 is deleted 20" in text
    assert "loss 3.0000, fid 7.5000" in text
    assert text.count("not among the last 2") == 2, "on top, and once in the history"
    assert "step 2 exists; kept: the best by loss (1)" in call("explain", run.path, 2)
    store.quarantine(3, "abandoned: the run went back to step 2")
    assert "step 3 is set aside" in call("explain", run.path, 3)
    shutil.rmtree(store.path(4))
    assert "removed by hand" in call("explain", run.path, 4)
    (store.root / "history.jsonl").unlink()
    assert told("explain", run.path, 2)["saved"] == 1.0, "the manifest knows too"
    with refused("unknown-checkpoint", "STEP"):
        call("explain", run.path, 1)


def test_a_step_that_was_saved_again_is_explained_without_metrics_of_the_former_save(
    run: RunFolder, store: CheckpointFolder
) -> None:
    store.record_metrics(1, {"fid": 7.5})
    store.remove(1, ("the run began again",))
    write_plain(store, 1, {"loss": 2.5}, save_id="again")
    store.record_saved(store.info(1), 0.1)
    store.remove(1, ("for the test",))
    assert told("explain", run.path, 1)["metrics"] == {"loss": 2.5}


def test_a_deletion_that_a_death_cut_short_is_explained(run: RunFolder, store: CheckpointFolder) -> None:
    store.log("deleting", 1, reasons=["over the limit"])
    assert told("explain", run.path, 1)["state"] == "goes"
    store.path(1).rename(store.root / ".trash-step-000000001-0123456789ab")
    assert "step 1 is deleted" in call("explain", run.path, 1)


def test_pins(run: RunFolder, store: CheckpointFolder) -> None:
    assert call("pin", run.path, 1) == "step 1: pinned\n"
    call("pin", run.path, 1)
    assert told("pin", run.path, 1)["pinned"]
    assert [e["event"] for e in store.history() if e["step"] == 1] == ["saved", "pin"]
    assert "step 1: deleted at the next save: not among the last 2" in call("unpin", run.path, 1)
    with refused("no-such-checkpoint", "step", says="steps with a checkpoint: 1, 2, 3, 4"):
        call("pin", run.path, 5)


def test_a_disk_that_refuses_a_change_is_told(run: RunFolder, store: CheckpointFolder) -> None:
    (store.root / "pins").write_text("no folder", encoding="utf-8")
    with refused("file-unwritable", "RUN", says="pins|Not a directory|exists"):
        call("pin", run.path, 1)
    assert store.steps() == [1, 2, 3, 4]


def test_best_prints_a_path_and_nothing_else(run: RunFolder, store: CheckpointFolder) -> None:
    assert call("best", run.path) == f"{store.path(2)}\n"
    store.record_metrics(4, {"loss": 0.5})
    assert told("best", run.path)["step"] == 4
    for step in (1, 2, 3, 4):
        store.record_metrics(step, {"loss": float("nan")})
    with refused("no-metric", "checkpoints.keep_best", says="no checkpoint has a finite loss"):
        call("best", run.path)


def test_export_takes_a_run_or_a_checkpoint(run: RunFolder, tmp_path: Path) -> None:
    store = CheckpointFolder(run.checkpoints_folder)
    for step in (1, 2):
        w = torch.full((2,), float(step))
        save.save(store, step, {"model": {"w": w}, "ema": {"w": w + 0.5}}, extra={"cursor.json": b'{"epoch": 6}'})
    assert "ema of step 2 in bfloat16" in call("export", run.path, "-o", tmp_path / "a.safetensors")
    assert load_file(tmp_path / "a.safetensors")["w"].tolist() == [2.5, 2.5]
    given = ("--weights", "--dtype", "float32", "-o", tmp_path / "sub" / "b.safetensors")
    assert told("export", store.path(1), *given)["weights"] == "model"
    with refused("lora-format-without-lora", "--format"):
        call("export", run.path, "-o", tmp_path / "c.safetensors", "--format", "kohya")
    assert load_file(tmp_path / "sub" / "b.safetensors")["w"].tolist() == [1.0, 1.0]
    with refused("output-file-invalid", "--output"):
        call("export", run.path, "-o", tmp_path / "a.safetensors")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    for verb in ("ls", "show", "verify", "prune", "best"):
        with refused("no-run", "RUN"):
            call(verb, tmp_path)


def test_verbs_that_look_need_no_torch(run: RunFolder, store: CheckpointFolder) -> None:
    verbs = [
        ["ls"],
        ["show"],
        ["verify", "--full"],
        ["prune"],
        ["explain", "1"],
        ["pin", "2"],
        ["unpin", "2"],
        ["best"],
    ]
    code = (
        "import sys\nfrom reelworks.commands.main import app\n"
        f"for verb, *rest in {verbs!r}:\n"
        f"    app(['checkpoints', verb, {str(run.path)!r}, *rest], standalone_mode=False)\n"
        "print('loaded:', {'torch', 'av', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, encoding="utf-8")
    assert done.stdout.splitlines()[-1] == "loaded: set()"
