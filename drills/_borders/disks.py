"""Drills of full disks: each verb writes to a disk that has too few bytes, or no inodes, at some moment.

A verb either does its work or ends with an error in words that names what to change. A training whose disk is full for some
steps goes on. Needs the right to mount a tmpfs; without it nothing is tried.
"""

from __future__ import annotations

import contextlib
import functools
import io
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch  # before a child is forked, which would import it each time
from safetensors.torch import save_file
from small_disks import disk, may_mount, write_data

from drills._borders.files import within_bounds
from reelworks.commands import main
from reelworks.data.catalog.scan import scan  # noqa: F401
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.observers import run_logger
from reelworks.training.recipe import recipe_file

_SECONDS = 240.0
_SHAPES = (("A", (32, 256)), ("B", (256, 32)))  # of a LoRA


def _values(data: Path, output: Path, **more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "output": str(output),
        "dataset": [{"path": str(data), "missing_caption": "a"}],
        "bucket": [{"resolution": "32px", "num_frames": [1], "batch_size": [2]}],
        "data": {"num_workers": 0},
        "model": {"name": "stdit3-tiny", "hidden_size": 32, "depth": 1, "num_heads": 2},
        "autoencoder": {"stride": 8},
        "text_encoder": {"dim": 16, "max_length": 6},
        "precision": {"compute": "float32"},
        "train": {"max_steps": 6, "threads": 1},
        "checkpoints": {"every_steps": 2},
        "validation": {"split": 0.4, "timesteps": [500.0]},
        "samples": {"prompts": ["a"], "every_steps": 2, "num_inference_steps": 1},
    } | more


@functools.cache
def _trained() -> tuple[Path, Path]:
    """Return the data and the finished run that the other verbs read."""
    folder = Path(tempfile.mkdtemp(prefix="borders-"))
    data = write_data(folder)
    recipe = _recipe(folder, _values(data, folder / "run"))
    if (told := within_bounds(lambda: _run(["train", str(recipe)], folder)[1:], _SECONDS)) != []:
        raise RuntimeError(told)
    return data, folder / "run"


