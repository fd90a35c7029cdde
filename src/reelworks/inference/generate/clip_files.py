"""Generate the clips of a request, and write them to files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from reelworks.core import requests, results, units
from reelworks.core.log import logger
from reelworks.core.shape import Shape
from reelworks.data.catalog import sources
from reelworks.data.checkpoint import locate
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.inference.generate import conditions, defaults, load_run, vbench_files, writers
from reelworks.inference.generate.conditions import Conditions
from reelworks.inference.generate.load_run import LoadedModel
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.inference.generate.request import GenerateRequest
from reelworks.models.objectives.config import require_steps
from reelworks.training.plan import plan_report
from reelworks.training.recipe import preview_model, recipe_file
from reelworks.training.recipe.recipe import Recipe

_TOGETHER = 8  # clips of a file of prompts that are generated before they are written


@dataclass(frozen=True)
class WrittenClip:
    """A clip or picture that was generated and written.

    Attributes:
        path: Its file.
        prompt: Text that it was generated from.
        shape: Its frames, height and width.
        step: Step of the checkpoint that it was generated with.
        sampler: Name of the sampler.
        options: Settings of the generation.
    """

    path: Path
    prompt: str
    shape: Shape = field(metadata=results.INLINED)
    step: int
    sampler: str
    options: GenerateOptions = field(metadata=results.INLINED)

    def to_text(self) -> str:
        """Return all of it as a line."""
        return f"{self.path}: {self.shape}, step {self.step}, by {self.sampler}, {self.options.to_text()}"


class _Job(NamedTuple):
    """Clips to generate together, with their files, and the distance of their seed from the given one."""

    prompts: list[str]
    paths: list[Path]
    seeds_further: int = 0


@requests.telling(GenerateRequest)
def generate(
    request: GenerateRequest,
    on_note: Callable[[str], None] = logger.info,
    on_clip: Callable[[WrittenClip], None] = lambda clip: None,
) -> list[WrittenClip]:
    """Generate the clips of a request, write them, and return them.

    Clips of a file of prompts that exist already are kept. `on_note` gets sentences on these and on prompts that are too
    long, and `on_clip` each clip when it is written.

    Raises:
        UserError: There is no such checkpoint, or its model does not take what is asked for, or a file cannot be written.

    Examples:
        >>> from reelworks.inference.generate.request import GenerateRequest
        >>> GenerateRequest(source="runs/demo", output="wave.png", prompts=["a wave"]).samples
        5
    """
    jobs = _jobs(request, on_note)
    if not jobs:
        return []
    picture = request.num_frames == 1
    if request.num_frames is None:
        picture = request.prompt_file is None and writers.is_picture(request.output)  # refuses an unknown suffix
    run, step = locate.locate(request.source)
    recipe = recipe_file.of_run(run, step)
    recipe = preview_model.without(recipe) if request.trained_base else preview_model.recipe_of(recipe)
    planned = plan_report.read_summary(run, step)
    usual = defaults.shape(planned, recipe, picture=picture)
    shape = Shape(request.num_frames or usual.num_frames, request.height or usual.height, request.width or usual.width)
    if planned is None and None in (request.height, request.width):
        on_note("the run's plan/ is gone, and with it the size that was trained: give --height and --width")
    paths = [path for job in jobs for path in job.paths]
    for path in paths:
        writers.check(path, shape.num_frames * request.loop)
    writers.require_places(paths)
    options = _options(request, defaults.fps(planned, recipe), recipe, shape)
    load_run.require(recipe, options)
    # Load the step whose recipe was read: a run in progress may have saved again meanwhile.
    model = LoadedModel.load(
        CheckpointFolder(run.checkpoints_folder).path(step),
        averaged=not request.raw_weights,
        shown=not request.trained_base,
        lora_scale=request.lora_scale,
    )
    for line in model.unseen(list(dict.fromkeys(prompt for job in jobs for prompt in job.prompts))):
        on_note(line)
    written = []
    for job in jobs:
        for clip in _write(job, model, options):
            on_clip(clip)
            written.append(clip)
    return written


def _options(request: GenerateRequest, usual_fps: float, recipe: Recipe, shape: Shape) -> GenerateOptions:
    """Read the files of conditions, and fill what is not given by the defaults of the recipe."""
    begin_frames = request.condition_frames or defaults.condition_frames(recipe)
    fps = request.fps or usual_fps
    data = conditions.as_read(recipe, fps)
    begin = None if request.reference is None else conditions.read(request.reference, shape, begin_frames, data)
    end = None if request.last_frame is None else conditions.read(request.last_frame, shape, 1, data, "--last-frame")
    kept = None if request.inpaint is None else conditions.companion(request.inpaint, shape, "--inpaint", data)
    companions = {"control": request.control, "mask": request.mask}
    given = {name: str(path) for name, path in companions.items() if path is not None}
    given |= sources.named([str(path) for path in request.edited])
    heard = None if request.sound is None else conditions.read_sound(request.sound, recipe, shape.num_frames, fps)
    sampled = defaults.sampled(recipe)
    num_steps = request.num_inference_steps or sampled.num_inference_steps
    require_steps(recipe.objective.name, num_steps, "--num-inference-steps")
    return GenerateOptions(
        shape,
        fps,
        num_steps,
        request.guidance_scale or sampled.guidance_scale,
        request.seed,
        Conditions(begin, request.loop, begin_frames, end, kept, heard),
        conditions.companions(given, shape, "--", recipe, fps),
        request.sampler,
        sampled.guided_channels,
        sampled.image_guidance_scale,
    )


def _write(job: _Job, model: LoadedModel, options: GenerateOptions) -> list[WrittenClip]:
    """Generate and write the clips of a job."""
    options = replace(options, seed=options.seed + job.seeds_further)
    number = units.plural(len(job.prompts), "clip")
    steps = options.num_inference_steps
    logger.info(f"generating {number} of {options.shape} on {model.encoder.device}, {steps} steps")
    prompts = model.recipe.with_trigger(job.prompts)
    generated = model.generate(prompts, options)
    written = []
    for path, prompt, (frames, sound) in zip(job.paths, prompts, generated.written(), strict=True):
        writers.write(path, frames, options.fps, sound)
        shape = replace(options.shape, num_frames=len(frames))
        written.append(WrittenClip(path, prompt, shape, model.step, generated.by, options))
    return written


def _jobs(request: GenerateRequest, on_note: Callable[[str], None]) -> list[_Job]:
    """Return what is to be generated; of the prompts of a file, what does not exist yet."""
    if request.prompt_file is None:
        return [_Job(list(request.prompts), writers.numbered(request.output, len(request.prompts)))]
    files = vbench_files.files(
        request.output, vbench_files.prompts(request.prompt_file, "--prompt-file"), request.samples
    )
    missing = {path: of for path, of in files.items() if not path.exists()}
    if len(missing) < len(files):
        there = len(files) - len(missing)
        on_note(f"{there} of {units.plural(len(files), 'clip')} {units.verb(there, 'are')} there already")
    jobs = []
    for index in range(request.samples):
        own = [(prompt, path) for path, (prompt, i) in missing.items() if i == index]
        for first in range(0, len(own), _TOGETHER):
            some = own[first : first + _TOGETHER]
            jobs.append(_Job([prompt for prompt, _ in some], [path for _, path in some], index))
    return jobs
