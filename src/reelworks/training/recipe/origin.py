"""Say what a file of measured times and batch sizes is of: a device, and a network as a recipe trains it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from reelworks.core import gpus, user_files
from reelworks.core.gpus import Gpu
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.recipe import diff, recipe_file
from reelworks.training.recipe.recipe import Recipe

ESTIMATE = "estimate"  # in place of a device
_KEYS = {
    "model": {"name", "experts", "gradient_checkpointing", "attention", "hidden_size", "depth", "num_heads"},
    "lora": {"rank", "base"},
    "precision": {"compute"},
    "parallel": {"offload"},
    "train": {"compile", "optimizer"},
}


@dataclass(frozen=True)
class Origin:
    """The device and the network that were measured.

    Attributes:
        device: Name of the device, or "estimate".
        settings: By recipe key, in JSON: those on which times and memory of a pass depend.
    """

    device: str
    settings: dict[str, str]

    @classmethod
    def of_recipe(cls, recipe: Recipe, device: str) -> Origin:
        """Return that of a recipe's network."""
        found = diff.flat(recipe.model_dump(mode="json", include=_KEYS))
        return cls(device, {key: json.dumps(value) for key, value in found.items()})

    @classmethod
    def of_run(cls, run: RunFolder) -> Origin:
        """Return that of a run's network at its last start."""
        start = list(events.read(run.events_file, "start"))[-1]
        return cls.of_recipe(recipe_file.load(run.recipes_folder / start["recipe"]), start["device"])

    @classmethod
    def read(cls, path: str | None) -> Origin | None:
        """Return that of a file; None if it does not say so, as one by hand."""
        with suppress(OSError, ValueError, TypeError, KeyError):  # who reads the numbers of a damaged file refuses it
            return None if path is None else cls(**user_files.read_json(Path(path))["origin"])
        return None


def is_of(recipe: Recipe, gpu: Gpu | None) -> bool:
    """Whether the times of `cost.measured` are those of a recipe on a GPU, or on a machine without; True if it does not say."""
    origin = Origin.read(recipe.cost.measured)
    if origin is None:
        return True
    on_device = origin.device != ESTIMATE and gpus.of_device(origin.device) == gpu
    return on_device and origin.settings == Origin.of_recipe(recipe, "").settings


def lines(recipe: Recipe) -> list[str]:
    """Describe how the networks that the files of a recipe were measured with differ from its own, a line for each file."""
    now, found = Origin.of_recipe(recipe, "").settings, []
    for path in dict.fromkeys(filter(None, (recipe.buckets.tuned, recipe.cost.measured))):
        origin = Origin.read(path)
        changes = [] if origin is None else diff.changes(origin.settings, now)
        if changes:
            keys = ", ".join(f"{each.key} = {each.before}, which is {each.after} here" for each in changes)
            found.append(f"{path} was measured with {keys}; measure again with `reelworks tune`")
    return found
