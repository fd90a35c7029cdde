"""Clips per second of encoding, and of training that encodes live or reads what was stored.

`encoder` measures the autoencoder alone, with drawn weights of full size on a GPU, on clips (Wan's) and pictures (SDXL's): in
both dtypes, as it is, with all clips at once, with channels last, and compiled as `train.compile` does it. Each row tells how
far latents are from the plain ones in float32. `training` trains a LoRA with Wan's, live and stored, as by default and with
an encoder in bfloat16 that is compiled with the model. Footage is made here, and captions have hashed vectors. Times are
medians, without first ones; `first_s` and `run_s` contain compilation, and `run_s` also encoding for the store.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import Tensor

from benchmarks import encode
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.assembly import build
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.loop import trainer
from reelworks.training.loop.request import TrainRequest
from reelworks.training.memory import workbench
from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import compiled_encoder

_WARM = 2  # steps before those that count
_PASSES = 5
_WAYS = ("plain", "at once", "channels last", "compiled")
# Inductor needs minutes on a CPU.
_COMPILED: dict[bool, dict[str, Any]] = {
    False: {"compile": True},
    True: {"compile": True, "compile_backend": "aot_eager"},
}
_SMALL_KL = {"block_out_channels": (16, 16, 16, 32), "layers_per_block": 1, "norm_num_groups": 8}
_KL = {"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2}


def rows(unit: str, device: str, tiny: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of the encoder alone, or of training."""
    with tempfile.TemporaryDirectory() as folder:
        yield from (_encoder if unit == "encoder" else _training)(Path(folder), torch.device(device), tiny)


def _sizes(tiny: bool) -> argparse.Namespace:
    if tiny:
        return argparse.Namespace(clips=8, frames=5, height=64, width=96, batch=2, steps=5)
    return argparse.Namespace(clips=32, frames=17, height=480, width=832, batch=4, steps=8)


def _write_autoencoder(name: str, place: Path, tiny: bool) -> None:
    library: Any = diffusers
    torch.manual_seed(0)
    if name == "wan-2.1":
        library.AutoencoderKLWan(z_dim=16, num_res_blocks=1, **({"base_dim": 16} if tiny else {})).save_pretrained(
            place
        )
        return
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    library.AutoencoderKL(**blocks, **(_SMALL_KL if tiny else _KL), scaling_factor=0.13025).save_pretrained(place)


def _encoder(place: Path, device: torch.device, tiny: bool) -> Iterator[dict[str, Any]]:
    clips = _sizes(tiny)
    pictures = argparse.Namespace(batch=2, frames=1, height=64, width=96)
    if not tiny:
        pictures = argparse.Namespace(batch=8, frames=1, height=1024, width=1024)
    for name, sizes in (("wan-2.1", clips), ("sdxl", pictures)):
        _write_autoencoder(name, place / name, tiny)
        shape = (sizes.batch, sizes.frames, sizes.height, sizes.width, 3)
        frames = torch.randint(0, 256, shape, dtype=torch.uint8)
        exact: Tensor | None = None
        for dtype in ("float32", "bfloat16"):
            for way in _WAYS:
                torch._dynamo.reset()
                encoders = _prepared(name, place / name, device, dtype, way, tiny)
                row, latents = _passes(encoders, frames, way)
                exact = latents if exact is None else exact
                yield {
                    "autoencoder": name,
                    "frames": "x".join(map(str, shape[:4])),
                    "dtype": dtype,
                    "way": way,
                    **row,
                    "off": float(f"{(latents - exact).norm() / exact.norm():.1e}"),
                }


def _prepared(name: str, weights: Path, device: torch.device, dtype: str, way: str, tiny: bool) -> FrozenEncoders:
    recipe = recipe_file.parse(
        encode.recipe_in(weights, 1, 64, 64, 1)
        | {"autoencoder": {"name": name, "weights": str(weights), "dtype": dtype}}
        | {"model": {"name": "sdxl-tiny" if name == "sdxl" else "wan-tiny"}, "encode": {"store": False}}
        | {"train": {"max_epochs": 1, **(_COMPILED[tiny] if way == "compiled" else {})}}
    )
    encoders = build.encoder(recipe, device)
    if way == "channels last":
        for network in encoders.autoencoder.encoding_networks:
            compiled_encoder.store_channels_last(network)
    compiled_encoder.of_recipe(encoders.autoencoder, recipe, device)
    return encoders


