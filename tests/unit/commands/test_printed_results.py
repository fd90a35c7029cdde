"""What commands print of results that others compute: tables and bars, one JSON value, the name of a file or of a folder."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from reelworks.commands import coverage as coverage_command
from reelworks.commands import eval as eval_command
from reelworks.commands import replay, show, show_plan, tune
from reelworks.commands.main import app
from reelworks.core import terminal, trust
from reelworks.core.shape import Shape
from reelworks.data.schedule.cost_fit import CostModel
from reelworks.demo import walkthrough
from reelworks.inference.evaluate.checkpoint_series import CheckpointSeries, MeasuredCheckpoint
from reelworks.inference.evaluate.clips import Unreadable
from reelworks.inference.evaluate.held_out import EvaluatedModel, Evaluation
from reelworks.inference.evaluate.measure import MetricResult
from reelworks.inference.evaluate.report import Report
from reelworks.reports import sheet
from reelworks.training.coverage.coverage import EpochCoverage
from reelworks.training.loop import replay as replaying
from reelworks.training.memory.search import Trial
from reelworks.training.memory.tune import Tuned
from reelworks.training.observers.validation import HeldOutLoss, Validation
from reelworks.training.plan.plan_comparison import ChangedKey, ComparedNumber, PlanComparison
from reelworks.training.precompute import ahead


def test_a_file_is_trusted_from_then_on_and_none_if_one_is_missing(tmp_path: Path) -> None:
    entries = [f"{tmp_path / name}.py:Sharpness" for name in ("mine", "other")]
    (mine := tmp_path / "mine.py").write_text("", encoding="utf-8")
    result = CliRunner().invoke(app, ["trust", str(mine), str(tmp_path / "other.py")])
    assert result.exit_code != 0
    assert trust.untrusted(entries) == [mine, tmp_path / "other.py"]
    result = CliRunner().invoke(app, ["trust", str(mine)])
    assert (result.exit_code, trust.untrusted(entries)) == (0, [tmp_path / "other.py"])
    assert str(mine) in result.stdout.replace("\n", "")


@pytest.mark.parametrize(("learned", "code"), [(True, 0), (False, 1)])
@pytest.mark.parametrize("as_json", [True, False])
def test_the_demo_ends_with_1_if_the_model_did_not_learn(
    monkeypatch: pytest.MonkeyPatch, as_json: bool, learned: bool, code: int
) -> None:
    """One JSON value is then alone on stdout, whatever the steps print."""
    asked: list[dict[str, Any]] = []

    def main(**options: Any) -> walkthrough.DemoResult:
        asked.append(options)
        print("a step")
        checks = {"it learns": True, "it is right": learned}
        return walkthrough.DemoResult(3, 2, {}, 1.0, 0.5, {}, 9.0, {}, checks, *map(Path, ("run", "page", "sheet")))

    monkeypatch.setattr(walkthrough, "main", main)
    result = CliRunner().invoke(app, ["demo", "--quick", "--seed", "7", *["--json"] * as_json])
    assert result.exit_code == code
    assert asked == [{"quick": True, "seed": 7}]
    if as_json:
        assert json.loads(result.stdout)["checks"] == {"it learns": True, "it is right": learned}
    else:
        assert result.stdout == "a step\n"


@pytest.mark.parametrize("output", [None, Path("sheets")])
def test_sheets_of_a_step_lie_in_the_run_folder_or_where_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, output: Path | None
) -> None:
    told: list[Any] = []
    step = SimpleNamespace(step=12)
    monkeypatch.setattr(replaying, "replay_step", lambda run, step: SimpleNamespace(summary=lambda: (run.path, step)))
    monkeypatch.setattr(sheet, "write_step", lambda _, folder: [folder / "column-0000.png"])
    monkeypatch.setattr(replay, "_print", told.append)
    folder = output or tmp_path / "replay" / "step-000000012"
    for pictures in (True, False):
        replay.replay(tmp_path, step.step, pictures=pictures, output=output)
        assert capsys.readouterr().out.replace("\n", "") == str(folder / "column-0000.png") * pictures
    assert told == [(tmp_path, 12)] * 2


def test_each_checkpoint_has_a_row_with_its_values_and_marks_of_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    def one(step: int, loss: float | None, motion: float) -> MeasuredCheckpoint:
        return MeasuredCheckpoint(step, f"{step}", loss, [MetricResult("motion", True, motion)], [])

    checkpoints = [one(20, 0.25, 3.0), one(40, None, 4.5), one(60, 0.125, 4.0)]
    series = CheckpointSeries(Path("run"), "ema", "key", ["a kite"], 1, Shape(1, 32, 32), checkpoints)
    eval_command._print_series(series)
    rows = [
        line.split() for line in capsys.readouterr().out.splitlines() if line.split()[:1] in (["20"], ["40"], ["60"])
    ]
    assert rows == [["20", "0.25", "3"], ["40", "–", "4.5*"], ["60", "0.125*", "4"]]


def test_a_bar_shows_what_is_done_to_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal."""
    file = io.StringIO()
    monkeypatch.setattr(terminal, "console", lambda *, stderr: Console(file=file, force_terminal=True, width=100))
    with show.progress() as report:
        for done in (3, 7):
            report("reading", "clips", done, 7)
    assert "reading" in file.getvalue()
    assert "7/7" in file.getvalue()


