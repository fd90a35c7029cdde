"""`reelworks new`: make a recipe for folders and a model, and estimate its memory and time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from reelworks.core import device_memory, files, gpus, machine, requests, toml, units
from reelworks.core.errors import UserError, first_few
from reelworks.core.gpus import Gpu
from reelworks.data.buckets.assign import Reason
from reelworks.data.buckets.entry import Recomputation
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.scan import scan
from reelworks.data.catalog.scan.scan import ScanProgress
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader.catalog_view import companion_sources
from reelworks.data.loader.left_out import by_reason
from reelworks.data.run.folder import RunFolder
from reelworks.models import registry
from reelworks.models.config import ModelConfig
from reelworks.models.storage import file_facts
from reelworks.quickstart import recipe_lines, survey, trained_sizes
from reelworks.quickstart.request import MADE_WITH, NewLoraRequest
from reelworks.quickstart.survey import FolderSurvey
from reelworks.quickstart.trained_sizes import TrainedSizes
from reelworks.training.memory import measurements, memory_presets
from reelworks.training.memory.memory import Estimate
from reelworks.training.memory.memory_presets import MemoryPlan
from reelworks.training.plan import plan_forecast, rejections
from reelworks.training.preflight import stage_forecast
from reelworks.training.recipe import recipe_file, toml_writer, validation
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.recipe.toml_writer import Line


@dataclass(frozen=True)
class QuickstartResult:
    """A new recipe with its estimates.

    Attributes:
        path: Its file.
        remarks: Sentences on the folders.
        steps: Optimizer steps of the training on one GPU.
        seconds_per_step: Mean seconds of a step.
        gpu: The GPU that times are estimated for.
        host_bytes: CPU memory of this machine.
    """

    JSON_KEYS: ClassVar = (
        *("path", "model", "pictures", "clips", "uncaptioned", "remarks", "estimate", "fits", "host_bytes"),
        *("settings", "recomputation", "steps", "seconds_per_step", "gpu", "moving_seconds_per_step"),
    )

    path: Path
    text: str
    recipe: Recipe
    found: FolderSurvey
    choice: MemoryPlan
    remarks: tuple[str, ...]
    steps: int
    seconds_per_step: float
    gpu: str
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
    def recomputation(self) -> Mapping[str, Recomputation]:
        """Recomputation in backward passes, by entry; nothing for a GPU of unknown memory."""
        return self.choice.recomputation

    @property
    def moving_seconds_per_step(self) -> float:
        """Seconds of a step in which weights move between CPU memory and the GPU."""
        return self.choice.estimate.moving_seconds


@requests.telling(NewLoraRequest)
def lora(request: NewLoraRequest, on_progress: Callable[[ScanProgress], None] | None = None) -> QuickstartResult:
    """Make the recipe of a LoRA and write it, if the training fits into the GPU.

    Raises:
        UserError: As from `make`, or the recipe cannot be written.

    Examples:
        >>> from reelworks.quickstart.request import NewLoraRequest
        >>> NewLoraRequest(model="flux-dev", vram_gb=24).path
        PosixPath('lora-flux-dev.toml')
    """
    made = make(request, on_progress)
    files.write_for("--output", request.path, made.text.encode())
    return made


def make(request: NewLoraRequest, on_progress: Callable[[ScanProgress], None] | None = None) -> QuickstartResult:
    """Make the recipe of a LoRA, and write nothing.

    Raises:
        UserError: The model does not take the footage, or no settings fit.
    """
    footage = _Footage.survey(request, on_progress)
    drafted = _choose(request, footage)
    gpu = request.named_gpu or gpus.here() or gpus.USUAL
    lines, length, left_out = _finished(request, drafted, gpu)
    text = _with_overrides(lines, request, footage.found)
    remarks = [*footage.remarks, *drafted.sizes.remarks]
    for size in drafted.sizes.filled:
        remarks += size.remarks(left_out)
    if faults := [*filter(None, left_out.values())]:
        remarks.append(f"left out: {first_few(faults)}")
    if not registry.PRESETS[request.preset].release:
        remarks.append(f"{request.preset} starts from fresh weights and is meant for experiments")
    if request.weights is not None and file_facts.has_text_encoders(request.weights):
        remarks.append(
            f"{request.weights} holds text encoders too, which are not read: captions are embedded by those of the release; "
            "to train with its own, convert it to the layout of diffusers, and give that folder as --weights"
        )
    return QuickstartResult(
        request.path,
        text,
        _read(lines, request.path, request.overrides),
        footage.found,
        drafted.choice,
        tuple(remarks),
        *length,
        gpu.name,
        machine.memory_bytes(),
    )


class _Footage(NamedTuple):
    """The datasets of a recipe, the contents of their folders, and remarks on these."""

    datasets: list[DatasetConfig]
    found: FolderSurvey
    remarks: list[str]

    @classmethod
    def survey(cls, request: NewLoraRequest, on_progress: Callable[[ScanProgress], None] | None) -> _Footage:
        """Scan the folders; without any, there is a placeholder."""
        preset = request.preset
        datasets, remarks = survey.datasets(request.data or (Path(recipe_lines.PLACEHOLDER),))
        datasets = _with_companions(preset, datasets, request.companions)
        # Before the folders are read, which may take long.
        validation.require_companions(ModelConfig(name=preset), [d.companions for d in datasets], "dataset.")
        recipe_lines.model_lines(preset, registry.release_of(preset), request.weights)
        takes_pictures = trained_sizes.takes_pictures(preset)
        if not request.data:
            return cls(datasets, survey.PLACEHOLDER if takes_pictures else survey.PLACEHOLDER_CLIPS, remarks)
        run = RunFolder(Path("runs", request.path.stem))
        _require_own(run, request)
        catalog = run.path / "catalog"  # which the new recipe points to
        sources = [dataset.place for dataset in datasets] + companion_sources(datasets)
        remarks += scan.scan_sources(sources, catalog, on_progress=on_progress).notes
        found = survey.survey(
            Catalog.open(catalog).live(),
            datasets,
            registry.PRESETS[preset].fps,
            takes_clips=trained_sizes.makes_clips(preset),
            takes_pictures=takes_pictures,
        )
        if found.left_out_names:
            noun, why = ("clip", "makes only pictures") if len(found.pictures) else ("picture", "is trained with sound")
            number = units.plural(len(found.left_out_names), noun)
            names = first_few(sorted(found.left_out_names))
            remarks.append(f"left out, because {preset} {why}: {number}, {names}")
        return cls(datasets, found, remarks)


def _require_own(run: RunFolder, request: NewLoraRequest) -> None:
    """Refuse to make a recipe that would continue a run on footage from elsewhere."""
    given = [folder.resolve() for folder in request.data]
    for dataset in recipe_file.load(run.recipe_file).dataset if run.recipe_file.exists() else ():
        if not any(Path(dataset.path).resolve().is_relative_to(folder) for folder in given):
            raise UserError(
                f"the recipe would continue the run {run.path}, which was trained on {dataset.path}",
                code="run-of-other-footage",
                field="--data",
                value=", ".join(map(str, request.data)),
                remedy="give the recipe another name, which its run folder has too: `reelworks new lora` with -o other.toml",
            )


class _Draft(NamedTuple):
    """Lines of a recipe with settings that fit its memory, and the sizes that it trains."""

    lines: list[Line]
    choice: MemoryPlan
    sizes: TrainedSizes

    @classmethod
    def from_sizes(cls, request: NewLoraRequest, footage: _Footage, sizes: TrainedSizes) -> _Draft:
        """Draft the recipe of some sizes, and choose its settings that save memory."""
        lines = recipe_lines.lora_table(
            request.preset, footage.datasets, footage.found, request.trigger, request.weights, sizes
        )
        for at, line in enumerate(lines):
            if line.key == "rank" and request.rank is not None:
                lines[at] = replace(line, value=request.rank, why="as given with --rank")
            elif line.key == "max_epochs" and request.steps is not None:
                lines[at] = Line("[train]", "max_steps", request.steps, "as given with --steps")
        given = {override.partition("=")[0].strip() for override in request.overrides}
        drafted = _read(lines, request.path, request.overrides)
        return cls(lines, memory_presets.choose(drafted, _vram_bytes(request), given), sizes)


def _choose(request: NewLoraRequest, footage: _Footage) -> _Draft:
    """Choose sizes and the settings that fit the GPU; raises `UserError` if none do.

    Several sizes are taken if they fit with the settings that one needs: others would cost time or precision.
    """
    preset, found = request.preset, footage.found
    alone = TrainedSizes.choose(preset, found)
    if request.resolution:
        alone = TrainedSizes.given(found, request.resolution)
    draft = _Draft.from_sizes(request, footage, alone)
    if request.data and not request.resolution and (proposed := alone.proposed(preset, found)) != alone:
        with_several = _Draft.from_sizes(request, footage, proposed)
        if with_several.choice.fits is not False and with_several.choice.tiers == draft.choice.tiers:
            draft = with_several
        else:
            remark = (
                f"{' and '.join(proposed.several)} would need more memory; --resolution, given for each, takes them"
            )
            draft = draft._replace(sizes=alone._replace(remarks=(*alone.remarks, remark)))
    if draft.choice.fits is False:
        memory, tiers = draft.choice.estimate.memory, draft.choice.tiers
        need, host = memory.total / 1e9, memory.host / 1e9
        settings = ", ".join(tier.to_text() for tier in tiers)
        raise UserError(
            f"{preset} needs {need:.1f} GB with all settings that save memory ({settings}), by part: {memory.to_text()}"
            + (f"; and {host:.1f} GB of CPU memory" if host >= 0.05 else ""),
            code="gpu-too-small",
            field="--vram",
            value=request.vram_gb,
            remedy=f"take a GPU of at least {math.ceil(need)} GB, or a smaller model",
        )
    return draft


def _finished(request: NewLoraRequest, draft: _Draft, gpu: Gpu) -> tuple[list[Line], tuple[int, float], dict[str, str]]:
    """Return the lines with the settings that save memory, and what follows from the first epoch.

    That is the length, in steps and seconds of each, and the clips that are left out, as `_first_epoch` returns them.
    """
    lines = draft.lines
    for tier in draft.choice.tiers:
        lines = recipe_lines.with_setting(lines, Line(f"[{tier.table}]", tier.key, tier.value, tier.why))
    lora = draft.choice.recipe.lora
    if lora is not None and lora.base is None:  # codes do not go with all settings
        lines = [line for line in lines if (line.table, line.key) != ("[lora]", "base")]
    clips, showings, left_out = _first_epoch(_read(lines, request.path, request.overrides), bool(request.data))
    if (faults := [*filter(None, left_out.values())]) and not clips:
        raise UserError(
            f"nothing in it can be trained: {first_few(faults)}",
            code="empty-epoch",
            field="--data",
            value=", ".join(map(str, request.data)),
            remedy="repair, crop or replace these files, or give another folder",
        )
    if clips and request.steps is None:  # clips that no epoch trains are not counted
        epochs = recipe_lines.epochs_line(clips, showings)
        lines = [epochs if line.key == "max_epochs" else line for line in lines]
    # Settings that save memory change the number of steps.
    recipe = _read(lines, request.path, request.overrides)
    if request.data:
        length = stage_forecast.on_one_gpu(RecipeData.open(recipe), draft.choice.estimate, gpu)
    else:
        length = _placeholder_length(recipe, draft.choice.estimate, gpu)
    interval = recipe_lines.save_interval(length[0])
    return [replace(line, value=interval) if line.key == "every_steps" else line for line in lines], length, left_out


def _read(lines: Sequence[Line], path: Path, overrides: Sequence[str] = ()) -> Recipe:
    values = {"output": f"runs/{path.stem}"} | toml.parse(toml_writer.write("", lines))
    return recipe_file.parse(recipe_file.with_overrides(values, overrides))


def _with_overrides(lines: Sequence[Line], request: NewLoraRequest, found: FolderSurvey) -> str:
    """Return the recipe's text; values that were given in place of those that were chosen have that as their reason."""
    made_with = f"\n# {MADE_WITH}{toml_writer.literal(request.given)}" if request.data else ""
    title = f"A LoRA of {found.to_text()} on {request.preset}.{made_with}"
    values = recipe_file.with_overrides(toml.parse(toml_writer.write("", lines)), request.overrides)
    return toml_writer.write(title, toml_writer.lines_of(values, lines))


