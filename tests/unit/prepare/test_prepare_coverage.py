"""Coverage from plans and events alone: skipped steps, plans made again, plans that are gone."""

from __future__ import annotations

import shutil

import numpy as np
import prepare_files as made
import pytest

from reelworks.core.errors import UserError
from reelworks.prepare import cover
from reelworks.prepare import position as positions
from reelworks.recipe import load as recipes
from reelworks.run import plans
from reelworks.run.events import EventLog
from reelworks.run.folder import RunFolder


class Told:
    """A run that tells its steps as training does, without training."""

    def __init__(self, folder):
        (folder / "data").mkdir()
        for i in range(7):
            made.picture(folder / "data" / f"{i}.png", grey=i)
        self.recipe = made.recipe(folder)
        self.data = made.opened(self.recipe)
        self.run = RunFolder(folder / "run")
        self.run.create({"micro_batches_per_step": 1, "slot_width": 1})
        kept = self.run.keep_recipe(recipes.dump(self.recipe))
        self.log = EventLog(self.run.events_file)
        shape = {"micro_batches_per_step": 1, "slot_width": 1}
        self.log.write("start", step=0, resumed_from=None, recipe=kept, **shape)
        self.plan, self.done = None, 0

    def epoch(self, number):
        position = positions.begin_epoch(self.data, self.data.spec(1, 1), epoch=number)
        positions.write_plan(self.run, position)
        self.plan = position.plan
        told = {
            "generation": 0,
            "epoch": number,
            "segment": 0,
            "planned": self.plan.planned,
            "rows": self.plan.steps,
        }
        self.log.write("epoch", step=self.done, plan=self.plan.digest(), **told)

    def size(self, row):
        where = self.plan.places(int(self.plan.micro_batches(row)[0]))
        return where.stop - where.start

    def step(self, row, *, failed=0, finite=True):
        self.done += 1
        where = self.plan.places(int(self.plan.micro_batches(row)[0]))
        clips = where.stop - where.start - failed
        norm = 1.0 if finite else None
        told = {"row": row, "clips": clips, "loss": 0.5, "grad_norm": norm}
        self.log.write("step", step=self.done, epoch=0, **told)
        for uid in self.plan.uid[where][:failed]:
            self.log.write("failure", step=self.done, uid=int(uid), showing=0, path="", reason="torn")


@pytest.fixture
def told(tmp_path):
    return Told(tmp_path)


def test_failed_skipped_and_still_to_come(told):
    told.epoch(0)
    full, other, last = sorted(range(3), key=told.size, reverse=True)
    told.step(full, failed=1)
    told.step(other, finite=False)
    (epoch,) = cover.cover(told.run).epochs
    assert epoch.counts == {"failed": 1, "trained": 2, "skipped": 3, "not_yet": told.size(last)}
    assert epoch.adds_up
    found = cover.cover(told.run)
    (torn,) = [c for c in found.clips(found.places()) if c["epochs"][0]["became"] == "failed"]
    assert torn["epochs"] == [{"generation": 0, "epoch": 0, "became": "failed", "step": 1, "reason": "torn"}]


def test_an_account_that_differs_does_not_add_up(told):
    told.epoch(0)
    for row in range(3):
        told.step(row)
    assert cover.cover(told.run).epochs[0].adds_up
    end = {"epoch": 0, "planned": 7, "trained": 6, "failed": 1, "skipped": 0}
    told.log.write("epoch_end", step=3, **end)
    assert not cover.cover(told.run).epochs[0].adds_up


def test_a_lost_plan_is_made_again_on_the_catalog_it_was_made_on(told, tmp_path):
    told.epoch(0)
    told.step(0)
    before = cover.cover(told.run)
    shutil.rmtree(plans.path(told.run, 0, 0, 0))
    made.picture(tmp_path / "data" / "late.png", grey=99)
    made.opened(told.recipe)
    after = cover.cover(told.run)
    (epoch,) = after.epochs
    assert epoch.available
    assert (
        dict(zip(after.uid.tolist(), epoch.step.tolist(), strict=True)).items()
        >= dict(zip(before.uid.tolist(), before.epochs[0].step.tolist(), strict=True)).items()
    )
    (late,) = after.clips(after.places(clip="late.png"))
    assert late["epochs"] == [{"generation": 0, "epoch": 0, "became": "not_planned"}]


def test_a_file_that_holds_another_plan_is_not_believed(told):
    told.epoch(0)
    told.step(0)
    before = cover.cover(told.run).epochs[0].step
    own = plans.path(told.run, 0, 0, 0)
    wrong = positions.begin_epoch(told.data, told.data.spec(2, 1), epoch=0)
    positions.write_plan(told.run, wrong)
    assert cover.cover(told.run).epochs[0].step.tolist() == before.tolist()
    (own / "uid.npy").write_bytes(b"torn")
    assert cover.cover(told.run).epochs[0].step.tolist() == before.tolist()


def test_another_recipe_since_changes_nothing_that_is_told_of_former_epochs(told, tmp_path):
    """Reasons and lost plans of an epoch are those of the recipe that it was trained by."""
    made.picture(tmp_path / "data" / "speck.png", (8, 8))
    told.data = made.opened(told.recipe)
    told.epoch(0)
    told.step(0)
    before = cover.cover(told.run).epochs[0]
    assert before.counts["too_small"] == 1
    shutil.rmtree(plans.path(told.run, 0, 0, 0))
    told.run.keep_recipe(recipes.dump(other_recipe(told)))
    (epoch,) = cover.cover(told.run).epochs
    assert epoch.to_json() == before.to_json()
    assert epoch.step.tolist() == before.step.tolist()


def test_a_plan_that_cannot_be_made_again_is_said_to_be_gone(told):
    told.epoch(0)
    told.step(0)
    shutil.rmtree(plans.path(told.run, 0, 0, 0))
    kept = told.run.keep_recipe(recipes.dump(told.recipe))
    told.run.keep_recipe(recipes.dump(other_recipe(told)))
    (told.run.recipes_folder / kept).unlink()
    (epoch,) = cover.cover(told.run).epochs
    assert not epoch.available
    assert not epoch.adds_up
    assert epoch.counts == {"not_available": 7}


def other_recipe(told):
    """One that takes no clip of the run."""
    folder = told.run.path.parent
    return made.recipe(folder, dataset=[{"path": str(folder / "data"), "filter": "height > 999"}])


def test_clips_are_found_by_any_end_of_their_path(told, tmp_path):
    told.epoch(0)
    found = cover.cover(told.run)
    for asked in ("3.png", "data/3.png", str(tmp_path / "data" / "3.png")):
        assert [found.path(i) for i in found.places(clip=asked)] == ["data/3.png"]
    with pytest.raises(UserError, match="--clip"):
        found.places(clip="33.png")


def test_never_trained_names_what_no_epoch_trained(told):
    told.epoch(0)
    told.step(0)
    found = cover.cover(told.run)
    never = found.places(never_trained=True)
    assert len(never) == 7 - told.size(0)
    assert (found.epochs[0].step[never] == 0).all()
    told.step(1)
    told.step(2)
    assert cover.cover(told.run).places(never_trained=True) == []
    assert np.unique(cover.cover(told.run).epochs[0].step).tolist() == [1, 2, 3]


def test_a_run_that_has_not_begun_has_no_epoch(told):
    found = cover.cover(told.run)
    assert found.epochs == []
    assert len(found.places()) == 7
