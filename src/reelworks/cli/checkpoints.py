"""`reelworks checkpoints`: what a run has kept."""

from __future__ import annotations

import typer

from reelworks.cli.options import Json, RunArgument

app = typer.Typer(help="Look at the checkpoints of a run.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def checkpoints() -> None:
    """Look at the checkpoints of a run."""


@app.command("ls")
def ls(run: RunArgument, json: Json = False) -> None:
    """List checkpoints, with why each is kept."""
    from reelworks.checkpoint import retention
    from reelworks.checkpoint.store import CheckpointStore
    from reelworks.cli import show
    from reelworks.recipe import load
    from reelworks.run.folder import RunFolder

    folder = RunFolder(run)
    folder.info()
    store = CheckpointStore(folder.checkpoints_folder)
    decisions = retention.plan(store, load.load(folder.recipe_file).checkpoints)
    good, broken = store.scan()
    if json:
        show.json(show.checkpoints_json(good, broken, decisions))
    else:
        show.checkpoints(good, broken, decisions)