def _placeholder_length(recipe: Recipe, estimate: Estimate, gpu: Gpu) -> tuple[int, float]:
    """Return the steps of as many square pictures as a placeholder stands for, and the seconds of a step."""
    buckets = measurements.bucket_table(recipe).buckets
    square = next((b for b in buckets if b.ratio == "1:1"), buckets[0])
    passes = -(-survey.PLACEHOLDER.clips // square.batch_size)
    of_epoch = -(-passes // plan_forecast.step_shape(recipe, 1)[0])
    epochs, most = recipe.train.max_epochs, recipe.train.max_steps
    steps = of_epoch * (epochs or 1)
    if most is not None:
        steps = most if epochs is None else min(steps, most)
    return steps, passes / of_epoch * estimate.seconds(square.name, gpu) + estimate.update_seconds(gpu)


def _with_companions(
    preset: str, datasets: list[DatasetConfig], given: Mapping[str, str | list[str]]
) -> list[DatasetConfig]:
    for kind in registry.PRESETS[preset].config.conditioning.companions.needs:
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


def _vram_bytes(request: NewLoraRequest) -> int | None:
    if (gigabytes := request.vram_gb or (request.named_gpu and request.named_gpu.memory_gb)) is not None:
        return int(gigabytes * 1e9)
    return device_memory.total_bytes(machine.default_device(0)) if machine.has_gpu() else None


def _first_epoch(recipe: Recipe, scanned: bool) -> tuple[int, int, dict[str, str]]:
    """Return the clips of the first epoch and their showings, of which there are more if some are repeated.

    Beside them are those that it leaves out, each with a text by its name; the text is empty for those without a caption,
    which are counted, and for those that the recipe leaves out on purpose.
    """
    if not scanned:
        return survey.PLACEHOLDER.clips, survey.PLACEHOLDER.clips, {}
    data = RecipeData.open(recipe)
    entries = data.entries(0)
    found = [r for r in by_reason(*data.assignment(0)) if not r.reason.is_planned]
    told = {name: "" for r in found for name in data.rows.labels(r.row)}
    named = rejections.named(data, [r for r in found if not (r.reason.is_chosen or r.reason is Reason.NO_CAPTION)])
    told |= {each.path: f"{each.path} ({reason}: {each.detail})" for reason, few in named.items() for each in few}
    return len(np.unique(entries.uid)), len(entries.uid), told
