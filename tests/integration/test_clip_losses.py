"""Each clip's losses are noted without changing a number of training, and equal to the bit however a run was killed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest

from reelworks.checkpoint import verify
from reelworks.checkpoint.folder import CheckpointFolder
from reelworks.core import digests
from reelworks.run import clip_losses, events
from reelworks.run.clip_losses import ClipLosses
from reelworks.run.folder import RunFolder

STEPS = 12
# Of the tiny set, all clips are measured in turn; "auto" would measure too few in so few steps to be seen.
NOTED = {"max_steps": STEPS, "threads": 1, "clip_losses": 4, "clip_losses_every": 3}


def stored(run: Path) -> bytes:
    """The account in the newest checkpoint."""
    return verify.read_extra(CheckpointFolder(run / "checkpoints").list()[-1].path, clip_losses.FILE)


def losses(run: Path) -> dict[int, str]:
    told = events.timeline(RunFolder(run).events_file, "step")
    return {event["step"]: float(event["loss"]).hex() for event in told}


def weights(run: Path) -> list[tuple[str, str]]:
    """Digests of all files of the newest checkpoint that hold weights, averages and the optimizer's state."""
    newest = CheckpointFolder(run / "checkpoints").list()[-1].path
    return [(file.name, digests.of_file(file)) for file in sorted((newest / "tensors").iterdir())]


def test_noting_changes_no_number_and_a_killed_run_notes_the_same(tiny: Any, tmp_path: Path) -> None:
    assert children.train(tiny("off", train=NOTED | {"clip_losses": "off", "clip_losses_every": None})) == [0]
    assert children.train(tiny("on", train=NOTED)) == [0], children.output(tiny("on"))
    off, on, killed = (tmp_path / name for name in ("off", "on", "killed"))
    assert (losses(on), weights(on)) == (losses(off), weights(off))
    assert not any(path.name == clip_losses.FILE for path in off.rglob("*"))

    # The forward passes of step 5 and of the measurement behind step 9, and a save.
    for point, call in (("after a forward pass", 14), ("after shards are written", 1), ("after a forward pass", 13)):
        code = children.train(tiny("killed", train=NOTED), fault=(point, call))
        assert code == [-signal.SIGKILL], f"{point} was not passed"
    assert children.train(tiny("killed", train=NOTED)) == [0]
    assert losses(killed) == losses(on)
    assert stored(killed) == stored(on)

    table = ClipLosses.from_bytes(stored(on))
    told = events.timeline(RunFolder(on).events_file, "step")
    assert table.about.step == STEPS
    assert table.about.trained == sum(event["clips"] + event["repeated"] for event in told)
    rounds = events.timeline(RunFolder(on).events_file, "clip_losses")
    assert [event["step"] for event in rounds] == [3, 6, 9, 12]
    assert table.about.visits == sum(event["clips"] for event in rounds) == np.maximum(table.measured, 0).sum()
    assert (table.measured[table.held_out] > 0).any()
    assert np.ptp(table.measured[~table.held_out & (table.measured >= 0)]) <= 1  # in turn
    assert not table.shown[table.held_out].any()
    assert np.abs(table.gain).max() > 0


def test_two_ranks_note_what_one_does_and_a_changed_set_goes_on(tiny: Any, tmp_path: Path, footage: Path) -> None:
    shape = {"micro_batches_per_step": 2, "same_bucket_run": 1}
    for name, world in (("one", 1), ("two", 2)):
        assert children.train(tiny(name, train=NOTED | shape), world=world) == [0] * world
    one, two = (ClipLosses.from_bytes(stored(tmp_path / name)) for name in ("one", "two"))
    for name, values in one.columns().items():
        np.testing.assert_allclose(two.columns()[name], values, rtol=0, atol=1e-5, err_msg=name)

    # Without two of its clips, which keep what is known of them, the run goes on.
    (listed := tmp_path / "exclude.txt").write_text("footage0/picture-0.png\nfootage0/clip-1.mp4\n")
    listed.write_text(listed.read_text().replace("footage0", footage.name))
    longer = tiny("one", exclude_file=str(listed), train=NOTED | shape | {"max_steps": STEPS + 4})
    assert children.train(longer) == [0], children.output(longer)
    later = ClipLosses.from_bytes(stored(tmp_path / "one"))
    before = dict(zip(one.key.tolist(), one.shown.tolist(), strict=True))
    after = dict(zip(later.key.tolist(), later.shown.tolist(), strict=True))
    assert before.keys() <= after.keys()
    assert all(after[key] >= shown for key, shown in before.items())
    assert sum(after.values()) > sum(before.values())
    unchanged = [key for key, shown in before.items() if after[key] == shown]
    assert len(unchanged) >= 2


def test_a_damaged_account_costs_its_checkpoint_alone(tiny: Any, tmp_path: Path) -> None:
    assert children.train(tiny(train=NOTED)) == [0]
    infos = CheckpointFolder(tmp_path / "run" / "checkpoints").list()
    file = infos[-1].path / clip_losses.FILE
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(Exception, match="bytes instead of"):
        stored(tmp_path / "run")
    recipe = tiny(train=NOTED | {"max_steps": STEPS + 2})
    assert children.train(recipe) == [0], children.output(recipe)
    assert ClipLosses.from_bytes(stored(tmp_path / "run")).about.step == STEPS + 2
