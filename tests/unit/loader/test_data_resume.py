"""Whatever changes in mid-epoch: each live (clip, copy) is trained exactly once by its end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import prepare_files as files
import pytest
from consumed_places import places_before
from hypothesis import given, settings
from hypothesis import strategies as st
from refused import refused

from reelworks.core import hash_rng, units
from reelworks.data.catalog.store import compact
from reelworks.data.loader import position, resume, segment_record
from reelworks.data.run import records
from reelworks.data.run.folder import RunFolder
from reelworks.data.schedule.cursor import Aliases, Cursor, Excluded, StageStart
from reelworks.training.loop import resume as of_runs
from reelworks.training.recipe.dataset import RecipeData

Place = tuple[str, int]
Saved = tuple[dict[str, Any], bytes, bytes, list[Place]]


class Training:
    """A run that trains by counting: what a step took, what a checkpoint holds."""

    def __init__(self, root: Path, num_pictures: int = 9) -> None:
        self.root, self.changes = root, {}  # type: tuple[Path, dict[str, Any]]
        self.folder = root / "data"
        for i in range(num_pictures):
            files.picture(self.folder / f"{i:02}.png", grey=i)
        self.run = RunFolder(root / "run")
        self.run.create()
        self.trained: list[Place] = []
        self.position = position.begin_epoch(self.open(), self.spec(), epoch=0)
        segment_record.begin(self.run, self.data, self.position, "recipe.toml")

    def open(self) -> RecipeData:
        self.data = files.opened(files.recipe(self.root, **self.changes))
        return self.data

    def spec(self) -> Any:
        return self.data.plan_spec(2, 1)

    def names(self, ordinals: Any) -> list[str]:
        """Files of rows, by their names."""
        return [self.data.rows.path[int(row)].as_py() for row in self.data.rows_at(ordinals)]

    def step(self) -> None:
        """Train a step, as the trainer does."""
        old = self.position
        plan, plan_step = old.plan, old.plan_step
        places = places_before(plan, plan_step + 1) & ~places_before(plan, plan_step)
        self.trained += zip(self.names(plan.ordinal[places]), plan.copy[places].tolist(), strict=True)
        counts = old.counts.add(int(places.sum()), 0, 0, 0)
        self.position = replace(old, counts=counts, plan_step=plan_step + 1, global_step=old.global_step + 1)

    def steps(self, n: int) -> None:
        for _ in range(n):
            if not self.position.at_end:
                self.step()

    def save(self) -> Saved:
        now = self.position
        cursor = asdict(now.to_cursor(self.data))
        return cursor, now.excluded.to_bytes(), now.aliases.to_bytes(), list(self.trained)

    def resume(self, saved: Saved) -> list[str]:
        cursor, excluded, aliases, trained = saved
        self.trained = list(trained)
        self.open()
        self.position, changes = resume.resume(
            self.data,
            self.spec(),
            self.run,
            Cursor(**cursor),
            Excluded.from_bytes(excluded),
            Aliases.from_bytes(aliases),
        )
        if changes:
            segment_record.begin(self.run, self.data, self.position, "recipe.toml")
        return changes

    def check_end(self) -> None:
        self.steps(10_000)
        entries = self.data.entries(0)
        live = set(zip(self.names(entries.ordinal), entries.copy.tolist(), strict=True))
        assert len(self.trained) == len(set(self.trained)), "something was trained twice"
        assert live <= set(self.trained), "something was never trained"
        counts = self.position.counts
        assert counts.trained == counts.planned == len(self.trained)


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


def picture(training: Training, name: str, grey: int = 200) -> None:
    files.picture(training.folder / name, grey=grey)


def remove(training: Training, name: str) -> None:
    (training.folder / name).unlink()


def batch_size(training: Training, size: int) -> None:
    training.changes["bucket"] = [{"resolution": "48px", "num_frames": 1, "batch_size": size}]


def repeats(training: Training, number: int) -> None:
    training.changes["dataset"] = [{"path": str(training.folder), "repeats": number}]


def rename(training: Training, name: str) -> None:
    """Give the dataset, which is called as its folder, another name."""
    old = training.changes.get("dataset", [{}])
    training.folder = training.folder.rename(training.root / name)
    training.changes["dataset"] = [{**old[0], "path": str(training.folder)}]


def lose_the_catalog(training: Training) -> None:
    shutil.rmtree(training.root / "run" / "catalog", ignore_errors=True)


def compact_the_catalog(training: Training) -> None:
    if (training.root / "run" / "catalog" / "catalog.json").exists():
        compact.compact(training.root / "run" / "catalog")


def test_a_resume_goes_over_a_compaction(training: Training) -> None:
    """Without a change it finds the same plan; and clips edited since they were trained are not trained again."""
    training.step()
    picture(training, "00.png", grey=99)
    training.resume(training.save())
    training.step()
    saved = training.save()
    compact_the_catalog(training)
    assert training.resume(saved) == []
    for i in range(9):
        picture(training, f"{i:02}.png", grey=100 + i)
    training.resume(training.save())
    compact_the_catalog(training)
    assert training.resume(training.save()) == []
    training.check_end()


@pytest.mark.slow
def test_where_nothing_changed_the_same_step_is_next_at_every_step(training: Training) -> None:
    batch_size(training, 1)
    training.resume(training.save())  # a second segment, so that excluded clips count too
    while True:
        before, saved = training.position, training.save()
        assert training.resume(saved) == []
        after = training.position
        assert after.plan.digest() == before.plan.digest()
        assert (after.plan_step, after.segment, after.counts, after.global_step) == (
            before.plan_step,
            before.segment,
            before.counts,
            before.global_step,
        )
        assert training.position.to_cursor(training.data) == before.to_cursor(training.data)
        if after.at_end:
            break
        training.step()
    assert training.position.plan_step == training.position.plan.num_steps == 5
    training.check_end()


def test_an_unchanged_resume_needs_neither_plan_nor_record(training: Training) -> None:
    training.step()
    shutil.rmtree(training.run.plan_folder)
    shutil.rmtree(training.run.coverage_folder)
    assert training.resume(training.save()) == []
    training.check_end()


def test_a_resume_after_a_change_needs_no_plan_file(training: Training) -> None:
    training.step()
    shutil.rmtree(training.run.plan_folder)
    picture(training, "new.png")
    assert training.resume(training.save())
    training.check_end()


def test_a_change_is_told_and_begins_a_segment(training: Training) -> None:
    training.step()
    done = len(training.trained)
    picture(training, "new.png")
    batch_size(training, 2)
    said = training.resume(training.save())
    assert said[0] == "catalog: 1 clip added, 0 removed, 0 changed"
    assert "batch sizes" in said[1]
    assert said[2] == f"epoch 0: {units.plural(done, 'clip')} done, {10 - done} left in 1 new step"
    assert (training.position.segment, training.position.plan_step, training.position.global_step) == (1, 0, 1)
    assert records.keys(training.run) == [(0, 0, 0), (0, 0, 1)]
    training.check_end()


def test_a_touched_clip_is_the_same_clip(training: Training) -> None:
    """Which may stand at another place of the catalog, of whatever else may have changed."""
    training.step()
    os.utime(training.folder / "00.png", (1, 1))
    said = training.resume(training.save())
    assert said[0] == "catalog: the same clips; their place, their order, their measures or their companions changed"
    training.check_end()


def test_an_edited_clip_that_was_trained_is_not_trained_again(training: Training) -> None:
    training.step()
    for i in range(9):
        picture(training, f"{i:02}.png", grey=100 + i)
    training.resume(training.save())
    assert training.position.plan.planned == 9 - len(training.trained)
    training.check_end()


def test_clips_that_come_after_the_last_step_are_trained_too(training: Training) -> None:
    training.steps(99)
    saved = training.save()
    picture(training, "late.png")
    training.resume(saved)
    assert (training.position.plan.planned, training.position.at_end) == (1, False)
    training.check_end()


def test_when_all_that_was_left_is_gone_the_epoch_ends(training: Training) -> None:
    training.step()
    saved = training.save()
    for name in {f"{i:02}.png" for i in range(9)} - {name for name, _ in training.trained}:
        remove(training, name)
    training.resume(saved)
    assert training.position.at_end
    training.check_end()


def test_more_repeats_in_mid_epoch_add_copies(training: Training) -> None:
    training.step()
    repeats(training, 3)
    training.resume(training.save())
    training.check_end()
    assert len(training.trained) == 27


def test_a_clip_may_move_between_datasets_with_other_resolutions(training: Training) -> None:
    (training.root / "other").mkdir()
    files.picture(training.root / "other" / "x.png", grey=99)
    training.changes |= {
        "bucket": SIZES,
        "dataset": [
            {"path": str(training.folder), "resolutions": ["48px"]},
            {"path": str(training.root / "other"), "resolutions": ["32px", "48px"]},
        ],
    }
    training.resume(training.save())
    training.step()
    (training.folder / "08.png").rename(training.root / "other" / "08.png")
    (training.folder / "08.txt").rename(training.root / "other" / "08.txt")
    assert any("1 clip is the same file" in line for line in training.resume(training.save()))


@pytest.fixture
def with_split(tmp_path: Path) -> Training:
    """A run of 40 clips that holds a quarter of them out, after its first step."""
    training = Training(tmp_path, num_pictures=40)
    training.changes["validation"] = {"split": 0.25}
    training.resume(training.save())
    training.step()
    return training


def test_a_new_name_moves_no_clip_to_the_other_side(with_split: Training) -> None:
    held = set(with_split.names(with_split.data.held_out().ordinal))
    assert 0 < len(held) < 40
    rename(with_split, "renamed")
    assert "held out" not in " ".join(with_split.resume(with_split.save()))
    assert set(with_split.names(with_split.data.held_out().ordinal)) == held


def test_clips_that_a_new_content_moves_to_the_other_side_are_told(with_split: Training) -> None:
    training = with_split
    held = set(training.names(training.data.held_out().ordinal))
    for i in range(0, 40, 2):
        files.picture(training.folder / f"{i:02}.png", grey=100 + i)
    said = " ".join(training.resume(training.save()))
    now = set(training.names(training.data.held_out().ordinal))
    assert 0 < len(now - held) < 20
    assert all(int(name.removesuffix(".png")) % 2 == 0 for name in now ^ held)
    assert (
        f"{len(now - held)} clips that may have been trained are held out now, and {len(held - now)} the other" in said
    )


SIZES = [{"resolution": f"{side}px", "num_frames": 1, "batch_size": 2} for side in (16, 32, 48)]


def resolutions(training: Training, *names: str, **keys: Any) -> None:
    dataset = {"path": str(training.folder), "resolutions": list(names) or None, **keys}
    training.changes |= {"bucket": SIZES, "dataset": [{k: v for k, v in dataset.items() if v is not None}]}


def begun_with(training: Training, *names: str) -> None:
    resolutions(training, *names)
    training.resume(training.save())  # at its first step an epoch takes any change
    training.step()


def test_more_repeats_leave_what_was_trained_at_each_resolution(training: Training) -> None:
    begun_with(training, "32px", "48px")
    resolutions(training, "32px", "48px", repeats=2)
    training.resume(training.save())
    plan = training.position.plan
    left = Counter(zip(training.names(plan.ordinal), plan.bucket.tolist(), strict=True))
    assert sum(left.values()) == 2 * 2 * 9 - len(training.trained)
    assert max(left.values()) == 2
    assert sorted(Counter(left.values())) == [1, 2], "what was trained once at a resolution is trained there once more"
    training.check_end()


@pytest.mark.parametrize(("before", "now"), [(["32px", "48px"], ["48px", "32px"]), ([], ["48px"]), (["48px"], [])])
@pytest.mark.quick_cases(1)
def test_other_resolutions_wait_for_the_end_of_the_epoch(training: Training, before: list[str], now: list[str]) -> None:
    """What was trained is numbered by them, so that it could not be told what an epoch has left."""
    begun_with(training, *before)
    saved = training.save()
    resolutions(training, *now)
    with refused("uses-changed", "dataset.resolutions"):
        training.resume(saved)
    rename(training, "renamed")
    with refused("uses-changed", "dataset.resolutions"):
        training.resume(saved)
    rename(training, "data")
    resolutions(training, *before)
    training.resume(saved)
    training.check_end()
    saved = training.save()
    rename(training, "renamed")
    resolutions(training, *now)
    assert "dataset `data` seems to be `renamed` now: 9 clips are the same files" in training.resume(saved)[0]
    assert (training.position.epoch, training.position.plan_step) == (1, 0)
    assert len(training.position.aliases.key) == 9


actions = st.lists(
    st.one_of(
        st.tuples(st.just("train"), st.integers(1, 3)),
        st.tuples(st.just("add"), st.integers(0, 3)),
        st.tuples(st.just("edit"), st.integers(0, 11)),
        st.tuples(st.just("remove"), st.integers(0, 11)),
        st.tuples(st.just("batch"), st.integers(1, 4)),
        st.tuples(st.just("repeats"), st.integers(1, 3)),
        st.tuples(st.just("rename"), st.integers(0, 1)),
        st.tuples(st.just("anew"), st.just(0)),
        st.tuples(st.just("compact"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("back"), st.integers(0, 5)),
    ),
    min_size=3,
    max_size=12,
)


def act(training: Training, saves: list[Any], action: str, n: int) -> None:
    present = sorted(training.folder.glob("*.png"))
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
        repeats(training, n)
    elif action == "rename":
        act(training, saves, "restart", 0)  # a file that is edited and renamed at once is a new clip
        rename(training, f"name{n}")
        act(training, saves, "restart", 0)
        saves.append(training.save())
    elif action == "anew":
        lose_the_catalog(training)
    elif action == "compact":
        compact_the_catalog(training)
    elif action in ("restart", "back"):
        # Killed: what was trained since the checkpoint is undone, and later checkpoints are void.
        del saves[max(len(saves) - (n if action == "back" else 0), 1) :]
        training.resume(saves[-1])


@settings(max_examples=settings().max_examples // 8)
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


def lose(record: Path) -> None:
    shutil.rmtree(record)


def tear(record: Path) -> None:
    (record / "places.parquet").write_bytes(b"torn")


def lose_the_kept_catalog(record: Path) -> None:
    shutil.rmtree(record.with_name("catalog-000"))


def put_another(record: Path) -> None:
    """One of the same segment, of other data."""
    shutil.rmtree(record)
    other = Training(record.parent / "other", 5)
    shutil.copytree(records.path(other.run, (0, 0, 0)), record)


@pytest.mark.parametrize("damage", [lose, tear, lose_the_kept_catalog, put_another])
def test_a_change_without_the_former_record_is_refused(training: Training, damage: Any) -> None:
    training.step()
    saved = training.save()
    record = records.path(training.run, (0, 0, 0))
    damage(record)
    picture(training, "new.png")
    with refused("record-missing", "resume") as caught:
        training.resume(saved)
    assert (caught.value.field, caught.value.value) == ("resume", str(record))


def test_no_restart_is_proposed_where_stages_refuse_it(training: Training) -> None:
    training.step()
    begun, saves, remedies = training.position, [], []
    for stage in (StageStart(), StageStart("clips")):
        training.position = replace(begun, stage=stage)
        saves.append(training.save())
    picture(training, "new.png")
    lose(records.path(training.run, (0, 0, 0)))
    for saved in saves:
        with refused("record-missing", "resume") as caught:
            training.resume(saved)
        remedies.append(caught.value.remedy)
    assert ["--restart-data" in remedy for remedy in remedies] == [True, False]


def test_an_earlier_record_of_the_epoch_is_not_needed(training: Training) -> None:
    """What its clips became is in the checkpoint."""
    training.step()
    picture(training, "new.png")
    training.resume(training.save())
    training.step()
    shutil.rmtree(records.path(training.run, (0, 0, 0)))
    picture(training, "late.png")
    training.resume(training.save())
    training.check_end()


def test_a_catalog_made_anew_counts_by_clip_not_by_row(training: Training) -> None:
    training.step()
    saved = training.save()
    for name in ("0a.png", "0b.png", "zz.png"):
        picture(training, name)
    remove(training, "03.png")
    lose_the_catalog(training)
    training.resume(saved)
    training.check_end()


def test_a_smaller_catalog_made_anew_is_no_index_error(training: Training) -> None:
    training.step()
    saved = training.save()
    for i in range(7):
        remove(training, f"{i:02}.png")
    lose_the_catalog(training)
    training.resume(saved)
    training.check_end()


def test_a_catalog_made_anew_after_a_change_counts_by_clip_too(training: Training) -> None:
    """It is made anew twice, with changes before and between."""
    training.step()
    picture(training, "new.png")
    training.resume(training.save())
    for name in ("0a.png", "0b.png"):
        training.step()
        saved = training.save()
        picture(training, name)
        lose_the_catalog(training)
        training.resume(saved)
    training.check_end()
    assert len(training.trained) == 12


@pytest.mark.parametrize("lost", [False, True])
def test_a_clip_that_an_epoch_did_not_have_is_known_from_one_before(training: Training, lost: bool) -> None:
    """It comes back with its dataset, which has another name by then; its account is lost with the former records."""
    remove(training, "03.png")
    training.resume(training.save())
    training.steps(10_000)
    training.position, _ = position.next_epoch(training.data, training.spec(), training.position)
    segment_record.begin(training.run, training.data, training.position, "recipe.toml")
    if lost:
        shutil.rmtree(records.path(training.run, (0, 0, 0)))
    rename(training, "film")
    picture(training, "03.png", grey=3)
    changes = training.resume(training.save())
    assert "1 clip added, 0 removed" in changes[0]
    now = training.data.rows
    first = [hash_rng.hash_int("data", name) for name in now.path.to_pylist()]
    keys = training.position.aliases.keys(now.ordinal, now.uid).tolist()
    assert [name for name, a, b in zip(now.path.to_pylist(), first, keys, strict=True) if a != b] == ["03.png"] * lost


def test_of_earlier_epochs_a_record_is_read_only_for_clips_that_are_gone(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each epoch sees a clip more, and the second one less."""
    for number in range(3):
        picture(training, f"late-{number}.png", grey=20 + number)
        if number == 1:
            remove(training, "03.png")
        training.resume(training.save())
        training.steps(10_000)
        training.position, _ = position.next_epoch(training.data, training.spec(), training.position)
        segment_record.begin(training.run, training.data, training.position, "recipe.toml")
    picture(training, "last.png", grey=40)
    asked: list[records.Key] = []
    read = records.read
    monkeypatch.setattr(records, "read", lambda run, key, plan=None: (asked.append(key), read(run, key, plan))[1])
    assert "1 clip added, 0 removed" in training.resume(training.save())[0]
    assert set(asked) == {(0, 3, 0), (0, 1, 0)}


