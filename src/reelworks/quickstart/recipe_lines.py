"""Settings of a new recipe, line by line, each with its reason: what is chosen for a model and the clips of folders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.core import units
from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry
from reelworks.data.buckets import propose
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.query import captions
from reelworks.data.media import formats
from reelworks.models import components, registry
from reelworks.models.config import ModelConfig
from reelworks.models.expert_pair.config import switch_timestep
from reelworks.models.family import Release
from reelworks.models.storage import file_facts
from reelworks.quickstart.survey import FolderSurvey
from reelworks.quickstart.trained_sizes import TrainedSizes, geometry_of
from reelworks.training.recipe.toml_writer import Line

PLACEHOLDER = "pictures"  # a folder to be filled in
_MOST_LENGTHS = 3
_SHOWINGS = 2000  # for 20 pictures, 100 each
_SMALL_CLIPS = 4  # largest micro-batch of pictures
_HELD_OUT_FROM = 200  # fewest clips with a validation split


def lora_table(
    preset: str,
    datasets: Sequence[DatasetConfig],
    found: FolderSurvey,
    trigger: str | None = None,
    weights: str | None = None,
    sizes: TrainedSizes | None = None,
) -> list[Line]:
    """Return the lines of a LoRA's recipe.

    `weights` are a pipeline's folder or hub id, or the denoiser's file, instead of the published ones. `sizes` are those of
    the buckets; by default one of pictures and one of clips.
    """
    known = registry.release_of(preset)
    sizes = sizes or TrainedSizes.choose(preset, found)
    why = "recompute in backward passes what a bucket's activations need to fit into the GPU's memory"
    parts = with_setting(model_lines(preset, known, weights), Line("[model]", "gradient_checkpointing", "auto", why))
    if registry.PRESETS[preset].sound is not None and found.silent:
        have = units.verb(found.silent, "have")
        why = f"{found.silent} of {units.plural(found.clips, 'clip')} {have} no sound, which is trained as silence"
        parts = with_setting(parts, Line("[sound]", "missing", "silent", why))
    lines = [Line("", "version", 1), Line("", "seed", 42)]
    lines += _datasets(datasets, found, trigger, sizes) + _buckets(preset, known, found, sizes)
    rate, has_sound = registry.PRESETS[preset].fps, registry.PRESETS[preset].sound is not None
    if not len(found.videos):
        lines += [Line("[data]", "num_workers", 0, "decode in threads: enough for pictures")]
    if rate is not None and (len(found.videos) or has_sound):
        why = f"the rate that the model was trained with, {rate:g}; clips with a lower rate keep theirs"
        lines += [Line("[data]", "fps", "model", why)]
    lora = [Line("[lora]", "rank", 16, "usual for a subject or a style; a larger one learns, and forgets, more")]
    if weights is not None and (base := file_facts.base_of(weights)) is not None:
        lora.append(Line("[lora]", "base", base, "the codes of the file stay as they are"))
    store = Line(
        "[encode]", "store", True, "clips and captions are encoded once, and training needs no encoder in memory"
    )
    previews = _previews(preset, datasets, found, trigger)
    lines = [*lines, *parts, store, *lora, *objective_lines(preset, known, weights), *_training(found)]
    return [*lines, *_files(known, found), *previews]


def _datasets(
    datasets: Sequence[DatasetConfig], found: FolderSurvey, trigger: str | None, sizes: TrainedSizes
) -> list[Line]:
    lines = []
    for number, dataset in enumerate(datasets):
        settings: list[tuple[str, Any, str]] = [("path", dataset.path, "")]
        if len(datasets) > 1:
            settings.append(("name", dataset.name, "identifies its clips"))
        folders = [(key, getattr(dataset, key)) for key in ("control", "source", "mask", "loss_mask", "rejected")]
        settings += [(key, folder, "") for key, folder in folders if folder is not None]
        if dataset.repeats > 1:
            settings.append(("repeats", dataset.repeats, "repeats per epoch, from the folder's name"))
        if sizes.several:
            settings.append(("resolutions", list(sizes.several), sizes.why_several))
        settings += _captions(dataset, found, trigger)
        lines += [Line("[[dataset]]", key, value, why, number) for key, value, why in settings]
    return lines


def _captions(dataset: DatasetConfig, found: FolderSurvey, trigger: str | None) -> list[tuple[str, Any, str]]:
    missing = dataset.missing_caption
    if trigger is None and missing is None and found.uncaptioned == found.clips:
        folder = Path(dataset.path)
        lists = sorted(str(file) for file in folder.iterdir() if formats.is_list(file)) if folder.is_dir() else []
        other = f"give the list that has the captions, as with --data {lists[0]}, or " if lists else ""
        raise UserError(
            f"none of {found.to_text()} has a caption",
            code="no-caption",
            field="--data",
            value=dataset.path,
            remedy=f"{other}give --trigger WORD, which becomes the caption of all, or describe each in a text file of the same "
            "name",
        )
    lines = []
    if trigger is not None:
        lines.append(("trigger", trigger, "of what is learnt; put before captions that lack it"))
    if missing is not None:
        lines.append(("missing_caption", missing, "for files without a text file, from the folder's name"))
    elif trigger is not None and found.uncaptioned:
        lines.append(("missing_caption", "", "files without a text file are trained with the trigger word alone"))
    return lines


def _buckets(preset: str, known: Release, found: FolderSurvey, sizes: TrainedSizes) -> list[Line]:
    batch_size = min(_SMALL_CLIPS, found.clips)
    lines = [
        Line("[buckets]", "batch_size", batch_size, "buckets of fewer are trained as smaller batches"),
        Line("[buckets]", "upscale", True, "few pictures: take small ones too"),
    ]
    for number, (resolution, why) in enumerate(sizes.of_pictures):
        lines += [
            Line("[[bucket]]", "resolution", resolution, why, number),
            Line("[[bucket]]", "num_frames", 1, number=number),
        ]
    if not len(found.videos):
        return lines
    frames = found.videos[:, 0]
    least, most = int(frames.min()), int(frames.max())
    length_why = "the clips have " + (f"{least} to {most} frames" if least < most else f"{least} frames")
    if (rate := registry.PRESETS[preset].fps) is not None:
        length_why += f" at {rate:g} fps"
    lengths = _lengths(frames, geometry_of(preset), known.num_frames)
    for number, (resolution, why) in enumerate(sizes.of_clips, len(sizes.of_pictures)):
        lines += [
            Line("[[bucket]]", "resolution", resolution, why, number),
            Line("[[bucket]]", "num_frames", lengths, length_why, number),
            Line("[[bucket]]", "batch_size", 1, "clips take much more memory than pictures", number),
        ]
    return lines


def _lengths(frames: NDArray[np.int64], geometry: Geometry, most: int) -> list[int]:
    """Return a few lengths that keep most frames of the clips, including one for the shortest clips."""
    counts = propose.frame_counts(geometry)
    counts = counts[counts <= max(most, counts[0])]
    longest = np.searchsorted(counts, frames, side="right") - 1
    chosen = propose.rungs(longest, np.log(counts), _MOST_LENGTHS)
    if not chosen:
        raise UserError(
            f"the longest clip has {frames.max()} frames, but this model needs at least {counts[0]}",
            code="clips-too-short",
            field="--data",
            remedy="add longer clips, or train on pictures",
        )
    return sorted({int(counts[i]) for i in (*chosen, longest[longest >= 0].min())})


def model_lines(preset: str, known: Release, weights: str | None) -> list[Line]:
    """Return the lines of the model, its autoencoder and its text encoder."""
    lines = [Line("[model]", "name", preset)]
    checkpointing = Line("[model]", "gradient_checkpointing", False)
    if switch_timestep(ModelConfig(name=preset)) is not None:
        why = 'the network for high noise; "low" trains the other one, and "both" trains them in turn'
        lines += [Line("[model]", "experts", "high", why)]
    if not registry.PRESETS[preset].release:
        lines += _parts_of_fresh(preset, weights)
        pcm = Line("[sound]", "name", "pcm", "samples as they are, without weights")
        return [*lines, checkpointing, *([pcm] if registry.PRESETS[preset].sound is not None else [])]
    source = weights or known.weights
    # Of a single file or a network's own folder, the denoiser alone is read; the other parts are those of the release.
    pipeline = weights if weights is not None and file_facts.is_pipeline(weights) else known.weights
    if source is None or None in (known.autoencoder or pipeline, known.text or pipeline):
        raise UserError(
            f"{preset} has no published weights",
            code="no-published-weights",
            field="--model",
            value=preset,
            remedy="`reelworks new --weights PATH|HUB` takes a folder in the layout of diffusers, or a hub id",
        )
    parts = registry.PRESETS[preset].parts
    lines += [Line("[model]", "weights", source), checkpointing]
    if components.conditioning(ModelConfig(name=preset)).shown.encoder is not None:
        lines += [Line("[model]", "image_encoder", pipeline, "encodes a clip's first frame for the network")]
    if (sound := registry.PRESETS[preset].sound) is not None:
        lines += [Line("[sound]", "name", sound, "the one that the model was trained with")]
        lines += [Line("[sound]", "weights", pipeline)]
        if (shift := registry.release_of(preset).sound_timestep_shift) is not None:
            lines += [Line("[sound]", "timestep_shift", shift, "that of the release")]
    return [
        *lines,
        Line("[autoencoder]", "name", parts.autoencoder, "the one that the model was trained with"),
        Line("[autoencoder]", "weights", known.autoencoder or pipeline),
        Line("[text_encoder]", "name", parts.text),
        Line("[text_encoder]", "weights", known.text or pipeline),
    ]


def _parts_of_fresh(preset: str, weights: str | None) -> list[Line]:
    """Return the lines of a model that was never published: its own weights, if any, and the encoder of its family."""
    lines = [Line("[model]", "weights", weights)] if weights else []
    kind = components.conditioning(ModelConfig(name=preset)).shown.encoder
    if kind is not None:
        relatives = registry.family_of(preset).presets.items()
        of_release = next(p.release.weights for _, p in relatives if p.release and p.config.conditioning.shown.encoder)
        lines.append(Line("[model]", "image_encoder", of_release, "encodes a clip's first frame for the network"))
    return lines


def objective_lines(preset: str, known: Release, weights: str | None) -> list[Line]:
    """Return the lines of the objective that the model was trained with, as its weights say, if they do."""
    if known.objective != "rectified-flow":
        stated, from_noise = (None, False) if weights is None else file_facts.objective_of(weights)
        lines = [Line("[objective]", "name", stated or known.objective, "what the weights were trained with")]
        if from_noise:
            lines += [Line("[objective]", "zero_terminal_snr", True, "as the weights were trained")]
        return lines
    shift = known.timestep_shift
    why = "above 1: more training at much noise, where large pictures are decided" if shift != 1.0 else "none"
    lines = [Line("[objective]", "timestep_shift", shift, why)]
    guides = {"embedded": "guidance is an input of this network", "second-network": "guidance is by a second network"}
    guided = guides.get(components.conditioning(ModelConfig(name=preset)).guidance)
    if guided is None and registry.PRESETS[preset].sampling.guidance_scale == 1.0:
        guided = "this model draws without guidance"
    if guided is not None:
        lines += [Line("[objective]", "caption_dropout", 0.0, f"{guided}, which needs no dropped captions")]
    return lines


def epochs_line(clips: int, showings: int) -> Line:
    """Return the line of epochs for 100 showings of each of 20 pictures; more get fewer each, but more in total.

    An epoch has some showings of the clips: more than there are clips if some are repeated.
    """
    epochs = max(round(_SHOWINGS * math.sqrt(clips / 20) / showings), 1)
    total = epochs * showings
    each = (
        f"{total / clips:.0f} of each of {units.plural(clips, 'clip')}; as a rule 100 of 20, and of more fewer of each"
    )
    return Line("[train]", "max_epochs", epochs, f"{total:,} showings, {each}")


def _training(found: FolderSurvey) -> list[Line]:
    return [
        epochs_line(found.clips, found.showings),
        Line("[train]", "learning_rate", 1e-4, "usual for a LoRA with AdamW"),
        Line("[train]", "warmup_steps", 10),
        Line("[train]", "ema_decay", 0.99, "an average of some hundred steps, which is what is exported"),
        Line(
            "[train]", "clip_losses", "auto", "`reelworks learning` tells what was learnt of each; some 2 % of the time"
        ),
    ]


def _files(known: Release, found: FolderSurvey) -> list[Line]:
    few = found.clips < _HELD_OUT_FROM
    return [
        *([Line("[validation]", "split", 0.0, "too few to keep any back")] if few else []),
        Line("[checkpoints]", "every_steps", save_interval(_steps(found)), "some ten, of which the last three stay"),
        Line("[exports]", "weights", "ema"),
        Line(
            "[exports]", "formats", list(known.formats), "a small file of each with every checkpoint; all of them stay"
        ),
    ]


def _previews(preset: str, datasets: Sequence[DatasetConfig], found: FolderSurvey, trigger: str | None) -> list[Line]:
    """Return the lines of previews, unless the model needs more than a prompt for each."""
    wants = components.conditioning(ModelConfig(name=preset))
    if wants.companions.needs or wants.needs_first_frame:
        return []
    subject = trigger or next((d.missing_caption for d in datasets if d.missing_caption), None)
    prompts = [subject] if subject else []
    prompts += [captions.triggered(caption, trigger) if trigger else caption for caption in found.captions]
    if not prompts:
        return []
    why = "of the size that is trained most; add what the captions lack, to see what is learnt"
    return [
        Line("[samples]", "prompts", list(dict.fromkeys(prompts)), why),
        Line("[samples]", "every_steps", save_interval(_steps(found)), "with every checkpoint, and at the end"),
    ]


def _steps(found: FolderSurvey) -> int:
    epochs: int = epochs_line(found.clips, found.showings).value
    return epochs * math.ceil(found.showings / _SMALL_CLIPS)


def save_interval(steps: int) -> int:
    """Return the number of steps between two saves of a training."""
    return max(steps // 10, 10)


def with_setting(lines: Sequence[Line], setting: Line) -> list[Line]:
    """Replace the line of a setting, or add it at the end of its table."""
    place = (setting.table, setting.number)
    changed = [setting if (line.table, line.number, line.key) == (*place, setting.key) else line for line in lines]
    if setting in changed:
        return changed
    last = max((i for i, line in enumerate(lines) if (line.table, line.number) == place), default=len(lines) - 1)
    return [*lines[: last + 1], setting, *lines[last + 1 :]]
