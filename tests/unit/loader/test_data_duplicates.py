"""Near-duplicates count once: of each group one clip is used, which one is the same wherever it is asked, and the others say so."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import prepare_files as files
import pytest
from catalog_rows import rows
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from reelworks.data.buckets.assign import Assignment, Reason
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.loader import duplicates, held_out, left_out
from reelworks.data.loader.loader import Loader
from reelworks.data.schedule.cursor import Excluded
from reelworks.testing.exact_resume import assert_exact_resume
from reelworks.training.encoding import reachable
from reelworks.training.plan import rejections
from reelworks.training.recipe import dataset
from reelworks.training.recipe.dataset import ProposedBuckets, RecipeData

_CLIP = st.fixed_dictionaries(
    {
        "group": st.sampled_from([np.nan, 1.0, 2.0, 3.0]),
        "rank": st.sampled_from([np.nan, 0.0, 1.0, 2.0]),
        "reason": st.sampled_from([Reason.NONE, Reason.NONE, Reason.NOT_DRAWN, Reason.FILTERED, Reason.TOO_SMALL]),
        "held": st.booleans(),
        "used": st.sampled_from([False, False, False, True]),
        "uses": st.integers(1, 2),
    }
)


class Drawn:
    """Clips as an epoch would have them if near-duplicates did not count once."""

    def __init__(self, clips: list[dict[str, Any]], how: str) -> None:
        self.clips, self.how = clips, how
        scores = {
            name: np.array([clip[name.split("_")[1]] for clip in clips]) for name in (duplicates.GROUP, duplicates.RANK)
        }
        self.rows = rows(*({} for _ in clips)).replaced(scores=scores)
        self.groups = duplicates.groups(self.rows, [DatasetConfig(path="data", duplicates=how)], ())
        self.row = np.repeat(np.arange(len(clips)), [clip["uses"] for clip in clips])
        self.reason = np.array([self.of_clip(clip) for clip in clips], dtype=np.int8)
        self.held = np.array([clip["held"] for clip in clips])

    @staticmethod
    def of_clip(clip: dict[str, Any]) -> int:
        fits = clip["reason"] in (Reason.NONE, Reason.NOT_DRAWN)
        return int(Reason.HELD_OUT if fits and clip["held"] else clip["reason"])

    def fits(self, row: int) -> bool:
        return self.reason[row] in (Reason.NONE, Reason.NOT_DRAWN, Reason.HELD_OUT)

    def epoch(self, number: int, used: list[bool] | None = None) -> tuple[list[int], list[int]]:
        """Reason of each clip, and the row that stands for it."""
        none = np.full(len(self.row), -1, dtype=np.int32)
        base = Assignment(none, self.reason[self.row], none)
        result = base
        if self.groups is not None:
            result = duplicates.count_once(
                self.groups,
                base,
                self.row,
                held_out=self.held[self.row],
                uid=self.rows.uid,
                used=np.array(used or [False] * len(self.clips)),
                seed=5,
                epoch=number,
            )
        first = np.searchsorted(self.row, np.arange(len(self.clips)))
        for use, row in enumerate(self.row):  # all uses of a clip share its fate
            assert result.reason[use] == result.reason[first[row]]
        return result.reason[first].tolist(), result.nearest[first].tolist()

    def members(self) -> list[list[int]]:
        """Fitting clips of each group, the best first."""
        found: dict[float, list[int]] = {}
        for row, clip in enumerate(self.clips):
            if not np.isnan(clip["group"]) and self.fits(row):
                found.setdefault(clip["group"], []).append(row)
        uid = self.rows.uid
        return [
            sorted(of, key=lambda r: (np.nan_to_num(self.clips[r]["rank"], nan=9), uid[r])) for of in found.values()
        ]


@given(st.lists(_CLIP, min_size=1, max_size=9), st.sampled_from(["best", "weight"]))
def test_of_each_group_one_clip_is_used_and_the_others_name_it(clips: list[dict[str, Any]], how: str) -> None:
    drawn = Drawn(clips, how)
    for number in range(7):
        reason, stand = drawn.epoch(number)
        for row in range(len(clips)):
            if not Reason(reason[row]).is_duplicate:
                assert (reason[row], stand[row]) == (drawn.reason[row], -1)
            else:
                assert drawn.fits(row)
        for group in drawn.members():
            (chosen,) = [row for row in group if not Reason(reason[row]).is_duplicate]
            assert {stand[row] for row in group if row != chosen} <= {chosen}
            if how == "best" or drawn.held[group[0]]:
                assert chosen == group[0]
            assert drawn.held[chosen] == drawn.held[group[0]]


@given(st.lists(_CLIP, min_size=1, max_size=9))
def test_in_turn_each_clip_of_a_group_is_used_equally_often_and_none_is_in_training_and_validation(
    clips: list[dict[str, Any]],
) -> None:
    drawn = Drawn(clips, "weight")
    epochs = [drawn.epoch(number)[0] for number in range(60)]  # 60 divides by all sizes of groups up to 6
    for group in drawn.members():
        uses = Counter(row for reason in epochs for row in group if not Reason(reason[row]).is_duplicate)
        assert uses.total() == 60
        if drawn.held[group[0]]:
            assert uses == {group[0]: 60}
        else:
            trained = [row for row in group if not drawn.held[row]]
            if len(trained) <= 6:
                assert uses == {row: 60 // len(trained) for row in trained}
            assert {epochs[0][row] for row in group if drawn.held[row]} <= {Reason.DUPLICATE}
            waiting = {epochs[n][row] for n in range(60) for row in trained if epochs[n][row] != drawn.reason[row]}
            assert waiting <= {Reason.DUPLICATE_TURN}


@given(st.lists(_CLIP, min_size=1, max_size=9), st.sampled_from(["best", "weight"]))
def test_a_group_that_an_epoch_used_before_is_not_used_again(clips: list[dict[str, Any]], how: str) -> None:
    drawn = Drawn(clips, how)
    used = [clip["used"] for clip in clips]
    for number in range(3):
        reason, _ = drawn.epoch(number, used)
        for value in {clip["group"] for clip in clips if clip["used"] and not np.isnan(clip["group"])}:
            of = [row for row, clip in enumerate(clips) if clip["group"] == value]
            if len(of) > 1:
                left = [row for row in of if drawn.fits(row) and not Reason(reason[row]).is_duplicate]
                assert len(left) <= 1
                assert all(used[row] for row in left)


LINES = "path,text,duplicate_group,duplicate_rank\na.png,a,1,1\nb.png,b,1,0\nc.png,c,,\nd.png,d,2,0\ne.png,e,2,1\nf.png,f,2,2\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i, name in enumerate("abcdef"):
        files.picture(tmp_path / "data" / f"{name}.png", (16, 16) if name == "d" else (48, 64), grey=40 * i)
    (tmp_path / "data" / "meta.csv").write_text(LINES, encoding="utf-8")
    return tmp_path


def recipe(folder: Path, how: str, **changes: Any) -> Any:
    one = {"path": str(folder / "data" / "meta.csv"), "duplicates": how, **changes.pop("entry", {})}
    return files.recipe(folder, dataset=[one], **changes)


def names(data: RecipeData, epoch: int = 0) -> set[str]:
    ordinals = data.entries(epoch).ordinal
    return {data.rows.path[int(i)].as_py()[0] for i in data.rows_at(ordinals)}


def test_the_best_that_can_be_trained_stands_for_the_others(folder: Path, tmp_path: Path) -> None:
    """A clip that is too small, filtered or excluded never does, whatever its rank."""
    assert names(files.opened(recipe(folder, "keep"))) == set("abcef")
    data = RecipeData.open(recipe(folder, "best"))
    assert names(data) == set("bce")
    told = rejections.named(data, left_out.by_reason(*data.assignment(0)))
    assert [(one.path, one.detail) for one in told["duplicate"]] == [
        ("meta/a.png", "meta/b.png stands for it"),
        ("meta/f.png", "meta/e.png stands for it"),
    ]
    assert rejections.counts(data, left_out.by_reason(*data.assignment(0)))["duplicate"].nearest == {}
    assert names(RecipeData.open(recipe(folder, "best", entry={"filter": "path != 'b.png'"}))) == set("ace")
    (tmp_path / "bad.txt").write_text("meta/e.png\n", encoding="utf-8")
    assert names(RecipeData.open(recipe(folder, "best", exclude_file=str(tmp_path / "bad.txt")))) == set("bcf")


def test_in_turn_the_epochs_train_all(folder: Path) -> None:
    data = files.opened(recipe(folder, "weight"))
    each = [names(data, epoch) for epoch in range(4)]
    assert [len(one) for one in each] == [3] * 4
    assert each[:2] == each[2:]
    assert each[0] | each[1] == set("abcef")
    assert [names(RecipeData.open(data.recipe), epoch) for epoch in range(4)] == each
    encoded = np.concatenate(
        [
            chunk.clips.ordinal
            for chunk in reachable.chunks(data, reachable.in_epochs(data, data.plan_spec(1, 1), range(2)))
        ]
    )
    assert {data.rows.path[int(i)].as_py()[0] for i in data.rows_at(encoded)} == set("abcef")
    other = RecipeData.open(recipe(folder, "weight", seed=3))
    assert {tuple(sorted(names(replace_seed(other, seed)))) for seed in range(20)} == {
        ("a", "c", "e"), ("a", "c", "f"), ("b", "c", "e"), ("b", "c", "f")
    }  # fmt: skip


def two_lists(folder: Path, header: str) -> Any:
    """A recipe with two lists of the same clips, each of three groups by the same numbers; of the second all bytes differ."""
    for i, name in enumerate("abcdef"):
        files.picture(folder / "other" / f"{name}.png", (48, 64), grey=40 * i + 7)
        files.picture(folder / "data" / f"{name}.png", (48, 64), grey=40 * i)
    lines = [header, *(f"{name}.png,{name},{i // 2},{i % 2}" for i, name in enumerate("abcdef"))]
    for name in ("data", "other"):
        (folder / name / "meta.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    entries = [{"path": str(folder / name / "meta.csv"), "name": name} for name in ("data", "other")]
    return files.recipe(folder, dataset=[{**entry, "duplicates": "best"} for entry in entries])


def test_a_lists_numbers_of_groups_say_nothing_about_other_datasets(folder: Path) -> None:
    """Of each list the best of its three groups are trained, and which of them are held out depends on no other list."""
    data = files.opened(two_lists(folder, "path,text,duplicate_group,duplicate_rank"))
    trained = [data.rows.label(int(i)) for i in data.rows_at(data.entries(0).ordinal)]
    assert sorted(trained) == [f"{name}/{clip}.png" for name in ("data", "other") for clip in "ace"]
    key = held_out.keys(data.rows, "file", duplicates.numbering_lists(data.catalog))
    assert sorted(Counter(key.tolist()).values()) == [2] * 6


def test_a_run_of_one_list_with_groups_keeps_the_clips_that_it_holds_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on exactly where it stopped, if it began when the numbers of every list were keys as they are."""

    def as_they_are(rows: CatalogRows, _own: object) -> tuple[Any, Any]:
        row = np.flatnonzero(np.isfinite(rows.score(duplicates.GROUP)))
        return row, rows.score(duplicates.GROUP)[row].view(np.uint64)

    one = {"resolution": "48px", "num_frames": 1, "batch_size": 1}
    made = recipe(folder, "keep", bucket=[one], validation={"split": 0.4})
    held = files.opened(made).is_held_out.tolist()
    monkeypatch.setattr(duplicates, "numbers", as_they_are)
    loaders = [Loader(RecipeData.open(made), micro_batches_per_step=1)]
    assert loaders[0].dataset.is_held_out.tolist() == held
    monkeypatch.undo()
    assert 0 < sum(held) < 5
    assert_exact_resume(
        lambda: loaders.pop() if loaders else Loader(RecipeData.open(made), micro_batches_per_step=1), steps=6
    )


