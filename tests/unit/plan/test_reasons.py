"""Clips that an epoch leaves out: exact counts, the first files by name, all of them as a file."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import prepare_files as files
import pytest
import tiny_recipe
from catalog_rows import BAD, PICTURE, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_summaries import summary
from pyarrow import csv, parquet

from reelworks.commands import main, show_plan
from reelworks.core import results
from reelworks.core.hash_rng import hash_int
from reelworks.data.buckets.assign import Assignment, Reason
from reelworks.data.loader import left_out
from reelworks.training.plan import idle_keys, plan_forecast, plan_report, rejections
from reelworks.training.plan.rejections import LeftOut
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.step import progress

SMALL = 5
LEFT_OUT = {"unreadable": 1, "no_caption": 2, "too_small": SMALL}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of two datasets: some good, more too small, two without a caption, a broken one."""
    root = tmp_path_factory.mktemp("reasons")
    for name in ("data", "more"):
        for i in range(3):
            files.picture(root / name / f"good-{i}.png", grey=i)
        files.picture(root / name / "dumb.png", grey=9, caption=None)
    for i in range(SMALL):
        files.picture(root / ("data" if i % 2 else "more") / f"{9 - i} é,.png", (8, 8), grey=i)
    (root / "more" / "broken.png").write_text("no picture", encoding="utf-8")
    files.opened(recipe(root))
    return root


def recipe(folder: Path, **changes: object):
    return files.recipe(folder, dataset=[{"path": str(folder / name)} for name in ("more", "data")], **changes)


def test_counts_are_exact_and_the_first_files_of_the_catalog_are_named_in_the_order_of_their_paths(folder, monkeypatch):
    """However many are left out for a reason, all count, and few are named."""
    whole = results.as_json(plan_forecast.forecast(recipe(folder), 1))
    assert {name: one["clips"] for name, one in whole["left_out"].items()} == LEFT_OUT
    assert whole["left_out"]["too_small"]["nearest"] == {"48px ×1": SMALL}
    assert whole["left_out"]["no_caption"]["nearest"] == {}
    monkeypatch.setattr(rejections, "FILES_NAMED", 3)
    told = results.as_json(plan_forecast.forecast(recipe(folder), 1))
    assert told["left_out"] == whole["left_out"]
    rows = RecipeData.open(recipe(folder)).rows
    order = rows.labels(np.arange(len(rows)))
    for name, found in told["reasons"].items():
        first = sorted((one["path"] for one in whole["reasons"][name]), key=order.index)[:3]
        assert [one["path"] for one in found] == sorted(first)
    paths = [one["path"] for one in whole["reasons"]["too_small"]]
    assert paths == sorted(paths)
    assert len(paths) == SMALL


def test_held_out_clips_count_once_however_often_others_are_shown(folder):
    """Validation looks at one copy of each, and every figure says so."""
    sources = [{"path": str(folder / name), "repeats": 3} for name in ("more", "data")]
    told = results.as_json(plan_forecast.forecast(files.recipe(folder, dataset=sources, validation={"split": 0.5}), 1))
    assert 0 < told["held_out"] == told["left_out"]["held_out"]["clips"] < 6
    assert told["planned"] == 3 * (6 - told["held_out"])


def test_what_is_more_than_named_is_told_as_a_number(folder, monkeypatch, capsys):
    monkeypatch.setattr(rejections, "FILES_NAMED", 1)
    monkeypatch.setattr(show_plan, "_FILES_SHOWN", 1)
    show_plan.epoch(plan_forecast.forecast(recipe(folder), 1))
    assert f"too_small: {SMALL}\n" in (told := capsys.readouterr().out)
    assert f"and {SMALL - 1} more; --rejected FILE lists all" in told


@settings(max_examples=50)
@given(st.lists(st.integers(1, 3), max_size=30), st.randoms())
def test_a_clip_counts_once_and_not_where_one_of_its_uses_is_trained(copies, random):
    """Of every row without a trained use there is one reason: one that waits for another epoch, or else that of the first."""
    row = np.repeat(np.arange(len(copies)), copies).astype(np.int64)
    reason = np.array([random.randint(0, 9) for _ in row], dtype=np.int8)
    found = left_out.by_reason(Assignment(row.astype(np.int32), reason, row.astype(np.int32)), row)
    told = [(int(r), int(one.reason)) for one in found for r in one.row]
    of_row = {r: [Reason(n) for n in reason[row == r].tolist()] for r in set(row.tolist())}
    wanted = {r: next((n for n in of if n.is_planned), of[0]) for r, of in of_row.items() if Reason.NONE not in of}
    assert sorted(told) == sorted(wanted.items())
    assert all((one.nearest == one.row).all() for one in found)


