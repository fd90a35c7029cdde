"""`reelworks train`: train a recipe from its latest checkpoint to the end."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from reelworks.cli import encode, new, show
from reelworks.cli.options import DataPath, Overrides, load_recipe, setting
from reelworks.core import openmp_wait_policy, trust
from reelworks.core.errors import UserError
from reelworks.distributed.launch import LAUNCHED, launch


def train(
    recipe: Annotated[
        Path | None, Argument(metavar="RECIPE", help="A recipe (a TOML file), unless --data and --model are given.")
    ] = None,
    data: new.Data = None,
    model: Annotated[str | None, new.MODEL] = None,
    vram: new.Vram = None,
    trigger: new.Trigger = None,
    weights: new.Weights = None,
    data_path: DataPath = None,
    output: Annotated[Path | None, Option(help="Run folder in place of the recipe's.")] = None,
    max_steps: Annotated[
        int | None, Option(min=1, help="Total number of optimizer steps, counted from the run's start.")
    ] = None,
    resume: Annotated[
        str,
        Option(
            metavar="auto|never|STEP",
            help="auto: resume from the newest good checkpoint. never: refuse a folder with checkpoints. STEP: resume from exactly that step and set later checkpoints aside.",
        ),
    ] = "auto",
    load: Annotated[
        Path | None,
        Option(
            metavar="RUN|CHECKPOINT",
            help="Begin with another run's weights, average and optimizer; ignored once this run has a checkpoint.",
        ),
    ] = None,
    weights_only: Annotated[bool, Option("--weights-only", help="Load only the weights of --load.")] = False,
    restart_data: Annotated[
        bool,
        Option(
            "--restart-data",
            help="Begin the data again at epoch 0 and keep weights, optimizer and step count. Given again before these data are finished, it continues with them.",
        ),
    ] = False,
    nproc_per_node: Annotated[int, Option(min=1, help="Processes on this machine.")] = 1,
    overrides: Overrides = None,
    debug: Annotated[
        bool, Option("--debug", help="Log the clips of every step, and keep the stacks of GPU allocations.")
    ] = False,
    profile: Annotated[
        str | None,
        Option(
            metavar="FIRST:LAST", help="Write a trace of these steps to the run folder, for https://ui.perfetto.dev."
        ),
    ] = None,
) -> None:
    """Train a recipe; the same command resumes it.

    Scans the data first. Under torchrun each process joins the others. With --data and --model it first writes a recipe
    for a LoRA, as `reelworks new lora` does, and trains that; an existing recipe is trained as it is.

    At the start it prints which checkpoint it resumes from, what changed since (clips added, removed and edited; recipe
    keys with both values), and how many clips are planned or left out, by reason. Epochs for which keep_prob draws no
    clip are reported and skipped.

    Ctrl-C, SIGTERM and SIGUSR1 save after the current step and one more, and end with code 75. A second Ctrl-C leaves at
    once, without a save; a second signal of another kind changes nothing.
    A save that fails during training is a warning; one that fails at the end or on a signal is an error. A preview that
    cannot be written is a warning, and so is one that does not fit into memory, unless several processes train.
    """
    if recipe is None:
        recipe = new.recipe_for(data or [], model, vram, trigger, weights)
    elif data or model or vram or trigger or weights:
        raise UserError(
            "--data, --model, --vram, --trigger and --weights write a recipe, but a recipe is given",
            code="recipe-and-quickstart-options",
            field="RECIPE",
            value=str(recipe),
            remedy="leave out the recipe or these options; --data-path and --set change values of a recipe",
        )
    if recipe.is_dir():
        known = (recipe / "run.json").is_file()
        raise UserError(
            "this is a run folder, not a recipe" if known else "this is a folder, not a recipe",
            code="folder-for-a-recipe",
            field="RECIPE",
            value=str(recipe),
            remedy="give the recipe that it was started with; the same command resumes it"
            if known
            else f"to train a LoRA on what it holds: reelworks train --data {shlex.quote(str(recipe))} --model NAME",
        )
    steps = None if profile is None else _steps(profile)
    changes = list(overrides or [])
    if output is not None:
        changes.append(setting("output", str(output)))
    if max_steps is not None:
        changes.append(f"train.max_steps={max_steps}")
    openmp_wait_policy.choose()
    if "RANK" in os.environ:
        # Before torch is loaded: one lost rank would fill the others' output with messages about sockets.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    # Load before any process starts, so that a mistake is reported once.
    loaded = load_recipe(recipe, changes, data_path)
    trust.require(loaded.samples.metrics, "samples.metrics")
    if os.environ.get("RANK", "0") == "0" and LAUNCHED not in os.environ:
        show.line(f"training {recipe} in {loaded.output}")  # what follows takes seconds, until the libraries are loaded
    if nproc_per_node > 1 and "LOCAL_RANK" not in os.environ:
        raise Exit(launch(nproc_per_node, sys.argv[1:]))
    from reelworks.core import worker_pool

    if LAUNCHED in os.environ:
        worker_pool.end_with_parent()
    with show.loading():
        from reelworks.train.profile import Steps
        from reelworks.train.resume import RunOptions
        from reelworks.train.trainer import run

    options = RunOptions(
        resume=resume,
        load=load,
        weights_only=weights_only,
        restart_data=restart_data,
        debug=debug,
        profile=None if steps is None else Steps(*steps),
    )
    with show.scan_progress() as on_scan, encode.encode_progress(quiet=os.environ.get("RANK", "0") != "0") as on_encode:
        code = run(loaded, options, on_scan, on_encode)
    raise Exit(code)


def _steps(text: str) -> tuple[int, int]:
    """Return the first and the last step of a range such as `10:20`."""
    first, _, last = text.partition(":")
    if first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last):
        return int(first), int(last)
    raise UserError(
        "not a first and a last step, counted from 1",
        code="step-range-invalid",
        field="--profile",
        value=text,
        remedy="write a range such as 10:20; one step is 7:7",
    )
