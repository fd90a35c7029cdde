"""Settings of a recipe's previews."""

from __future__ import annotations

from pathlib import Path

from reelworks.core.shape import Shape
from reelworks.inference.generate import conditions, defaults
from reelworks.inference.generate.conditions import Conditions
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.training.recipe import validation
from reelworks.training.recipe.dataset import RecipeData


def options(data: RecipeData) -> GenerateOptions | None:
    """Return the settings of the recipe's previews, with all their files read; None if it has no prompts."""
    recipe, c = data.recipe, data.recipe.samples
    if not c.prompts:
        return None
    num_frames, height, width = c.num_frames, c.height, c.width
    if not (num_frames and height and width):  # take what is missing from the bucket that is trained most
        most = defaults.shape_of(data, picture=num_frames == 1)
        num_frames, height, width = num_frames or most.num_frames, height or most.height, width or most.width
    shape = Shape(num_frames, height, width)
    validation.require_given_frames(recipe.model, c.reference, c.last_frame, shape.num_frames)
    sampled = defaults.sampled(recipe)
    reference = None if c.reference is None else conditions.read(Path(c.reference), shape, 1, "samples.reference")
    last = None if c.last_frame is None else conditions.read(Path(c.last_frame), shape, 1, "samples.last_frame")
    inpaint = None if c.inpaint is None else conditions.companion(Path(c.inpaint), shape, "samples.inpaint")
    return GenerateOptions(
        shape,
        defaults.fps(recipe),
        sampled.num_inference_steps,
        sampled.guidance_scale,
        recipe.seed,
        Conditions(reference, last_frame=last, inpaint=inpaint),
        conditions.companions(c.companions, shape, "samples.", recipe),
        guided_channels=sampled.guided_channels,
        image_guidance_scale=sampled.image_guidance_scale,
    )
