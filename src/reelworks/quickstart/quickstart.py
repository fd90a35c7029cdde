"""`reelworks new`: from folders and the name of a model to a recipe, and to what it will take."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reelworks.buckets import propose, table
from reelworks.buckets.config import BucketsConfig
from reelworks.buckets.propose import Ladder
from reelworks.catalog import scan
from reelworks.catalog.config import DatasetConfig
from reelworks.catalog.scan import ScanProgress
from reelworks.catalog.store import Catalog
from reelworks.core import files
from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry
from reelworks.models import components, registry
from reelworks.models.components import geometry
from reelworks.models.config import AutoencoderConfig, ModelConfig
from reelworks.models.expert_pair.config import switch_timestep
from reelworks.models.family import Release
from reelworks.quickstart import kohya_folders, memory_presets, survey
from reelworks.quickstart.memory_presets import MemoryPlan
from reelworks.quickstart.survey import FolderSurvey
from reelworks.recipe import recipe_file, toml_writer
from reelworks.recipe.dataset import RecipeData
from reelworks.recipe.recipe import Recipe
from reelworks.recipe.toml_writer import Line
from reelworks.train.preflight.estimate import ASSUMED_TFLOPS

_SIDES = (64, 128, 256, 384, 512, 640, 768, 1024)
_LINES = (64, 144, 240, 360, 480, 720)
_MOST_FILL = 0.9  # of the clips fill the size that is chosen; the rest is enlarged
_MOST_LENGTHS = 3
_SHOWINGS = 2000  # of 20 pictures: 100 each
_SMALL_CLIPS = 4  # in a micro-batch
_HELD_OUT_FROM = 200  # clips


def lora_table(
    preset: str,
    datasets: Sequence[DatasetConfig],
    found: FolderSurvey,
    *,
    trigger: str | None = None,
    weights: str | None = None,
) -> list[Line]:
    """Choose all values of a recipe.

    Args:
        preset: Of the model.
        datasets: The folders.
        found: What they hold.
        trigger: A word to call what is learnt by.
        weights: A pipeline's folder or hub id, or the denoiser's file, in place of the published one.

    Raises:
        UserError: No weights are known, clips cannot be trained, or nothing has a caption.
    """
    known = registry.release_of(preset)
    parts = _parts(preset, known, weights)
    lines = [Line("", "version", 1), Line("", "seed", 42)]
    lines += _datasets(datasets, found, trigger)
    lines += _buckets(preset, known, found)
    if not len(found.videos):
        lines += [Line("[data]", "num_workers", 0, "decode in threads: enough for pictures")]
    lines += parts
    lines += [
        Line("[lora]", "rank", 16, "usual for a subject or a style; a larger one learns, and forgets, more")
    ]
    lines += _objective(preset, known)
    lines += _training(found)
    return lines + _files(known, found)


def _datasets(datasets: Sequence[DatasetConfig], found: FolderSurvey, trigger: str | None) -> list[Line]:
    lines = []
    for number, dataset in enumerate(datasets):
        here: list[tuple[str, Any, str]] = [("path", dataset.path, "")]
        if len(datasets) > 1:
            here.append(("name", dataset.name, "clips are known by it"))
        if dataset.repeats > 1:
            here.append(("repeats", dataset.repeats, "showings in an epoch, as the folder's name says"))
        here += _captions(dataset, found, trigger)
        lines += [Line("[[dataset]]", key, value, why, number) for key, value, why in here]
    return lines


def _captions(dataset: DatasetConfig, found: FolderSurvey, trigger: str | None) -> list[tuple[str, Any, str]]:
    """Choose what the model is told of the clips of a folder."""
    missing = dataset.missing_caption
    if trigger is None and missing is None and found.uncaptioned == found.clips:
        raise UserError(
            f"of {found.to_text()} none has a caption",
            code="no-caption",
            field="--data",
            value=dataset.path,
            remedy="give --trigger WORD, which then is the caption of all, or write what each shows into a text file "
            "of the same name",
        )
    everywhere = 0 < found.triggered == found.clips - found.uncaptioned
    lines = []
    if trigger is not None and not everywhere:
        form = trigger.replace("{", "{{").replace("}", "}}")
        lines.append(("caption", f"{form}, {{text}}", "the word that calls what is learnt"))
    if missing is not None:
        if trigger is not None and everywhere and trigger not in missing:
            missing = f"{trigger}, {missing}"
        lines.append(("missing_caption", missing, "of files without a text file, as the folder's name says"))
    elif trigger is not None and found.uncaptioned:
        text = trigger if everywhere else ""
        lines.append(("missing_caption", text, "files without a text file are trained with the word alone"))
    return lines


def _buckets(preset: str, known: Release, found: FolderSurvey) -> list[Line]:
    size = min(_SMALL_CLIPS, found.clips)
    lines = [
        Line("[buckets]", "batch_size", size, "buckets of fewer are trained as smaller batches"),
        Line("[buckets]", "upscale", True, "few pictures: take small ones too"),
    ]
    geometry = _geometry(preset)
    if len(found.pictures):
        steps = Ladder.from_steps([side for side in _SIDES if side <= known.side], BucketsConfig(), geometry)
        resolution, why = _resolution(steps, found.pictures, "pictures")
        lines += [Line("[[bucket]]", "resolution", resolution, why), Line("[[bucket]]", "num_frames", 1)]
    if len(found.videos):
        _require_clips(preset, known, len(found.videos))
        steps = Ladder.from_steps([f"{n}p" for n in _LINES if n <= known.lines], BucketsConfig(), geometry)
        resolution, why = _resolution(steps, found.videos[:, 1:], "clips")
        frames = found.videos[:, 0]
        lengths = _lengths(frames, geometry, known.num_frames)
        there = f"the clips have {frames.min()} to {frames.max()}"
        lines += [
            Line("[[bucket]]", "resolution", resolution, why, 1),
            Line("[[bucket]]", "num_frames", lengths, there, 1),
            Line("[[bucket]]", "batch_size", 1, "clips take much more than pictures", 1),
        ]
    return lines


def _geometry(preset: str) -> Geometry:
    """Return the geometry of the model and the autoencoder that it comes with."""
    autoencoder = AutoencoderConfig()
    if registry.PRESETS[preset].release:
        autoencoder = AutoencoderConfig(name=registry.PRESETS[preset].parts.autoencoder, weights=preset)
    return components.geometry(ModelConfig(name=preset), autoencoder)


def _require_clips(preset: str, known: Release, clips: int) -> None:
    if (
        components.geometry(ModelConfig(name=preset), AutoencoderConfig()).frame_rule == (0, 1)
        or not known.lines
    ):
        raise UserError(
            f"this model makes pictures alone, and there are {clips} clips",
            code="model-takes-images-only",
            field="--model",
            value=preset,
            remedy=f"choose one for clips ({', '.join(_for_clips())}), or take the clips out of the folders",
        )


def _for_clips() -> str:
    """Return short names of models that are trained on clips."""
    return ", ".join(short for short, name in registry.SHORT_NAMES.items() if registry.release_of(name).lines)


def _resolution(steps: Ladder, sizes: NDArray[np.int64], noun: str) -> tuple[str, str]:
    """The largest rung that most fill, the lowest where there is none; and why."""
    highest = steps.highest(sizes[:, 0], sizes[:, 1])
    reach = [float((highest >= rung).mean()) for rung in range(len(steps.names))]
    chosen = max((rung for rung, share in enumerate(reach) if share >= _MOST_FILL), default=0)
    who = "all" if reach[chosen] == 1 else f"{reach[chosen]:.0%} of the"
    last = ", and the model was released for it" if chosen == len(reach) - 1 else "; the next larger fewer do"
    return steps.names[chosen], f"{who} {noun} fill it{last}"


def _lengths(frames: NDArray[np.int64], geometry: Geometry, most: int) -> list[int]:
    """A few lengths that keep most of what the clips have, one of them for the shortest."""
    counts = propose.frame_counts(geometry)
    counts = counts[counts <= max(most, counts[0])]
    longest = np.searchsorted(counts, frames, side="right") - 1
    chosen = propose.rungs(longest, np.log(counts), _MOST_LENGTHS)
    if not chosen:
        raise UserError(
            f"the longest clip has {frames.max()} frames, and this model takes {counts[0]} and more",
            code="clips-too-short",
            field="--data",
            remedy="add longer clips, or train on pictures",
        )
    return sorted({int(counts[i]) for i in (*chosen, longest[longest >= 0].min())})


def _parts(preset: str, known: Release, weights: str | None) -> list[Line]:
    """The network and what goes with it."""
    lines = [Line("[model]", "name", preset)]
    if switch_timestep(ModelConfig(name=preset)) is not None:
        why = 'of its two networks the one for much noise; "low" is a run of its own, "both" trains them in turn'
        lines += [Line("[model]", "experts", "high", why)]
    if not registry.PRESETS[preset].release:
        lines += [Line("[model]", "weights", weights)] if weights else []
        lines += [Line("[model]", "gradient_checkpointing", False)]
        return lines
    source = weights or known.weights
    if source is None:
        raise UserError(
            f"no published weights of {preset} are known",
            code="no-published-weights",
            field="--model",
            value=preset,
            remedy="give --weights PATH|HUB, a folder, file or hub id",
        )
    parts = registry.PRESETS[preset].parts
    lines += [Line("[model]", "weights", source), Line("[model]", "gradient_checkpointing", False)]
    whole = source if not source.endswith(".safetensors") else str(known.weights)
    if components.conditioning(ModelConfig(name=preset)).image_encoder is not None:
        lines += [Line("[model]", "image_encoder", whole, "tells the network of a clip's first frame")]
    lines += [Line("[autoencoder]", "name", parts.autoencoder, "the one that the model was trained with")]
    lines += [Line("[autoencoder]", "weights", known.autoencoder or whole)]
    lines += [
        Line("[text_encoder]", "name", parts.text),
        Line("[text_encoder]", "weights", known.text or whole),
    ]
    return lines


def _objective(preset: str, known: Release) -> list[Line]:
    if known.objective != "rectified-flow":
        return [Line("[objective]", "name", known.objective, "what the weights were trained with")]
    shift = known.timestep_shift
    why = "above 1: more training at much noise, where large pictures are decided" if shift != 1.0 else "none"
    lines = [Line("[objective]", "timestep_shift", shift, why)]
    if components.conditioning(ModelConfig(name=preset)).guidance == "embedded":
        why = "guidance is an input of this network: it needs no pictures without caption"
        lines += [Line("[objective]", "caption_dropout", 0.0, why)]
    return lines


def _epochs(found: FolderSurvey) -> int:
    """100 showings of each of 20 pictures; of more pictures fewer of each, though more in all."""
    return max(round(_SHOWINGS * math.sqrt(found.clips / 20) / found.showings), 1)


def _training(found: FolderSurvey) -> list[Line]:
    times = _epochs(found)
    why = f"{times * found.showings:,} showings: 100 of each of 20 pictures, fewer of each of more"
    return [
        Line("[train]", "max_epochs", times, why),
        Line("[train]", "learning_rate", 1e-4, "usual for a LoRA with AdamW"),
        Line("[train]", "warmup_steps", 10),
        Line("[train]", "ema_decay", 0.99, "an average of some hundred steps, which is what is exported"),
    ]


def _files(known: Release, found: FolderSurvey) -> list[Line]:
    steps = _epochs(found) * math.ceil(found.showings / _SMALL_CLIPS)
    lines = []
    if found.clips < _HELD_OUT_FROM:
        lines += [Line("[validation]", "split", 0.0, "too few to keep any back")]
    return [
        *lines,
        _saves(steps),
        Line("[exports]", "weights", "ema"),
        Line("[exports]", "formats", list(known.formats), "a small file of each with every checkpoint"),
    ]


def _saves(steps: int) -> Line:
    return Line(
        "[checkpoints]", "every_steps", max(steps // 10, 10), "some ten, of which the last three stay"
    )


def with_saves(lines: Sequence[Line], steps: int) -> list[Line]:
    """Save as often as so many steps ask for."""
    saves = _saves(steps)
    return [saves if (line.table, line.key) == (saves.table, saves.key) else line for line in lines]


def with_setting(lines: Sequence[Line], table: str, key: str, value: Any, why: str) -> list[Line]:
    """Change a value, or add it at the end of its table."""
    header = f"[{table}]"
    if any((line.table, line.key) == (header, key) for line in lines):
        return [
            replace(line, value=value, why=why) if (line.table, line.key) == (header, key) else line
            for line in lines
        ]
    last = max((i for i, line in enumerate(lines) if line.table == header), default=len(lines) - 1)
    return [*lines[: last + 1], Line(header, key, value, why), *lines[last + 1 :]]


PLACEHOLDER = "pictures"


@dataclass(frozen=True)
class QuickstartOptions:
    """Options of the command.

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
class QuickstartResult:
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
    found: FolderSurvey
    choice: MemoryPlan
    remarks: tuple[str, ...]
    micro_batches: dict[str, int]
    tflops: float

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole training."""
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


def lora(
    path: Path, wishes: QuickstartOptions, on_progress: Callable[[ScanProgress], None] | None = None
) -> QuickstartResult:
    """Make the recipe of a LoRA, and write it.

    Args:
        path: Where; what is there is written over.
        wishes: What it is for.
        on_progress: Hears how far the scan is.

    Raises:
        UserError: The model is unknown, the word is empty, the folders hold nothing to train, nothing fits into the GPU, or the
            recipe cannot be written.
    """
    preset = registry.preset_name(wishes.model)
    if wishes.trigger is not None and not wishes.trigger.strip():
        raise UserError(
            "the word is empty",
            code="empty-trigger",
            field="--trigger",
            remedy="give a rare word, or leave it out",
        )
    datasets, remarks = kohya_folders.datasets(wishes.folders or (Path(PLACEHOLDER),))
    found = survey.PLACEHOLDER
    if wishes.folders:
        found = _look(_catalog(path), datasets, wishes.trigger, on_progress)
    lines = lora_table(preset, datasets, found, trigger=wishes.trigger, weights=wishes.weights)
    drafted = _read(lines, path)
    choice = memory_presets.choose(drafted, _vram_bytes(wishes.vram_gb))
    if choice.fits is False:
        raise _too_small(preset, wishes, choice)
    for tier in choice.tiers:
        lines = with_setting(lines, tier.table, tier.key, tier.value, tier.why)
    per_epoch = _micro_batches(_read(lines, path), bool(wishes.folders))
    # Settings that save memory change how many steps there are.
    lines = with_saves(lines, sum(per_epoch.values()) * (drafted.train.max_epochs or 1))
    text = toml_writer.write(title(preset, found), lines)
    recipe = _read(lines, path)
    remarks += (
        []
        if registry.PRESETS[preset].release
        else [f"{preset} begins with random weights: it is there to try things"]
    )
    made = QuickstartResult(
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
    """Return the catalog's path, which the new recipe will point to."""
    return Path("runs", path.stem, "catalog")


