"""Clips that a recipe leaves out by filter, by list, or by folder for validation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import prepare_files as files
import pytest
from catalog_rows import PICTURE, rows
from refused import refused

from reelworks.commands import show_plan
from reelworks.core import results
from reelworks.core.errors import UserError
from reelworks.data.buckets.assign import Reason
from reelworks.data.loader import eligibility, exclude_file
from reelworks.data.loader.exclude_file import ExcludeList
from reelworks.data.media.config import DataConfig
from reelworks.data.media.sound import SoundSpec
from reelworks.training.plan import plan_forecast
from reelworks.training.plan.rejections import LeftOutClip
from reelworks.training.recipe import dataset as sources
from reelworks.training.recipe.dataset import RecipeData


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight folders of three pictures each, and one of odd ones."""
    root = tmp_path_factory.mktemp("exclusion")
    for shot in range(8):
        for i in range(3):
            files.picture(root / "data" / f"shot-{shot}" / f"{i}.png", grey=3 * shot + i)
    files.picture(root / "more" / "shot-0" / "tall.png", (96, 48), grey=200)
    files.picture(root / "more" / "dumb.png", grey=201, caption=None)
    (root / "more" / "broken.png").write_text("no picture", encoding="utf-8")
    sources.scan_recipe(recipe(root))
    return root


def recipe(folder: Path, filters: dict[str, str] | None = None, **changes: Any) -> Any:
    datasets = [{"path": str(folder / name)} for name in ("data", "more")]
    for dataset in datasets:
        name = Path(dataset["path"]).name
        dataset |= {"filter": filters[name]} if filters and name in filters else {}
    return files.recipe(folder, dataset=datasets, **changes)


def reasons(data: RecipeData) -> dict[str, str]:
    """Reason by dataset and path."""
    assignment, row = data.assignment(0)
    names = [f"{data.rows.dataset[int(i)].as_py()}/{data.rows.path[int(i)].as_py()}" for i in row]
    return {n: Reason(r).label for n, r in zip(names, assignment.reason.tolist(), strict=True)}


def test_a_filter_holds_for_its_own_dataset_and_other_reasons_come_first(folder: Path) -> None:
    plain = reasons(RecipeData.open(recipe(folder)))
    data = RecipeData.open(recipe(folder, {"more": "height < 9", "data": "startswith(path, 'shot-1/')"}))
    told = reasons(data)
    assert told["more/dumb.png"] == "no_caption"
    assert told["more/broken.png"] == "unreadable"
    assert told["more/shot-0/tall.png"] == "filtered"
    others = {name for name in plain if name.startswith("data/")}
    assert {n for n in others if told[n] == "filtered"} == {n for n in others if "/shot-1/" not in n}
    assert {told[n] for n in others if "/shot-1/" in n} == {"none"}
    assert sorted(len(data.entries(epoch)) for epoch in range(2)) == [3, 3]


def test_where_each_dataset_has_a_filter_a_clip_is_judged_by_its_own(folder: Path) -> None:
    told = reasons(RecipeData.open(recipe(folder, {"data": "startswith(path, 'shot-1/')", "more": "height > width"})))
    passed = {f"data/shot-1/{i}.png" for i in range(3)} | {"more/shot-0/tall.png"}
    assert {name for name, reason in told.items() if reason == "none"} == passed


@pytest.mark.parametrize("key", ["hdr", "interlaced"])
def test_hdr_and_interlaced_clips_are_left_out_only_if_the_recipe_says_so(key: str) -> None:
    clips = rows({"hdr": "pq"}, {"hdr": "hlg"}, {"interlaced": True}, {"hdr": "pq", "caption": None}, {})
    label = {"hdr": [key, key, "none", "no_caption", "none"], "interlaced": ["none", "none", key, "no_caption", "none"]}
    nothing = np.zeros(len(clips), np.bool_)

    def told(config: DataConfig) -> list[str]:
        found = eligibility.exclusion_reasons(clips, [], config, companions=(), in_exclude_file=nothing)
        return [Reason(reason).label for reason in found.tolist()]

    assert told(DataConfig(**{key: "reject"})) == label[key]
    assert set(told(DataConfig())) == {"none", "no_caption"}


@pytest.mark.parametrize("missing", ["leave_out", "silent"])
@pytest.mark.parametrize("fps", [None, 24.0])
def test_clips_of_a_model_with_sound_have_it_and_last_as_long_as_it(missing: Any, fps: float | None) -> None:
    """Without a rate, frames that are spaced unevenly do not, and with one those of a slower clip."""
    heard = {"sound": "aac"}
    clips = rows(heard, {**heard, "variable_fps": True}, {**heard, "fps": 12.0}, {"fps": 23.976}, PICTURE)
    found = eligibility.exclusion_reasons(
        clips,
        [],
        DataConfig(fps=fps),
        companions=(),
        in_exclude_file=np.zeros(len(clips), np.bool_),
        sound=SoundSpec(16_000, 2, 640, 24.0, missing),
    )
    silent = "no_sound" if missing == "leave_out" else "none"
    assert [Reason(reason).label for reason in found.tolist()] == [
        "none",
        "sound_timing" if fps is None else "none",
        "sound_timing",
        silent,
        "no_sound",
    ]


