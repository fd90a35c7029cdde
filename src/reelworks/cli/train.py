"""`reelworks train`: a recipe, from wherever it stands to its end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from reelworks.cli.options import DataPath, Overrides, RecipeArgument, load_recipe


def train(
    recipe: RecipeArgument,
    data_path: DataPath = None,
    output: Annotated[Path | None, typer.Option(help="The run folder.")] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps in all.")] = None,
    resume: Annotated[str, typer.Option(metavar="auto|never|STEP", help="Where to go on.")] = "auto",
    nproc_per_node: Annotated[int, typer.Option(min=1, help="Processes on this machine.")] = 1,
    overrides: Overrides = None,
    debug: Annotated[bool, typer.Option("--debug", help="Log the clips of every step.")] = False,
) -> None:
    """Train; the same command again resumes.

    Scans the data by itself. Under torchrun each process joins the others.
    """
    changes = list(overrides or [])
    if output is not None:
        changes.append(f"output={output}")
    if max_steps is not None:
        changes.append(f"train.max_steps={max_steps}")
    # Read before any process starts, so that a mistake is told once.
    loaded = load_recipe(recipe, changes, data_path)
    if nproc_per_node > 1 and "LOCAL_RANK" not in os.environ:
        _launch(nproc_per_node)
    from reelworks.cli import show
    from reelworks.train.run import RunOptions, run

    with show.scan_progress() as on_scan:
        code = run(loaded, RunOptions(resume=resume, debug=debug), on_scan)
    raise typer.Exit(code)


def _launch(processes: int) -> None:
    """Become torchrun, with the same command line."""
    import sys

    # The trainer shares the cores out; without this torchrun says at length that it did not.
    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // processes, 1)))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    arguments = [sys.executable, *launcher, "-m", "reelworks", *sys.argv[1:]]
    os.execv(sys.executable, arguments)