def rows(text: str) -> list[list[str]]:
    """Return the cells of lines; rules between lines have none."""
    cells = ([cell.strip() for cell in re.split(r" {2,}|[│┃]", line) if cell.strip()] for line in text.splitlines())
    return [row for row in cells if row and not set("".join(row)) <= set("─━┼╇╞═ ")]


def test_losses_of_weights_have_a_row_for_each_bucket_and_one_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    small, large = HeldOutLoss(0.25, {"100": 0.125, "900": 0.375}, 2), HeldOutLoss(0.5, {"100": 0.5, "900": 0.5}, 1)
    told = Validation(0.375, {"100": 0.3125, "900": 0.4375}, 3, {"32px": small, "64px": large}, "key")
    source = EvaluatedModel(SimpleNamespace(has_training_adapter=False), Path("run"), 40, "ema")  # type: ignore[arg-type]
    eval_command._print_model(Evaluation(source, [100.0, 900.0], 4, "digest", told, {"are too short": 2}))
    assert rows(capsys.readouterr().out) == [
        ["Loss by bucket and timestep:"],
        ["bucket", "clips", "loss", "100", "900"],
        ["32px", "2", "0.25", "0.125", "0.375"],
        ["64px", "1", "0.5", "0.5", "0.5"],
        ["all", "3", "0.375", "0.312", "0.438"],
        [
            "loss 0.3750 of the averaged weights of step 40, on 3 held-out clips; 1 could not be decoded (); 2 are too short"
        ],
    ]


def test_metrics_of_clips_have_a_row_or_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        MetricResult("motion", True, 0.125, 3),
        MetricResult("fid", False, 2.5, 3, skipped="clip 2 is too short"),
        MetricResult("words", True, None, skipped="no prompts"),
    ]
    eval_command._print_clips(Report(Path("clips"), None, found, [Unreadable("a.mp4", "cut")]))
    assert rows(capsys.readouterr().out) == [
        ["metric", "value", "better", "clips"],
        ["motion", "0.125", "higher", "3"],
        ["fid", "2.5", "lower", "3"],
        ["fid: left out: clip 2 is too short"],
        ["words: skipped: no prompts"],
        ["a.mp4 cannot be read: cut"],
    ]