@pytest.mark.parametrize("column", [duplicates.GROUP, duplicates.RANK])
def test_a_group_and_the_ranks_in_it_come_from_one_giver(folder: Path, column: str) -> None:
    made = two_lists(folder, f"path,text,{column},aes")
    dataset.scan_recipe(made)
    with refused("duplicates-incomplete", "dataset.duplicates", says=f"gives {column} alone") as caught:
        RecipeData.open(made)
    other = {duplicates.GROUP: duplicates.RANK, duplicates.RANK: duplicates.GROUP}[column]
    assert f"add the column {other} to the list" in caught.value.remedy
    for listed in folder.glob("*/meta.csv"):
        listed.write_text(listed.read_text(encoding="utf-8").replace("aes", other), encoding="utf-8")
    dataset.scan_recipe(made)
    RecipeData.open(made)


@pytest.mark.parametrize("how", ["best", "weight"])
def test_buckets_are_proposed_for_one_clip_of_each_group(folder: Path, how: str) -> None:
    data = files.opened(
        recipe(folder, how, bucket=[], buckets={"entries": "auto"}, entry={"filter": "path != 'd.png'"})
    )
    assert isinstance(data.chosen, ProposedBuckets)
    assert (data.chosen.reached, data.chosen.clips) == (3, 3)


