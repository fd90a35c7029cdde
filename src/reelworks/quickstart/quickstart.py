"""`reelworks new`: make a recipe for folders and a model, and estimate its memory and time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from reelworks.catalog import scan
from reelworks.catalog.config import DatasetConfig
from reelworks.catalog.scan import ScanProgress
from reelworks.catalog.store import Catalog
from reelworks.core import cores, files, gpu_devices, machine_memory, requests, toml, units
from reelworks.core.errors import UserError, first_few
from reelworks.data.dataset import companion_sources
from reelworks.models import registry
from reelworks.models.config import ModelConfig
from reelworks.quickstart import memory_presets, recipe_lines, survey
from reelworks.quickstart.memory_presets import MemoryPlan
from reelworks.quickstart.request import NewLoraRequest
from reelworks.quickstart.survey import FolderSurvey
from reelworks.recipe import recipe_file, toml_writer, validation
from reelworks.recipe.dataset import RecipeData
from reelworks.recipe.recipe import Recipe
from reelworks.recipe.toml_writer import Line
from reelworks.train.preflight.memory import ASSUMED_TFLOPS, Estimate


@dataclass(frozen=True)
class QuickstartResult:
    """A new recipe with its estimates.

    Attributes:
        path: Its file.
        remarks: Sentences on the folders.
        micro_batches: Those of an epoch, by bucket.
        tflops: Speed of the GPU that times are estimated for.
        host_bytes: CPU memory of this machine.
    """

    JSON_KEYS: ClassVar = (
        *("path", "model", "pictures", "clips", "uncaptioned", "remarks", "estimate", "fits", "host_bytes"),
        *("settings", "steps", "seconds_per_step", "tflops", "moving_seconds_per_step"),
    )

    path: Path
    text: str
    recipe: Recipe
    found: FolderSurvey
    choice: MemoryPlan
    remarks: tuple[str, ...]
    micro_batches: dict[str, int]
    tflops: float
    host_bytes: int

    @property
    def fits(self) -> bool | None:
        """Whether the training fits into the GPU and this machine's CPU memory; None if a part is not known."""
        return False if self.choice.fits and not self.fits_host else self.choice.fits

    @property
    def fits_host(self) -> bool:
        """Whether this machine has the CPU memory that the settings need."""
        return self.choice.estimate.memory.host <= self.host_bytes

    @property
    def steps(self) -> int:
        """Optimizer steps of the training."""
        return _training_steps(self.recipe, self.micro_batches)

    @property
    def seconds_per_step(self) -> float:
        """Mean seconds of a step."""
        seconds = sum(n * self.choice.estimate.seconds(name, self.tflops) for name, n in self.micro_batches.items())
        return seconds / max(sum(self.micro_batches.values()), 1)

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.recipe.model.name

    @property
    def pictures(self) -> int:
        """Number of pictures in the folders."""
        return len(self.found.pictures)

    @property
    def clips(self) -> int:
        """Number of clips in the folders."""
        return len(self.found.videos)

    @property
    def uncaptioned(self) -> int:
        """Number of pictures and clips without a caption."""
        return self.found.uncaptioned

    @property
    def estimate(self) -> Estimate:
        """Memory and arithmetic of the training."""
        return self.choice.estimate

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that save memory, by their recipe keys."""
        return {f"{tier.table}.{tier.key}": tier.value for tier in self.choice.tiers}

    @property
    def moving_seconds_per_step(self) -> float:
        """Seconds of a step in which weights move between CPU memory and the GPU."""
        return self.choice.estimate.moving_seconds


@requests.telling(NewLoraRequest)
def lora(request: NewLoraRequest, on_progress: Callable[[ScanProgress], None] | None = None) -> QuickstartResult:
    """Make the recipe of a LoRA and write it, if the training fits into the GPU.

    Raises:
        UserError: The model does not take the footage, no settings fit, or the recipe cannot be written.

    Examples:
        >>> from reelworks.quickstart.request import NewLoraRequest
        >>> NewLoraRequest(model="flux-dev", vram_gb=24).path
        PosixPath('lora-flux-dev.toml')
    """
    preset, path = request.preset, request.path
    datasets, remarks = survey.datasets(request.data or (Path(recipe_lines.PLACEHOLDER),))
    datasets = _with_companions(preset, datasets, request.companions)
    # Before the folders are read, which may take long.
    validation.require_companions(ModelConfig(name=preset), [d.companions for d in datasets], "dataset.")
    recipe_lines.model_lines(preset, registry.release_of(preset), request.weights)
    found = survey.PLACEHOLDER if recipe_lines.takes_pictures(preset) else survey.PLACEHOLDER_CLIPS
    if request.data:
        catalog = Path("runs", path.stem, "catalog")  # which the new recipe points to
        sources = [dataset.place for dataset in datasets] + companion_sources(datasets)
        scan.scan_sources(sources, catalog, workers=cores.count(), on_progress=on_progress)
        rows, rate = Catalog.open(catalog).live(), registry.PRESETS[preset].fps
        found = survey.survey(
            rows,
            datasets,
            request.trigger,
            rate,
            takes_clips=recipe_lines.makes_clips(preset),
            takes_pictures=recipe_lines.takes_pictures(preset),
        )
    lines = _as_wished(recipe_lines.lora_table(preset, datasets, found, request.trigger, request.weights), request)
    if request.data:
        remarks += _left_out(preset, found)
        if request.resolution is None:
            remarks += recipe_lines.small_ones(preset, registry.release_of(preset), found)
    drafted = _read(lines, path, request.overrides)
    given = {override.partition("=")[0].strip() for override in request.overrides}
    choice = memory_presets.choose(drafted, _vram_bytes(request.vram_gb), given)
    if choice.fits is False:
        raise _too_small(preset, request, choice)
    for tier in choice.tiers:
        lines = recipe_lines.with_setting(lines, Line(f"[{tier.table}]", tier.key, tier.value, tier.why))
    if choice.recipe.lora is not None and choice.recipe.lora.base is None:  # codes do not go with all settings
        lines = [line for line in lines if (line.table, line.key) != ("[lora]", "base")]
    recipe = _read(lines, path, request.overrides)
    planned = _Epoch.first_of(recipe, bool(request.data))
    if planned.clips and request.steps is None:  # clips that no epoch trains are not counted
        lines = [
            recipe_lines.epochs_line(planned.clips, planned.showings) if line.key == "max_epochs" else line
            for line in lines
        ]
    # Settings that save memory change the number of steps.
    steps = _training_steps(_read(lines, path, request.overrides), planned.micro_batches)
    lines = [
        replace(line, value=recipe_lines.save_interval(steps)) if line.key == "every_steps" else line for line in lines
    ]
    text = _with_overrides(lines, found, preset, request.overrides)
    recipe = _read(lines, path, request.overrides)
    if not registry.PRESETS[preset].release:
        remarks.append(f"{preset} starts from fresh weights and is meant for experiments")
    result = QuickstartResult(
        path,
        text,
        recipe,
        found,
        choice,
        tuple(remarks),
        planned.micro_batches,
        request.tflops or ASSUMED_TFLOPS,
        machine_memory.total_bytes(),
    )
    files.write_for("--output", path, text.encode())
    return result


def _read(lines: Sequence[Line], path: Path, overrides: Sequence[str] = ()) -> Recipe:
    values = {"output": f"runs/{path.stem}"} | toml.parse(toml_writer.write("", lines))
    return recipe_file.parse(recipe_file.with_overrides(values, overrides))


def _with_overrides(lines: Sequence[Line], found: FolderSurvey, preset: str, overrides: Sequence[str]) -> str:
    """Return the recipe's text; values that were given in place of those that were chosen have that as their reason."""
    title = f"A LoRA of {found.to_text()} on {preset}."
    if not overrides:
        return toml_writer.write(title, lines)
    values = recipe_file.with_overrides(toml.parse(toml_writer.write("", lines)), overrides)
    return toml_writer.write(title, toml_writer.lines_of(values, lines, "as given with --set"))


