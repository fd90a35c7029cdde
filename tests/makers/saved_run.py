"""A run that nothing trained, with checkpoints of steps 2 and 4 as training leaves them."""

from __future__ import annotations

from pathlib import Path

import tiny_recipe
import torch

from reelworks.data.checkpoint import save
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run.folder import RunFolder
from reelworks.training.assembly import build
from reelworks.training.recipe import recipe_file
from reelworks.training.step.state import TrainState

RECIPE = tiny_recipe.least(
    bucket=[{"resolution": "32x32", "num_frames": [1, 4]}],
    model={"name": "stdit3-tiny", "hidden_size": 32, "depth": 1, "num_heads": 2},
    text_encoder={"dim": 16, "max_length": 6},
    precision={"compute": "float32"},
    train={"max_steps": 4},
)


def make(folder: Path, **tables: object) -> RunFolder:
    """Write the run, with these tables in place of the recipe's."""
    run, recipe = RunFolder(folder), recipe_file.parse(RECIPE | tables)
    run.create()
    run.recipe_file.write_text(recipe_file.dump(recipe), encoding="utf-8")
    state = TrainState.start(build.denoiser(recipe, torch.device("cpu")), recipe.train)
    for average in state.ema.values():
        average += 0.01  # no two exports of a run are alike
    for step in (2, 4):
        save.save(CheckpointFolder(run.checkpoints_folder), step, state.state_dict())
    return run
