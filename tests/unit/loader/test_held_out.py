"""Clips that share content, a group of near-duplicates or a folder are on one side, whatever their names and order are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import prepare_files as files
import pytest
from catalog_rows import rows
from hypothesis import given
from hypothesis import strategies as st

from reelworks.core import digests
from reelworks.data.buckets.assign import Reason
from reelworks.data.catalog.scan.update import uids_of
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.loader import duplicates, held_out
from reelworks.data.loader.data_spec import DataSpec
from reelworks.data.loader.held_out import keys
from reelworks.inference.evaluate.training_clips import TrainingClips
from reelworks.training.recipe.dataset import RecipeData

_SCORE = f"score:{duplicates.GROUP}"
_STATED = "3e8-17a0b1c2d3e4f506"  # of a trusted list: size and time
_CLIP = st.fixed_dictionaries(
    {
        "content": st.one_of(st.none(), st.integers(0, 7)),
        "group": st.sampled_from([np.nan, np.nan, 1.0, 2.0, 3.0]),
        "folder": st.sampled_from("xyz"),
        "dataset": st.sampled_from("ab"),
        "is_range": st.booleans(),
    }
)
_CLIPS = st.lists(_CLIP, min_size=1, max_size=12)


def fingerprint(number: int | None) -> str:
    """As a scan makes it; None for a trusted list."""
    return _STATED if number is None else f"{number:x}-{hash_of(number)}"


def hash_of(number: int) -> str:
    return "".join("0123456789abcdef"[(number * 7 + i * i) % 16] for i in range(30)) + f"{number:02x}"


def rows_of(clips: list[dict[str, Any]], named: str = "") -> CatalogRows:
    """Rows of clips, each with a path of its own that tells nothing of its content."""
    made = []
    for i, clip in enumerate(clips):
        path = f"{clip['folder']}{named}/{clip.get('name', i)}{named}.mp4"
        dataset = clip["dataset"] + named
        identity = {"dataset": dataset, "path": path, "group": path, "uid": int(uids_of(dataset, [path])[0])}
        how = {"cut": "list", "first_frame": i} if clip["is_range"] else {}
        made.append({**identity, **how, "fingerprint": fingerprint(clip["content"]), _SCORE: clip["group"]})
    return rows(*made)


def sets(clips: list[dict[str, Any]], by: str) -> list[int]:
    """Number of the set of each clip, found one by one."""
    number = list(range(len(clips)))
    for _ in clips:
        for i, a in enumerate(clips):
            for j, b in enumerate(clips[:i]):
                same_content = a["content"] is not None and a["content"] == b["content"]
                same_folder = by == "folder" and (a["folder"], a["dataset"]) == (b["folder"], b["dataset"])
                if same_content or same_folder or a["group"] == b["group"]:
                    number[i] = number[j] = min(number[i], number[j])
    return number


@given(_CLIPS, st.sampled_from(["file", "folder"]))
def test_clips_have_one_key_exactly_if_something_connects_them(clips: list[dict[str, Any]], by: Any) -> None:
    key, number = keys(rows_of(clips), by), np.array(sets(clips, by))
    assert np.array_equal(key[:, None] == key, number[:, None] == number)


@given(_CLIPS, st.sampled_from(["file", "folder"]), st.randoms())
def test_neither_order_nor_names_matter(clips: list[dict[str, Any]], by: Any, random: Any) -> None:
    clips = [{**clip, "content": clip["content"] or 0} for clip in clips]
    order = list(range(len(clips)))
    random.shuffle(order)
    other = keys(rows_of([clips[i] for i in order], named="-renamed"), by)
    assert np.array_equal(keys(rows_of(clips), by)[order], other)


@given(_CLIPS, _CLIP)
def test_a_further_clip_moves_no_other_unless_it_connects_some(
    clips: list[dict[str, Any]], new: dict[str, Any]
) -> None:
    """It is a file of its own, a copy, or a near-duplicate of clips that were measured."""
    clips = [{**clip, "name": i} for i, clip in enumerate(clips)]
    copy, near = new["content"], {**new, "name": "new", "content": 99}
    for further in (near, {**near, "content": copy, "group": np.nan}):
        before = keys(rows_of(clips), "file")
        assert np.array_equal(keys(rows_of([*clips, further]), "file")[:-1], before)


@given(_CLIPS, st.data())
def test_stages_that_share_some_clips_hold_out_the_same_ones(clips: list[dict[str, Any]], data: Any) -> None:
    """Also near-duplicates of which each stage has another one, such as large and small copies."""
    clips = [{**clip, "name": i, "content": i} for i, clip in enumerate(clips)]
    stage = data.draw(st.lists(st.sampled_from(range(len(clips))), min_size=1, unique=True))
    of_stage = keys(rows_of([clips[i] for i in stage]), "file")
    assert np.array_equal(of_stage, keys(rows_of(clips), "file")[stage])


@pytest.mark.parametrize("split", [0.01, 0.2, 0.5])
def test_about_the_share_that_was_asked_for_is_held_out(split: float) -> None:
    count, copies = 5_000, 2
    clips = [{"fingerprint": f"1f-{i % count * 7919:032x}"} for i in range(copies * count)]
    held = held_out.held_out(rows(*clips), DataSpec((), seed=5, split=split))
    assert abs(held.mean() - split) < 4 * (split * (1 - split) / count) ** 0.5
    assert np.array_equal(held[:count], held[count:])


def test_clips_that_preserve_the_base_are_trained_and_not_measured(tmp_path: Path) -> None:
    """They are held out, and then measured by nothing, only if they are copies of clips that are."""
    for name, count in (("subject", 20), ("others", 30)):  # those have copies of all pictures of the subject
        for i in range(count):
            files.picture(tmp_path / name / f"{i}.png", grey=8 * i)
    dataset = [{"path": str(tmp_path / name), "name": name} for name in ("subject", "others")]
    recipe = files.recipe(tmp_path, dataset=dataset, validation={"split": 0.4})
    preserved = [d.model_copy(update={"prior_prediction": d.name == "others"}) for d in recipe.dataset]
    every: RecipeData = files.opened(recipe)
    data: RecipeData = files.opened(recipe.model_copy(update={"dataset": preserved}))
    of_others = data.rows.of_datasets(["others"])
    own = of_others & (np.array([int(Path(path).stem) for path in data.rows.path.to_pylist()]) >= 20)
    assert every.is_held_out[own].any()
    assert np.array_equal(data.is_held_out, every.is_held_out & ~own)
    (assignment, row), uid = data.assignment(0), data.rows.uid
    told = {int(uid[r]): int(reason) for r, reason in zip(row, assignment.reason.tolist(), strict=True)}
    assert told == {
        int(u): int(Reason.HELD_OUT if out else Reason.NONE) for u, out in zip(uid, data.is_held_out, strict=True)
    }
    subject = set(uid[~of_others].tolist())
    assert set(data.held_out().uid.tolist()) == subject & set(uid[data.is_held_out].tolist())
    assert set(data.each_clip()[0].uid.tolist()) == subject
    names = {clip.name for clip in TrainingClips.of_data(data).read()}
    assert len(names) == sum(reason == Reason.NONE and u in subject for u, reason in told.items())


def test_content_is_told_by_a_digest_alone() -> None:
    texts = ["", _STATED, "ffffffffffffffff-ffffffffffffffff", fingerprint(1), "clip-1", fingerprint(2), fingerprint(1)]
    column = rows(*({"fingerprint": text} for text in texts)).fingerprint
    known = [text in (fingerprint(1), fingerprint(2)) for text in texts]
    assert (digests.content_keys(column) != digests.NO_CONTENT).tolist() == known
    assert digests.content_keys(column)[3] == digests.content_keys(column)[6] != digests.content_keys(column)[5]
    assert np.array_equal(digests.content_keys(column.slice(3, 3)), digests.content_keys(column)[3:6])


def test_files_of_other_folders_and_datasets_are_on_the_same_side(tmp_path: Path) -> None:
    """The same files in two recipes, as two stages may have them, and twice in one dataset."""
    contents: dict[str, dict[str, set[bool]]] = {}
    for name, place in (("one", "a"), ("two", "b/deep"), ("three", "c")):
        folder = tmp_path / name / place
        for i in range(24):
            files.picture(folder / f"{name}-{i}.png", grey=10 * i)
        if name == "three":
            for i in range(24):
                files.picture(folder / f"again-{i}.png", grey=10 * i)
        dataset = [{"path": str(tmp_path / name / place.partition("/")[0]), "name": name}]
        recipe = files.recipe(tmp_path / name, dataset=dataset, validation={"split": 0.4})
        data: RecipeData = files.opened(recipe)
        sides: dict[str, set[bool]] = {}
        for path, is_held in zip(data.rows.path.to_pylist(), data.is_held_out.tolist(), strict=True):
            sides.setdefault(path.rpartition("-")[2], set()).add(is_held)
        contents[name] = sides
    assert contents["one"] == contents["two"] == contents["three"]
    assert {frozenset(side) for side in contents["one"].values()} == {frozenset({True}), frozenset({False})}
