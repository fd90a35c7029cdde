"""`reelworks replay`: show the clips and random draws of one step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from reelworks.commands import show
from reelworks.commands.options import RunArgument
from reelworks.core import units
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape

if TYPE_CHECKING:
    from reelworks.training.loop.replay import ReplayedClip, ReplayedStep


def replay(
    run: RunArgument,
    number: Annotated[int | None, Argument(metavar="STEP", min=1)] = None,
    step: Annotated[int | None, Option(min=1)] = None,
    pictures: Annotated[bool, Option("--pictures")] = False,
    output: Annotated[Path | None, Option("--output", "-o", metavar="DIR")] = None,
    json: Annotated[bool, Option("--json")] = False,
) -> None:
    """Show what one step was trained on: clips, shapes, ranks and random draws.

    Prints the clips with bucket, shape and rank, and for each clip its first frame and crop, the timestep before and
    after the shift, the latent frames that condition the others, whether its caption was dropped, and whether it failed.
    Clips come from the record of the step's segment; draws are repeated with the functions that training uses, by the
    recipe that trained the step.

    Steps that a resume discarded cannot be replayed; a repeated step is shown as it went the last time. Clips that were
    edited or removed since are shown as they were planned, and marked.

    Args:
        number: Step to replay, counted from 1.
        step: The same.
        pictures: Also draw a contact sheet of each micro-batch, from the files as they are now.
        output: Folder of the sheets; default: replay/step-N in the run folder.
        json: Print one JSON value, including the raw draws.
    """
    from reelworks.data.run.folder import RunFolder
    from reelworks.reports.sheet import write_step
    from reelworks.training.loop.replay import ReplayReport, replay_step

    if None not in (number, step) or (step := number or step) is None:
        raise UserError(
            "one step is needed", code="step-missing", field="STEP", remedy=f"for example: reelworks replay {run} 1"
        )
    replayed = replay_step(RunFolder(run), step)
    sheets = write_step(replayed, output or run / "replay" / f"step-{step:09d}") if pictures else []
    found = ReplayReport(replayed.summary(), sheets)
    if json:
        show.json(found)
        return
    _print(found.step)
    for path in found.sheets:
        show.line(str(path))


def _print(step: ReplayedStep) -> None:
    from reelworks.data.run import history

    show.line(
        f"step {step.step}: epoch {history.epoch_name(step.epoch, step.data_restarts, step.stage)}, segment {step.segment}, "
        f"plan step {step.plan_step}, on {units.plural(step.world_size, 'rank')}; "
        f"{units.plural(step.clips, 'clip')} counted" + ("" if step.applied else "; skipped")
    )
    show.line(f"plan {step.plan}")
    for batch in step.micro_batches:
        show.line(f"\ncolumn {batch.column}, rank {batch.rank}: {batch.bucket}, {batch.shape}")
        for clip in batch.clips:
            show.line(f"  {_clip(clip)}")
    if step.fillers:
        show.line(f"\nidle (no clip in this step): rank {', '.join(map(str, step.fillers))}")


def _clip(clip: ReplayedClip) -> str:
    parts = [
        clip.path + (f" (copy {clip.copy})" if clip.copy else ""),
        f"from frame {clip.first_frame}",
        f"crop at {clip.crop[1]} from the left, {clip.crop[0]} from the top of {Shape(1, *clip.resized)}",
        f"timestep {clip.timestep_before_shift:.1f} shifted to {clip.timestep:.1f}",
    ]
    if clip.augmentation.flip:
        parts.append("mirrored")
    if clip.augmentation.degrees:
        parts.append(f"rotated by {clip.augmentation.degrees:.1f}°")
    if not all(clip.generated):
        parts.append("conditioning frames " + "".join("-" if g else "g" for g in clip.generated))
    if clip.caption_dropped:
        parts.append("caption dropped")
    if clip.became != "trained":
        parts.append(clip.became + (f": {clip.reason}" if clip.reason else ""))
    if clip.since != "unchanged":
        parts.append(f"{clip.since} since")
    return "; ".join(parts)
