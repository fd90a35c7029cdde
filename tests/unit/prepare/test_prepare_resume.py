"""Whatever changes in mid-epoch: each live (uid, copy) is trained exactly once by its end."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import prepare_files as files
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reelworks.core.errors import UserError
from reelworks.prepare import position as positions
from reelworks.prepare import resume
from reelworks.prepare.data import RecipeData
from reelworks.prepare.position import Position
from reelworks.run import plans
from reelworks.run.folder import RunFolder
from reelworks.schedule.cursor import Cursor, Excluded

Place = tuple[int, int]


class Training:
    """A run that trains by counting: what a step took, what a checkpoint holds."""

    def __init__(self, root: Path, num_pictures: int = 9) -> None:
        self.root, self.changes = root, {}  # type: tuple[Path, dict[str, Any]]
        (root / "data").mkdir(parents=True)
        for i in range(num_pictures):
            files.picture(root / "data" / f"{i:02}.png", grey=i)
        self.run = RunFolder(root / "run")
        self.run.create({})
        self.trained: list[Place] = []
        self.position = positions.begin_epoch(self.open(), self.spec(), epoch=0)
        positions.write_plan(self.run, self.position)

    def open(self) -> RecipeData:
        self.data = files.opened(files.recipe(self.root, **self.changes))
        return self.data

    def spec(self) -> Any:
        return self.data.spec(2, 1)

    def step(self) -> None:
        """Train a row, as the trainer does."""
        plan, row = self.position.plan, self.position.row
        places = plan.places_before(row + 1) & ~plan.places_before(row)
        self.trained += zip(plan.uid[places].tolist(), plan.copy[places].tolist(), strict=True)
        old = self.position
        counts = old.counts.add(int(places.sum()), 0, 0, 0)
        self.position = Position(
            old.spec, plan, old.excluded, counts, old.generation, 0, old.segment, row + 1, old.global_step + 1
        )

    def steps(self, n: int) -> None:
        for _ in range(n):
            if not self.position.at_end:
                self.step()

    def save(self) -> tuple[dict[str, Any], bytes, list[Place]]:
        cursor = self.position.to_cursor(self.data)
        return cursor.to_json(), self.position.excluded.to_bytes(), list(self.trained)

    def resume(self, saved: tuple[dict[str, Any], bytes, list[Place]]) -> list[str]:
        cursor, excluded, trained = saved
        self.trained = list(trained)
        self.open()
        self.position, said = resume.resume(
            self.data, self.spec(), self.run, Cursor(**cursor), Excluded.from_bytes(excluded)
        )
        if said:
            positions.write_plan(self.run, self.position)
        return said

    def check_end(self) -> None:
        self.steps(10_000)
        entries = self.data.entries(0)
        live = set(zip(entries.uid.tolist(), entries.copy.tolist(), strict=True))
        assert len(self.trained) == len(set(self.trained)), "something was trained twice"
        assert live <= set(self.trained), "something was never trained"
        counts = self.position.counts
        assert counts.trained == counts.planned == len(self.trained)


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


def picture(training: Training, name: str, grey: int = 200) -> None:
    files.picture(training.root / "data" / name, grey=grey)


def remove(training: Training, name: str) -> None:
    (training.root / "data" / name).unlink()


def batch_size(training: Training, size: int) -> None:
    training.changes["bucket"] = [{"resolution": "48px", "num_frames": 1, "batch_size": size}]


def test_where_nothing_changed_the_same_row_is_next_at_every_row(training: Training) -> None:
    batch_size(training, 1)
    training.resume(training.save())  # a second segment, so that excluded clips count too
    while True:
        before, saved = training.position, training.save()
        assert training.resume(saved) == []
        after = training.position
        assert after.plan.digest() == before.plan.digest()
        assert (after.row, after.segment, after.counts, after.global_step) == (
            before.row,
            before.segment,
            before.counts,
            before.global_step,
        )
        assert training.position.to_cursor(training.data) == before.to_cursor(training.data)
        if after.at_end:
            break
        training.step()
    assert training.position.row == training.position.plan.steps == 5
    training.check_end()


def test_an_unchanged_resume_needs_no_plan_file(training: Training) -> None:
    training.step()
    shutil.rmtree(training.run.plan_folder)
    assert training.resume(training.save()) == []
    training.check_end()


def test_a_change_is_told_and_begins_a_segment(training: Training) -> None:
    training.step()
    done = len(training.trained)
    picture(training, "new.png")
    batch_size(training, 2)
    said = training.resume(training.save())
    assert said[0] == "catalog: 1 clips added, 0 removed, 0 changed"
    assert "batch sizes" in said[1]
    assert said[2] == f"epoch 0: {done} clips done, {10 - done} left in 1 new steps"
    assert (training.position.segment, training.position.row, training.position.global_step) == (1, 0, 1)
    assert plans.path(training.run, 0, 0, 1).is_dir()
    training.check_end()


def test_an_edited_clip_that_was_trained_is_not_trained_again(training: Training) -> None:
    training.step()
    for i in range(9):
        picture(training, f"{i:02}.png", grey=100 + i)
    training.resume(training.save())
    assert training.position.plan.planned == 9 - len(training.trained)
    training.check_end()


def test_clips_that_come_after_the_last_row_are_trained_too(training: Training) -> None:
    training.steps(99)
    saved = training.save()
    picture(training, "late.png")
    training.resume(saved)
    assert (training.position.plan.planned, training.position.at_end) == (1, False)
    training.check_end()


def test_when_all_that_was_left_is_gone_the_epoch_ends(training: Training) -> None:
    training.step()
    trained = {uid for uid, _ in training.trained}
    saved = training.save()
    for row in np.flatnonzero(~np.isin(training.data.rows.uid, np.array(list(trained), dtype=np.uint64))):
        training.data.rows.file(int(row)).unlink()
    training.resume(saved)
    assert training.position.at_end
    training.check_end()


def test_more_repeats_in_mid_epoch_add_copies(training: Training) -> None:
    training.step()
    training.changes["dataset"] = [{"path": str(training.root / "data"), "repeats": 3}]
    training.resume(training.save())
    training.check_end()
    assert len(training.trained) == 27


actions = st.lists(
    st.one_of(
        st.tuples(st.just("train"), st.integers(1, 3)),
        st.tuples(st.just("add"), st.integers(0, 3)),
        st.tuples(st.just("edit"), st.integers(0, 11)),
        st.tuples(st.just("remove"), st.integers(0, 11)),
        st.tuples(st.just("batch"), st.integers(1, 4)),
        st.tuples(st.just("repeats"), st.integers(1, 3)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("back"), st.integers(0, 5)),
    ),
    min_size=3,
    max_size=12,
)


def act(training: Training, saves: list[Any], action: str, n: int) -> None:
    present = sorted((training.root / "data").glob("*.png"))
    if action == "train":
        training.steps(n)
        saves.append(training.save())
    elif action == "add":
        picture(training, f"new{n}.png", grey=200 + n)
    elif action == "edit" and n < len(present):
        picture(training, present[n].name, grey=100 + n)
    elif action == "remove" and n < len(present) - 2:
        remove(training, present[n].name)
    elif action == "batch":
        batch_size(training, n)
    elif action == "repeats":
        training.changes["dataset"] = [{"path": str(training.root / "data"), "repeats": n}]
    elif action in ("restart", "back"):
        # Killed: what was trained since the checkpoint is undone, and later checkpoints are void.
        del saves[max(len(saves) - (n if action == "back" else 0), 1) :]
        training.resume(saves[-1])


@settings(max_examples=15, deadline=None)
@given(actions)
def test_each_live_clip_is_trained_once_whatever_happens(acts: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        training = Training(Path(root))
        saves = [training.save()]
        for action, n in acts:
            act(training, saves, action, n)
        act(training, saves, "train", 1)
        act(training, saves, "restart", 0)
        training.check_end()


@pytest.mark.parametrize("damage", ["missing", "other"])
def test_a_change_without_the_former_plan_is_refused(training: Training, damage: str) -> None:
    training.step()
    saved = training.save()
    picture(training, "new.png")
    file = plans.path(training.run, 0, 0, 0)
    if damage == "missing":
        shutil.rmtree(file)
    else:
        plans.write(training.run, 0, 0, 0, {"uid": np.zeros(3)})
    with pytest.raises(UserError, match="begin the data again with --start-from-scratch") as caught:
        training.resume(saved)
    assert (caught.value.field, caught.value.value) == ("resume", str(file))


def test_a_catalog_made_anew_counts_by_clip_not_by_row(training: Training) -> None:
    training.step()
    saved = training.save()
    for name in ("0a.png", "0b.png", "zz.png"):
        picture(training, name)
    remove(training, "03.png")
    shutil.rmtree(training.root / "run" / "catalog")
    training.resume(saved)
    training.check_end()


def test_a_smaller_catalog_made_anew_is_no_index_error(training: Training) -> None:
    training.step()
    saved = training.save()
    for i in range(7):
        remove(training, f"{i:02}.png")
    shutil.rmtree(training.root / "run" / "catalog")
    training.resume(saved)
    training.check_end()


def test_a_catalog_made_anew_after_a_change_cannot_be_told(training: Training) -> None:
    training.step()
    picture(training, "new.png")
    training.resume(training.save())
    training.step()
    saved = training.save()
    picture(training, "0a.png")
    shutil.rmtree(training.root / "run" / "catalog")
    with pytest.raises(UserError, match="made anew") as caught:
        training.resume(saved)
    assert caught.value.field == "catalog"
