"""The files of weights that a recipe names; torch-free."""

from __future__ import annotations

from reelworks.training.recipe import preview_model
from reelworks.training.recipe.recipe import Recipe

ONE_FILE = "lora.training_adapter"  # a source of it may be one file of a repository


def by_key(recipe: Recipe, *, resumed: bool = False, trains: bool = True) -> dict[str, str]:
    """Return the sources of weights of a recipe by its key.

    If the run is resumed, the LoRA comes from a checkpoint, and lora.weights is not needed; who does not train makes no
    previews, and needs no training adapter.
    """
    sources = {
        "model.weights": recipe.model.weights,
        "lora.weights": None if recipe.lora is None or resumed else recipe.lora.weights,
        "autoencoder.weights": recipe.autoencoder.weights,
        "text_encoder.weights": recipe.text_encoder.weights,
        "model.image_encoder": recipe.model.image_encoder,
        "sound.weights": None if recipe.sound is None else recipe.sound.weights,
    }
    if trains and recipe.lora is not None:
        sources[ONE_FILE] = recipe.lora.training_adapter
    if trains and recipe.samples.prompts and recipe.samples.has_model:
        sources["samples.weights"] = preview_model.recipe_of(recipe).model.weights
    return {key: source for key, source in sources.items() if source is not None}
