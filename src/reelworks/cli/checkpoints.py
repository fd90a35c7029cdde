"""`reelworks checkpoints`: list, verify, prune, pin and export the checkpoints of a run."""

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
    """Inspect, keep and delete the checkpoints of a run.

    Only `export` loads torch; the others answer at once.
    """


def _open(run: Path, overrides: list[str] | None = None) -> tuple[CheckpointStore, CheckpointsConfig]:
    """Open a run's checkpoints, with the policy of its latest start."""
    from reelworks.checkpoint.store import CheckpointStore
    from reelworks.recipe import recipe_file
    from reelworks.run.folder import RunFolder

    folder = RunFolder(run)
    folder.info()
    policy = recipe_file.load(folder.recipe_file, list(overrides or [])).checkpoints
    return CheckpointStore(folder.checkpoints_folder), policy


@contextmanager
def _changing(store: CheckpointStore) -> Iterator[None]:
    """Turn errors of the disk into a `UserError`."""
    from reelworks.core.errors import UserError

    try:
        yield
    except OSError as error:
        raise UserError(
            f"the folder of checkpoints cannot be written to ({error.strerror or error})",
            code="checkpoints-unwritable",
            field="RUN",
            value=str(store.root),
            remedy="check its permissions and its disk, or free disk space",
        ) from error


@app.command("ls")
def ls(run: RunArgument, json: Json = False) -> None:
    """List checkpoints: step, epoch, size, age and metrics of each.

    Tells for each why it is kept, that the next save would delete it, or what is damaged.
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
    """Show files, metrics and versions of one checkpoint, by default of the newest."""
    from reelworks.checkpoint import listing
    from reelworks.cli import show, show_checkpoints

    store, policy = _open(run)
    newest = max(store.steps(), default=-1) if step is None else step
    report = listing.details(store, policy, newest)
    show.json(report) if json else show_checkpoints.details(report)


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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be deleted.")] = False,
    json: Json = False,
    overrides: Overrides = None,
) -> None:
    """Delete now what the policy would delete at the next save, and print why.

    Also removes incomplete files of killed processes. Refused while the run trains. --set changes the policy, such as
    --set checkpoints.keep_last=1.
    """
    from contextlib import nullcontext

    from reelworks.checkpoint import retention
    from reelworks.cli import show, show_checkpoints
    from reelworks.run import lock
    from reelworks.run.folder import RunFolder

    store, policy = _open(run, overrides)
    remedy = "wait for the run, which prunes after each save, or give --dry-run to look without deleting"
    alone = lock.hold(RunFolder(run).lock_file, field="RUN", remedy=remedy)
    with _changing(store), nullcontext() if dry_run else alone:
        sizes = {info.step: info.num_bytes for info in store.list()}
        decisions = (retention.plan if dry_run else retention.prune)(store, policy)
    report: dict[str, Any] = {"dry_run": dry_run, "kept": [], "deleted": []}
    for decision in decisions:
        if decision.step not in sizes:  # saved meanwhile: --dry-run also works while the run trains
            continue
        row = {"step": decision.step, "bytes": sizes[decision.step], "reasons": list(decision.reasons)}
        report["kept" if decision.keep else "deleted"].append(row)
    show.json(report) if json else show_checkpoints.pruned(report)


@app.command("explain")
def explain(run: RunArgument, step: StepArgument, json: Json = False) -> None:
    """Tell why a checkpoint is kept, or when and why it was deleted."""
    from reelworks.checkpoint import listing
    from reelworks.cli import show, show_checkpoints

    report = listing.explain(*_open(run), step)
    show.json(report) if json else show_checkpoints.explained(report)


@app.command("pin")
def pin(run: RunArgument, step: StepArgument, json: Json = False) -> None:
    """Keep a checkpoint whatever the policy says; works while the run trains too."""
    _set_pin(run, step, True, json)


@app.command("unpin")
def unpin(run: RunArgument, step: StepArgument, json: Json = False) -> None:
    """Let the policy decide about a checkpoint again."""
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
    """Print the folder of the best checkpoint by the metric of the recipe's keep_best."""
    from reelworks.checkpoint import listing
    from reelworks.cli import show

    row = listing.best(*_open(run))
    show.json(row) if json else show.line(str(row["path"]))


@app.command("export")
def export(
    source: Annotated[Path, typer.Argument(metavar="RUN|CHECKPOINT", help="A run folder, or one checkpoint.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="A new .safetensors file; above 10 GB, shards and an index.",
        ),
    ],
    ema: Annotated[bool, typer.Option("--ema/--weights", help="Export the averaged or the trained weights.")] = True,
    dtype: Annotated[Dtype, typer.Option(help="Dtype of floating-point tensors.")] = Dtype.bfloat16,
    format: Annotated[
        Format | None,
        typer.Option(help="Naming convention of a LoRA's tensors; default: diffusers.", show_default=False),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Export full weights, with the LoRA merged into its base model.")
    ] = False,
    json: Json = False,
) -> None:
    """Write the weights of a run's newest checkpoint, or of one checkpoint, as .safetensors; for a LoRA run, the LoRA.

    Reads the whole checkpoint first to compare digests, then a few tensors at a time. The run may train meanwhile.
    """
    from reelworks.cli import show
    from reelworks.generate import export_run

    exported = export_run.export(
        source, output, ema=ema, dtype=dtype.value, format=format.value if format else None, merge=merge
    )
    for path in [] if json else exported.files:
        show.line(f"{path}: {exported.weights} of step {exported.step} in {exported.dtype}")
    if json:
        show.json(
            {
                "step": exported.step,
                "weights": exported.weights,
                "dtype": exported.dtype,
                "files": exported.files,
            }
        )
