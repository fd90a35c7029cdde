"""A tiny training, killed at random times until it was killed often enough, then run to its end.

Its weights, average and optimizer must be those of the run that nobody disturbed, to the bit. A training that
reaches its end before its kill comes is compared at once, and another begins in a folder of its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Json = dict[str, Any]
STEPS = 200
# A kill comes at the latest when a training that begins would have made so many steps.
_WINDOW_STEPS = 30
# Everything is imported once; each training is a fork of the process that did.
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["drills._crash_training", "preloaded"])
_LIMIT_SECONDS = 900


def survive(kills: int, seed: int) -> Json:
    """Kill so often; returns what was seen."""
    chance, began = random.Random(seed), time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_pictures(folder / "pictures")
        calm = _recipe(folder, "calm")
        for name in ("first", "second"):  # the first one starts the server
            started = time.perf_counter()
            _end(_start(_recipe(folder, name, _WINDOW_STEPS)), _LIMIT_SECONDS)
            window_seconds = time.perf_counter() - started
        if _end(_start(calm), _LIMIT_SECONDS) != 0:
            raise RuntimeError(_log(calm).read_text(encoding="utf-8"))
        expected = final_state(calm)
        done, in_a_save, finished, wrong = 0, 0, 0, []
        recipe = _recipe(folder, "killed-0")
        while done < kills:
            code = _end(_start(recipe), chance.uniform(0, window_seconds))
            if code == -signal.SIGKILL:
                done += 1
                in_a_save += any((Path(recipe["output"]) / "checkpoints").glob(".tmp-step-*"))
            else:
                wrong += _differences(recipe, code, expected)
                finished += 1
                recipe = _recipe(folder, f"killed-{finished}")
        wrong += _differences(recipe, _end(_start(recipe), _LIMIT_SECONDS), expected)
    return {
        "kills": done,
        "in_a_save": in_a_save,
        "compared": finished + 1,
        "wrong": wrong,
        "seconds": round(time.perf_counter() - began, 1),
    }


def _differences(recipe: Json, code: int | None, expected: dict[str, str]) -> list[str]:
    if code != 0:
        return [f"a resumed training ended with {code}: {_log(recipe).read_text(encoding='utf-8')[-2000:]}"]
    return [] if final_state(recipe) == expected else [f"{recipe['output']} ended in another state"]


def final_state(recipe: Json) -> dict[str, str]:
    """Digests of weights, average and optimizer in the newest checkpoint of a finished run."""
    import torch

    from reelworks.core import digests
    from reelworks.data.checkpoint import load
    from reelworks.data.checkpoint.folder import CheckpointFolder
    from reelworks.training.assembly import build
    from reelworks.training.recipe import recipe_file
    from reelworks.training.step.state import TrainState

    whole = recipe_file.parse(recipe)
    tensors = TrainState.start(build.denoiser(whole, torch.device("cpu")), whole.train).state_dict()
    newest = CheckpointFolder(Path(recipe["output"]) / "checkpoints").list()[-1]
    assert newest.step == STEPS
    load.load(newest.path, tensors)
    parts = {"model": tensors["model"], "ema": tensors["ema"], **tensors["optimizer"]["state"]}
    return {
        name: digests.digest_arrays(**{key: value.numpy() for key, value in values.items()})
        for name, values in parts.items()
    }


def _start(recipe: Json) -> Any:
    process = _SERVER.Process(target=_train, args=(recipe,))
    process.start()
    return process


def _end(process: Any, after_seconds: float) -> int | None:
    """Kill a training that still runs after a time; returns its exit code."""
    process.join(after_seconds)
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.join()
    return process.exitcode


def _train(recipe: Json) -> None:
    from reelworks.training.loop.request import TrainRequest
    from reelworks.training.loop.trainer import run
    from reelworks.training.recipe import recipe_file

    with _log(recipe).open("w", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os._exit(run(recipe_file.parse(recipe), TrainRequest()))


def _log(recipe: Json) -> Path:
    return Path(recipe["output"] + ".log")


def _make_pictures(folder: Path) -> None:
    folder.mkdir()
    generator = np.random.default_rng(0)
    for i, (height, width) in enumerate([(32, 48), (48, 32), (32, 32)] * 4):
        Image.fromarray(generator.integers(0, 256, (height, width, 3), np.uint8)).save(folder / f"{i}.png")
        (folder / f"{i}.txt").write_text(f"picture number {i}", encoding="utf-8")


def _recipe(folder: Path, output: str, max_steps: int = STEPS) -> Json:
    return {
        "version": 1,
        "output": str(folder / output),
        "seed": 7,
        "dataset": [{"path": str(folder / "pictures")}],
        "bucket": [{"resolution": "32px", "num_frames": [1], "batch_size": [3]}],
        "buckets": {"upscale": True, "max_crop": 0.7},
        "data": {"num_workers": 0},
        "model": {"name": "stdit3-tiny", "hidden_size": 32, "depth": 1, "num_heads": 2},
        "autoencoder": {"stride": 8},
        "text_encoder": {"dim": 16, "max_length": 6},
        "precision": {"compute": "float32"},
        "train": {"max_steps": max_steps, "learning_rate": 1e-3, "threads": 1},
        "checkpoints": {"every_steps": 1, "keep_last": 2, "asynchronous": True},
    }
