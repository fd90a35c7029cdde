"""`reelworks train`: train a recipe from its latest checkpoint to the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from reelworks.commands import encode, new, show
from reelworks.core import machine, trust
from reelworks.core.errors import UserError
from reelworks.quickstart.request import FootageRequest
from reelworks.training.loop.launch import EXIT_REQUEUE, LAUNCHED, launch
from reelworks.training.loop.request import TrainRequest
from reelworks.training.loop.stop_signals import Stopped, StopSignals

if TYPE_CHECKING:
    from reelworks.training.loop.trainer import TrainResult


def train(
    footage: FootageRequest,
    request: TrainRequest,
    nproc_per_node: Annotated[int, Option(min=1)] = 1,
    json: Annotated[bool, Option("--json")] = False,
) -> None:
    """Train a recipe; the same command resumes it.

    Scans the data first. Under torchrun each process joins the others. With --data and --model it first writes a recipe
    for a LoRA, as `reelworks new lora` does, and trains that; an existing recipe is trained as it is.

    At the start it prints which checkpoint it resumes from, what changed since (clips added, removed and edited; recipe
    keys with both values), and how many clips are planned or left out, by reason. Epochs for which keep_prob draws no
    clip are reported and skipped.

    Ctrl-C, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGXCPU save after the current step and one more, or at once in a validation or in
    previews, which the next start makes up, and end with code 75. A second Ctrl-C leaves at once, without a save; a second signal of
    another kind changes nothing. Before the first step, all of these but Ctrl-C end it at once, with code 75. An output that cannot be
    written to ends no training.
    A save that fails during training is a warning; one that fails at the end or on a signal is an error. A preview that
    cannot be written is a warning, and so is one that does not fit into memory.

    Args:
        nproc_per_node: Processes on this machine.
        json: Print one JSON value at the end; all lines go to stderr.
    """
    results: list[TrainResult] = []
    with show.stdout_for_json(json):
        code = _train(footage, request, nproc_per_node, results.append)
    if json and results:
        show.json(results[0])
    raise Exit(code)


def _train(
    footage: FootageRequest, request: TrainRequest, nproc_per_node: int, on_end: Callable[[TrainResult], None]
) -> int:
    """Train in this process, or start several; returns the exit code."""
    if request.recipe is None:
        request = replace(request, recipe=new.recipe_for(footage))
    elif footage != FootageRequest():
        raise UserError(
            "--data, --model, --vram, --trigger and --weights write a recipe, but a recipe is given",
            code="recipe-and-quickstart-options",
            field="RECIPE",
            value=str(request.recipe),
            remedy="leave out the recipe or these options; --data-path and --set change values of a recipe",
        )
    machine.choose_wait_policy()
    if "RANK" in os.environ:
        # Before torch is loaded: one lost rank would fill the others' output with messages about sockets.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    from reelworks.training.recipe import recipe_file

    # Load before any process starts, so that a mistake is reported once.
    loaded = request.load_recipe()
    for key, entries in recipe_file.named_code(loaded):
        trust.require(entries, key)
    if os.environ.get("RANK", "0") == "0" and LAUNCHED not in os.environ:
        # What follows takes seconds, until the libraries are loaded.
        show.line(f"training {request.recipe} in {loaded.output}")
    if nproc_per_node > 1 and "LOCAL_RANK" not in os.environ:
        return launch(nproc_per_node, sys.argv[1:])
    from reelworks.core import worker_pool

    if LAUNCHED in os.environ:
        worker_pool.end_with_parent()
    try:
        with StopSignals(), show.loading():
            from reelworks.training.loop.trainer import run
    except Stopped:
        if os.environ.get("RANK", "0") == "0":
            show.line("stopped while the libraries were loaded; the same command goes on")
        return EXIT_REQUEUE

    with show.scan_progress() as on_scan, encode.encode_progress(quiet=os.environ.get("RANK", "0") != "0") as on_encode:
        return run(loaded, request, on_scan, on_encode, on_end)
