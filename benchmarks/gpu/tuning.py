"""The batch size that `reelworks tune` chooses, against the largest one that fits, which is found by trying.

`tune` leaves 8 % of a GPU's memory free; trying takes all of it. `estimated` is what `tune --estimate` says without a device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from reelworks.data.buckets.table import Bucket
from reelworks.training.memory import tune, workbench
from reelworks.training.memory.search import Limits
from reelworks.training.recipe import dataset, recipe_file

_TINY_BYTES = 1_200_000_000  # to which a CPU is capped


def rows(_: str, device: str, tiny: bool) -> Iterator[dict[str, Any]]:
    """Yield one row for each entry, with the error of `tune` as a share, and one for its predictions of time."""
    recipe, table = dataset.bucket_table(recipe_file.parse(_recipe(tiny)))
    memory = workbench.device_bytes() if device == "cuda" else _TINY_BYTES
    limits = Limits(memory, None, 512 if device == "cuda" else 48)
    estimated = tune.estimated(recipe, table, limits).batch_sizes
    began = time.monotonic()
    found = tune.measure(recipe, table, limits, lambda trial: None)
    seconds = time.monotonic() - began
    yield {
        "trials": len(found.trials),
        "tune_s": round(seconds, 1),
        "largest_residual": round(max(abs(t.residual or 0.0) for t in found.trials), 3),
    }
    whole = torch.cuda.get_device_properties(0).total_memory if device == "cuda" else memory
    with workbench.child(recipe, int(whole)) as process:
        for bucket in {bucket.entry: bucket for bucket in sorted(table.buckets, key=lambda b: b.tokens)}.values():
            entry = str(table.entries[bucket.entry])

            def fits(size: int, bucket: Bucket = bucket) -> bool:
                return process.trial(bucket, size) is not None

            tuned = found.batch_sizes[entry]
            largest = _largest(fits, tuned, limits.clips)
            yield {
                "entry": entry,
                "tokens": bucket.tokens,
                "tuned": tuned,
                "largest": largest,
                "error": round(tuned / largest - 1, 3) if largest else None,
                "estimated": estimated[entry],
            }


def _largest(fits: Callable[[int], bool], known: int, most: int) -> int:
    """Return the largest size that fits, by bisection above one that `tune` has found to fit."""
    good, bad = known, min(known + known // 3 + 2, most + 1)
    while good + 1 < bad:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def _recipe(tiny: bool) -> dict[str, Any]:
    small = {"name": "stdit3-tiny", "hidden_size": 64, "depth": 2, "num_heads": 2}
    return {
        "version": 1,
        "output": "unused",
        "dataset": [{"path": "unused"}],
        "bucket": [{"resolution": "128px" if tiny else "240p", "num_frames": 5}]
        + ([] if tiny else [{"resolution": "480p", "num_frames": 1}]),
        "buckets": {"aspect_ratios": ["16:9"]},
        "model": small if tiny else {"name": "stdit3-xl", "gradient_checkpointing": "selective"},
        "autoencoder": {"stride": 4 if tiny else 8},
        "text_encoder": {"dim": 32, "max_length": 12} if tiny else {"dim": 4096, "max_length": 300},
        "train": {"max_steps": 1},
    }
