"""Traces of steps, and their gaps: what no stream fills, and only what is long beside a step."""

from __future__ import annotations

import gzip
import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tiny_recipe
import torch
from hypothesis import given
from hypothesis import strategies as st

from reelworks.data.distributed.mesh import World
from reelworks.data.run.folder import RunFolder
from reelworks.training.loop import trainer
from reelworks.training.loop.request import TrainRequest
from reelworks.training.observers import profile
from reelworks.training.observers.observer import Training
from reelworks.training.observers.profile import StepProfiler
from reelworks.training.recipe import recipe_file


def kernel(begin: float, end: float, name: str = "kernel", category: str = "kernel") -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": end - begin, "tid": int(begin) % 3}


def test_only_what_no_stream_fills_is_a_gap_and_small_ones_are_not_listed(tmp_path: Path) -> None:
    events = [
        kernel(0, 4000, "forward"),
        kernel(3000, 4500, "copy", "gpu_memcpy"),  # beside it, in another stream
        kernel(4510, 8000, "backward"),  # 10 µs later: nothing beside a step of 5 ms
        kernel(8300, 10000, "adamw"),
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 8000, "dur": 300},  # the host's work fills nothing
        {"ph": "i", "cat": "kernel", "name": "mark", "ts": 8100},  # nor does what takes no time
        {"ph": "M", "name": "process_name", "args": {}},
    ]
    file = tmp_path / "steps-1-2.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"traceEvents": events[::-1]}).encode()))
    idle = profile.idle_of_file(file, steps=2)
    assert idle is not None
    assert idle.step_ms == pytest.approx(5.0)
    assert idle.share == pytest.approx(0.31 / 10)
    assert idle.gaps == [profile.Gap(8.0, pytest.approx(0.3), "backward", "adamw")]
    assert "between backward and adamw" in str(idle)


def test_a_resume_within_the_steps_to_trace_traces_the_rest_of_them(tmp_path: Path) -> None:
    run, told = RunFolder(tmp_path / "run"), []
    log: Any = SimpleNamespace(event=lambda kind, **fields: told.append((kind, fields["first"], fields["last"])))
    alone, nothing = World(0, 1, torch.device("cpu")), cast(Any, None)
    profiler = StepProfiler((2, 4), Training(run, alone, nothing, nothing, nothing, nothing, log, nothing))
    for step in (3, 4, 5):
        profiler.before_step(step)
        torch.ones(2).add(1)
        profiler.after_step(cast(Any, SimpleNamespace(number=step)))
    assert told == [("profile", 3, 4)]
    assert [file.name for file in run.profiles_folder.iterdir()] == ["steps-3-4.json.gz"]


@pytest.mark.parametrize(("steps", "traces"), [("1:2", False), ("2:3", True), ("5:9", True), ("6:9", False)])
def test_steps_to_trace_of_which_a_start_trains_none_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    steps: str,
    traces: bool,
) -> None:
    """As one that goes on from step 2 to step 5."""
    end: Any = trainer.StageEnd(cast(Any, SimpleNamespace(global_step=5)), "finished", [])
    for owner, name, result in (
        (trainer.resume, "pick", SimpleNamespace(step=2)),
        (trainer.start, "require_possible", None),
        (trainer.open_run, "lock_folder", nullcontext()),
        (trainer, "_train_stage", end),
    ):
        monkeypatch.setattr(owner, name, lambda *_, result=result, **__: result)
    recipe = recipe_file.parse(tiny_recipe.least(output=str(tmp_path / "run")))
    assert trainer.run(recipe, TrainRequest(profile=steps)) == 0
    assert ("has traced nothing" in capsys.readouterr().out) != traces


def test_half_a_trace_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the disk fails while it is written, or the process is killed."""
    run, alone, nothing = RunFolder(tmp_path / "run"), World(0, 1, torch.device("cpu")), cast(Any, None)
    profiler = StepProfiler((1, 1), Training(run, alone, nothing, nothing, nothing, nothing, nothing, nothing))
    profiler.before_step(1)

    def fail(*_: Any) -> None:
        assert not list(run.profiles_folder.glob("steps-*"))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gzip.GzipFile, "write", fail)
    profiler.after_step(cast(Any, SimpleNamespace(number=1)))
    assert not list(run.profiles_folder.iterdir())


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 100)), min_size=1))
def test_work_and_gaps_are_the_whole_time(pieces: list[tuple[int, int]]) -> None:
    idle = profile.idle_of_events([kernel(begin, begin + length) for begin, length in pieces], steps=1)
    busy = {t for begin, length in pieces for t in range(begin, begin + length)}
    assert idle is not None
    whole = max(busy) + 1 - min(busy)
    assert idle.share == pytest.approx(1 - len(busy) / whole)
    assert idle.step_ms == pytest.approx(whole / 1000)


def test_the_longest_gap_is_told_wherever_it_is() -> None:
    idle = profile.idle_of_events([kernel(0, 10, "a"), kernel(40, 50, "b"), kernel(90, 100, "c"), kernel(120, 130)], 1)
    assert "the longest 0.04 ms, between b and c" in str(idle)


def test_a_trace_of_a_cpu_has_no_device() -> None:
    assert (
        profile.idle_of_events([{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 300}], steps=1) is None
    )