def _as_wished(lines: Sequence[Line], request: NewLoraRequest) -> list[Line]:
    """Replace what was chosen by what was asked for."""
    result = []
    for line in lines:
        if line.key == "rank" and request.rank is not None:
            line = replace(line, value=request.rank, why="as given with --rank")
        elif line.key == "resolution" and request.resolution is not None:
            side = f"{request.resolution}px" if request.resolution.isdecimal() else request.resolution
            line = replace(line, value=side, why="as given with --resolution")
        elif line.key == "max_epochs" and request.steps is not None:
            line = Line("[train]", "max_steps", request.steps, "as given with --steps")
        result.append(line)
    return result


def _training_steps(recipe: Recipe, micro_batches: Mapping[str, int]) -> int:
    steps = sum(micro_batches.values()) * (recipe.train.max_epochs or 1)
    if recipe.train.max_epochs is None:
        return recipe.train.max_steps or steps
    return min(steps, recipe.train.max_steps or steps)


def _left_out(preset: str, found: FolderSurvey) -> list[str]:
    if not found.left_out_names:
        return []
    noun, why = ("clip", "makes only pictures") if len(found.pictures) else ("picture", "is trained with sound")
    number = units.plural(len(found.left_out_names), noun)
    return [f"left out, because {preset} {why}: {number}, {first_few(sorted(found.left_out_names))}"]