def test_entries_that_were_measured_have_a_row_with_time_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the trial with its batch size, of its resolution and number of frames."""
    trials = [
        Trial(bucket, 9, size, ms, gb * 10**9)
        for bucket, size, ms, gb in (
            ("64px 1:1 ×1", 8, 11.0, 3), ("64px 1:1 ×1", 16, 21.5, 5), ("64px 1:1 ×9", 16, 90.0, 7), ("32px 1:1 ×1", 16, 7.0, 2),
        )
    ]  # fmt: skip
    sizes = {"64px ×1": 16, "64px ×9": 0, "32px ×9": 4}
    result = Tuned(
        None, None, sizes, {}, {"64px ×1": True}, trials, CostModel(1.0, 2.0, 0.5, 0.0), {9: -0.25, 4: 0.125}
    )  # type: ignore[arg-type]
    tune._print(result, Path("tuned.json"))
    told = rows(capsys.readouterr().out)
    assert told[:4] == [
        ["entry", "batch size", "ms", "GB"],
        ["64px ×1", "16", "21.5", "5.00"],
        ["64px ×9", "does not fit", "–", "–"],
        ["32px ×9", "4", "–", "–"],
    ]
    text = "\n".join(" ".join(row) for row in told[4:])
    assert re.search(
        r"recomputed in backward passes: .*64px ×1.*1 \+ b · \(2 \+ 0\.5 n \+ 0 n²\) ms.* -25% at most", text, re.DOTALL
    )
    assert told[-1] == ['written to tuned.json; in the recipe: buckets.tuned and cost.measured = "tuned.json"']


def test_two_plans_are_printed_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """Keys, totals, buckets and reasons; what both have none of is left out."""
    figures = [
        ComparedNumber("padding", 0.25, 0.125),
        ComparedNumber("seconds", 60.0, 7200.0),
        ComparedNumber("steps", 4, 8),
    ]
    keys, buckets = [ChangedKey("train.max_steps", 4, 8)], [ComparedNumber("64px", 3, 0)]
    names = ("a.toml", "b.toml")
    show_plan.difference(PlanComparison(1, 2, keys, figures, buckets, []), names)
    assert rows(capsys.readouterr().out) == [
        ["key", *names], ["train.max_steps", "4", "8"],
        ["2 epochs", *names], ["padding", "25.0%", "12.5%"], ["time", "1 min 00 s", "2 h 00 min"], ["steps", "4", "8"],
        ["clips of bucket", *names], ["64px", "3", "0"],
    ]  # fmt: skip
    show_plan.difference(PlanComparison(1, 1, [], figures[:1], [], [ComparedNumber("too short", 0, 2)]), names)
    assert rows(capsys.readouterr().out) == [
        ["no key differs"],
        ["1 epoch", *names], ["padding", "25.0%", "12.5%"],
        ["rejected", *names], ["too short", "0", "2"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("done", "counts", "text"),
    [
        (True, {"trained": 7, "failed": 1, "skipped": 1}, "9 planned = 7 trained + 1 failed + 1 skipped; adds up"),
        (False, {"trained": 9}, "9 planned = 9 trained + 0 failed + 0 skipped + 0 not yet; adds up"),
        (True, {"trained": 7, "not_yet": 2}, "9 planned = 7 trained + 0 failed + 0 skipped + 2 not yet; adds up"),
        (True, {"trained": 7}, "9 planned against 7 trained + 0 failed + 0 skipped; does NOT add up"),
    ],
)
def test_a_line_of_an_epoch_has_all_its_clips(done: bool, counts: dict[str, int], text: str) -> None:
    none = np.zeros(0, np.int64)
    assert coverage_command._account(EpochCoverage(0, 0, 9, counts, done, [], [], none, none)) == text


@pytest.mark.parametrize("delete", [False, True])
def test_what_no_recipe_reaches_is_deleted_only_if_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, delete: bool
) -> None:
    removed: list[set[str]] = []
    store = SimpleNamespace(remove=lambda keys: removed.append(keys) or 5)
    lost = [{"key": "k", "kind": "latent", "label": "data/a.mp4", "bytes": 5}]
    monkeypatch.setattr(ahead, "unreached", lambda _: (store, lost))
    result = CliRunner().invoke(app, ["encode", "prune", "mine.toml", *["--delete"] * delete])
    assert (result.exit_code, removed) == (0, [{"k"}] * delete)
    assert ("deleted, 5 B freed" if delete else "--delete deletes them") in result.stdout
