"""Whole trainings: their memory beside what `check` and `new` estimate, and where the device waits.

The footage is small and enlarged, its latents are stored beforehand, and text and latents come from encoders without
weights, so that nothing is downloaded and the steps are those of the network.
"""

from __future__ import annotations

import gc
import gzip
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from reelworks import testing
from reelworks.recipe import dataset, recipe_file
from reelworks.train import trainer
from reelworks.train.preflight import check, estimate
from reelworks.train.preflight.memory import Memory
from reelworks.train.request import TrainRequest
from reelworks.train.tuning import workbench

_SMALL = {"name": "stdit3-tiny", "hidden_size": 64, "depth": 2, "num_heads": 2}
_PROFILED = (7, 9)
_SHARE = 0.02  # of a step, from which on a gap is told
_MOST_GAPS = 10
_ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_ON_HOST = {"cpu_op", "cuda_runtime", "cuda_driver", "user_annotation"}


def rows(unit: str, device: str, tiny: bool) -> Iterator[dict[str, Any]]:
    """Yield the figures of one unit: "full" and "lora" tell memory, "gaps" a profile."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _gaps(Path(folder), device, tiny) if unit == "gaps" else _memory(Path(folder), device, tiny, unit)


def recipe_in(folder: Path, tiny: bool, **changes: Any) -> dict[str, Any]:
    """Return a recipe of a network with fresh weights over small clips, stored ahead."""
    recipe: dict[str, Any] = {
        "version": 1,
        "output": str(folder / "run"),
        "dataset": [{"path": str(testing.sample_folder()), "repeats": 64}],
        "bucket": [{"resolution": "48px" if tiny else "240p", "num_frames": 5, "batch_size": 2 if tiny else 16}],
        "buckets": {"upscale": True, "max_crop": 0.9, "aspect_ratios": ["16:9"]},
        "data": {"num_workers": 0, "clip_start": "start"},
        "model": {**(_SMALL if tiny else {"name": "stdit3-xl"}), "gradient_checkpointing": "selective"},
        "autoencoder": {"stride": 4 if tiny else 8},
        "text_encoder": {"dim": 32, "max_length": 12} if tiny else {"dim": 4096, "max_length": 300},
        "encode": {"store": True},
        "validation": {"split": 0.0},
        "train": {"max_steps": 3},
        "checkpoints": {"every_steps": 1000},
    }
    return recipe | changes


def _memory(folder: Path, device: str, tiny: bool, unit: str) -> Iterator[dict[str, Any]]:
    """Train three steps, and compare the peak of memory with what was said before."""
    changes: dict[str, Any] = {}
    if unit == "lora":
        name = "wan-tiny" if tiny else "wan-2.1-1.3b"
        changes = {"model": {"name": name, "gradient_checkpointing": True}, "lora": {"rank": 16, "base": "int8"}}
    recipe = recipe_file.parse(recipe_in(folder, tiny, **changes))
    loaded, table = dataset.bucket_table(recipe)
    estimated = estimate.estimate(loaded, table).memory
    report = check.check_recipe(loaded, table)
    gc.collect()
    yield {
        "recipe": f"{recipe.model.name}{', LoRA on int8' if recipe.lora else ''}",
        "parts_gb": {part: round(size / 1e9, 4) for part, size in report.memory.parts.items() if size},
        "check_gb": round(report.memory.total / 1e9, 4),
        "estimate_gb": round(estimated.total / 1e9, 4),
        "estimated_reserve_gb": round(estimated.reserve / 1e9, 4),
    }
    workbench.reset_peak(torch.device(device))
    trainer.run(recipe, TrainRequest())
    if device == "cuda":
        yield _measured(report.memory.total, estimated)
    else:  # of which libraries are the most
        yield {"process_gb": round(workbench.peak_bytes(torch.device(device)) / 1e9, 3)}


def _measured(said: int, estimated: Memory) -> dict[str, Any]:
    """Return the peak of a GPU's memory, and by which share `check` and `new` are off.

    The reserve of `new` is for what torch does not count: it is compared with all that the device has given away.
    """
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return {
        "peak_gb": round(peak / 1e9, 3),
        "reserved_gb": round(reserved / 1e9, 3),
        "check_error": round(said / peak - 1, 3),
        "estimate_error": round(estimated.total / reserved - 1, 3),
    }


def _gaps(folder: Path, device: str, tiny: bool) -> Iterator[dict[str, Any]]:
    """Train with a profile of some steps, and tell the largest gaps between the device's operations."""
    steps: dict[str, Any] = {"max_steps": _PROFILED[1] + 1, "compile": device == "cuda"}
    recipe = recipe_file.parse(recipe_in(folder, tiny, train=steps))
    trainer.run(recipe, TrainRequest(profile="{}:{}".format(*_PROFILED)))
    [file] = folder.rglob("steps-*.json.gz")
    yield from gaps(json.loads(gzip.decompress(file.read_bytes()))["traceEvents"])


class _Span(NamedTuple):
    start: float  # microseconds
    end: float
    name: str


def gaps(trace: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a summary of a trace of `_PROFILED` steps, and its gaps above 2 % of a step, the longest first.

    A gap is named by the innermost operation of the host at its middle. Without a GPU, operators of the CPU are taken for
    those of the device.
    """
    spans = {kinds: _spans(trace, names) for kinds, names in (("device", _ON_DEVICE), ("host", _ON_HOST))}
    busy = sorted(spans["device"] or _spans(trace, {"cpu_op"}))
    assert busy, "the trace has no operations"
    idle: list[tuple[float, _Span, _Span]] = []
    working, last = 0.0, busy[0]
    for span in busy:
        if span.start > last.end:
            idle.append((span.start - last.end, last, span))
        working += max(span.end - max(span.start, last.end), 0.0) if span is not last else span.end - span.start
        last = max(last, span, key=lambda each: each.end)
    count = _PROFILED[1] - _PROFILED[0] + 1
    whole = last.end - busy[0].start
    large = sorted((gap for gap in idle if gap[0] > _SHARE * whole / count), key=lambda gap: -gap[0])
    summary = {
        "steps": count,
        "step_ms": round(whole / count / 1000, 3),
        "busy_share": round(working / whole, 4),
        "gaps_above_2_percent": len(large),
        "their_share": round(sum(length for length, *_ in large) / whole, 4),
    }
    return [summary, *(_named(gap, spans["host"], whole / count) for gap in large[:_MOST_GAPS])]


def _named(gap: tuple[float, _Span, _Span], host: Sequence[_Span], step: float) -> dict[str, Any]:
    length, before, after = gap
    middle = (before.end + after.start) / 2
    around = [span for span in host if span.start <= middle <= span.end]
    during = min(around, key=lambda span: span.end - span.start).name if around else "Python"
    return {
        "gap_ms": round(length / 1000, 3),
        "of_step": round(length / step, 4),
        "during": during[:100],
        "after": before.name[:100],
        "before": after.name[:100],
    }


def _spans(trace: Sequence[dict[str, Any]], kinds: set[str]) -> list[_Span]:
    return [
        _Span(float(each["ts"]), float(each["ts"]) + float(each["dur"]), str(each["name"]))
        for each in trace
        if each.get("ph") == "X" and each.get("cat") in kinds
    ]