def test_a_clip_shown_once_though_it_may_be_shown_twice_is_not_left_out(folder, tmp_path):
    """With a weight of 1.5 each good clip is trained, so none is `not_drawn`."""
    sources = [{"path": str(folder / name), "repeats": 1.5} for name in ("more", "data")]
    told = results.as_json(plan_forecast.forecast(files.recipe(folder, dataset=sources), 1))
    assert 6 < told["planned"] < 12
    assert {name: one["clips"] for name, one in told["left_out"].items()} == LEFT_OUT


def test_a_clip_of_which_a_repeat_is_trained_is_not_listed(folder, tmp_path):
    """With a weight of 1.5 some clips have a second showing that is not drawn, and all good ones are trained."""
    sources = [{"path": str(folder / name), "repeats": 1.5} for name in ("more", "data")]
    data = RecipeData.open(files.recipe(folder, dataset=sources))
    rejections.write(tmp_path / "out.parquet", data, 0)
    listed = parquet.read_table(tmp_path / "out.parquet")["reason"].to_pylist()
    assert {name: listed.count(name) for name in set(listed)} == LEFT_OUT
    _, _, assigned = data.assigned(0)
    assert (assigned.reason == Reason.NOT_DRAWN).any()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_lists_all_of_them(folder, tmp_path, monkeypatch, suffix):
    """Each clip left out is a row of it, with what it has and which entry would ask least of it."""
    monkeypatch.setattr(rejections, "FILES_NAMED", 1)
    data, path = RecipeData.open(recipe(folder)), tmp_path / f"left-out{suffix}"
    rejections.write(path, data, 0)
    table = (csv.read_csv if suffix == ".csv" else parquet.read_table)(path).to_pylist()
    by_reason = {name: [one for one in table if one["reason"] == name] for name in LEFT_OUT}
    assert {name: len(found) for name, found in by_reason.items()} == LEFT_OUT
    assert len(table) == sum(LEFT_OUT.values())
    small = {(one["dataset"], one["path"]): one for one in by_reason["too_small"]}
    of_filters = dict.fromkeys(("failed_filter", "stands_for_it", "limits_that_take"))
    assert small["more", "9 é,.png"] | {"error": None} == of_filters | {
        "dataset": "more",
        "path": "9 é,.png",
        "reason": "too_small",
        "first_frame": 0,
        "num_frames": 1,
        "height": 8,
        "width": 8,
        "nearest_entry": "48px ×1",
        "error": None,
    }
    (broken,) = by_reason["unreadable"]
    assert broken["path"] == "broken.png"
    assert broken["error"]
    assert not broken["nearest_entry"]


def test_lists_as_text_and_as_json_lines_say_the_same(folder, tmp_path):
    data = RecipeData.open(recipe(folder))
    for suffix in (".txt", ".jsonl", ".parquet"):
        rejections.write(tmp_path / f"out{suffix}", data, 0)
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()] == table
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[:2] for line in lines] == [[one["path"], one["reason"]] for one in table]


def test_a_start_names_few_clips_and_the_file_of_all():
    """Clips that the recipe holds out are not among them; many are in the file alone."""
    reasons = {"unreadable": [("a.png", "no picture")], "no_caption": [("b.png", "")], "held_out": []}
    few = summary(reasons=reasons)
    last = "all clips that are left out are listed in left-out.parquet"
    assert rejections.lines(few.left_out, few.reasons, last) == [
        "  left out: a.png: unreadable: no picture",
        "  left out: b.png: no_caption",
        last,
    ]
    many = replace(few, left_out=few.left_out | {"no_caption": LeftOut(11, {})})
    assert rejections.lines(many.left_out, many.reasons, last) == [last]
    assert rejections.lines({"held_out": LeftOut(9, {})}, {}, last) == []


@pytest.mark.parametrize(
    ("buckets", "said"), [({"max_tokens": 10}, True), ({}, False), ({"max_tokens": 99_999, "entries": "keep"}, False)]
)
def test_limits_of_proposed_buckets_beside_own_ones_are_told(folder, buckets, said):
    plan = summary(without_effect=idle_keys.lines(recipe(folder, buckets=buckets)))
    assert any("buckets.max_tokens has no effect" in line for line in plan_report.warnings(plan)) == said


