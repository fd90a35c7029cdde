"""Whole trainings: their memory beside what `check` and `new` estimate, and where the device waits.

Each case of memory gets the largest micro-batch whose estimate takes a part of the card.

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

from benchmarks.memory import gguf_file
from reelworks import testing
from reelworks.models.adapters.config import BaseStorage
from reelworks.models.recompute import Recompute
from reelworks.training.loop import trainer
from reelworks.training.loop.request import TrainRequest
from reelworks.training.memory import estimate, workbench
from reelworks.training.preflight import check
from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.recipe import Recipe

_SMALL = {"name": "stdit3-tiny", "hidden_size": 64, "depth": 2, "num_heads": 2}
_PROFILED = (7, 9)
_SHARE = 0.02  # of a step, from which on a gap is told
_MOST_GAPS = 10
_ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_ON_HOST = {"cpu_op", "cuda_runtime", "cuda_driver", "user_annotation"}


def rows(unit: str, device: str, tiny: bool) -> Iterator[dict[str, Any]]:
    """Yield the figures of one unit: "gaps" tells a profile, the others memory."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _gaps(Path(folder), device, tiny) if unit == "gaps" else _memory(Path(folder), device, tiny, unit)


class Case(NamedTuple):
    """A training whose memory is measured: the storage of its base, what is recomputed, and what else its recipe says."""

    base: BaseStorage | None
    recomputed: Recompute
    more: str = ""


_MORE: dict[str, dict[str, Any]] = {
    "": {},
    "compiled": {"train": {"max_steps": 3, "compile": True}},
    "offload": {"parallel": {"offload": True}},
    "average on the CPU": {"train": {"max_steps": 3, "ema_device": "cpu"}},
    "micro-batches": {"train": {"max_steps": 3, "gradient_accumulation_steps": 2}},
    "validation and previews": {
        "validation": {"split": 0.2, "every_steps": 1},
        "samples": {"prompts": ["a kite"], "num_inference_steps": 2},
    },
}
# The first of each unit is also told by `check`.
CASES = {
    "full": (Case(None, True), Case(None, "selective"), Case(None, False), Case(None, "selective", "compiled")),
    "lora": (
        Case("int8", True),
        Case("bfloat16", False),
        Case("bfloat16", "selective"),
        Case("float8", True),
        Case("nf4", True),
        Case("gguf", True),
    ),
    "more": (
        Case("int8", True, "compiled"),
        Case("bfloat16", True, "offload"),
        Case("int8", True, "validation and previews"),
        Case(None, True, "micro-batches"),
        Case(None, True, "average on the CPU"),
        Case(None, False, "compiled"),
    ),
}
_SHARE_OF_CARD, _MOST_CLIPS = 0.6, 64  # of memory, and of a micro-batch


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
    """Train each case three steps, and compare the peak of memory with what was said before."""
    for i, case in enumerate(CASES[unit]):
        own = folder / str(i)
        own.mkdir()
        named = {"base": case.base or "all trained", "recomputed": str(case.recomputed).lower(), "with": case.more}
        try:
            yield named | _memory_of(case, own, device, tiny, checked=i == 0)
        except Exception as error:  # of one case; the others go on
            yield named | {"error": f"{type(error).__name__}: {error}"[:300]}
        gc.collect()


def _memory_of(case: Case, folder: Path, device: str, tiny: bool, *, checked: bool) -> dict[str, Any]:
    recipe = _fitting(_recipe_of(case, folder, tiny), device)
    loaded, table = dataset.bucket_table(recipe)
    said = estimate.estimate(loaded, table).memory
    row: dict[str, Any] = {
        "case": f"{recipe.model.name} ×{table.buckets[0].batch_size}",
        "estimate_gb": round((said.total - said.reserve) / 1e9, 4),
        "with_reserve_gb": round(said.total / 1e9, 4),
    }
    if checked:
        row |= {"check_gb": round(check.check_recipe(loaded, table).memory.total / 1e9, 4)}
        gc.collect()
    workbench.reset_peak(torch.device(device))
    trainer.run(recipe, TrainRequest())
    if device != "cuda":  # of which libraries are the most
        return row | {"process_gb": round(workbench.peak_bytes(torch.device(device)) / 1e9, 3)}
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    context = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()
    return row | {
        "peak_gb": round(peak / 1e9, 3),
        "reserved_gb": round(reserved / 1e9, 3),
        "context_gb": round(context / 1e9, 3),
        "estimate_error": round((said.total - said.reserve) / peak - 1, 3),
        "fit_error": round(said.total / (reserved + context) - 1, 3),
    }


def _recipe_of(case: Case, folder: Path, tiny: bool) -> dict[str, Any]:
    name = "wan-tiny" if tiny else "wan-2.1-1.3b"
    network = {"name": name} if case.base else _SMALL if tiny else {"name": "stdit3-xl"}
    changes: dict[str, Any] = {"model": network | {"gradient_checkpointing": case.recomputed}, **_MORE[case.more]}
    if case.base is not None:
        changes["lora"] = {"rank": 16, "base": case.base}
    values = recipe_in(folder, tiny, **changes)
    if case.base == "gguf":
        values["model"]["weights"] = str(gguf_file(values, folder))
    return values


def _fitting(values: dict[str, Any], device: str) -> Recipe:
    """Return the recipe with the most clips, in powers of two, whose estimate fits a part of the card."""
    clips = _MOST_CLIPS if device == "cuda" else values["bucket"][0]["batch_size"]
    while True:
        entry = values["bucket"][0] | {"batch_size": clips}
        recipe = recipe_file.parse({**values, "bucket": [entry]})
        if device != "cuda" or clips == 1:
            return recipe
        needed = estimate.estimate(*dataset.bucket_table(recipe)).memory.total
        if needed <= _SHARE_OF_CARD * torch.cuda.get_device_properties(0).total_memory:
            return recipe
        clips //= 2


def _gaps(folder: Path, device: str, tiny: bool) -> Iterator[dict[str, Any]]:
    """Train with a profile of some steps, and tell the largest gaps between the device's operations."""
    steps: dict[str, Any] = {"max_steps": _PROFILED[1] + 1, "compile": device == "cuda"}
    network = _SMALL if tiny else {"name": "stdit3-xl", "depth": 8}  # whose weights are saved at the end
    recipe = recipe_file.parse(
        recipe_in(folder, tiny, train=steps, model=network | {"gradient_checkpointing": "selective"})
    )
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
