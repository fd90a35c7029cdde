"""`reelworks generate`: a prompt to a clip or picture."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer


class Sampler(enum.StrEnum):
    """Ways to generate."""

    own = "own"
    pipeline = "pipeline"


def generate(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|CHECKPOINT", help="A run folder, or one checkpoint.")
    ],
    prompts: Annotated[list[str], typer.Option("--prompt", help="What to show; several give several clips.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="A .mp4 or .webm; a .png for one frame. {index} in its name becomes 00, 01, ...; several clips need it.",
        ),
    ],
    height: Annotated[
        int | None,
        typer.Option(min=1, help="Pixels; default: of the bucket of which the run trained most tokens."),
    ] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Pixels; default: of that bucket.")] = None,
    num_frames: Annotated[
        int | None, typer.Option(min=1, help="Default: 1 where the file is a .png, else of that bucket.")
    ] = None,
    fps: Annotated[float, typer.Option(min=1, max=240, help="Frames per second.")] = 24.0,
    guidance_scale: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="1 is no guidance; default: samples.guidance_scale of the recipe, or what is usual for the model.",
        ),
    ] = None,
    num_inference_steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Default: samples.num_inference_steps of the recipe, or what is usual for the model."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the noise.")] = 0,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="A picture or clip; the picture, or the clip's last frames, are what it begins with."
        ),
    ] = None,
    loop: Annotated[
        int, typer.Option(min=1, help="Clips to join; each begins with the end of the one before.")
    ] = 1,
    condition_frames: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Frames of --reference, and of the end with which a clip goes on; default: 17, or 1 for i2v models.",
        ),
    ] = None,
    control: Annotated[
        Path | None,
        typer.Option(help="A picture or clip that steers what is made, for models that take one."),
    ] = None,
    edited: Annotated[
        Path | None, typer.Option("--source", help="A picture or clip to edit, for models that take one.")
    ] = None,
    sampler: Annotated[
        Sampler | None,
        typer.Option(
            help="That of the family's pipeline in diffusers, or our own; default: the pipeline's, where there is one.",
            show_default=False,
        ),
    ] = None,
    raw_weights: Annotated[
        bool, typer.Option("--raw-weights", help="Take the trained weights, not their average.")
    ] = False,
) -> None:
    """Generate clips or pictures from prompts.

    Uses the averaged weights of a run's newest checkpoint, or of the one named, and the recipe that it was trained by.
    If a prompt has more words than the text encoder takes, a line says how many are not seen. The line printed for
    each file says what drew it, with steps and guidance scale.
    """
    from reelworks.checkpoint.store import CheckpointStore
    from reelworks.cli import show
    from reelworks.core.shape import Shape
    from reelworks.generate import conditions, defaults, load_run, writers
    from reelworks.generate.conditions import Conditions
    from reelworks.generate.load_run import LoadedModel
    from reelworks.generate.pipeline import GenerateOptions
    from reelworks.recipe import recipe_file
    from reelworks.run import history
    from reelworks.train import init_from

    paths = writers.numbered(output, len(prompts))
    picture = writers.is_picture(output) if num_frames is None else num_frames == 1
    run, step = init_from.locate(source)
    recipe = recipe_file.load(history.recipe_of(run, step))
    most = defaults.shape(run, recipe, picture=picture)
    shape = Shape(num_frames or most.num_frames, height or most.height, width or most.width)
    for path in paths:
        writers.check(path, shape.num_frames * loop)
        writers.require_place(path)
    given_frames = condition_frames or defaults.condition_frames(recipe)
    given = None if reference is None else conditions.read(reference, shape, given_frames)
    shown = {"control": control, "source": edited}
    sampled = defaults.sampled(recipe)
    options = GenerateOptions(
        shape,
        fps,
        num_inference_steps or sampled.num_inference_steps,
        guidance_scale or sampled.guidance_scale,
        seed,
        Conditions(given, loop, given_frames),
        {name: conditions.companion(path, shape, f"--{name}") for name, path in shown.items() if path},
        None if sampler is None else sampler.value,
    )
    load_run.require(recipe, options)
    # A training may have saved again meanwhile: the step whose recipe was read.
    model = LoadedModel.load(CheckpointStore(run.checkpoints_folder).path(step), averaged=not raw_weights)
    for line in model.unseen(prompts):
        show.line(line)
    made = model.generate(prompts, options)
    for path, frames in zip(paths, made.clips, strict=True):
        writers.write(path, frames, fps)
        size = Shape(len(frames), shape.height, shape.width)
        show.line(f"{path}: {size}, step {model.step}, by {made.by}, {options.to_text()}")
