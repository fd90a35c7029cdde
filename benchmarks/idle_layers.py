"""Which LoRAs are told to learn nothing: 50 healthy trainings, none of which may be, and planted ones, which all must be.

    python -m benchmarks.idle_layers --save

Each is a whole training of a tiny network of some family on sample footage: kinds of adapters, bases, optimizers, rates and dtypes in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file, save_file

from benchmarks import _results
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.models import factory
from reelworks.models.api import Denoiser
from reelworks.testing import contract, sample_folder
from reelworks.training.loop import trainer
from reelworks.training.loop.request import TrainRequest
from reelworks.training.recipe import recipe_file

FILE = Path(__file__).parent / "results" / "idle_layers.json"
_STEPS = 24
# Companions of the first would have to be made; gates of the others are zero in fresh weights, and nothing behind them learns.
_LEFT_OUT = ("wan-vace-tiny", "wan-2.2-tiny", "ernie-image-tiny", "kandinsky5-tiny", "kandinsky5-image-tiny")
_FAMILIES = [name for name in contract.CLASSES if name not in _LEFT_OUT]
_KINDS: list[dict[str, Any]] = [
    {"rank": 2},
    {"rank": 4, "targets": "blocks"},
    {"rank": 2, "dora": True},
    {"type": "lokr", "rank": 2},
    {"type": "loha", "rank": 2},
    {"type": "oft", "block_size": 4},
    {"rank": 2, "dropout": 0.2},
]
_BASES = ["float32", "bfloat16", "int8", "float8", "nf4"]
_OPTIMIZERS: list[dict[str, Any]] = [
    {"optimizer": "adamw"},
    {"optimizer": "adamw", "weight_decay": 0.1, "learning_rate": 1e-5},
    {"optimizer": "adamw", "warmup_steps": 10, "learning_rate": 1e-4},
    {"optimizer": "adamw", "gradient_accumulation_steps": 2, "learning_rate_schedule": "cosine"},
    {"optimizer": "prodigy"},
    {"optimizer": "adafactor"},
    {"optimizer": "schedulefree"},
    {"optimizer": "came"},
    {"optimizer": "adamw8bit"},
]


def main() -> None:
    """Train all, print what each was told, and keep the figures if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--healthy", type=int, default=50)
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {FILE.name}")
    asked = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        footage = sample_folder()
        healthy = {name: _told(recipe) for name, recipe in _healthy(footage, root, asked.healthy)}
        planted = dict(_planted(footage, root))
    false = [name for name, told in healthy.items() if told]
    missed = [name for name, (wanted, told) in planted.items() if wanted != told]
    for name, (_, told) in planted.items():
        print(f"planted: {name}: {told}")
    print(f"{len(healthy)} healthy trainings, {len(false)} told: {false}; {len(planted)} planted, missed: {missed}")
    if asked.save:
        figures = {"healthy": len(healthy), "told": false, "planted": list(planted), "missed": missed}
        _results.keep(FILE, figures | {"seconds": round(time.monotonic() - began)})
    sys.exit(bool(false or missed))


def _recipe(family: str, footage: Path, output: Path, lora: dict[str, Any], train: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": 1,
        "output": str(output),
        "dataset": [{"path": str(footage)}],
        "bucket": [{"resolution": "64px", "num_frames": 1, "batch_size": 2}],
        "buckets": {"aspect_ratios": ["1:1", "16:9"], "max_crop": 0.9, "upscale": True},
        "data": {"num_workers": 0},
        "model": {"name": family},
        "autoencoder": {"stride": 8},
        "text_encoder": {"dim": 16, "max_length": 6, "pooled_dim": 8},
        "lora": lora,
        "train": {"max_steps": _STEPS, "threads": 1, **train},
        "validation": {"split": 0.0},
        "checkpoints": {"every_steps": 8},
    }