def _look(
    catalog: Path,
    datasets: Sequence[DatasetConfig],
    trigger: str | None,
    on_progress: Callable[[ScanProgress], None] | None,
) -> FolderSurvey:
    sources = [dataset.place for dataset in datasets]
    scan.scan_sources(sources, catalog, workers=os.cpu_count() or 1, on_progress=on_progress)
    return survey.survey(Catalog.open(catalog).live(), datasets, trigger)


def title(preset: str, found: FolderSurvey) -> str:
    """The first line of a recipe."""
    return f"A LoRA of {found.to_text()} on {preset}."


def _read(lines: Sequence[Line], path: Path) -> Recipe:
    return recipe_file.parse({"output": f"runs/{path.stem}"} | tomllib.loads(toml_writer.write("", lines)))


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
        return {square.name: -(-survey.PLACEHOLDER.clips // square.batch_size)}
    data = RecipeData.open(recipe)
    clips = np.bincount(data.entries(0).bucket, minlength=len(data.table.buckets))
    return {b.name: -(-int(n) // b.batch_size) for b, n in zip(data.table.buckets, clips, strict=True) if n}


def _too_small(preset: str, wishes: QuickstartOptions, choice: MemoryPlan) -> UserError:
    memory = choice.estimate.memory
    need, host = memory.total / 1e9, memory.host / 1e9
    settings = ", ".join(tier.to_text() for tier in choice.tiers)
    return UserError(
        f"{preset} needs {need:.1f} GB with everything that saves memory ({settings}), by part: {memory.to_text()}"
        + (f"; and {host:.1f} GB of CPU memory" if host >= 0.05 else ""),
        code="gpu-too-small",
        field="--vram",
        value=wishes.vram_gb,
        remedy=f"take a GPU of at least {math.ceil(need)} GB, or a smaller model",
    )
