"""Two runs in one table and on one page: what differs in the recipes and in the results."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import fabricate
import places
import plotly.graph_objects as go
import pytest
from parsed import Page
from refused import refused
from typer.testing import CliRunner

from reelworks.commands.main import app
from reelworks.core import files
from reelworks.data.run.events import EventLog
from reelworks.data.run.folder import RunFolder
from reelworks.reports import compare, html

SECOND = places.name("<b>second &")
RECIPE = 'version = 1\n[train]\nmax_steps = {steps}\n[[bucket]]\nresolution = "480p"\nbatch_size = {batch}\n'


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of 40 steps, of which the second also has a preview of a later step."""
    folder = tmp_path_factory.mktemp("compared")
    made = [fabricate.make(folder / name, steps=40, every=20, crash_at=25) for name in ("first", SECOND)]
    for run, steps in zip(made, (40, 60), strict=True):
        run.recipe_file.write_text(RECIPE.format(steps=steps, batch=steps // 10), encoding="utf-8")
    later = {"v": 1, "time": fabricate.BEGUN + 1e6, "kind": "samples", "step": 40.5, "prompts": ["only here"]}
    files.append_json_line(made[1].events_file, {**later, "files": ["step-000000040/00.mp4"]})
    return made


def test_the_table_has_the_results_and_the_keys_that_differ(runs):
    found = compare.compare(runs)
    assert [(row.label, row.values) for row in found.recipe_rows] == [
        ("bucket.0.batch_size", ["4", "6"]),
        ("train.max_steps", ["40", "60"]),
    ]
    results = {row.label: row.values for row in found.result_rows}
    assert results["steps"][0] == "40"
    assert results["validation loss, best"][0] == "0.3000 at step 40"
    keys = [("train.learning_rate", [1e-4, "not set"]), ("validation.min_delta", [0.00025, 5])]
    some = replace(found, recipe=[compare.ComparedKey(*key) for key in keys])
    assert [row.values for row in some.recipe_rows] == [["1e-4", "not set"], ["0.00025", "5"]]
    steps = found.data[0].events_of("step")
    assert results["clips trained"][0] == str(sum(event["clips"] for event in steps))
    several = compare.compare([*runs, runs[0]])
    assert [row.values for row in several.recipe_rows] == [["4", "6", "4"], ["40", "60", "40"]]
    same = compare.compare([runs[0], runs[0]])
    assert same.recipe == []
    assert same.names == [str(runs[0].path)] * 2, "equal names would not tell them apart"


def test_a_run_is_compared_by_each_recipe_that_trained_it(tmp_path):
    """Two that end with the same recipe differ where one of them began with another; what a start took back does not count."""
    runs = [RunFolder(tmp_path / name) for name in ("changed", "same")]
    names = [[], []]
    for run, kept in zip(runs, names, strict=True):
        run.create()
        for rate in (1e-3, 1e-5):
            kept.append(run.keep_recipe(f"version = 1\n[train]\nlearning_rate = {rate}\nmax_steps = 20\n"))
    for run, (first, last) in zip(runs, names, strict=True):
        log = EventLog(run.events_file)
        starts = [(0, first), (5, last), (10, last)] if run is runs[0] else [(0, first), (0, last)]
        for begun, name in starts:
            log.write("start", step=begun, recipe=name, resumed_from=begun or None, world_size=1, threads=1)
            for step in range(begun + 1, 21):
                log.write("step", step=step, clips=2, seconds=0.5, loss=1.0, applied=True)
    found = compare.compare(runs)
    assert [(one.key, one.values) for one in found.recipe] == [
        ("train.learning_rate", ["0.001 to step 5, 1e-05", 1e-5])
    ]
    html.write(runs[0])
    assert "0.001 to step 5, 1e-05" in runs[0].report_file.read_text(encoding="utf-8")
    html.write(runs[1])
    assert "that changed" not in runs[1].report_file.read_text(encoding="utf-8")


def test_losses_are_means_of_the_last_steps_that_have_one():
    steps = [{"loss": float(i) if i % 2 else None} for i in range(400)]
    assert compare._mean(steps, "loss") == sum(range(301, 400, 2)) / 50
    assert compare._mean(steps[:4], "loss") == 2.0
    assert compare._mean(steps[:1], "loss") is None


def test_the_page_has_the_curves_of_all_runs_and_previews_side_by_side(runs, tmp_path):
    done = CliRunner().invoke(app, ["compare", *(str(run.path) for run in runs), "--html", str(tmp_path / "x.html")])
    assert done.exit_code == 0, done.output
    assert "train.max_steps" in done.output
    page = Page((tmp_path / "x.html").read_text(encoding="utf-8"))
    assert page.open == []
    assert page.loads_nothing()
    assert SECOND in page.words
    figures = json.loads(page.scripts[0])
    assert set(figures) == {"loss", "validation", "learning-rate", "grad-norm", "throughput"}
    for figure in figures.values():
        assert [trace["name"] for trace in figure["data"]] == ["first", SECOND]
        go.Figure(json.loads(re.sub(r'"@\w+"', '"#123456"', json.dumps(figure))))
    shown = [attributes["src"] for tag, attributes in page.tags if tag in ("video", "img")]
    assert len(shown) == 2 * len(fabricate.PROMPTS), "both runs have previews of step 40"
    assert page.words.count("first, step 40") == page.words.count(f"{SECOND}, step 40") == len(fabricate.PROMPTS)


def test_previews_of_no_common_step_are_each_runs_last(runs, tmp_path):
    young = RunFolder(tmp_path / "young")
    young.create()
    steps, rows = compare._previews(compare.compare([young, runs[1]]).data)
    assert steps == [None, 40.5]
    assert [(row.prompt, row.previews[0]) for row in rows] == [("only here", None)]


def test_previews_that_a_page_has_no_room_for_are_left_out(runs, monkeypatch):
    data = compare.compare(runs).data
    whole = [preview.uri for row in compare._previews(data)[1] for preview in row.previews]
    monkeypatch.setattr(compare, "MAX_PREVIEW_BYTES", sum(map(len, whole[::2])) + 1)
    kept = [preview and preview.uri for row in compare._previews(data)[1] for preview in row.previews]
    assert kept[::2] == whole[::2]
    assert not any(kept[1::2])


def test_the_best_validation_is_among_those_that_are_comparable_to_the_last(runs):
    losses = [(0.1, "others", True), (0.3, "these", True), (0.4, "these", True), (0.2, "these", False)]
    events = [
        {"kind": "validation", "step": step, "loss": loss, "measured_on": clips, "is_comparable": is_comparable}
        for step, (loss, clips, is_comparable) in enumerate(losses)
    ]
    found = compare._results(replace(compare.compare(runs).data[0], events=events), "first")
    assert (found.validation_loss, found.best_validation_loss, found.best_validation_step) == (0.4, 0.3, 1)


def test_one_run_and_no_run_are_refused(runs, tmp_path):
    done = CliRunner().invoke(app, ["compare", str(runs[0].path)])
    assert "two to 8 runs" in str(done.exception)
    with refused("no-run"):
        compare.compare([runs[0], RunFolder(tmp_path / "nothing")])
