"""A trained model, back from a run folder or one of its checkpoints, to generate with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from reelworks.checkpoint import load, verify
from reelworks.checkpoint.manifest import BadCheckpoint
from reelworks.checkpoint.store import CheckpointStore
from reelworks.core.errors import UserError
from reelworks.encode.live import LiveEncoder
from reelworks.generate import pipeline
from reelworks.generate.pipeline import GenerateOptions
from reelworks.models.api import DenoiserInputs
from reelworks.precision.boundary import Boundary
from reelworks.recipe import load as recipes
from reelworks.recipe.recipe import Recipe
from reelworks.run.folder import RunFolder
from reelworks.train import build


@dataclass(frozen=True)
class Trained:
    """Weights of a checkpoint behind their boundary.

    Attributes:
        recipe: The run's resolved recipe.
        step: Step of the checkpoint.
    """

    recipe: Recipe
    step: int
    boundary: Boundary[DenoiserInputs]
    encoder: LiveEncoder

    @classmethod
    def load(cls, source: Path, *, averaged: bool = True) -> Self:
        """Load from a run folder (its newest good checkpoint) or from a checkpoint's folder.

        Args:
            source: Either folder.
            averaged: Use the averaged weights.

        Raises:
            UserError: There is no run or no good checkpoint.
        """
        run, step = _locate(source)
        recipe = recipes.load(run.recipe_file)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        denoiser = build.denoiser(recipe, device)
        module = denoiser.module.requires_grad_(False).eval()
        trained = {name: p.detach() for name, p in module.named_parameters()}
        state = {"model": module.state_dict()}
        if averaged:
            state["ema"] = {name: torch.empty_like(p) for name, p in trained.items()}
        load.load(CheckpointStore(run.checkpoints_folder).path(step), state)
        for name, value in state.get("ema", {}).items():
            trained[name].copy_(value)
        return cls(recipe, step, Boundary(denoiser), build.encoder(recipe, device))

    def generate(self, prompts: Sequence[str], options: GenerateOptions) -> list[NDArray[np.uint8]]:
        """Generate a clip for each prompt; see `generate.pipeline`."""
        return pipeline.generate(self.boundary, self.encoder, self.recipe.objective, prompts, options)


def _locate(source: Path) -> tuple[RunFolder, int]:
    checkpoint = _as_checkpoint(source)
    run = RunFolder(source if checkpoint is None else checkpoint.parent.parent)
    run.info()
    store = CheckpointStore(run.checkpoints_folder)
    if checkpoint is not None:
        step = checkpoint.name.removeprefix("step-")
        return run, verify.named(store, int(step) if step.isdigit() else -1, full=False).step
    return run, _newest(store, source)


def _as_checkpoint(source: Path) -> Path | None:
    """The path below `checkpoints/` that is meant, whole even if it was typed in there; None for a run."""
    if RunFolder(source).exists:
        return None
    # Links are followed only where needed: `checkpoints` itself may be one, to a larger disk.
    whole = (source.absolute(), source.resolve())
    return next((path for path in whole if path.parent.name == "checkpoints"), None)


def _newest(store: CheckpointStore, source: Path) -> int:
    """Newest checkpoint with all its files; looking never changes the store, which may be in use."""
    damage = []
    for step in reversed(store.steps()):
        try:
            verify.verify(store.path(step), full=False)
        except BadCheckpoint as error:
            damage.append(f"\n    step {step}: {error.reason}")
        except OSError as error:  # no verdict: an older one would pass for the newest
            raise UserError(
                f"the checkpoint cannot be read now ({error.strerror or error})",
                field="checkpoint",
                value=str(store.path(step)),
                remedy="try again when storage answers, or name another checkpoint",
            ) from error
        else:
            return step
    if damage:
        raise UserError(
            f"no checkpoint of the run can be read:{''.join(damage)}",
            field="RUN",
            value=str(source),
            remedy="put back what is missing, or train on to the next save",
        )
    raise UserError(
        "the run has no checkpoint yet",
        field="RUN",
        value=str(source),
        remedy="train it first, or wait for its first save",
    )
