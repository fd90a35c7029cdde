"""Write `sizes.json` of model families: sizes and passes of their published networks, measured on the meta device.

Without names, presets without sizes and those that changed since are measured, each in some seconds to a minute. After
a change to the meter or to `step_time`, all must be.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import reelworks.models.families
from reelworks.data.buckets import table
from reelworks.data.buckets.table import Bucket
from reelworks.models import components, registry
from reelworks.models.config import ModelConfig
from reelworks.training.memory import estimate, published_sizes
from reelworks.training.memory.published_sizes import FILE, PassFactors, PublishedSizes, WorkFactors
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

FAMILIES = Path(reelworks.models.families.__file__).parent


class Point(NamedTuple):
    """A micro-batch to measure."""

    clips: int
    resolution: str
    num_frames: int = 1


def points(preset: str) -> list[Point]:
    """Return micro-batches of the release's sizes and of smaller ones.

    Clips with sound are of several lengths in each of several sizes, since their sound is as long as they are.
    """
    known, is_tiny = registry.release_of(preset), registry.PRESETS[preset].release is None
    side = known.side * (4 if is_tiny else 1)
    if registry.PRESETS[preset].sound is not None:
        frames = known.num_frames
        rule = components.geometry(ModelConfig(name=preset), recipe_of(preset, companions(preset)[0]).autoencoder)
        short, half = (rule.nearest_frames(frames // part) for part in (4, 2))
        shapes = [(2, short), (4, frames), (2, half), (1, half), (1, short), (2, frames), (1, frames)]
        single = [Point(1, f"{side // part}px", count) for part, count in shapes]
        return [*single[:2], Point(2, f"{side // 2}px", half), *single[2:]]
    sizes = [Point(1, f"{side // 2}px"), Point(2, f"{side // 4}px"), Point(1, f"{side}px")]
    takes_clips = known.lines and not registry.PRESETS[preset].config.pictures_only
    return [*sizes, Point(1, f"{known.lines}p", known.num_frames)] if takes_clips else sizes


def companions(preset: str) -> list[tuple[str, ...]]:
    """Return the companions that passes are measured with: what the network needs, and one of all that it takes."""
    conditioning = registry.PRESETS[preset].config.conditioning
    return list(dict.fromkeys((conditioning.companions.needs, conditioning.companions.takes)))


def recipe_of(preset: str, given: Sequence[str], checkpointing: bool | str = False, base: str | None = None) -> Recipe:
    """Return the recipe of a LoRA, with weights that are nowhere; presets without a release have parts without weights."""
    known = registry.PRESETS[preset]
    values: dict[str, Any] = (
        {}
        if known.release is None
        else {
            "autoencoder": {"name": known.parts.autoencoder, "weights": "unused"},
            "text_encoder": {"name": known.parts.text, "weights": "unused"},
        }
    )
    values |= {
        "version": 1,
        "output": "unused",
        "dataset": [{"path": "unused"} | dict.fromkeys(given, "unused")],
        "bucket": [{"resolution": "64px", "num_frames": 1}],
        "model": {"name": preset, "gradient_checkpointing": checkpointing},
        "objective": {"name": registry.release_of(preset).objective},
        "lora": {"base": base} if base else {},
        "train": {"max_steps": 1},
    }
    if components.conditioning(ModelConfig(name=preset)).shown.encoder is not None:
        values["model"] |= {"image_encoder": "unused"}
    if known.switch_timestep is not None:
        values["model"] |= {"experts": "high"}
    if known.sound is not None:
        values |= {
            "sound": {"name": known.sound, "weights": "unused"} if known.release else {},
            "data": {"fps": "model"},
        }
    return recipe_file.parse(values)


def bucket(recipe: Recipe, point: Point) -> Bucket:
    """Return the square bucket of a point, or that of 16:9 of clips."""
    entry: dict[str, Any] = {"resolution": point.resolution, "num_frames": point.num_frames, "batch_size": point.clips}
    changed = recipe.model_copy(update={"bucket": [type(recipe.bucket[0])(**entry)]})
    buckets = table.build(changed.bucket, changed.buckets, components.geometry(recipe.model, recipe.autoencoder))
    if point.resolution.endswith("px"):
        # Ratios that a coarse grid rounds to a square share it, under the name of one of them.
        return next(each for each in buckets.buckets if each.shape.height == each.shape.width)
    return next(each for each in buckets.buckets if each.ratio == "16:9")


def measured(preset: str) -> PublishedSizes:
    """Measure a preset."""
    base_bytes, plain = {}, recipe_of(preset, companions(preset)[0])
    sizes = estimate.sizes(plain, estimate.network(plain))
    for base in published_sizes.BASES:
        recipe = recipe_of(preset, companions(preset)[0], base=base)
        base_bytes[base] = estimate.sizes(recipe, estimate.network(recipe)).base_bytes
    passes = {
        published_sizes.names_given(recipe_of(preset, given)): (
            factors(preset, given, False),
            factors(preset, given, "selective"),
            factors(preset, given, True),
        )
        for given in companions(preset)
    }
    return PublishedSizes(
        published_sizes.preset_digest(preset),
        sizes.parameters,
        sizes.trained_parameters,
        sizes.optimizer_bytes,
        sizes.in_use_bytes,
        sizes.runs_on_meta,
        base_bytes,
        passes,
        {published_sizes.names_given(recipe_of(preset, given)): work(preset, given) for given in companions(preset)},
    )


def work(preset: str, given: Sequence[str]) -> WorkFactors:
    """Compute the factors of the work of a pass; of networks without sound, pictures tell those of clips."""
    recipe = recipe_of(preset, given)
    used = points(preset) if registry.PRESETS[preset].sound is not None else points(preset)[:3]
    network, buckets = estimate.network(recipe), [bucket(recipe, point) for point in used]
    runs = [estimate.one_pass(recipe, network, each).work for each in buckets]
    tokens = [published_sizes.tokens_of(recipe, each) for each in buckets]
    per_clip = [run.products / b.batch_size for b, run in zip(buckets, runs, strict=True)]
    products = solved([published_sizes.flops_terms(each) for each in tokens], per_clip)
    terms = [published_sizes.peak_terms(b.batch_size, each) for b, each in zip(buckets, tokens, strict=True)]
    return WorkFactors(products, solved(terms, [run.moved_bytes for run in runs]), round(runs[0].launches))


def factors(preset: str, given: Sequence[str], checkpointing: bool | str) -> PassFactors:
    """Compute the factors of a pass from measured ones."""
    recipe = recipe_of(preset, given, checkpointing)
    network, buckets = estimate.network(recipe), [bucket(recipe, point) for point in points(preset)]
    runs = [estimate.one_pass(recipe, network, each) for each in buckets]
    tokens = [published_sizes.tokens_of(recipe, each) for each in buckets]
    terms = [published_sizes.peak_terms(b.batch_size, each) for b, each in zip(buckets, tokens, strict=True)]
    peak = solved(terms, [run.peak_bytes for run in runs])
    per_clip = [run.flops / b.batch_size for b, run in zip(buckets, runs, strict=True)]
    flops = solved([published_sizes.flops_terms(each) for each in tokens], per_clip)
    quantized = recipe_of(preset, given, checkpointing, "int8")
    widened = estimate.one_pass(quantized, estimate.network(quantized), buckets[2]).peak_bytes
    return PassFactors(peak, max(widened - runs[2].peak_bytes, 0), flops)


def solved(terms: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Return the factors of terms with the least squares."""
    rows = np.array(terms, dtype=np.float64)
    scale = rows.max(axis=0)
    found = np.linalg.lstsq(rows / scale, np.array(values, dtype=np.float64), rcond=None)[0] / scale
    return [float(f"{value:.6g}") for value in found]


def write(names: Sequence[str]) -> None:
    """Measure presets and write the files of their families; those of the same sizes are measured once."""
    known: dict[str, dict[str, Any]] = {}
    for name in names:
        file = FAMILIES / registry.family_of(name).network.split(".")[-2] / FILE
        tables = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        digest = published_sizes.preset_digest(name)
        if digest not in known:
            known[digest] = asdict(measured(name))
        tables[name] = known[digest]
        order = [preset for preset in registry.PRESETS if preset in tables]
        lines = [f"{json.dumps(preset)}: {json.dumps(tables[preset])}" for preset in order]
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        print(name, flush=True)


if __name__ == "__main__":
    write(sys.argv[1:] or [name for name in registry.PRESETS if published_sizes.of_preset(name) is None])
