"""`reelworks checkpoints`: list, verify, prune, pin and export the checkpoints of a run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from reelworks.commands import show
from reelworks.commands.app import App
from reelworks.commands.exit_codes import ExitCode
from reelworks.commands.options import Json, Overrides, RunArgument, SourceArgument
from reelworks.core import units
from reelworks.models.adapters.conventions import LoraFormat
from reelworks.models.export.config import Dtype

if TYPE_CHECKING:
    from reelworks.data.checkpoint.config import CheckpointsConfig
    from reelworks.data.checkpoint.folder import CheckpointFolder
    from reelworks.data.checkpoint.listing import (
        CheckpointHistory,
        ListedCheckpoint,
        ManifestFacts,
        Pruned,
        VerifiedCheckpoint,
    )

app = App(no_args_is_help=True, rich_markup_mode=None)
StepArgument = Annotated[int, Argument(metavar="STEP", min=0, help="Optimizer steps done.")]
OptionalStep = Annotated[int | None, Argument(metavar="[STEP]", min=0, help="Optimizer steps done.")]


@app.callback()
def checkpoints() -> None:
    """Inspect, keep and delete the checkpoints of a run.

    Only `export` loads torch; the others answer at once.
    """


def _open(run: Path, overrides: list[str] | None = None) -> tuple[CheckpointFolder, CheckpointsConfig]:
    from reelworks.data.checkpoint.folder import CheckpointFolder
    from reelworks.data.run.folder import RunFolder
    from reelworks.training.recipe import recipe_file

    folder = RunFolder(run)
    folder.info()
    policy = recipe_file.load(folder.recipe_file, overrides or []).checkpoints
    return CheckpointFolder(folder.checkpoints_folder), policy


@app.command("ls", doing="reading the checkpoints")
def ls(run: RunArgument, json: Json = False) -> None:
    """List checkpoints: step, epoch, size, age, stage and metrics of each.

    Tells for each why it is kept among those that are there, that the policy does not keep it, or what is damaged.
    """
    from reelworks.data.checkpoint import listing

    store, policy = _open(run)
    rows = listing.rows(store, policy)
    # `checkpoints` itself may be a link to another disk.
    disk = store.root if store.root.exists() else run
    show.json(rows) if json else _print_all(rows, shutil.disk_usage(disk).free)


@app.command("show", doing="reading the checkpoint")
def show_one(run: RunArgument, step: OptionalStep = None, json: Json = False) -> None:
    """Show files, metrics and versions of one checkpoint, by default of the newest."""
    from reelworks.data.checkpoint import listing

    store, policy = _open(run)
    found = listing.details(store, policy, max(store.steps(), default=-1) if step is None else step)
    show.json(found) if json else _print_one(found.listed, found.manifest)


@app.command("verify", doing="comparing files with their manifests")
def verify(
    run: RunArgument, step: OptionalStep = None, full: Annotated[bool, Option("--full")] = False, json: Json = False
) -> None:
    """Check checkpoints against their manifests; exit code 1 if one is bad.

    Compares the sizes of files, with --full also their digests. Changes nothing.

    Args:
        full: Read everything and compare digests.
    """
    from reelworks.data.checkpoint import listing

    store, _ = _open(run)
    if step is not None and step not in store.steps():
        raise store.unknown(step)
    rows = listing.verified(store, store.steps() if step is None else [step], full)
    show.json(rows) if json else _print_verified(rows, full)
    if not all(row.good for row in rows):
        raise Exit(ExitCode.FAILED)


@app.command("prune", doing="removing checkpoints")
def prune(
    run: RunArgument,
    dry_run: Annotated[bool, Option("--dry-run")] = False,
    json: Json = False,
    overrides: Overrides = None,
) -> None:
    """Delete now what the policy does not keep among the checkpoints that are there, and print why.

    Also removes incomplete files of killed processes. Refused while the run trains. --set changes the policy, such as
    --set checkpoints.keep_last=1.

    Args:
        dry_run: Only print what would be deleted.
    """
    from reelworks.core import files
    from reelworks.data.checkpoint import listing
    from reelworks.data.checkpoint.folder import CheckpointFolder
    from reelworks.data.run import lock
    from reelworks.data.run.folder import RunFolder

    store, policy = _open(run, overrides)
    remedy = "wait for the run, which prunes after each save, or give --dry-run to look without deleting"
    alone = lock.hold(RunFolder(run).lock_file, field="RUN", remedy=remedy)
    with files.writing("RUN", store.root), nullcontext() if dry_run else alone as held:
        if held is not None:
            store = CheckpointFolder(store.root, held.check)
        pruned = listing.prune(store, policy, dry_run=dry_run)
    show.json(pruned) if json else _print_pruned(pruned)


@app.command("explain", doing="reading the checkpoints")
def explain(run: RunArgument, step: StepArgument, json: Json = False) -> None:
    """Tell why a checkpoint is kept, or when and why it was deleted."""
    from reelworks.data.checkpoint import listing

    report = listing.explain(*_open(run), step)
    show.json(report) if json else _print_history(report)


@app.command("pin", doing="pinning the checkpoint")
def pin(run: RunArgument, step: StepArgument, json: Json = False) -> None:
    """Keep a checkpoint whatever the policy says; works while the run trains too."""
    _set_pin(run, step, True, json)


@app.command("unpin", doing="unpinning the checkpoint")
def unpin(run: RunArgument, step: StepArgument, json: Json = False) -> None:
    """Let the policy decide about a checkpoint again."""
    _set_pin(run, step, False, json)


def _set_pin(run: Path, step: int, pinned: bool, json: bool) -> None:
    from reelworks.core import files
    from reelworks.data.checkpoint import listing

    store, policy = _open(run)
    with files.writing("RUN", store.root):
        store.pin(step) if pinned else store.unpin(step)
    row = listing.row(store, policy, step)
    show.json(row) if json else show.line(f"step {step}: {_why(row)}")


@app.command("best", doing="reading the checkpoints")
def best(run: RunArgument, json: Json = False) -> None:
    """Print the folder of the best checkpoint by the metric of the recipe's keep_best."""
    from reelworks.data.checkpoint import listing

    row = listing.best(*_open(run))
    show.json(row) if json else show.line(str(row.path))