def test_a_renamed_clip_is_the_same_one_in_the_next_epochs_too(training: Training) -> None:
    """It is known by the name under which it was first seen, although the epochs' plans have the new one."""
    training.step()
    rename(training, "film")
    training.resume(training.save())
    rows = training.data.rows
    first = [hash_rng.hash_int("data", name) for name in rows.path.to_pylist()]
    for _ in range(3):
        assert training.position.aliases.keys(rows.ordinal, rows.uid).tolist() == first
        training.steps(10_000)
        training.position, _ = position.next_epoch(training.data, training.spec(), training.position)


def test_data_that_begin_again_need_no_record(training: Training) -> None:
    """With it the clips are the same ones; without it all of them are new."""
    training.step()
    rename(training, "film")
    cursor, _, aliases, _ = training.save()
    for lost in (False, True):
        if lost:
            shutil.rmtree(training.run.coverage_folder)
        training.open()
        begun, changes = resume.start_again(
            training.data, training.spec(), training.run, Cursor(**cursor), Aliases.from_bytes(aliases), StageStart()
        )
        assert (begun.data_restarts, begun.epoch, begun.segment, begun.plan_step) == (1, 0, 0, 0)
        assert (begun.plan.planned, begun.global_step) == (9, 1)
        assert (begun.stage.epochs_step, begun.stage.epoch_steps) == (1, begun.plan.num_steps)
        assert not begun.excluded
        assert bool(begun.aliases) == bool(changes) == (not lost)
        assert all(line.endswith("they are trained again, as all are") for line in changes)


def test_ranks_that_see_other_catalogs_are_all_told_before_they_call_each_other() -> None:
    """A machine with an older copy would not take part in what the others do with a changed one, who would wait for it."""
    with refused("ranks-planned-differently", "catalog", says="rank 1, 3 planned"):
        of_runs._require_alike(SimpleNamespace(gather=lambda own: [own, "older", own, "older"]), "digest")
    of_runs._require_alike(SimpleNamespace(gather=lambda own: [own] * 4), "digest")
