"""Clips generated on schedule into the run folder, by the averaged weights."""

from __future__ import annotations

from dataclasses import dataclass

from reelworks.core.shape import Shape
from reelworks.encode.live import LiveEncoder
from reelworks.generate import pipeline, writers
from reelworks.generate.pipeline import GenerateOptions
from reelworks.models.api import DenoiserInputs
from reelworks.objective.config import ObjectiveConfig
from reelworks.parallel.mesh import World
from reelworks.precision.boundary import Boundary
from reelworks.run.folder import RunFolder
from reelworks.train.config import PreviewConfig
from reelworks.train.recorder import Recorder
from reelworks.train.state import TrainState


@dataclass(frozen=True)
class Previewer:
    """Generates the recipe's previews; every rank computes, since weights may be in shards."""

    config: PreviewConfig
    boundary: Boundary[DenoiserInputs]
    encoder: LiveEncoder
    objective: ObjectiveConfig
    state: TrainState
    world: World
    run_folder: RunFolder
    seed: int

    def run(self, step: int, tell: Recorder) -> None:
        """Generate a clip for every prompt, the same noise at every step."""
        c = self.config
        if not c.prompts:
            return
        shape = Shape(c.num_frames, c.height, c.width)
        options = GenerateOptions(shape, c.fps, c.num_inference_steps, c.guidance_scale, self.seed)
        with self.state.averaged():
            clips = pipeline.generate(self.boundary, self.encoder, self.objective, c.prompts, options)
        if not self.world.is_main:
            return
        folder = f"step-{step:09d}"
        names = []
        for index, frames in enumerate(clips):
            name = f"{folder}/{index:02d}.{'png' if len(frames) == 1 else 'mp4'}"
            writers.write(self.run_folder.previews_folder / name, frames, c.fps)
            names.append(name)
        tell.event("preview", step=step, files=names, prompts=c.prompts)