def _with_companions(
    preset: str, datasets: list[DatasetConfig], given: Mapping[str, str | list[str]]
) -> list[DatasetConfig]:
    for kind in registry.PRESETS[preset].config.conditioning.needs:
        if kind not in given:
            raise UserError(
                f"{preset} needs a {kind} for each clip",
                code="companion-mismatch",
                field=f"--{kind}",
                remedy=f"run `reelworks new lora` with --{kind} DIR, a folder of files with the names of the clips",
            )
    if given and len(datasets) > 1:
        raise UserError(
            f"there are {len(datasets)} datasets, and a folder of companions belongs to one",
            code="companion-mismatch",
            field=f"--{next(iter(given))}",
            remedy="leave it out, and set it for each dataset in the recipe",
        )
    return [dataset.model_copy(update=dict(given)) for dataset in datasets]


def _vram_bytes(asked_gb: float | None) -> int | None:
    if asked_gb is not None:
        return int(asked_gb * 1e9)
    if not gpu_devices.exist():
        return None
    import torch  # takes longer than all else here

    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory)
    return None


class _Epoch(NamedTuple):
    """The clips that an epoch trains, and its micro-batches by bucket."""

    clips: int
    showings: int  # more than there are clips if some are repeated
    micro_batches: dict[str, int]

    @classmethod
    def first_of(cls, recipe: Recipe, scanned: bool) -> _Epoch:
        """Plan the first epoch; without a scan, one of square pictures."""
        if not scanned:
            buckets, number = memory_presets.bucket_table(recipe).buckets, survey.PLACEHOLDER.clips
            square = next((b for b in buckets if b.ratio == "1:1"), buckets[0])
            return cls(number, number, {square.name: -(-number // square.batch_size)})
        data = RecipeData.open(recipe)
        entries = data.entries(0)
        shown = np.bincount(entries.bucket, minlength=len(data.table.buckets))
        batches = {b.name: -(-int(n) // b.batch_size) for b, n in zip(data.table.buckets, shown, strict=True) if n}
        return cls(len(np.unique(entries.uid)), len(entries.uid), batches)


def _too_small(preset: str, request: NewLoraRequest, choice: MemoryPlan) -> UserError:
    memory = choice.estimate.memory
    need, host = memory.total / 1e9, memory.host / 1e9
    settings = ", ".join(tier.to_text() for tier in choice.tiers)
    return UserError(
        f"{preset} needs {need:.1f} GB with all settings that save memory ({settings}), by part: {memory.to_text()}"
        + (f"; and {host:.1f} GB of CPU memory" if host >= 0.05 else ""),
        code="gpu-too-small",
        field="--vram",
        value=request.vram_gb,
        remedy=f"take a GPU of at least {math.ceil(need)} GB, or a smaller model",
    )
