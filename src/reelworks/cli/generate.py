"""`reelworks generate`: make clips and pictures from prompts."""

from __future__ import annotations

import enum
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

from typer import Option

from reelworks.cli import show
from reelworks.cli.options import SourceArgument
from reelworks.core.errors import UserError

_TOGETHER = 8  # clips of --prompt-file that are generated before they are written


class Sampler(enum.StrEnum):
    """Sampler to generate with."""

    own = "own"
    pipeline = "pipeline"


def generate(
    source: SourceArgument,
    output: Annotated[
        Path,
        Option(
            "--output",
            "-o",
            help="A .mp4 or .webm file, or a .png for one frame. Several clips need {index} in its name, which becomes 00, 01, ... With --prompt-file, a folder.",
        ),
    ],
    prompts: Annotated[
        list[str] | None, Option("--prompt", help="Text to generate from; give it several times for several clips.")
    ] = None,
    prompt_file: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Generate clips for VBench from a prompt in each line, or from VBench_full_info.json: PROMPT-0.mp4, ...",
        ),
    ] = None,
    samples: Annotated[
        int, Option(min=1, max=100, help="Clips of each prompt of --prompt-file; the next one has the next seed.")
    ] = 5,
    height: Annotated[
        int | None, Option(min=1, help="Pixels; default: those of the bucket with the most trained tokens.")
    ] = None,
    width: Annotated[int | None, Option(min=1, help="Pixels; default: those of the same bucket.")] = None,
    num_frames: Annotated[
        int | None, Option(min=1, help="Default: 1 for a .png, else those of the same bucket.")
    ] = None,
    fps: Annotated[
        float | None,
        Option(
            min=1,
            max=240,
            help="Frames per second; default: samples.fps or data.fps of the recipe, or the model's rate.",
        ),
    ] = None,
    guidance_scale: Annotated[
        float | None,
        Option(
            min=1,
            help="1 turns guidance off; default: samples.guidance_scale of the recipe, or the model's usual value.",
        ),
    ] = None,
    num_inference_steps: Annotated[
        int | None,
        Option(min=1, help="Default: samples.num_inference_steps of the recipe, or the model's usual value."),
    ] = None,
    seed: Annotated[
        int,
        Option(min=0, max=2**63 - 1, help="Seed of the noise, as of the generator that a script gives to diffusers."),
    ] = 0,
    reference: Annotated[
        Path | None,
        Option(
            help="A picture or clip to begin with: the result starts with the picture, or with the clip's last frames."
        ),
    ] = None,
    last_frame: Annotated[
        Path | None,
        Option(help="A picture to end with, or a clip whose last frame is taken; for models that know given frames."),
    ] = None,
    loop: Annotated[int, Option(min=1, help="Clips to join; each begins with the last frames of the one before.")] = 1,
    condition_frames: Annotated[
        int | None,
        Option(
            min=1,
            help="Frames to take from --reference and, with --loop, from the end of each clip; default: 17, or 1 for i2v models.",
        ),
    ] = None,
    control: Annotated[
        Path | None, Option(help="A picture or clip of control signals, for models that take one.")
    ] = None,
    edited: Annotated[
        list[Path] | None,
        Option("--source", help="A picture or clip to edit, for models that take one; repeatable, in order."),
    ] = None,
    inpaint: Annotated[
        Path | None,
        Option(help="A picture or clip of which the black areas of --mask are kept, for models that take a mask."),
    ] = None,
    mask: Annotated[
        Path | None, Option(help="A picture or clip that is white where --inpaint is generated anew.")
    ] = None,
    sound: Annotated[
        Path | None,
        Option(
            help="A file of sound, or a video with sound, for which the picture is generated; for models with sound."
        ),
    ] = None,
    sampler: Annotated[
        Sampler | None,
        Option(
            help="Sampler of the family's diffusers pipeline, or of Reelworks; default: the pipeline's, if there is one.",
            show_default=False,
        ),
    ] = None,
    raw_weights: Annotated[
        bool, Option("--raw-weights", help="Use the trained weights instead of their average.")
    ] = False,
    lora_scale: Annotated[
        float, Option(min=-10, max=10, help="Strength of a LoRA: what it adds to the weights is multiplied by it.")
    ] = 1.0,
    trained_base: Annotated[
        bool,
        Option(
            "--trained-base", help="Add a LoRA to the model that it was trained on, and not to that of samples.model."
        ),
    ] = False,
) -> None:
    """Generate clips or pictures from prompts.

    Uses the averaged weights of a run's newest checkpoint, or of one checkpoint, and the recipe that trained it. Warns
    if a prompt has more tokens than the text encoder takes. Prints a line for each file, with its sampler, steps and
    guidance scale.

    With --prompt-file, clips that are in the folder already are kept, so that the same command goes on.
    """
    with show.loading():
        from reelworks.checkpoint.folder import CheckpointFolder
        from reelworks.core import sources, units
        from reelworks.core.log import logger
        from reelworks.core.shape import Shape
        from reelworks.generate import conditions, defaults, load_run, writers
        from reelworks.generate.conditions import Conditions
        from reelworks.generate.load_run import LoadedModel
        from reelworks.generate.pipeline import GenerateOptions
        from reelworks.recipe import preview_model, recipe_file
        from reelworks.run import history
        from reelworks.train import init_from

    if (prompt_file is None) == (not prompts):
        raise UserError(
            "prompts come from --prompt or from --prompt-file",
            code="prompts-not-given",
            field="--prompt",
            value=prompts,
            remedy="give one of the two",
        )
    jobs = _jobs(prompts or [], prompt_file, output, samples)
    paths = [path for job in jobs for path in job.paths]
    if not paths:
        return
    picture = (prompt_file is None and writers.is_picture(output)) if num_frames is None else num_frames == 1
    run, step = init_from.locate(source)
    recipe = recipe_file.load(history.recipe_of(run, step))
    recipe = preview_model.without(recipe) if trained_base else preview_model.recipe_of(recipe)
    usual = defaults.shape(run, recipe, picture=picture)
    shape = Shape(num_frames or usual.num_frames, height or usual.height, width or usual.width)
    for path in paths:
        writers.check(path, shape.num_frames * loop)
        writers.require_place(path)
    begin_frames = condition_frames or defaults.condition_frames(recipe)
    begin = None if reference is None else conditions.read(reference, shape, begin_frames)
    end = None if last_frame is None else conditions.read(last_frame, shape, 1, "--last-frame")
    kept = None if inpaint is None else conditions.companion(inpaint, shape, "--inpaint")
    given = {name: str(path) for name, path in (("control", control), ("mask", mask)) if path is not None}
    given |= sources.named([str(path) for path in edited or []])
    sampled = defaults.sampled(recipe)
    rate = fps or defaults.fps(recipe)
    heard = None if sound is None else conditions.read_sound(sound, recipe, shape.num_frames, rate)
    options = GenerateOptions(
        shape,
        rate,
        num_inference_steps or sampled.num_inference_steps,
        guidance_scale or sampled.guidance_scale,
        seed,
        Conditions(begin, loop, begin_frames, end, kept, heard),
        conditions.companions(given, shape, "--", recipe),
        None if sampler is None else sampler.value,
        sampled.guided_channels,
        sampled.image_guidance_scale,
    )
    load_run.require(recipe, options)
    # Load the step whose recipe was read: a run in progress may have saved again meanwhile.
    model = LoadedModel.load(
        CheckpointFolder(run.checkpoints_folder).path(step),
        averaged=not raw_weights,
        shown=not trained_base,
        lora_scale=lora_scale,
    )
    for line in model.unseen(list(dict.fromkeys(prompt for job in jobs for prompt in job.prompts))):
        show.line(line)
    for job in jobs:
        made = units.plural(len(job.prompts), "clip")
        logger.info(f"generating {made} of {shape} on {model.encoder.device}, {options.num_inference_steps} steps")
        generated = model.generate(job.prompts, replace(options, seed=seed + job.seeds_further))
        for path, (frames, its_sound) in zip(job.paths, generated.written(), strict=True):
            writers.write(path, frames, options.fps, its_sound)
            size = Shape(len(frames), shape.height, shape.width)
            show.line(f"{path}: {size}, step {model.step}, by {generated.by}, {options.to_text()}")


class _Job(NamedTuple):
    """Clips to generate together, with their files, and the distance of their seed from the given one."""

    prompts: list[str]
    paths: list[Path]
    seeds_further: int = 0


def _jobs(prompts: list[str], prompt_file: Path | None, output: Path, samples: int) -> list[_Job]:
    """Return what is to be generated; of the prompts of a file, what does not exist yet."""
    from reelworks.evaluation import vbench
    from reelworks.generate import writers

    if prompt_file is None:
        return [_Job(prompts, writers.numbered(output, len(prompts)))]
    files = vbench.files(output, vbench.prompts(prompt_file, "--prompt-file"), samples)
    missing = {path: of for path, of in files.items() if not path.exists()}
    if len(missing) < len(files):
        show.line(f"{len(files) - len(missing)} of {len(files)} clips are there already")
    jobs = []
    for index in range(samples):
        own = [(prompt, path) for path, (prompt, i) in missing.items() if i == index]
        for first in range(0, len(own), _TOGETHER):
            some = own[first : first + _TOGETHER]
            jobs.append(_Job([prompt for prompt, _ in some], [path for _, path in some], index))
    return jobs