def replace_seed(data: RecipeData, seed: int) -> RecipeData:
    return RecipeData.open(data.recipe.model_copy(update={"seed": seed}))


def test_a_clip_with_a_better_duplicate_that_comes_within_an_epoch_is_not_trained_twice(folder: Path) -> None:
    """What the epoch used before stands for its group: the plan of the rest has no other clip of it."""
    data = files.opened(recipe(folder, "best"))
    assert names(data) == set("bce")
    consumed = np.flatnonzero(np.isin([path[0] for path in data.rows.path.to_pylist()], ["b"]))
    excluded = Excluded().with_places(data.rows.ordinal[consumed], np.zeros(1, dtype=np.int64))
    (folder / "data" / "meta.csv").write_text(
        LINES.replace("a,1,1", "a,1,-1").replace("e,2,1", "e,2,5"), encoding="utf-8"
    )
    after = files.opened(data.recipe)
    assert names(after) == set("acf")
    spec = after.plan_spec(1, 1)
    rest = after.planned(spec, (0, 0, 1), _moved(excluded, data, after))
    planned = {after.rows.path[int(i)].as_py()[0] for i in after.rows_at(rest.plan.ordinal)}
    assert planned == {"c", "f"}
    reasons = dict(zip(after.rows_at(rest.others.ordinal).tolist(), rest.others.reason.tolist(), strict=True))
    by_name = {after.rows.path[row].as_py()[0]: Reason(reason).label for row, reason in reasons.items()}
    assert by_name == {"a": "duplicate", "b": "none", "d": "too_small", "e": "duplicate"}