def _passes(encoders: FrozenEncoders, frames: Tensor, way: str) -> tuple[dict[str, Any], Tensor]:
    """Encode a batch several times, and return the times and memory with the latents."""
    device = encoders.device
    encoded: Callable[[Tensor], Tensor] = encoders.latents
    if way == "at once":
        encoded = encoders.latents_at_once
    seconds = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(_PASSES + 1):
        began = time.perf_counter()
        latents = encoded(frames).cpu()
        seconds.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None
    return {
        "clips_per_s": round(len(frames) / statistics.median(seconds[1:]), 3),
        "first_s": round(seconds[0], 2),
        "peak_gb": peak and round(peak, 2),
    }, latents


def _training(place: Path, _: torch.device, tiny: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for stored latents and one for live encoding, each as by default and compiled, and their ratios.

    A bare step is one on inputs that are there, by the kernels of attention that torch chooses.
    """
    sizes = _sizes(tiny)
    _write_autoencoder("wan-2.1", place / "vae", tiny)
    encode.footage(place / "footage", sizes.clips, sizes.frames, sizes.height, sizes.width)
    speeds: dict[tuple[str, bool], float] = {}
    for compiled in (False, True):
        for way in ("stored", "live"):
            torch._dynamo.reset()
            row = _train(place, sizes, tiny, way, compiled)
            speeds[way, compiled] = row["clips_per_s"]
            yield row
            if (way, compiled) == ("stored", False):
                yield {"stored_over_bare": round(row["clips_per_s"] / _bare_speed(place, sizes, tiny), 3)}
    yield {
        "stored_over_live": round(speeds["stored", False] / speeds["live", False], 3),
        "live_compiled_over_plain": round(speeds["live", True] / speeds["live", False], 3),
        "stored_compiled_over_plain": round(speeds["stored", True] / speeds["stored", False], 3),
    }


def _bare_speed(place: Path, sizes: argparse.Namespace, tiny: bool) -> float:
    """Return the clips per second of a step that neither reads nor encodes."""
    recipe, table = dataset.bucket_table(_recipe(place, sizes, tiny, "stored", compiled=False))
    with workbench.child(recipe, workbench.device_bytes()) as process:
        trial = process.trial(table.buckets[0], sizes.batch)
    assert trial is not None
    return float(1000 * sizes.batch / trial.milliseconds)


def _recipe(place: Path, sizes: argparse.Namespace, tiny: bool, way: str, *, compiled: bool) -> Recipe:
    name = f"{way}-compiled" if compiled else way
    recipe = encode.recipe_in(place, sizes.frames, sizes.height, sizes.width, sizes.batch)
    recipe |= {
        "output": str(place / name),
        "catalog": str(place / "catalog"),
        "model": {"name": "wan-tiny" if tiny else "wan-2.1-1.3b", "gradient_checkpointing": "selective"},
        "lora": {"rank": 4 if tiny else 16},  # whose checkpoints are small
        "autoencoder": recipe["autoencoder"] | {"dtype": "bfloat16" if compiled else "float32"},
        "encode": {"store": way == "stored", "folder": str(place / "encoded")},
        "train": {"max_steps": sizes.steps, **(_COMPILED[tiny] if compiled else {})},
        "checkpoints": {"every_steps": 1000},
    }
    return recipe_file.parse(recipe)


def _train(place: Path, sizes: argparse.Namespace, tiny: bool, way: str, compiled: bool) -> dict[str, Any]:
    recipe = _recipe(place, sizes, tiny, way, compiled=compiled)
    began = time.monotonic()
    trainer.run(recipe, TrainRequest())
    steps = events.timeline(RunFolder(Path(recipe.output)).events_file, "step")[_WARM:]
    seconds = statistics.median(step["seconds"] for step in steps)
    waits = statistics.median(step["data_wait_seconds"] for step in steps)
    return {
        "latents": Path(recipe.output).name,
        "model": recipe.model.name,
        "clip": f"{sizes.frames}x{sizes.height}x{sizes.width}",
        "clips_per_s": round(sizes.batch / seconds, 3),
        "step_s": round(seconds, 4),
        "data_wait_s": round(waits, 4),
        "run_s": round(time.monotonic() - began, 1),
    }