def _healthy(footage: Path, root: Path, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    draw = random.Random(0)
    for i, family in zip(range(count), itertools.cycle(_FAMILIES), strict=False):
        kind, train = _KINDS[i % len(_KINDS)], _OPTIMIZERS[i % len(_OPTIMIZERS)]
        if "block_size" in kind and family.startswith("stdit"):
            kind = _KINDS[0]  # a fresh STDiT has projections of zeros, behind which no rotation can learn: rightly told
        base = draw.choice(_BASES)
        compute = "bfloat16" if base == "bfloat16" else draw.choice(["bfloat16", "float32"])
        lora = kind if base == "float32" else kind | {"base": base}
        name = f"{i} {family} {kind} {base} {compute} {train}"
        yield name, _recipe(family, footage, root / f"healthy-{i}", lora, train) | {"precision": {"compute": compute}}


def _planted(footage: Path, root: Path) -> Iterator[tuple[str, tuple[list[str], list[str]]]]:
    """Yield what must be told and what is, as problems with numbers of layers."""
    lora = {"rank": 2, "targets": ["to_q", "to_v"]}
    first = _recipe("wan-tiny", footage, root / "first", lora, {}) | {
        "exports": {"weights": "model", "dtype": "float32"}
    }
    assert _told(first) == []
    (learnt,) = (root / "first" / "exports").glob(f"*{_STEPS}*.safetensors")
    tensors = load_file(learnt)
    layers = len(tensors) // 2
    for name, rate, change in (
        ("all zero", 1e-3, torch.zeros_like),
        ("unchanged", 1e-30, torch.clone),
    ):
        file = root / f"{name}.safetensors".replace(" ", "-")
        changed: Callable[[torch.Tensor], torch.Tensor] = change
        save_file({key: changed(value) for key, value in tensors.items()}, file)
        recipe = _recipe("wan-tiny", footage, root / name, lora | {"weights": str(file)}, {"learning_rate": rate})
        problem = "zero" if name == "all zero" else name
        yield name, ([f"{problem}: {layers}"], _told(recipe))
    recipe = _recipe("wan-tiny", footage, root / "dead", lora, {})
    with mock.patch.object(factory, "build_denoiser", _changed(_kill)):
        yield "one dead layer", (["no gradient: 1"], _told(recipe))
    recipe = _recipe("wan-tiny", footage, root / "not-finite", lora, {"non_finite": "skip", "max_non_finite": 100})
    with mock.patch.object(factory, "build_denoiser", _changed(_spoil)):
        yield "gradients of one layer are not finite", (["not finite: 1"], _told(recipe))
    every = {"rank": 2, "targets": ["to_q"]}  # sound's too
    recipe = _recipe("ltx-2-tiny", footage, root / "unused", every, {})
    yield "sound that is not trained, a note", ([f"note, unused: {_SOUND_QUERIES}"], _told(recipe))


_SOUND_QUERIES = 4  # layers of ltx-2-tiny that are named to_q, and that only sound uses


def _changed(change: Callable[[Any], None]) -> Callable[..., Denoiser]:
    """Return `build_denoiser` with a change of the first layer that has an adapter."""

    def build(*args: Any, **more: Any) -> Denoiser:
        denoiser = _build(*args, **more)
        change(next(child for child in denoiser.module.modules() if hasattr(child, "scaling")))
        return denoiser

    return build


def _kill(layer: Any) -> None:
    layer.scaling = dict.fromkeys(layer.scaling, 0.0)


def _spoil(layer: Any) -> None:
    for parameter in layer.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient * math.nan)


_build = factory.build_denoiser


def _told(recipe: dict[str, Any]) -> list[str]:
    """Train, and return the problems that were told, with the number of layers of each."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert trainer.run(recipe_file.parse(recipe), TrainRequest()) == 0
    told = events.timeline(RunFolder(Path(recipe["output"])).events_file, "idle_layers")
    notes = ("note, " if event["is_note"] else "" for event in told)
    return [f"{note}{event['problem']}: {len(event['layers'])}" for note, event in zip(notes, told, strict=True)]


if __name__ == "__main__":
    main()
