"""`reelworks checkpoints`: what a run has kept, why, and for how long."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reelworks.cli.exit_codes import ExitCode
from reelworks.cli.options import Json, Overrides, RunArgument

if TYPE_CHECKING:
    from reelworks.checkpoint.config import CheckpointsConfig
    from reelworks.checkpoint.store import CheckpointStore

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
)
StepArgument = Annotated[int, typer.Argument(metavar="STEP", min=0, help="Optimizer steps done.")]
OptionalStep = Annotated[int | None, typer.Argument(metavar="[STEP]", min=0, help="Optimizer steps done.")]


class Format(enum.StrEnum):
    """Convention of an exported LoRA."""

    diffusers = "diffusers"
    comfyui = "comfyui"
    kohya = "kohya"


class Dtype(enum.StrEnum):
    """Dtype of exported floating-point tensors."""

    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


@app.callback()
def checkpoints() -> None:
    """Look at the checkpoints of a run, keep them, let them go.

    None of these but `export` loads torch, so they answer at once.
    """


def _open(run: Path, overrides: list[str] | None = None) -> tuple[CheckpointStore, CheckpointsConfig]:
    """A run's checkpoints, and the policy that it was last started with."""
    from reelworks.checkpoint.store import CheckpointStore
    from reelworks.recipe import recipe_file
    from reelworks.run.folder import RunFolder

    folder = RunFolder(run)
    folder.info()
    policy = recipe_file.load(folder.recipe_file, list(overrides or [])).checkpoints
    return CheckpointStore(folder.checkpoints_folder), policy


@contextmanager
def _changing(store: CheckpointStore) -> Iterator[None]:
    """Tell of a disk that refuses a change."""
    from reelworks.core.errors import UserError

    try:
        yield
    except OSError as error:
        raise UserError(
            f"the folder of checkpoints cannot be changed ({error.strerror or error})",
            code="checkpoints-unwritable",
            field="RUN",
            value=str(store.root),
            remedy="mend its permissions or its disk, or free disk space",
        ) from error


@app.command("ls")
def ls(run: RunArgument, json: Json = False) -> None:
    """List checkpoints: step, epoch, size, age and metrics of each.

    Says of each why it is kept, that it would go at the next save, or what is damaged.
    """
    import shutil

    from reelworks.checkpoint import listing
    from reelworks.cli import show, show_checkpoints

    store, policy = _open(run)
    rows = listing.rows(store, policy)
    # `checkpoints` itself may be a link to another disk.
    disk = store.root if store.root.exists() else run
    show.json(rows) if json else show_checkpoints.table(rows, shutil.disk_usage(disk).free)


@app.command("show")
def show_one(run: RunArgument, step: OptionalStep = None, json: Json = False) -> None:
    """Show files, metrics and versions of one checkpoint; of the newest, if no step is given."""
    from reelworks.checkpoint import listing
    from reelworks.cli import show, show_checkpoints

    store, policy = _open(run)
    newest = max(store.steps(), default=-1) if step is None else step
    told = listing.details(store, policy, newest)
    show.json(told) if json else show_checkpoints.details(told)


@app.command("verify")
def verify(
    run: RunArgument,
    step: OptionalStep = None,
    full: Annotated[bool, typer.Option("--full", help="Read everything and compare digests.")] = False,
    json: Json = False,
) -> None:
    """Check checkpoints against their manifests; exit code 1 if one is bad.

    Compares the sizes of files, with --full also their digests. Changes nothing.
    """
    from reelworks.checkpoint import listing
    from reelworks.cli import show, show_checkpoints

    store, _ = _open(run)
    if step is not None and step not in store.steps():
        raise store.unknown(step)
    rows = listing.verified(store, store.steps() if step is None else [step], full)
    show.json(rows) if json else show_checkpoints.verified(rows, full)
    if not all(row["good"] for row in rows):
        raise typer.Exit(ExitCode.FAILED)


