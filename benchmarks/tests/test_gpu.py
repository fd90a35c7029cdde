"""`python -m benchmarks.gpu` keeps what it measures, whatever fails, and its arithmetic is right."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu_page
import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import formulas, loras, machine, sections, steps, training
from benchmarks.gpu.results import DONE, FAILED, UNFINISHED, Results

REPOSITORY = Path(__file__).parents[2]
[SAVES] = sections.chosen(["saves"], "unit")


@pytest.mark.slow  # units run in processes of their own, some s each
def test_a_unit_that_fails_leaves_its_error_and_one_out_of_time_is_run_again(tmp_path: Path) -> None:
    found = Results(tmp_path / "gpu-x.json")
    command._run(SAVES, found, "no-device", 100, tiny=True)
    command._run(sections.UNITS[0], found, "cpu", 0.3, tiny=True)
    kept = Results(found.file)
    assert (kept.status("saves"), kept.status("tests")) == (FAILED, UNFINISHED)
    assert "no-device" in kept.values["units"]["saves"]["error"]
    asked = command.argparse.Namespace(again=[], only=["saves", "tests"])
    assert [unit.name for unit in command._to_do(asked, kept)] == ["tests"]
    asked.again = ["failed"]
    assert [unit.name for unit in command._to_do(asked, kept)] == ["tests", "saves"]


@pytest.mark.parametrize(
    ("case", "off"),
    [
        (steps.TINY["stdit3-51x480p"], 0.05),  # where layers that run once for each clip count more
        *(pytest.param(case, 2e-3, marks=pytest.mark.slow, id=name) for name, case in steps.CASES.items()),
    ],
)
def test_the_work_that_torch_counts_is_that_of_the_formula(case: steps.Case, off: float) -> None:
    one = dataclasses.replace(case, batch_size=1)
    formula = formulas.forward_flops(one.build("meta").module, one.clean("meta"))
    assert one.forward_flops() == pytest.approx(formula, rel=off)


@pytest.mark.slow
def test_a_case_that_does_not_fit_is_timed_with_half_its_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    case, asked = steps.TINY["wan-49x480p"], []

    def measure(case: steps.Case, way: steps.Way, device: str, flops: int, _: machine.Speed) -> dict[str, Any]:
        asked.append((case.batch_size, flops))
        if len(asked) % 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return {"tokens_per_s": 7}

    monkeypatch.setattr(steps, "measure", measure)
    speed = machine.Speed(None, 1.0)
    assert steps._measure_or_fewer(case, case.ways[0], "cpu", 10, speed) == {"tokens_per_s": 7}
    assert asked == [(2, 10), (1, 5)]
    with pytest.raises(torch.OutOfMemoryError):
        steps._measure_or_fewer(dataclasses.replace(case, batch_size=1), case.ways[0], "cpu", 5, speed)


@pytest.mark.slow
def test_the_work_of_a_lora_is_twice_its_layers_and_three_times_its_attention() -> None:
    """Of Wan, whose attention is known by a formula."""
    case = dataclasses.replace(loras.TINY["wan-1.3b"], rank=None)
    network: Any = case.build("meta").module
    tokens, texts = case.bucket().tokens, case.clean("meta").text.shape[1]
    width = network.config.num_attention_heads * network.config.attention_head_dim
    attention = network.config.num_layers * 4 * tokens * (tokens + texts) * width
    assert case.attention_flops() == attention
    assert loras.step_flops(loras.TINY["wan-1.3b"]) == 2 * (case.forward_flops() - attention) + 3 * attention


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in loras.CASES] + ["tiny"])
@pytest.mark.slow
def test_loras_of_full_size_can_be_built_and_their_work_is_counted(name: str) -> None:
    case = loras.CASES.get(name, loras.TINY["sd3.5"])
    module = case.build("meta").module
    trained = [p for p in module.parameters() if p.requires_grad]
    frozen = [p for p in module.parameters() if not p.requires_grad and p.ndim == 2]
    assert trained
    assert {p.dtype for p in trained} == {torch.float32}
    assert torch.bfloat16 in {p.dtype for p in frozen}
    clips, tokens = case.batch_size, case.bucket().tokens
    assert loras.step_flops(case) > 0.2 * clips * tokens * sum(p.numel() for p in frozen)


def test_a_drawn_network_has_the_values_of_none_and_the_layout_of_all() -> None:
    """As a frozen base in bfloat16 and a LoRA in float32, on the device, finite."""
    case = loras.TINY["flux"]
    drawn, shapes = case.build("cpu").module.state_dict(), case.build("meta").module.state_dict()
    assert {name: (t.shape, t.dtype) for name, t in drawn.items()} == {n: (t.shape, t.dtype) for n, t in shapes.items()}
    assert all(t.device.type == "cpu" and torch.isfinite(t).all() for t in drawn.values())


@pytest.mark.slow
def test_what_does_not_fit_keeps_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(case: steps.Case, way: steps.Way, *_: object) -> dict[str, Any]:
        if way.checkpointing is False:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return {"step_s": 0.5, "of_peak": 0.4, "peak_gb": 30.0, "more": 1}

    monkeypatch.setattr(steps, "measure", measure)
    found = list(loras.rows("flux", "cpu", tiny=True))
    assert [row["note"] for row in found] == ["measured", "out of memory", "measured", "measured"]
    assert len({tuple(row) for row in found}) == 1, "one table"
    assert found[1]["step_s"] is None


def test_loops_are_compared_at_their_best_and_with_equal_settings() -> None:
    way = steps.Way
    tokens_per_s = {
        way("ours", True, "selective"): 900.0,
        way("ours", False, True): 300.0,
        way("diffusers", True, True): 450.0,
        way("diffusers", False, True): 200.0,
    }
    told = steps._compared(tokens_per_s)
    assert told == {"best_over_best": 2.0, "same_settings_eager": 1.5, "compiled_over_eager": 3.0}


def _event(cat: str, name: str, start: float, length: float) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": length}


def test_a_gap_is_told_by_what_the_host_did() -> None:
    """Three steps of 1000 µs: 20 µs is no gap, 100 µs is one; kernels of several streams overlap."""
    trace = [
        _event("kernel", "a", 0, 1000),
        _event("kernel", "beside", 500, 300),
        _event("gpu_memcpy", "b", 1020, 980),
        _event("kernel", "c", 2100, 900),
        _event("cpu_op", "step", 0, 3000),
        _event("cuda_runtime", "cudaStreamSynchronize", 2000, 90),
        _event("cpu_op", "elsewhere", 2500, 10),
    ]
    summary, *told = training.gaps(trace)
    assert summary == {
        "steps": 3,
        "step_ms": 1.0,
        "busy_share": 0.96,
        "gaps_above_2_percent": 1,
        "their_share": round(100 / 3000, 4),
    }
    assert told == [
        {"gap_ms": 0.1, "of_step": 0.1, "during": "cudaStreamSynchronize", "after": "b", "before": "c"}
    ]  # fmt: skip


def test_the_page_has_figures_and_errors_and_says_when_there_are_none(tmp_path: Path) -> None:
    assert gpu_page.NOTHING in gpu_page.page([])
    found = Results(tmp_path / "gpu-nvidia-x.json")
    found.describe({"device": "X", "torch": "2", "memory_gb": 9, "published_tflops": None, "measured_tflops": 1.5})
    found.begin("steps/wan", "2")
    found.add(
        "steps/wan", [{"case": "w", "of_peak": 0.412, "at_s": 3}, {"case": "w", "error": "OutOfMemoryError: 1 | 2"}]
    )
    found.end("steps/wan", FAILED, 3, "line\nRuntimeError: last line")
    page = gpu_page.page([found.file, tmp_path / "gpu-x-tiny.json"])
    for text in ("## X", "| w | 41.2% |", "| w | OutOfMemoryError: 1 / 2 |", "failed: RuntimeError: last line"):
        assert text in page
    assert gpu_page.NOTHING not in page


@pytest.mark.slow
@pytest.mark.parametrize("name", [unit.name for unit in sections.UNITS])
def test_each_unit_runs_on_a_cpu(name: str, tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--tiny", "--minutes", "20", "--results", str(tmp_path), "--only", name]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=1300,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    units = json.loads((tmp_path / "gpu-cpu-tiny.json").read_text(encoding="utf-8"))["units"]
    assert {unit: found["status"] for unit, found in units.items()} == {name: DONE}
    rows = units[name]["rows"]
    assert rows
    assert [row for row in rows if isinstance(row.get("error"), str)] == []
    assert {row.get("note", "measured") for row in rows} == {"measured"}
