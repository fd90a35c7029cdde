"""How fast a LoRA trains, and in how much memory: the shapes of the sweep that SimpleTuner publishes.

A LoRA's step computes no gradients of frozen weights. So its work is twice the linear layers and three times the attention
of a forward pass; `of_peak` is this work over the time and the published speed, whatever is computed again. Weights are
drawn, and frozen in bfloat16. What could not be measured keeps its row, with the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu import machine, steps
from benchmarks.gpu.steps import Case, Way
from reelworks.core import gpus
from reelworks.data.buckets.entry import Recomputation
from reelworks.training.memory import memory, recomputation
from reelworks.training.memory.measurements import Measurements, bucket_table
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

_SQUARE = ("1:1",)


def _picture(model: str, rank: int = 16, clips: int = 1) -> Case:
    return Case(model, "1024px", 1, clips, (), _SQUARE, rank=rank)


CASES = {
    "wan-1.3b": Case("wan-2.1-1.3b", "480px", 81, 1, (), _SQUARE, rank=16),
    "wan-14b": Case("wan-2.1-14b", "480px", 81, 1, (), _SQUARE, rank=16),
    "flux": _picture("flux-dev"),
    "qwen-image": _picture("qwen-image", rank=8),
    "z-image": _picture("z-image"),
    "sdxl": _picture("sdxl"),
    "sd3.5": _picture("sd3.5-medium", rank=128, clips=3),
    "chroma": _picture("chroma1-hd"),
    "krea2": _picture("krea2-raw"),
}
TINY = {
    name: Case(model, "64px", frames, clips, (), _SQUARE, rank=4)
    for name, model, frames, clips in (
        ("wan-1.3b", "wan-tiny", 5, 1),
        ("wan-14b", "wan-tiny", 5, 1),
        ("flux", "flux-tiny", 1, 1),
        ("qwen-image", "qwen-image-tiny", 1, 1),
        ("z-image", "z-image-tiny", 1, 1),
        ("sdxl", "sdxl-tiny", 1, 1),
        ("sd3.5", "sd3-tiny", 1, 3),
        ("chroma", "chroma-tiny", 1, 1),
        ("krea2", "krea2-tiny", 1, 1),
    )
}
# "auto" is what a training chooses for the card; it is compiled too.
WAYS: tuple[tuple[str, bool], ...] = (("auto", False), ("none", False), ("full", False), ("auto", True))


def rows(unit: str, device: str, tiny: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each way to train a case."""
    case, speed = (TINY if tiny else CASES)[unit], machine.speed(device)
    work, card = step_flops(case), gpus.of_device(machine.name(device))
    for recomputed, compiled in WAYS:
        chosen = _chosen(case, device) if recomputed == "auto" else recomputed == "full"
        row: dict[str, Any] = {"case": case.name, "rank": case.rank, "recomputed": _told(recomputed, chosen)}
        row |= {"compiled": compiled, "step_tflop": round(work / 1e12, 6)}
        row |= dict.fromkeys(("step_s", "of_peak", "peak_gb", "time_error", "memory_error"), None)
        try:
            found = steps.measure(case, Way("ours", compiled, chosen), device, work, speed)
            row |= {key: found[key] for key in ("step_s", "of_peak", "peak_gb")} | {"note": "measured"}
            if card is not None:
                row |= _errors(recipe_of(case, chosen, compiled=compiled), card, found)
        except torch.OutOfMemoryError:
            row["note"] = "out of memory"
        except Exception as error:  # of one way; the others go on
            row["note"] = f"not run: {steps.short(error)}"
        steps.free(device)
        yield row


def step_flops(case: Case) -> int:
    """Return the work of a step: twice the linear layers and three times the attention of a forward pass, without those of the LoRA."""
    network = dataclasses.replace(case, rank=None)
    return 2 * network.forward_flops() + network.attention_flops()


def recipe_of(case: Case, recomputed: Recomputation | str, *, compiled: bool = False) -> Recipe:
    """Return the recipe of a case, by which a training chooses and forecasts."""
    autoencoder, text = case.parts()
    bucket = {"resolution": case.resolution, "num_frames": case.num_frames, "batch_size": case.batch_size}
    values = {
        "version": 1,
        "output": "unused",
        "dataset": [{"path": "unused"}],
        "bucket": [bucket],
        "buckets": {"aspect_ratios": list(case.ratios)},
        "model": {"name": case.model, "gradient_checkpointing": "auto"},
        "autoencoder": autoencoder.model_dump(exclude_unset=True),
        "text_encoder": text.model_dump(exclude_unset=True),
        "encode": {"store": True},
        "lora": {"rank": case.rank},
        "train": {"max_steps": 1, "compile": compiled},
    }
    recipe = recipe_file.parse(values)
    if recomputed == "auto":
        return recipe
    entries = map(str, bucket_table(recipe).entries)
    return recomputation.with_recomputation(recipe, dict.fromkeys(entries, recomputed))  # type: ignore[arg-type]


def _chosen(case: Case, device: str) -> Recomputation:
    """Return what a training on this device would recompute."""
    if device != "cuda":
        return "selective"
    recipe = recipe_of(case, "auto")
    cards = recomputation.Cards(recomputation.limit(recipe, torch.cuda.get_device_properties(0).total_memory))
    (chosen,) = recomputation.least(recipe, bucket_table(recipe), cards).values()
    return chosen


def _told(asked: str, chosen: Recomputation) -> str:
    return f"auto: {recomputation.to_text(chosen)}" if asked == "auto" else asked


def _errors(recipe: Recipe, card: gpus.Gpu, found: dict[str, Any]) -> dict[str, float]:
    """Return how far off the forecasts of time and of torch's tensors are; encoders are not there."""
    told = Measurements().estimate(recipe, bucket_table(recipe))
    (bucket,) = memory.largest_of_entries(bucket_table(recipe))
    seconds = told.seconds(bucket.name, card) + told.update_seconds(card)
    gb = (told.memory.total - told.memory.reserve - told.memory.encoders) / 1e9
    return {
        "time_error": round(seconds / found["step_s"] - 1, 3),
        "memory_error": round(gb / found["peak_gb"] - 1, 3),
    }