@app.command("prune")
def prune(
    run: RunArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    json: Json = False,
    overrides: Overrides = None,
) -> None:
    """Delete now what the policy would delete at the next save, and say why.

    Also removes what killed processes left. Refused while the run trains. Another policy is asked with --set, as in
    --set checkpoints.keep_last=1.
    """
    from contextlib import nullcontext

    from reelworks.checkpoint import retention
    from reelworks.cli import show, show_checkpoints
    from reelworks.run import lock
    from reelworks.run.folder import RunFolder

    store, policy = _open(run, overrides)
    remedy = "wait for it: it prunes by itself after each save; --dry-run looks without deleting"
    alone = lock.hold(RunFolder(run).lock_file, field="RUN", remedy=remedy)
    with _changing(store), nullcontext() if dry_run else alone:
        sizes = {info.step: info.num_bytes for info in store.list()}
        decisions = (retention.plan if dry_run else retention.prune)(store, policy)
    told: dict[str, Any] = {"dry_run": dry_run, "kept": [], "deleted": []}
    for one in decisions:
        if one.step not in sizes:  # saved meanwhile by a training, which --dry-run may look at
            continue
        row = {"step": one.step, "bytes": sizes[one.step], "reasons": list(one.reasons)}
        told["kept" if one.keep else "deleted"].append(row)
    show.json(told) if json else show_checkpoints.pruned(told)


@app.command("explain")
def explain(run: RunArgument, step: StepArgument, json: Json = False) -> None:
    """Say why a checkpoint is there, or when and why it went; also long after."""
    from reelworks.checkpoint import listing
    from reelworks.cli import show, show_checkpoints

    told = listing.explain(*_open(run), step)
    show.json(told) if json else show_checkpoints.explained(told)


@app.command("pin")
def pin(run: RunArgument, step: StepArgument, json: Json = False) -> None:
    """Keep a checkpoint whatever the policy says; also while the run trains."""
    _set_pin(run, step, True, json)


@app.command("unpin")
def unpin(run: RunArgument, step: StepArgument, json: Json = False) -> None:
    """Leave a checkpoint to the policy again."""
    _set_pin(run, step, False, json)


def _set_pin(run: Path, step: int, pinned: bool, json: bool) -> None:
    from reelworks.checkpoint import listing
    from reelworks.cli import show, show_checkpoints

    store, policy = _open(run)
    with _changing(store):
        store.pin(step) if pinned else store.unpin(step)
    row = listing.row(store, policy, step)
    show.json(row) if json else show.line(f"step {step}: {show_checkpoints.why(row)}")


@app.command("best")
def best(run: RunArgument, json: Json = False) -> None:
    """Print the folder of the best checkpoint, by the recipe's keep_best."""
    from reelworks.checkpoint import listing
    from reelworks.cli import show

    row = listing.best(*_open(run))
    show.json(row) if json else show.line(str(row["path"]))


@app.command("export")
def export(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|CHECKPOINT", help="A run folder, or one checkpoint.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="A .safetensors file that is not there yet; above 10 GB, shards and an index.",
        ),
    ],
    ema: Annotated[bool, typer.Option("--ema/--weights", help="The average, or the trained weights.")] = True,
    dtype: Annotated[Dtype, typer.Option(help="Of floating-point tensors.")] = Dtype.bfloat16,
    format: Annotated[
        Format | None,
        typer.Option(help="Names of a LoRA's tensors; diffusers unless given.", show_default=False),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Of a LoRA run: whole weights, the LoRA added to its base.")
    ] = False,
    json: Json = False,
) -> None:
    """Write the weights of a run's newest checkpoint, or of the one named, as .safetensors; of a LoRA run, the LoRA.

    Reads all of the checkpoint first to compare digests, and a few tensors at a time after that. The run may train
    meanwhile.
    """
    from reelworks.cli import show
    from reelworks.generate import export_run

    made = export_run.export(
        source, output, ema=ema, dtype=dtype.value, format=format.value if format else None, merge=merge
    )
    for path in [] if json else made.files:
        show.line(f"{path}: {made.weights} of step {made.step} in {made.dtype}")
    if json:
        show.json({"step": made.step, "weights": made.weights, "dtype": made.dtype, "files": made.files})
