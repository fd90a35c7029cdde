"""What commands print of results that others compute: tables and bars, one JSON value, the name of a file or of a folder."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from reelworks.commands import eval as eval_command
from reelworks.commands import replay, show
from reelworks.commands.main import app
from reelworks.core import terminal, trust
from reelworks.core.shape import Shape
from reelworks.demo import walkthrough
from reelworks.inference.evaluate.checkpoint_series import CheckpointSeries, MeasuredCheckpoint
from reelworks.inference.evaluate.measure import MetricResult
from reelworks.reports import sheet
from reelworks.training.loop import replay as replaying


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
    """On a terminal, until all are done; nothing is left of it then."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    monkeypatch.setattr(terminal, "console", lambda *, stderr: console)
    with show.progress() as report:
        report("reading", "clips", 3, 7)
        (bar,) = [live.get_renderable() for live in [console._live_stack[-1]]]
        console.print(bar)
        assert "reading" in file.getvalue()
        assert "3/7" in file.getvalue()
        report("reading", "clips", 7, 7)
        assert not console._live_stack