def _moved(excluded: Excluded, before: RecipeData, after: RecipeData) -> Excluded:
    """The same clips in the newer catalog, of which an edited one has a new row."""
    ordinal, copy = excluded.places()
    row = after.rows.find(before.catalog.uids()[ordinal])
    return Excluded().with_places(after.rows.ordinal[row], copy)


def test_an_epoch_goes_on_exactly_where_it_stopped(folder: Path) -> None:
    """Through three epochs, from every step; and a plan without the key has the digest of one that keeps all."""
    data = files.opened(recipe(folder, "weight", bucket=[{"resolution": "48px", "num_frames": 1, "batch_size": 1}]))
    assert_exact_resume(lambda: Loader(RecipeData.open(data.recipe), micro_batches_per_step=1), steps=9, at=range(9))
    keep = RecipeData.open(recipe(folder, "keep"))
    plain = RecipeData.open(files.recipe(folder, dataset=[{"path": str(folder / "data" / "meta.csv")}]))
    assert keep.plan_spec(1, 1) == plain.plan_spec(1, 1)
    assert (
        len({RecipeData.open(recipe(folder, how)).plan_spec(1, 1).digest() for how in ("keep", "best", "weight")}) == 3
    )


@pytest.mark.slow
def test_validation_and_training_never_have_clips_of_one_group(folder: Path) -> None:
    seen = set()
    for seed in range(30):
        data = files.opened(recipe(folder, "weight", seed=seed, validation={"split": 0.4}))
        held = {data.rows.path[int(i)].as_py()[0] for i in data.rows_at(data.held_out().ordinal)}
        trained = set.union(*(names(data, epoch) for epoch in range(2)))
        for group in ("ab", "ef"):
            assert not (held & set(group) and trained & set(group))
            assert len(held & set(group)) <= 1
        seen.add(frozenset(held & set("be")))
    assert {frozenset("b"), frozenset("e")} <= seen


def test_a_filter_by_ranks_over_a_catalog_is_refused_and_by_those_of_a_list_is_not(folder: Path) -> None:
    assert names(files.opened(recipe(folder, "keep", entry={"filter": "duplicate_rank == 0"}))) == {"b"}
    made = files.recipe(folder, dataset=[{"path": str(folder / "data"), "filter": "duplicate_rank == 0"}])
    dataset.scan_recipe(made)
    with refused("filter-of-duplicates", "dataset.filter", says="duplicate_rank") as caught:
        RecipeData.open(made)
    assert 'duplicates = "best"' in caught.value.remedy
    assert "`--set dataset.0.filter=none`" in caught.value.remedy


@pytest.mark.parametrize("how", ["best", "weight"])
def test_without_the_columns_it_is_refused_with_how_to_measure_them(folder: Path, how: str) -> None:
    made = files.recipe(folder, dataset=[{"path": str(folder / "data"), "duplicates": how}])
    dataset.scan_recipe(made)
    with refused("duplicates-not-measured", "dataset.duplicates", says="no columns duplicate_group") as caught:
        RecipeData.open(made)
    assert "/catalog --only duplicates`" in caught.value.remedy