def test_a_background_is_three_levels(folder: Path) -> None:
    assert recipe(folder, data={"alpha_color": [0, 0, 255]}).data.alpha_color == [0, 0, 255]
    with refused("color-out-of-range", "data.alpha_color", says="0 to 255"):
        recipe(folder, data={"alpha_color": [0, 0, 256]})


def test_a_filtered_clip_is_told_with_what_it_has(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = recipe(folder, {"more": "height <= width and kind == 'image'"})
    seen = plan_forecast.forecast(made, 1)
    show_plan.epoch(seen)
    assert "filtered: 1, left out by the recipe\n  height <= width leaves out 1\n" in capsys.readouterr().out
    told = results.as_json(seen)
    assert told["reasons"]["filtered"] == [
        {
            "path": "more/shot-0/tall.png",
            "detail": "height <= width: the clip has height 96, width 48",
        }
    ]
    assert told["left_out"]["filtered"] == {"clips": 1, "nearest": {}, "failed": {"height <= width": 1}}


def test_an_exclude_list_leaves_out_what_it_names_and_tells_what_it_does_not_find(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = folder / "bad.txt"
    bad.write_text(
        "\ufeff# seen by hand\n\n data/shot-2/0.png \ndata/shot-2/1.png # torn\ndata/shot-2/9.png\nmore/broken.png\n"
        "more/shot-2/2.png\nshot-2/2.png\n",
        encoding="utf-8",
    )
    data = RecipeData.open(recipe(folder, exclude_file=str(bad)))
    told = reasons(data)
    assert {n for n, r in told.items() if r == "in_exclude_file"} == {"data/shot-2/0.png", "data/shot-2/1.png"}
    assert told["more/broken.png"] == "unreadable"
    seen = plan_forecast.forecast(recipe(folder, exclude_file=str(bad)), 1)
    assert seen.exclude_list_unmatched == ["data/shot-2/9.png", "more/shot-2/2.png", "shot-2/2.png"]
    assert seen.reasons["in_exclude_file"][0] == LeftOutClip("data/shot-2/0.png", f"listed in {bad}")
    show_plan.epoch(seen)
    told_lines = capsys.readouterr().out
    assert "warning: exclude_file names data/shot-2/9.png, which is no clip" in told_lines
    assert "names data/shot-2/0.png" not in told_lines
    assert results.as_json(plan_forecast.forecast(recipe(folder), 1))["exclude_list_unmatched"] == []


def test_a_name_that_holds_a_hash_is_meant_as_it_stands() -> None:
    clips = rows({"path": "a #1.mp4"}, {"path": "a"}, {"path": "b"})
    named = ExcludeList(("data/a #1.mp4", "data/b # torn", "data/c # gone"))
    assert named.rows(clips).tolist() == [True, False, True]
    assert named.unmatched(clips) == ["data/c # gone"]


def test_a_name_of_a_dataset_may_begin_like_another() -> None:
    clips = rows({"dataset": "cats", "path": "x/a"}, {"dataset": "cats/x", "path": "a"}, {"dataset": "c", "path": "a"})
    assert ExcludeList(("cats/x/a",)).rows(clips).any()
    assert ExcludeList(("c/a",)).rows(clips).tolist() == [False, False, True]


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_an_exclude_list_that_cannot_be_read_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "bad.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match="cannot be read" if content is None else "not UTF-8") as caught:
        exclude_file.read_list(str(path))
    assert (caught.value.field, caught.value.value) == ("exclude_file", str(path))


def test_a_line_ends_where_no_name_goes_on(tmp_path: Path) -> None:
    """Names may have further signs at which Python splits lines."""
    names = ("data/a\u2028b.png", "data/c\x0bd.png", "data/e\x85f.png", "data/g.png")
    (tmp_path / "bad.txt").write_bytes("{}\r{}\r\n{}\n{}".format(*names).encode())
    assert exclude_file.read_list(str(tmp_path / "bad.txt")).lines == names


def test_clips_are_added_to_lists_alone(tmp_path: Path) -> None:
    """A recipe whose name stands where that of a list is asked for keeps its text."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("version = 1\n", encoding="utf-8")
    with refused("not-a-list", "--exclude-file", says="recipe.txt"):
        exclude_file.append(recipe, ["data/a.png"], field="--exclude-file")
    assert recipe.read_text(encoding="utf-8") == "version = 1\n"
    assert exclude_file.append(tmp_path / "recipe.txt", ["data/a.png"]) == 1


def test_lines_that_a_list_has_stay_as_they_are_when_a_clip_is_added(tmp_path: Path) -> None:
    listed = tmp_path / "bad.txt"
    former = b"# blurred:\r\ndata/a.png\r\n\r\ndata/b.png # shaky\r\n"
    listed.write_bytes(former)
    assert exclude_file.append(listed, ["data/a.png", "data/c.png"]) == 1
    assert listed.read_bytes() == former + b"data/c.png\n"


def test_a_list_to_which_no_clip_is_added_can_be_named(tmp_path: Path) -> None:
    listed = tmp_path / "none.txt"
    assert exclude_file.append(listed, []) == 0
    assert exclude_file.read_list(str(listed)).lines == ()


def test_a_folder_is_held_out_as_a_whole(folder: Path) -> None:
    def held(**validation: Any) -> dict[str, set[bool]]:
        by_folder: dict[str, set[bool]] = {}
        for name, reason in reasons(RecipeData.open(recipe(folder, validation=validation))).items():
            if reason in ("none", "held_out"):
                by_folder.setdefault(name.rpartition("/")[0], set()).add(reason == "held_out")
        return by_folder

    assert any(len(both) == 2 for both in held(split=0.5).values())
    whole = held(split=0.5, group="folder")
    assert all(len(one) == 1 for one in whole.values())
    assert {True, False} == set.union(*whole.values())


def test_folders_of_two_datasets_are_two_groups(folder: Path) -> None:
    chosen: set[tuple[bool, bool]] = set()
    for seed in range(20):
        made = recipe(folder, seed=seed, validation={"split": 0.5, "group": "folder"})
        told = reasons(RecipeData.open(made))
        chosen.add((told["data/shot-0/0.png"] == "held_out", told["more/shot-0/tall.png"] == "held_out"))
    assert chosen == {(a, b) for a in (True, False) for b in (True, False)}


def test_the_spec_sees_filter_exclude_list_and_group(folder: Path, tmp_path: Path) -> None:
    def digest(text: str | None = None, filters: dict[str, str] | None = None, **changes: Any) -> str:
        if text is not None:
            (tmp_path / "list.txt").write_text(text, encoding="utf-8")
            changes["exclude_file"] = str(tmp_path / "list.txt")
        return RecipeData.open(recipe(folder, filters, **changes)).plan_spec(4, 1).digest()

    shaping = [
        digest(filters={"data": "height > 3"}),
        digest(filters={"data": "height > 4"}),
        digest(filters={"more": "height > 3"}),
        digest("a/b\n"),
        digest("a/c\n"),
        digest("a/b\na/c\n"),
        digest(validation={"split": 0.0, "group": "folder"}),
    ]
    assert len({digest(), *shaping}) == 1 + len(shaping)
    assert digest("# why\na/c\na/b\n") == digest("a/b\na/c\n")
    assert digest("# nothing\n") == digest()


# Keys of [data] with which a plan has other clips, or others together. A change of the others leaves it as it is.
OF_A_PLAN = {
    "frame_interval": 2,
    "fps": 12.0,
    "short_clips": "loop",
    "hdr": "reject",
    "interlaced": "reject",
    "locality": "file",
}
OF_NO_PLAN = {
    "alpha_color", "clip_start", "crop", "decode_timeout", "max_decode_failures", "measures", "num_workers",
    "prefetch_bytes", "renamed_clips", "resize",
}  # fmt: skip


def test_the_spec_sees_every_key_of_the_data_that_shapes_a_plan(folder: Path) -> None:
    """A resume with another one of these would go on training what the recipe now leaves out."""
    digests = [RecipeData.open(recipe(folder, data={key: v})).plan_spec(4, 1).digest() for key, v in OF_A_PLAN.items()]
    assert len({RecipeData.open(recipe(folder)).plan_spec(4, 1).digest(), *digests}) == 1 + len(OF_A_PLAN)
    with_locality = "shuffle_window"  # which has a meaning with locality alone
    assert DataConfig.model_fields.keys() == OF_A_PLAN.keys() | OF_NO_PLAN | {with_locality}


def test_an_epoch_that_choices_leave_empty_names_the_choice(folder: Path) -> None:
    everything = folder / "all.txt"
    everything.write_text("".join(f"data/shot-{s}/{i}.png\n" for s in range(8) for i in range(3)), encoding="utf-8")
    no_bucket = [{"resolution": "256px", "num_frames": 9}]
    for made, field, problem in (
        (recipe(folder, {"data": "height > 999"}, bucket=no_bucket), "dataset.filter", "24 of 27 clips do not"),
        (recipe(folder, exclude_file=str(everything), bucket=no_bucket), "exclude_file", "24 of 27 clips are"),
        (recipe(folder, bucket=no_bucket), "bucket", "no clip fits any bucket"),
    ):
        with pytest.raises(UserError, match=problem) as caught:
            results.as_json(plan_forecast.forecast(made, 1))
        assert caught.value.field == field


def test_one_folder_that_is_held_out_whole_says_how_to_divide_it(tmp_path: Path) -> None:
    """By files, unless it is divided so already: then by fewer of them."""
    for i in range(4):
        files.picture(tmp_path / "data" / f"{i}.png", grey=i)
    for group, more in (("folder", ', or set validation.group = "file"'), ("file", "")):
        data = files.opened(files.recipe(tmp_path, validation={"split": 0.999, "group": group}))
        with refused("empty-epoch", "validation.split", says="4 of 4 clips are held out") as caught:
            results.as_json(plan_forecast.forecast(data.recipe, 1))
        assert caught.value.remedy == f"lower validation.split{more}"
