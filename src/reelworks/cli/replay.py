"""`reelworks replay`: what one step was fed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from reelworks.cli.options import RunArgument


def replay(
    run: RunArgument,
    step: Annotated[int, typer.Option(min=1, help="The step, counted from 1.")],
    pictures: Annotated[
        bool,
        typer.Option(
            "--pictures",
            help="Also draw the frames, a contact sheet for each micro-batch; reads the files as they are now.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Folder of the sheets; default: replay/step-N in the run folder.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON value, the raw draws included.")
    ] = False,
) -> None:
    """Say what one step was fed: clips, shapes, ranks and every draw.

    Says which clips, in which bucket and shape, on which rank; and of each clip its first frame and crop, the timestep
    before and after the shift, the latent frames that were given, whether its caption was dropped, and whether it
    failed. Clips are read from the record of the step's segment; draws are made again with the functions that training
    uses, by the recipe that the step was trained by.

    Any step that still holds can be asked for; what a resume repeated is told as it went the last time. Clips that
    were edited or removed since are told as they were planned, and marked.
    """
    from reelworks.cli import show
    from reelworks.report.replay import write_sheets
    from reelworks.run.folder import RunFolder
    from reelworks.train.replay import replay_step

    told = replay_step(RunFolder(run), step)
    value = told.to_json()
    if pictures:
        folder = output or run / "replay" / f"step-{step:09d}"
        value["sheets"] = [str(path) for path in write_sheets(told, folder)]
    if json:
        show.json(value)
    else:
        for line in _lines(value):
            show.line(line)


def _lines(value: dict[str, Any]) -> list[str]:
    """The step, then its micro-batches with a line for each clip."""
    ranks = f"{value['world_size']} rank{'s' if value['world_size'] > 1 else ''}"
    lines = [
        f"step {value['step']}: epoch {value['epoch']}"
        + (f" of generation {value['generation']}" if value["generation"] else "")
        + f", segment {value['segment']}, row {value['row']}, on {ranks}; "
        f"{value['clips']} clips counted" + ("" if value["applied"] else "; skipped"),
        f"plan {value['plan']}",
    ]
    for one in value["micro_batches"]:
        size = f"{one['num_frames']}×{one['height']}×{one['width']}"
        lines.append(f"\ncolumn {one['column']}, rank {one['rank']}: {one['bucket']}, {size}")
        lines += [f"  {_clip(clip)}" for clip in one["clips"]]
    if value["fillers"]:
        lines.append(f"\nonly kept the others company: rank {', '.join(map(str, value['fillers']))}")
    return lines + [str(path) for path in value.get("sheets", [])]


def _clip(clip: dict[str, Any]) -> str:
    generated = clip["generated"]
    parts = [
        clip["path"] + (f" (copy {clip['copy']})" if clip["copy"] else ""),
        f"from frame {clip['first_frame']}",
        "crop at {}, {} of {}×{}".format(*clip["crop"], *clip["resized"]),
        f"timestep {clip['timestep_before_shift']:.1f} shifted to {clip['timestep']:.1f}",
    ]
    if not all(generated):
        parts.append("frames given " + "".join("-" if g else "g" for g in generated))
    if clip["caption_dropped"]:
        parts.append("caption dropped")
    if clip["became"] != "trained":
        parts.append(clip["became"] + (f": {clip['reason']}" if clip["reason"] else ""))
    if clip["since"] != "unchanged":
        parts.append(f"{clip['since']} since")
    return "; ".join(parts)