def _recipe(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "recipe.toml"
    path.write_text(recipe_file.dump(recipe_file.parse(values)), encoding="utf-8")
    return path


def _run(arguments: list[str], place: Path) -> list[str]:
    """Run a command in this process; returns its exit code, and what is wrong with how it ended."""
    said, sys.argv, code = io.StringIO(), ["reelworks", *arguments], 0
    torch.set_num_threads(1)
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            main.app(arguments, standalone_mode=True)
        except SystemExit as left:
            code = int(left.code or 0) if not isinstance(left.code, str) else 1
        except BaseException as error:
            told = main.as_user_error(error)
            code = 1 if told is None else 2
            print(f"Traceback {type(error).__name__}: {error}" if told is None else f"error: {told}")
    text = said.getvalue()
    wrong = [f"ended with {code}: {text[-200:]}"] if code not in (0, 2) or "Traceback" in text else []
    if code == 2 and not re.search(rf"error: .*{re.escape(str(place))}.*\n.*remedy: ", text, re.DOTALL):
        wrong.append(f"does not name the place: {text[-300:]}")
    return [str(code), *wrong]


def _verbs(place: Path, folder: Path) -> dict[str, list[str]]:
    """Each verb that writes, with its output on the disk."""
    data, run = _trained()
    values = _values(data, place / "run", catalog=str(place / "catalog"))
    stored = _values(
        data, folder / "own", catalog=str(folder / "catalog"), encode={"store": True, "folder": str(place / "e")}
    )
    (folder / "1").mkdir()
    (folder / "2").mkdir()
    recipe, encode = _recipe(folder / "1", values), _recipe(folder / "2", stored)
    out = str(place / "deep" / "out")
    base, lora = str(folder / "base.safetensors"), str(folder / "lora.safetensors")
    held = str(folder / "held.parquet")
    pq.write_table(pa.table({"image": [file.read_bytes() for file in sorted(data.rglob("*.png"))]}), held)
    layers = [f"blocks.{i}.attn" for i in range(4)]
    save_file({f"{layer}.weight": torch.zeros(256, 256) for layer in layers}, base)
    save_file({f"{layer}.lora_{side}.weight": torch.randn(*shape) for layer in layers for side, shape in _SHAPES}, lora)
    step = str(run / "checkpoints" / "step-000000006")
    return {
        "scan": ["scan", str(data), "-o", str(place / "catalog")],
        "train": ["train", str(recipe)],
        "encode": ["encode", str(encode)],
        "export": ["checkpoints", "export", step, "-o", f"{out}.safetensors"],
        "generate": ["generate", str(run), "--prompt", "a", "--output", f"{out}.png", "--num-frames", "1", "--height", "32",
                     "--width", "32", "--num-inference-steps", "1"],
        "eval": ["eval", str(run), "--out", f"{out}.json"],
        "plan": ["plan", str(recipe), "--html", f"{out}.html", "--rejected", f"{out}.csv"],
        "unpack": ["unpack", held, "--output", out],
        "contact-sheet": ["contact-sheet", str(recipe), "--output", out],
        "costs": ["report", str(run), "--costs", f"{out}.json"],
        "inspect": ["inspect", str(run / "coverage" / "catalog-000"), "--html", f"{out}.html"],
        "report": ["report", str(place / "run")],
        "tune": ["tune", str(recipe), "--out", f"{out}.json"],
        "lora resize": ["lora", "resize", lora, "--rank", "16", "-o", f"{out}.safetensors"],
        "lora apply": ["lora", "apply", base, lora, "-o", out],
    }  # fmt: skip


VERBS = (
    "scan",
    "train",
    "encode",
    "export",
    "generate",
    "eval",
    "plan",
    "unpack",
    "contact-sheet",
    "costs",
    "inspect",
    "report",
    "tune",
    "lora resize",
    "lora apply",
)


def try_verb(folder: Path, verb: str, **limits: int) -> list[str]:
    """Run a verb whose output is on a small disk."""
    _trained()
    if verb == "report":  # which writes into the run
        limits["kilobytes"] = 20_000
    with disk(folder / "disk", **limits) as place:
        arguments = _verbs(place, folder)[verb]
        if verb == "report":
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(_trained()[1], place / "run")
            fill(place / "filler")
        return within_bounds(lambda: _run(arguments, place)[1:], _SECONDS)


def too_small(chance: random.Random, folder: Path) -> list[str]:
    """A verb writes to a disk of too few bytes or inodes."""
    if not may_mount():
        return []
    verb = chance.choice(VERBS)
    limits = (
        {"kilobytes": chance.choice([4, 8, 16, 40, 100, 300])}
        if chance.random() < 0.6
        else {"inodes": chance.randint(1, 12)}
    )
    return [f"{verb}, {limits}: {problem}" for problem in try_verb(folder, verb, **limits)]


def fill(filler: Path) -> None:
    """Write a file until its disk is full."""
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def train_while_full(folder: Path, first: int, last: int) -> list[str]:
    """Train on a disk that is full from one step to another; all steps are trained, and the last checkpoint is there."""
    data, _ = _trained()

    def work() -> list[str]:
        original = run_logger.RunLogger.after_step

        def after_step(self: Any, trained: Any) -> None:
            number, filler = trained.number, place / "filler"
            if number == first:
                fill(filler)
            if number == last:
                filler.unlink(missing_ok=True)
            original(self, trained)

        run_logger.RunLogger.after_step = after_step  # type: ignore[assignment, method-assign]
        recipe = _recipe(folder, _values(data, place / "run", train={"max_steps": 12, "threads": 1}))
        code, *wrong = _run(["train", str(recipe)], place)
        run = RunFolder(place / "run")
        steps = [event["step"] for event in events.read(run.events_file, "step")]
        if code != "0" or not (run.checkpoints_folder / "step-000000012").is_dir():
            wrong.append(f"ended with {code} after {steps[-1:]}")
        return wrong

    with disk(folder / "disk", kilobytes=20_000) as place:
        return within_bounds(work, _SECONDS)


def full_for_a_while(chance: random.Random, folder: Path) -> list[str]:
    """A disk that is full for some steps ends no training."""
    if not may_mount():
        return []
    first = chance.randint(1, 9)
    last = chance.randint(first, 11)
    return [f"steps {first} to {last}: {problem}" for problem in train_while_full(folder, first, last)]


DRILLS: dict[str, Callable[[random.Random, Path], list[str]]] = {
    "too small": too_small,
    "full for a while": full_for_a_while,
}
