"""What `replay` tells of a step is what its ranks were fed: clips, order, shapes, draws and frames."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import av
import children
import numpy as np
import prepare_files
import pytest
from PIL import Image
from typer.testing import CliRunner

from reelworks.commands.main import app
from reelworks.core import results
from reelworks.core.errors import UserError
from reelworks.data.media import decode
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.reports import sheet
from reelworks.training.coverage import clip_history
from reelworks.training.loop import trainer
from reelworks.training.loop.replay import Replay, ReplayedClip, replay_step
from reelworks.training.loop.request import TrainRequest
from reelworks.training.plan import plan_forecast
from reelworks.training.recipe import recipe_file

BUSY = {
    "bucket": [{"resolution": "32px", "num_frames": [1, 5], "batch_size": [4, 3]}],
    "data": {"crop": "random"},
    "objective": {"mask_ratios": {"image_head": 0.4, "random": 0.3}, "caption_dropout": 0.4},
}
RUN = "run"


def digest(frames: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(frames).tobytes()).hexdigest()


def _train_and_tell(recipe: dict) -> None:
    """Train, and write down what the model was given, micro-batch by micro-batch."""
    from reelworks.training.step.examples import ExampleBuilder

    original, fed = ExampleBuilder.build, []

    def build(self, encoded, objective):
        made, batch = original(self, encoded, objective), encoded.batch
        fed.append(
            {
                "uids": batch.request.uids.tolist(),
                "frames": [digest(clip) for clip in batch.frames.numpy()],
                "captions": list(batch.request.captions),
                "times": made.inputs.time.tolist(),
                "masks": made.inputs.frame_mask.tolist(),
                "dropped": made.inputs.drop_text.tolist(),
            }
        )
        return made

    ExampleBuilder.build = build
    trainer.run(recipe_file.parse(recipe), TrainRequest(debug=True))
    Path(recipe["output"], "fed.json").write_text(json.dumps(fed), encoding="utf-8")


def logged(run: Path, rank: int) -> dict[int, dict]:
    """The last telling of each step by a rank."""
    lines = (run / "debug" / f"steps-rank-{rank:05d}.jsonl").read_text(encoding="utf-8").splitlines()
    return {line["step"]: line for line in map(json.loads, lines)}


def trained(told: Replay, rank: int) -> list[dict]:
    mine = [one for one in told.summary().micro_batches if one.rank == rank]
    clips = [clip for one in mine for clip in one.clips if clip.became == "trained"]
    return [{"uid": c.uid, "copy": c.copy, "repeat_index": c.repeat_index, "path": c.file} for c in clips]


def check(run: Path, world: int) -> list[Replay]:
    """Every step of a run against the log of every rank."""
    steps = logged(run, 0)
    replays = [replay_step(RunFolder(run), number) for number in steps]
    for told, number in zip(replays, steps, strict=True):
        assert len(told.ranks) == world
        for rank in range(world):
            line = logged(run, rank)[number]
            assert trained(told, rank) == line["trained"]
            assert [str(work.shape) for work in told.ranks[rank]] == line["shapes"]
            assert (told.epoch.epoch, told.step.plan_step) == (line["epoch"], line["plan_step"])
    return replays


def test_every_step_is_told_as_the_model_was_fed(tiny, tmp_path):
    recipe = tiny(train={"max_steps": 8, "gradient_accumulation_steps": 2}, **BUSY)
    recipe["dataset"][0] |= {"flip": 0.5, "jitter_hue": 0.1, "shuffle_tags": True, "tag_separator": " "}
    assert children.in_child(_train_and_tell, recipe) == 0
    replays = check(tmp_path / RUN, 1)
    fed = json.loads((tmp_path / RUN / "fed.json").read_text(encoding="utf-8"))
    works = [(told, work) for told in replays for work in told.ranks[0]]
    assert len(works) == len(fed) > len(replays)
    for (told, work), given in zip(works, fed, strict=True):
        (one,) = (m for m in told.summary().micro_batches if m.column == work.index)
        clips = one.clips
        assert [c.uid for c in clips] == given["uids"]
        assert [c.timestep for c in clips] == given["times"]
        assert [c.generated for c in clips] == given["masks"]
        assert [c.caption_dropped for c in clips] == given["dropped"]
        assert [c.caption for c in clips] == given["captions"]
        assert [digest(look.frames) for look in sheet.step_views(told, work)] == given["frames"]
        assert [digest(decode.load(request)) for request in work.requests] == given["frames"]
        for look, clip in zip(sheet.step_views(told, work), clips, strict=True):
            top, left = clip.crop
            cropped = look.whole[top : top + one.shape.height, left : left + one.shape.width]
            assert np.array_equal(cropped, look.frames[0])
    assert {clip.augmentation.flip for told in replays for clip in trained_files(told)} == {True, False}
    assert any(True in given["dropped"] for given in fed)
    assert any(False in mask for given in fed for mask in given["masks"])
    assert not all(all(clip.generated) for told in replays[:2] for clip in trained_files(told))
    for told in replays[:2]:
        shown = CliRunner().invoke(app, ["replay", str(tmp_path / RUN), str(told.step.step)]).stdout.splitlines()
        lines = [line for line in shown if line.startswith("  ")]
        for clip, line in zip(trained_files(told), lines, strict=True):
            marks = line.partition("conditioning frames ")[2].partition(";")[0] or "-" * len(clip.generated)
            assert [mark == "-" for mark in marks] == clip.generated  # else g: given


def _train_without(recipe: dict, *victims: str) -> None:
    children.lose_behind_the_scan(*victims)
    trainer.run(recipe_file.parse(recipe), TrainRequest(debug=True))


def test_repeats_that_fail_are_told_and_steps_are_told_as_trained_where_only_repeats_were(tiny, tmp_path):
    """Two steps are filled by repeats: of one a repeat is lost, of the other the clip that it was planned for."""
    for i in range(10):
        prepare_files.picture(tmp_path / "footage" / f"{i}.png", (32, 48) if i % 2 else (32, 32), grey=20 * i)
    recipe = tiny(
        dataset=[{"path": str(tmp_path / "footage")}],
        bucket=[{"resolution": "32px", "num_frames": 1, "batch_size": 4}],
        buckets={"aspect_ratios": ["1:1", "3:2"], "incomplete_batch": "repeat"},
        data={"max_decode_failures": 1.0},
        train={"max_steps": 4},
        validation={"split": 0.0},
    )
    data = prepare_files.opened(recipe_file.parse(recipe))
    plan = data.plan(plan_forecast.plan_spec(data), 0)
    lost = []  # uid, repeat_index
    for plan_step in (i for i in range(plan.num_steps) if plan.planned_in(i) == 1):
        places = plan.places(int(plan.micro_batches(plan_step)[0]))
        (place,) = [i for i in range(places.start, places.stop) if plan.repeat_index[i] == len(lost)][:1]
        lost.append((int(plan.uid[place]), len(lost), plan_step + 1))
    paths = dict(zip(data.rows.uid.tolist(), data.rows.labels(np.arange(len(data.rows))), strict=True))
    victims = [str(tmp_path / paths[uid]) for uid, *_ in lost]
    assert children.in_child(_train_without, recipe, *victims) == 0
    check(tmp_path / RUN, 1)
    told = events.read(RunFolder(tmp_path / RUN).events_file, "failure")
    assert {(e["uid"], e["repeat_index"], e["step"]) for e in told} >= set(lost)
    only_repeats = replay_step(RunFolder(tmp_path / RUN), lost[0][2])
    assert (only_repeats.step.clips, only_repeats.step.applied) == (0, True)


@pytest.mark.slow(reason="four processes; one process is replayed above, and test_worlds goes on from two as one")
def test_two_ranks_then_killed_then_one(tiny, tmp_path):
    changes = {**BUSY, "bucket": [{"resolution": "32px", "num_frames": [1, 5], "batch_size": [4, 2]}]}
    recipe = tiny(train={"max_steps": 4}, **changes)
    assert children.train(recipe, world=2, debug=True) == [0, 0]
    run = tmp_path / RUN
    assert any(told.summary().fillers for told in check(run, 2))
    before = replay_step(RunFolder(run), 2).summary()
    recipe["train"]["max_steps"] = 7
    assert children.train(recipe, fault=("after the optimizer stepped", 2), debug=True) != [0]
    assert children.train(recipe, debug=True) == [0]
    after = replay_step(RunFolder(run), 2).summary()
    assert after == before
    for number in range(5, 8):
        told = replay_step(RunFolder(run), number)
        assert trained(told, 0) == logged(run, 0)[number]["trained"]
        assert len(told.ranks) == 1
    with pytest.raises(UserError, match="from 1 to 7"):
        replay_step(RunFolder(run), 8)


@pytest.mark.slow
def test_clips_that_changed_since_are_told_as_they_were(tiny, footage, tmp_path):
    folder = Path(shutil.copytree(footage, tmp_path / "footage"))
    changes = {"dataset": [{"path": str(folder)}], "validation": {"split": 0.0}, **BUSY}
    assert children.train(tiny(train={"max_steps": 2}, **changes), debug=True) == [0]
    run = RunFolder(tmp_path / RUN)
    before = {clip.file: clip for clip in trained_files(replay_step(run, 1))}
    gone, edited, *_ = before
    Path(gone).unlink()
    Path(edited).with_suffix(".txt").write_text("another caption", encoding="utf-8")
    assert children.train(tiny(train={"max_steps": 3}, **changes), debug=True) == [0]
    (told, *_) = check(run.path, 1)
    clips = {clip.file: clip for clip in trained_files(told)}
    changed = {gone: replace(before[gone], since="removed"), edited: replace(before[edited], since="edited")}
    assert clips == before | changed
    assert clips[edited].caption != "another caption"
    lost = [look for work in told.columns for look in sheet.step_views(told, work) if look.error]
    assert [look.path for look in lost] == [clips[gone].path]


@pytest.mark.slow
def test_a_step_is_told_by_the_recipe_that_it_was_trained_by(tiny, tmp_path):
    """Objective and buckets change in mid-epoch, one after the other: draws and shapes are those of then."""
    common = {"validation": {"split": 0.0}, "data": {"crop": "random"}}
    first = tiny(train={"max_steps": 2}, **common, bucket=BUSY["bucket"], objective=BUSY["objective"])
    assert children.train(first, debug=True) == [0]
    run = RunFolder(tmp_path / RUN)
    before = [replay_step(run, number).summary() for number in (1, 2)]
    other_draws = tiny(train={"max_steps": 3}, **common, bucket=BUSY["bucket"])
    assert children.train(other_draws, debug=True) == [0]
    (recipe,) = {told.step.recipe for told in (replay_step(run, 1), replay_step(run, 2))}
    assert replay_step(run, 3).step.recipe != recipe
    assert children.train(tiny(train={"max_steps": 5}, **common), debug=True) == [0]
    assert [one.summary() for one in check(run.path, 1)[:2]] == before
    generated = {told.step.step: generated_of(told) for told in check(run.path, 1)}
    assert not all(generated[1] + generated[2])
    assert all(generated[3] + generated[4] + generated[5])
    (epoch,) = clip_history.cover(run).epochs
    assert epoch.adds_up
    assert sum(epoch.counts[name] for name in ("trained", "not_yet")) == epoch.planned


def test_buckets_that_are_not_those_of_the_step_are_an_error(tiny, tmp_path):
    assert children.train(tiny(train={"max_steps": 1}, **BUSY)) == [0]
    run = RunFolder(tmp_path / RUN)
    (kept,) = run.recipes_folder.iterdir()
    kept.write_text(kept.read_text(encoding="utf-8").replace('"32px"', '"64px"'), encoding="utf-8")
    with pytest.raises(UserError, match="the recipe's buckets are not those"):
        replay_step(run, 1)


@pytest.mark.parametrize("lost", ["segment-000-000000-000", "catalog-000"])
def test_a_step_whose_record_is_lost_is_an_error(tiny, tmp_path, lost):
    assert children.train(tiny(train={"max_steps": 1}, **BUSY)) == [0]
    run = RunFolder(tmp_path / RUN)
    shutil.rmtree(run.coverage_folder / lost)
    with pytest.raises(UserError, match=f"(?s)record of the step's clips is lost: {lost}.*restore .*coverage"):
        replay_step(run, 1)


def generated_of(told: Replay) -> list[bool]:
    return [given for clip in trained_files(told) for given in clip.generated]


def trained_files(told: Replay) -> list[ReplayedClip]:
    return [clip for one in told.summary().micro_batches for clip in one.clips]


@pytest.mark.slow
def test_the_verb_prints_a_step_and_draws_it(tiny, tmp_path, monkeypatch, capsys):
    from reelworks.commands import main

    def typed(*words: object) -> tuple[str, int]:
        monkeypatch.setattr(sys, "argv", ["reelworks", "replay", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main.main()
        said = capsys.readouterr()
        return said.out + said.err, left.value.code or 0

    assert children.train(tiny(train={"max_steps": 1}, buckets={"incomplete_batch": "pad"}, **BUSY)) == [0]
    run = tmp_path / RUN
    told, code = typed(run, "--step", 1, "--pictures", "--json")
    assert code == 0
    value = json.loads(told)
    assert value == results.as_json(replay_step(RunFolder(run), 1).summary()) | {"sheets": value["sheets"]}
    assert len(value["sheets"]) == len(value["micro_batches"])
    for path in value["sheets"]:
        assert Path(path).parent == run / "replay" / "step-000000001"
        with Image.open(path) as sheet:
            assert sheet.height > 100
    told, code = typed(run, "--step", 1)
    assert code == 0
    assert "step 1: epoch 0, segment 0" in told
    crops = re.findall(r"crop at (\d+) from the left, (\d+) from the top of (\d+)×(\d+)", told)
    for clip, crop in zip(trained_files(replay_step(RunFolder(run), 1)), crops, strict=True):
        assert clip.path in told
        left, top, width, height = map(int, crop)
        assert ((top, left), (height, width)) == (clip.crop, clip.resized)
        with av.open(clip.file) as file:
            (video,) = file.streams.video
            assert width / height == pytest.approx(video.width / video.height, rel=0.1)
    told, code = typed(run, "--step", 9)
    assert code == 2
    assert "--step = 9" in told
