"""What a series of checkpoints tells: the best of each metric, copies with their source, and the step to use."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from reelworks.commands import eval as eval_command
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.inference.evaluate import registry
from reelworks.inference.evaluate.checkpoint_series import (
    CheckpointSeries,
    MeasuredCheckpoint,
    SkippedCheckpoint,
    chosen,
    default_metrics,
)
from reelworks.inference.evaluate.measure import MetricResult
from reelworks.inference.evaluate.request import EvalRequest
from reelworks.reports import checkpoint_grid


def test_where_a_page_has_no_room_for_all_clips_those_of_the_newest_checkpoints_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    for step in (100, 200, 300):
        clips = [tmp_path / f"{step}-{n}.png" for n in range(2)]
        for clip in clips:
            clip.write_bytes(bytes(50))
        measured.append(MeasuredCheckpoint(step, "id", 0.5, [], clips))
    series = CheckpointSeries(tmp_path, "ema", "k", ["a mug", "a cup"], 0, Shape(1, 8, 8), measured)
    for room, shown in ((300, [100, 200, 300]), (200, [200, 300]), (199, [300])):
        monkeypatch.setattr(checkpoint_grid, "MAX_PREVIEW_BYTES", room)
        rows = checkpoint_grid.rows(series)
        assert [row.step for row in rows] == [100, 200, 300]
        assert [row.step for row in rows if all(clip and clip.uri for clip in row.clips)] == shown
        assert not any(clip for row in rows if row.step not in shown for clip in row.clips)


@given(st.sets(st.integers(0, 50), min_size=1).map(sorted), st.integers(1, 9), st.data())
def test_a_choice_names_steps_that_are_there(steps: list[int], every: int, data: st.DataObject) -> None:
    assert chosen("all", steps) == steps
    multiples = [step for step in steps if step % every == 0]
    if multiples:
        assert chosen(f"every={every}", steps) == multiples
    some = data.draw(st.lists(st.sampled_from(steps), min_size=1))
    assert chosen(", ".join(map(str, some)), steps) == sorted(set(some))
    with pytest.raises(UserError, match="steps with a checkpoint"):
        chosen(f"{steps[0]},51", steps)


@pytest.mark.parametrize("text", ["", "every", "every=", "every=0", "1,,2", "-1", "last", "all,1"])
def test_what_is_no_choice_is_told_so(text: str) -> None:
    with pytest.raises(UserError) as refused:
        chosen(text, [1, 2])
    assert refused.value.code == "checkpoints-not-understood"


def test_metrics_by_default_are_those_that_have_weights() -> None:
    pixels = ["likeness-pixels", "closeness-pixels"]
    assert default_metrics({}, 1) == pixels
    all_of_them = default_metrics({"clip": "a", "dinov2": "b", "inception": "c"}, 8)
    assert all_of_them[:2] == ["likeness-dinov2", "closeness-dinov2"]
    assert all_of_them[-2:] == ["clip-score", "motion"]
    assert set(all_of_them) <= set(registry.names())
    assert not any(kind.requires_reference for kind in registry.all_named(all_of_them, ""))


def of_step(step: int, likeness: float, closeness: dict[str, float]) -> MeasuredCheckpoint:
    mean = sum(closeness.values()) / len(closeness)
    metrics = [
        MetricResult("likeness-pixels", True, likeness, 2),
        MetricResult("closeness-pixels", False, mean, 2, None, closeness, {"00": "mugs/a.png", "01": "mugs/b.png"}),
        MetricResult("clip-score", True, None, 0, "no weights are named for clip"),
    ]
    return MeasuredCheckpoint(step, str(step), None, metrics, [])


def test_a_series_tells_the_best_the_copies_and_the_step_to_use(capsys: pytest.CaptureFixture[str]) -> None:
    likeness, first, second = (
        (0.2, 0.6, 0.7, 0.7, 0.7, 0.69),
        (0.3, 0.4, 0.5, 0.7, 1.1, 1.9),
        (0.4, 0.4, 0.5, 0.6, 0.9, 1.3),
    )
    measured = [
        of_step(100 * i, a, {"00": b, "01": c})
        for i, (a, b, c) in enumerate(zip(likeness, first, second, strict=True), 1)
    ]
    prompts = ["a mug", "a mug in snow"]
    series = CheckpointSeries(
        Path("run"), "ema", "k", prompts, 0, Shape(1, 8, 8), measured, [SkippedCheckpoint(700, "gone")]
    )
    assert series.best == {"likeness-pixels": 300, "closeness-pixels": 100}
    assert series.higher_is_better == {"likeness-pixels": True, "closeness-pixels": False}
    assert series.advice is not None
    assert series.advice.step == 300
    left_out, no_weights, fifth, sixth, advice = series.to_text()
    assert left_out == "step 700 is left out: gone"
    assert no_weights == "clip-score: skipped: no weights are named for clip"
    assert fifth == "step 500: 'a mug' looks copied: mugs/a.png (closeness-pixels 1.1)"
    assert sixth == "step 600: 'a mug' looks copied: mugs/a.png (closeness-pixels 1.9), and 1 more"
    assert advice.startswith("use step 300: likeness has not risen in the 3 measurements since")
    assert measured[4].copied.keys() == {0}
    eval_command._print_series(series)
    best = [
        line.split() for line in capsys.readouterr().out.splitlines() if line.lstrip()[:1].isdigit() and "*" in line
    ]
    assert best == [["100", "0.2", "0.35*"], ["300", "0.7*", "0.5"]]


def test_a_loss_that_is_not_finite_is_never_the_best() -> None:
    losses = (math.nan, 1.0, 0.5, math.inf)
    measured = [MeasuredCheckpoint(i, str(i), loss, [], []) for i, loss in enumerate(losses, 1)]
    series = CheckpointSeries(Path("run"), "ema", "k", [], 0, Shape(1, 8, 8), measured)
    assert series.best == {"loss": 3}
    assert replace(series, checkpoints=measured[:1]).best == {}


@pytest.mark.parametrize("option", [{"step": 1}, {"best": True}, {"data_path": "clips"}, {"record": "run"}])
def test_an_option_of_one_checkpoint_is_refused_of_several(option: dict[str, Any]) -> None:
    with refused("key-without-effect", *option, says="leave --checkpoints out|leave checkpoints out"):
        EvalRequest(source=Path("run"), checkpoints="all", **option)
