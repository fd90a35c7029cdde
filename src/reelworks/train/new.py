"""`reelworks new`: from folders and the name of a model to a recipe, and to what it will take."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reelworks.buckets import table
from reelworks.catalog import scan as scanning
from reelworks.catalog.config import DatasetConfig
from reelworks.catalog.scan import ScanProgress
from reelworks.catalog.store import Catalog
from reelworks.core import files
from reelworks.core.errors import UserError
from reelworks.models import wellknown
from reelworks.models.config import geometry
from reelworks.prepare.data import RecipeData
from reelworks.recipe import commented
from reelworks.recipe import load as recipes
from reelworks.recipe.commented import Line
from reelworks.recipe.recipe import Recipe
from reelworks.train import folders, starter, tiers
from reelworks.train import found as finding
from reelworks.train.estimate import ASSUMED_TFLOPS
from reelworks.train.found import Found
from reelworks.train.tiers import Choice

PLACEHOLDER = "pictures"


@dataclass(frozen=True)
class Wishes:
    """What a command asks for.

    Attributes:
        model: A preset or a family's short name.
        folders: Of pictures and clips; none for a recipe with a placeholder.
        vram_gb: Memory of the GPU; None takes that of the GPU here, if there is one.
        trigger: A word to call what is learnt by.
        weights: In place of the published ones.
        tflops: What the GPU computes in bfloat16.
    """

    model: str
    folders: tuple[Path, ...] = ()
    vram_gb: float | None = None
    trigger: str | None = None
    weights: str | None = None
    tflops: float = ASSUMED_TFLOPS


@dataclass(frozen=True)
class New:
    """A recipe that was made.

    Attributes:
        text: As it is written.
        recipe: The same, read.
        found: What it is for.
        choice: Settings that save memory, and the estimate.
        remarks: What a person should know of the folders.
        micro_batches: Of an epoch, by bucket.
        tflops: What seconds are told for.
    """

    text: str
    recipe: Recipe
    found: Found
    choice: Choice
    remarks: tuple[str, ...]
    micro_batches: dict[str, int]
    tflops: float

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return sum(self.micro_batches.values()) * (self.recipe.train.max_epochs or 1)

    @property
    def seconds_per_step(self) -> float:
        """On average."""
        seconds = sum(
            n * self.choice.estimate.seconds(name, self.tflops) for name, n in self.micro_batches.items()
        )
        return seconds / max(sum(self.micro_batches.values()), 1)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "model": self.recipe.model.name,
            "pictures": len(self.found.pictures),
            "clips": len(self.found.videos),
            "uncaptioned": self.found.uncaptioned,
            "remarks": list(self.remarks),
            "estimate": self.choice.estimate.to_json(),
            "fits": self.choice.fits,
            "settings": {f"{t.table}.{t.key}": t.value for t in self.choice.tiers},
            "steps": self.steps,
            "seconds_per_step": self.seconds_per_step,
            "tflops": self.tflops,
            "moving_seconds_per_step": self.choice.estimate.moving_seconds,
        }


def lora(path: Path, wishes: Wishes, on_progress: Callable[[ScanProgress], None] | None = None) -> New:
    """Make the recipe of a LoRA, and write it.

    Args:
        path: Where; what is there is written over.
        wishes: What it is for.
        on_progress: Hears how far the scan is.

    Raises:
        UserError: The model is unknown, the word is empty, the folders hold nothing to train, nothing fits into the GPU, or the
            recipe cannot be written.
    """
    preset = wellknown.preset(wishes.model)
    if wishes.trigger is not None and not wishes.trigger.strip():
        raise UserError("the word is empty", field="--trigger", remedy="give a rare word, or leave it out")
    datasets, remarks = folders.datasets(wishes.folders or (Path(PLACEHOLDER),))
    found = finding.PLACEHOLDER
    if wishes.folders:
        found = _look(_catalog(path), datasets, wishes.trigger, on_progress)
    lines = starter.lora(preset, datasets, found, trigger=wishes.trigger, weights=wishes.weights)
    drafted = _read(lines, path)
    choice = tiers.choose(drafted, _vram_bytes(wishes.vram_gb))
    if choice.fits is False:
        raise _too_small(preset, wishes, choice)
    for tier in choice.tiers:
        lines = starter.with_setting(lines, tier.table, tier.key, tier.value, tier.why)
    per_epoch = _micro_batches(_read(lines, path), bool(wishes.folders))
    # Settings that save memory change how many steps there are.
    lines = starter.with_saves(lines, sum(per_epoch.values()) * (drafted.train.max_epochs or 1))
    text = commented.write(title(preset, found), lines)
    recipe = _read(lines, path)
    remarks += (
        []
        if wellknown.published(preset)
        else [f"{preset} begins with random weights: it is there to try things"]
    )
    made = New(
        text,
        recipe,
        found,
        choice,
        tuple(remarks),
        per_epoch,
        wishes.tflops,
    )
    files.write_for("--output", path, text.encode())
    return made


def _catalog(path: Path) -> Path:
    """Where the recipe's run will look for it too."""
    return Path("runs", path.stem, "catalog")


def _look(
    catalog: Path,
    datasets: Sequence[DatasetConfig],
    trigger: str | None,
    on_progress: Callable[[ScanProgress], None] | None,
) -> Found:
    sources = [dataset.place for dataset in datasets]
    scanning.scan(sources, catalog, workers=os.cpu_count() or 1, on_progress=on_progress)
    return finding.look(Catalog.open(catalog).live(), datasets, trigger)


def title(preset: str, found: Found) -> str:
    """The first line of a recipe."""
    return f"A LoRA of {found.words()} on {preset}."


def _read(lines: Sequence[Line], path: Path) -> Recipe:
    return recipes.parse({"output": f"runs/{path.stem}"} | tomllib.loads(commented.write("", lines)))


def _vram_bytes(asked_gb: float | None) -> int | None:
    if asked_gb is not None:
        return int(asked_gb * 1e9)
    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory)
    return None


def _micro_batches(recipe: Recipe, scanned: bool) -> dict[str, int]:
    if not scanned:
        buckets = table.build(recipe.bucket, recipe.buckets, geometry(recipe.model, recipe.autoencoder))
        square = next(b for b in buckets.buckets if b.ratio == "1:1")
        return {square.name: -(-finding.PLACEHOLDER.clips // square.batch_size)}
    data = RecipeData.open(recipe)
    clips = np.bincount(data.entries(0).bucket, minlength=len(data.table.buckets))
    return {b.name: -(-int(n) // b.batch_size) for b, n in zip(data.table.buckets, clips, strict=True) if n}


def _too_small(preset: str, wishes: Wishes, choice: Choice) -> UserError:
    memory = choice.estimate.memory
    need, host = memory.total / 1e9, memory.host / 1e9
    settings = ", ".join(tier.words() for tier in choice.tiers)
    return UserError(
        f"{preset} needs {need:.1f} GB with everything that saves memory ({settings}), by part: {memory.words()}"
        + (f"; and {host:.1f} GB of CPU memory" if host >= 0.05 else ""),
        field="--vram",
        value=wishes.vram_gb,
        remedy=f"take a GPU of at least {math.ceil(need)} GB, or a smaller model",
    )