@pytest.mark.parametrize(
    ("patience", "saves", "is_told"),
    [
        (3, {"every_steps": 70}, True),
        (3, {"every_steps": 80}, True),
        (3, {"every_steps": 20}, False),
        (3, {"every_steps": 70, "at_best": True}, False),
        (None, {"every_steps": 70}, False),
    ],
)
def test_a_best_validation_that_need_not_be_saved_is_told(patience, saves, is_told) -> None:
    best = {"keep_best": {"metric": "validation/loss"}, **saves}
    validation = {"split": 0.2, "every_steps": 40} | ({} if patience is None else {"patience": patience})
    made = recipe_file.parse(tiny_recipe.least(checkpoints=best, validation=validation))
    assert bool(plan_report._unsaved_best(made)) == is_told


@pytest.mark.parametrize(("timesteps", "told"), [(None, False), ([820.0, 1000.0], False), ([300.0, 900.0], True)])
def test_validation_at_timesteps_that_are_not_trained_is_told(folder, timesteps, told):
    validation = {} if timesteps is None else {"timesteps": timesteps}
    made = recipe(folder, validation=validation, objective={"timestep_range": [800.0, 1000.0]})
    lines = plan_report._untrained_timesteps(made)
    assert [line.partition(" are not")[0] for line in lines] == ["validation.timesteps 300"] * told


@pytest.mark.parametrize(
    ("train", "share"),
    [
        ({"max_steps": 100, "warmup_steps": 1000}, 0.1),
        ({"max_steps": 100, "warmup_steps": 100}, None),
        ({"max_epochs": 2, "warmup_steps": 40}, 0.1),
        ({"max_epochs": 2, "max_steps": 2, "warmup_steps": 4}, 0.5),
        ({"max_epochs": 2}, None),
    ],
)
def test_a_warm_up_that_training_does_not_finish_is_told(folder, train, share):
    """With the share of the rate that the last step has; epochs have as many steps as the planned one."""
    made = recipe(folder, train=train)
    data = RecipeData.open(made)
    spec = data.plan_spec(1, 1)
    plan = data.plan(spec, 0)
    told = plan_report.warnings(plan_report.summarise(data, spec, plan, world=1))
    assert any("train.warmup_steps" in line for line in told) == (share is not None)
    if share is not None:
        assert plan.num_steps == 2
        last = made.train.max_steps or 2 * plan.num_steps
        assert progress.learning_rate(made.train, last - 1) == pytest.approx(share * made.train.learning_rate)
        assert f"reaches {share:.0%} of train.learning_rate" in "".join(told)


@pytest.mark.parametrize(
    ("optimizer", "lora", "told"),
    [
        ("muon", {"targets": "blocks"}, ["train.betas", "train.eps"]),
        ("muon", {"targets": "blocks", "dora": True}, []),
        ("muon", {"targets": "default"}, []),
        ("adamw", {"targets": "blocks"}, []),
    ],
)
def test_settings_of_adamw_where_muon_updates_everything_are_told(folder, optimizer, lora, told):
    """Where weights may lie outside of the blocks, AdamW updates them."""
    made = recipe(folder, lora=lora, train={"max_steps": 9, "optimizer": optimizer, "betas": [0.5, 0.9], "eps": 1e-6})
    assert [line.partition(" has no effect ")[0] for line in idle_keys.lines(made)] == told


