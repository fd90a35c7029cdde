"""Defaults of `generate`: the shape with the most trained tokens, and the model's usual sampler settings."""

from __future__ import annotations

import numpy as np

from reelworks.core.shape import Shape
from reelworks.data.loader import decode_requests
from reelworks.models import components, registry
from reelworks.models.family import SamplingDefaults
from reelworks.training.plan.plan_report import PlanSummary
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe

MAX_FPS = 240
_USUAL_FPS = 24.0
_USUAL_CONDITION_FRAMES = 17
_UNKNOWN = Shape(17, 64, 96)  # for a run whose plan was removed


def sampled(recipe: Recipe) -> SamplingDefaults:
    """Return how previews are sampled: as the recipe says, else by the defaults of their model.

    The default of guided channels is meant for the latents of the model's published autoencoder, and no others.
    """
    asked, preset = recipe.samples, registry.PRESETS[recipe.samples.model or recipe.model.name]
    usual, as_published = preset.sampling, recipe.autoencoder.name == preset.parts.autoencoder
    return SamplingDefaults(
        asked.guidance_scale or usual.guidance_scale,
        asked.num_inference_steps or usual.num_inference_steps,
        asked.guided_channels or (usual.guided_channels if as_published else None),
        asked.image_guidance_scale or usual.image_guidance_scale,
    )


def fps(summary: PlanSummary | None, recipe: Recipe) -> float:
    """Return the frame rate of generated clips: of the previews, else of the planned clips, else of the model."""
    return _fps(recipe, summary.fps if summary else None)


def fps_of(data: RecipeData) -> float:
    """Return that rate for a run that may not have begun, from the clips of its first epoch."""
    return _fps(data.recipe, decode_requests.usual_fps(data))


def _fps(recipe: Recipe, shown: float | None) -> float:
    """Return that rate if most videos are shown to the network at a rate, which is `data.fps` unless they are slower."""
    rate = recipe.samples.fps or shown or recipe.data.frame_rate or registry.PRESETS[recipe.model.name].fps
    return min(rate or _USUAL_FPS, MAX_FPS)


def condition_frames(recipe: Recipe) -> int:
    """Return the default number of condition frames: 1 for models that take only a first frame, else about 17."""
    if components.conditioning(recipe.model).needs_first_frame:
        return 1
    return components.autoencoder_geometry(recipe.autoencoder).nearest_frames(_USUAL_CONDITION_FRAMES)


def shape(summary: PlanSummary | None, recipe: Recipe, *, picture: bool) -> Shape:
    """Return the shape of the bucket with the most tokens in a planned epoch, rounded down to what the model generates.

    For a picture, the shape has one frame, and is that of a bucket of one frame if there are any. The recipe and the plan
    are those of the step that generates: a later start may have others.
    """
    buckets = summary.buckets if summary else ()
    tokens = [(Shape(b.num_frames, b.height, b.width), b.clips * b.tokens_per_clip) for b in buckets]
    return _most_trained(tokens, recipe, picture=picture)


def shape_of(data: RecipeData, *, picture: bool) -> Shape:
    """Return that shape for a run that may not have begun, from the clips of its first epoch."""
    clips = np.bincount(data.entries(0).bucket, minlength=len(data.table.buckets)).tolist()
    tokens = [(bucket.shape, bucket.tokens * n) for bucket, n in zip(data.table.buckets, clips, strict=True)]
    return _most_trained(tokens, data.recipe, picture=picture)


def _most_trained(tokens: list[tuple[Shape, int]], recipe: Recipe, *, picture: bool) -> Shape:
    trained = [((shape.num_frames == 1) == picture, count, shape) for shape, count in tokens if count]
    largest = max(trained, key=lambda each: each[:2], default=(picture, 0, _UNKNOWN))[-1]
    rules = components.geometry(recipe.model, recipe.autoencoder)
    multiples = rules.multiple if components.whole_patches(recipe.model) else rules.stride[1:]
    height, width = (
        max(side // multiple, 1) * multiple
        for side, multiple in zip((largest.height, largest.width), multiples, strict=True)
    )
    return Shape(1 if picture else largest.num_frames, height, width)
