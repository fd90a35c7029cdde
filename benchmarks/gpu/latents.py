"""Clips per second of training from stored latents, against encoding each clip live, in the trainer itself.

The autoencoder is Wan's with drawn weights (full size on a GPU), the footage is made here, and captions have hashed
vectors. Times are medians over the steps of a run, without the first ones; `run_s` is that of the whole run, for stored
latents with encoding them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffusers
import torch

from benchmarks import encode
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.loop import trainer
from reelworks.training.loop.request import TrainRequest
from reelworks.training.recipe import recipe_file

_WARM = 2  # steps before those that count


def rows(_: str, device: str, tiny: bool) -> Iterator[dict[str, Any]]:
    """Yield one row for live encoding, one for stored latents, and their ratio."""
    sizes = argparse.Namespace(clips=8, frames=5, height=64, width=96, batch=2, steps=5)
    if not tiny:
        sizes = argparse.Namespace(clips=32, frames=17, height=480, width=832, batch=4, steps=8)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        library: Any = diffusers
        torch.manual_seed(0)
        small = {"base_dim": 16} if tiny else {}
        library.AutoencoderKLWan(z_dim=16, num_res_blocks=1, **small).save_pretrained(place / "vae")
        encode.footage(place / "footage", sizes.clips, sizes.frames, sizes.height, sizes.width)
        found = []
        for stored in (False, True):
            found.append(_train(place, sizes, tiny, stored))
            yield found[-1]
    live, from_store = found
    yield {"stored_over_live": round(from_store["clips_per_s"] / live["clips_per_s"], 3)}


def _train(place: Path, sizes: argparse.Namespace, tiny: bool, stored: bool) -> dict[str, Any]:
    name = "stored" if stored else "live"
    recipe = encode.recipe_in(place, sizes.frames, sizes.height, sizes.width, sizes.batch) | {
        "output": str(place / name),
        "catalog": str(place / "catalog"),
        "model": {"name": "wan-tiny" if tiny else "wan-2.1-1.3b", "gradient_checkpointing": "selective"},
        "encode": {"store": stored, "folder": str(place / "encoded")},
        "train": {"max_steps": sizes.steps},
        "checkpoints": {"every_steps": 1000},
    }
    began = time.monotonic()
    trainer.run(recipe_file.parse(recipe), TrainRequest())
    steps = events.timeline(RunFolder(place / name).events_file, "step")[_WARM:]
    seconds = statistics.median(step["seconds"] for step in steps)
    waits = statistics.median(step["data_wait_seconds"] for step in steps)
    return {
        "latents": name,
        "model": str(recipe["model"]["name"]),
        "clip": f"{sizes.frames}x{sizes.height}x{sizes.width}",
        "clips_per_s": round(sizes.batch / seconds, 3),
        "step_s": round(seconds, 4),
        "data_wait_s": round(waits, 4),
        "run_s": round(time.monotonic() - began, 1),
    }