VIDEOS = {"bucket": [{"resolution": "32x32", "num_frames": 17}]}
GIVEN_SOUND = {"modes": {"video": 1.0}, "times": "shared", "loss_weight": 5.0}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"objective": {"mask_ratios": {"image_head": 1.0}}}, ["objective.mask_ratios"]),
        ({"objective": {"mask_ratios": {"image_head": 1.0}}} | VIDEOS, []),
        ({"objective": {"mask_ratios": {"inpaint": 0.5}}, "model": {"name": "wan-2.1-vace-1.3b"}}, []),
        (
            {"lora": {}, "objective": {"target_guidance_scale": 3.0, "caption_dropout": 1.0}},
            ["objective.target_guidance_scale"],
        ),
        ({"lora": {}, "objective": {"target_guidance_scale": 3.0}}, []),
        (
            {"validation": {"split": 0.0, "group": "folder", "timesteps": [500.0], "max_clips": 4}},
            ["validation.group", "validation.timesteps", "validation.max_clips"],
        ),
        (
            {"data": {"frame_interval": 2, "clip_start": "start", "short_clips": "hold", "interlaced": "reject"}},
            ["data.frame_interval", "data.clip_start", "data.short_clips", "data.interlaced"],
        ),
        *(
            ({"checkpoints": {"at_best": True, "keep_best": {"metric": metric}}, "validation": validated}, told)
            for metric, validated, told in (
                ("validation/loss", {"split": 0.2, "every_steps": 5}, []),
                ("validation/loss", {"split": 0.0}, ["checkpoints.at_best"]),
                ("validation/loss", {"every_steps": None}, ["checkpoints.at_best"]),
                ("samples/motion", {"every_steps": None}, []),
            )
        ),
        ({"sound": GIVEN_SOUND}, ["sound.times"]),
        ({"sound": GIVEN_SOUND, "validation": {"split": 0.0}}, ["sound.times", "sound.loss_weight"]),
        ({"sound": GIVEN_SOUND | {"modes": {"video": 0.9}}, "validation": {"split": 0.0}}, []),
    ],
)
def test_a_condition_that_no_clip_meets_is_told(values, told):
    with_sound = {"model": {"name": "ltx-2-sound-tiny"}, "data": {"fps": 24.0}} | VIDEOS if "sound" in values else {}
    made = recipe_file.parse(tiny_recipe.least(**with_sound | values))
    assert [line.partition(" has no effect ")[0] for line in idle_keys.lines(made)] == told


def test_a_list_without_a_clip_has_its_columns(folder, tmp_path):
    few = replace(RecipeData.open(recipe(folder)), rows=rows({**PICTURE, "dataset": "more"}))
    rejections.write(tmp_path / "none.parquet", few, 0)
    table = parquet.read_table(tmp_path / "none.parquet")
    assert (table.num_rows, table.column_names[:3]) == (0, ["dataset", "path", "reason"])


def test_the_verb_writes_the_list_and_refuses_other_names(folder, tmp_path, monkeypatch, capsys):
    made = tmp_path / "made.toml"
    made.write_text(recipe_file.dump(recipe(folder)), encoding="utf-8")

    def typed(*words: object) -> tuple[str, int]:
        monkeypatch.setattr(sys, "argv", ["reelworks", "plan", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main.main()
        said = capsys.readouterr()
        return said.out + said.err, left.value.code or 0

    told, code = typed(made, "--rejected", tmp_path / "a.csv")
    assert code == 0, told
    assert csv.read_csv(tmp_path / "a.csv").num_rows == sum(LEFT_OUT.values())
    none = [part for i in (0, 1) for part in ("--set", f"dataset.{i}.filter=width > 1e9")]
    told, code = typed(made, "--rejected", tmp_path / "all.csv", *none)
    assert (code, "all.csv has each clip" in told) == (2, True), told
    assert csv.read_csv(tmp_path / "all.csv")["reason"].to_pylist().count("filtered") > 1
    (tmp_path / "no").write_text("a file", encoding="utf-8")
    for name, problem in (("a.doc", "none of"), ("no/a.csv", "cannot be written")):
        told, code = typed(made, "--rejected", tmp_path / name)
        assert (code, problem in told, "--rejected" in told) == (2, True, True)
    told, code = typed(made, made, "--diff", "--rejected", tmp_path / "b.csv")
    assert (code, "a single plan" in told) == (2, True)


def test_lines_of_the_exclude_list_without_a_clip_are_told_and_many_are_counted():
    told = summary(exclude_list_unmatched=[f"data/{i}.png" for i in range(30)])
    lines = plan_report.warnings(told)
    assert lines[0] == "exclude_file names data/0.png, which is no clip of the recipe"
    assert (len(lines), lines[-1]) == (21, "exclude_file has 10 more lines that name no clip")
    assert plan_report.warnings(summary()) == []


def test_clips_of_one_film_are_held_out_by_the_films_hash_and_others_by_their_own(folder):
    """A group's number is the hash of its text, however many clips share it: it decides what is held out."""
    clips = rows({"group": "films/b.mp4"}, {}, {"group": "films/a.mp4"}, {"group": "films/b.mp4"}, {"group": ""}, BAD)
    own_or_shared = clips.group_keys("file").tolist()
    texts = clips.group.to_pylist()
    own = [texts[i] == clips.path[i].as_py() for i in range(len(clips))]
    assert own_or_shared == [int(clips.uid[i]) if own[i] else hash_int(texts[i]) for i in range(len(clips))]
    assert own == [False, True, False, False, False, True]
