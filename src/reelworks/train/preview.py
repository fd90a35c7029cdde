"""Clips generated on schedule into the run folder, by the averaged weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.encode.live import LiveEncoder
from reelworks.generate import conditions, family_pipeline, writers
from reelworks.generate.conditions import Conditions
from reelworks.generate.pipeline import GenerateOptions
from reelworks.models.api import DenoiserInputs
from reelworks.parallel.mesh import World
from reelworks.precision.boundary import Boundary
from reelworks.recipe.recipe import Recipe
from reelworks.run.folder import RunFolder
from reelworks.train.config import PreviewConfig
from reelworks.train.recorder import Recorder
from reelworks.train.state import TrainState


@dataclass(frozen=True)
class Shown:
    """The files that previews are made from.

    Attributes:
        conditions: What every preview begins with.
        companions: Control and source, by name.
    """

    conditions: Conditions
    companions: Mapping[str, NDArray[np.uint8]]

    @classmethod
    def read(cls, config: PreviewConfig) -> Shown:
        """Read them all, so that a wrong one is told before training begins.

        Raises:
            UserError: One cannot be read.
        """
        shape = Shape(config.num_frames, config.height, config.width)
        reference = None if config.reference is None else conditions.read(Path(config.reference), shape, 1)
        companions = {
            name: conditions.companion(Path(file), shape, f"preview.{name}")
            for name, file in config.companions.items()
        }
        return cls(Conditions(reference), companions)


@dataclass(frozen=True)
class Previewer:
    """Generates the recipe's previews; every rank computes, since weights may be in shards."""

    recipe: Recipe
    boundary: Boundary[DenoiserInputs]
    encoder: LiveEncoder
    state: TrainState
    world: World
    run_folder: RunFolder
    shown: Shown

    def exist(self, step: int) -> bool:
        """Say whether a step's previews are there."""
        return bool(self.world.broadcast(self.world.is_main and self._folder(step).is_dir()))

    def _folder(self, step: int) -> Path:
        return self.run_folder.previews_folder / f"step-{step:09d}"

    def run(self, step: int, tell: Recorder) -> None:
        """Generate a clip for every prompt, the same noise at every step."""
        c = self.recipe.preview
        if not c.prompts:
            return
        shape = Shape(c.num_frames, c.height, c.width)
        options = GenerateOptions(
            shape,
            c.fps,
            c.num_inference_steps,
            c.guidance_scale,
            self.recipe.seed,
            self.shown.conditions,
            self.shown.companions,
        )
        with self.state.averaged():
            made = family_pipeline.generate(self.recipe, self.boundary, self.encoder, c.prompts, options)
        if not self.world.is_main:
            return
        names = []
        for index, frames in enumerate(made.clips):
            path = self._folder(step) / f"{index:02d}.{'png' if len(frames) == 1 else 'mp4'}"
            try:
                writers.write(path, frames, c.fps)
            except UserError as error:
                tell.say(f"warning: a preview is lost: {error.problem}")
                return
            names.append(path.relative_to(self.run_folder.previews_folder).as_posix())
        tell.event("preview", step=step, files=names, prompts=c.prompts, by=made.by)