@app.command("export", doing="exporting")
def export(
    source: SourceArgument,
    output: Annotated[Path, Option("--output", "-o")],
    ema: Annotated[bool, Option("--ema/--weights")] = True,
    dtype: Annotated[Dtype, Option()] = "bfloat16",
    format: Annotated[LoraFormat | None, Option(show_default=False)] = None,
    merge: Annotated[bool, Option("--merge")] = False,
    json: Json = False,
) -> None:
    """Write the weights of a run's newest checkpoint, or of one checkpoint, as .safetensors; for a LoRA run, the LoRA.

    Reads one tensor at a time, and compares its digest. The run may train meanwhile.

    Args:
        output: A new .safetensors file; above 10 GB, shards and an index.
        ema: Export the averaged or the trained weights.
        dtype: Dtype of floating-point tensors.
        format: Naming convention of a LoRA's tensors; default: diffusers.
        merge: Export full weights, with the LoRA merged into its base model.
    """
    with show.loading():
        from reelworks.inference.generate import export_run
    exported = export_run.export(source, output, ema=ema, dtype=dtype, format=format, merge=merge)
    for path in [] if json else exported.files:
        show.line(f"{path}: {exported.weights} of step {exported.step} in {exported.dtype}")
    if json:
        show.json(exported)


def _print_all(rows: Sequence[ListedCheckpoint], free_bytes: int) -> None:
    from reelworks.data.checkpoint import listing

    has_stages = any(row.saved and row.saved.stage for row in rows)
    cells = (
        (
            row.step,
            _or_unknown(row.saved and row.saved.epoch),
            units.size(row.saved.bytes) if row.saved else "?",
            units.duration(time.time() - row.saved.created) if row.saved else "?",
            *[row.saved.stage if row.saved else "?"] * has_stages,
            _metrics(row.saved.metrics) if row.saved else "",
            _why(row),
        )
        for row in rows
    )
    show.table(("step", "epoch", "size", "age", *["stage"] * has_stages, "metrics", "kept because"), cells)
    total = units.size(listing.total_bytes(rows))
    show.line(f"{units.plural(len(rows), 'checkpoint')}, {total}; {units.size(free_bytes)} free on the disk")


def _why(row: ListedCheckpoint) -> str:
    reasons = "; ".join(row.reasons)
    return {"kept": reasons, "goes": f"deleted at the next save: {reasons}"}.get(row.state, f"damaged: {reasons}")


def _print_one(row: ListedCheckpoint, manifest: ManifestFacts | None) -> None:
    show.line(f"step {row.step}: {_why(row)}")
    show.line(f"  {row.path}")
    if row.saved is None or manifest is None:
        return
    show.line(
        f"  epoch {_or_unknown(row.saved.epoch)}, saved {_when(row.saved.created)} by {manifest.world_size} "
        f"process{'es' if manifest.world_size > 1 else ''}, {units.size(row.saved.bytes)}"
    )
    show.line(f"  metrics: {_metrics(row.saved.metrics) or 'none'}")
    show.line("  versions: " + ", ".join(f"{name} {version}" for name, version in manifest.versions.items()))
    for file in manifest.files:
        show.line(f"  {file.path}  {units.size(file.size)}")


def _print_verified(rows: Sequence[VerifiedCheckpoint], full: bool) -> None:
    how = "all digests compared" if full else "sizes compared; --full reads everything"
    for row in rows:
        show.line(f"step {row.step}: {'good' if row.good else 'bad: ' + row.reason}")
    show.line(f"{sum(row.good for row in rows)} of {len(rows)} good ({how})")


def _print_pruned(pruned: Pruned) -> None:
    for row in pruned.deleted:
        verb = "would delete" if pruned.dry_run else "deleted"
        show.line(f"{verb} step {row.step} ({units.size(row.bytes)}): {'; '.join(row.reasons)}")
    freed, count = units.size(sum(row.bytes for row in pruned.deleted)), len(pruned.deleted)
    show.line(f"{count} of {count + len(pruned.kept)} checkpoints, {freed}")


def _print_history(found: CheckpointHistory) -> None:
    from reelworks.data.checkpoint.listing import EndedCheckpoint

    now = found.now
    if isinstance(now, EndedCheckpoint):
        ended = f" {_when(now.ended)}" if now.ended else ""
        show.line(f"step {found.step} is {now.state}{ended}: {'; '.join(now.reasons)}")
    else:
        show.line(f"step {found.step} exists; {'' if now.state != 'kept' else 'kept: '}{_why(now)}")
    size = f", {units.size(found.bytes)}" if found.bytes is not None else ""
    show.line(f"  saved {_when(found.saved) if found.saved else 'at an unknown time'}{size}")
    show.line(f"  metrics: {_metrics(found.metrics) or 'none'}")
    kinds = [event["event"] for event in found.history]
    for i, event in enumerate(found.history):
        if event["event"] == "deleting" and "deleted" in kinds[i:]:
            continue
        reasons = event.get("reasons") or [event["reason"]] if {"reasons", "reason"} & event.keys() else []
        show.line(f"  {_when(event['time'])}  {event['event']}" + (f": {'; '.join(reasons)}" if reasons else ""))


def _metrics(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def _or_unknown(value: object) -> str:
    return "?" if value is None else str(value)


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
