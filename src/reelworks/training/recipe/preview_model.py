"""The model that a LoRA is previewed on, if it is another one than it is trained on; torch-free."""

from __future__ import annotations

from reelworks.core.errors import UserError
from reelworks.models import registry
from reelworks.training.recipe.recipe import Recipe


def recipe_of(recipe: Recipe) -> Recipe:
    """Return a recipe whose model is that of its previews; the recipe itself if it names none.

    The model has the keys of the trained one, with its own name and weights, and the timestep shift of its release.
    """
    samples, model = recipe.samples, recipe.model
    if not samples.has_model:
        return recipe
    name = samples.model or model.name
    release = registry.PRESETS[name].release
    weights = samples.weights or (release and release.weights)
    update: dict[str, object] = {
        "model": model.model_copy(update={"name": name, "weights": weights, "gradient_checkpointing": False})
    }
    if name != model.name and release is not None and recipe.objective.name == "rectified-flow":
        update["objective"] = recipe.objective.model_copy(update={"timestep_shift": release.timestep_shift})
    return recipe.model_copy(update=update)


def without(recipe: Recipe) -> Recipe:
    """Return a recipe whose previews are made with the model that is trained."""
    return recipe.model_copy(update={"samples": recipe.samples.model_copy(update={"model": None, "weights": None})})


def require_fit(recipe: Recipe) -> None:
    """Refuse another model for previews without a LoRA, or of another family, or without known weights."""
    samples = recipe.samples
    if not samples.has_model:
        return
    field, value = ("samples.model", samples.model) if samples.model else ("samples.weights", samples.weights)
    name = samples.model or recipe.model.name
    if recipe.lora is None:
        problem, remedy = "all weights are trained, and there is nothing to add to another model", "leave it out"
    elif name not in registry.PRESETS:
        problem, remedy = "there is no such model", "write one of docs/reference/models.md"
    elif registry.family_of(name) is not registry.family_of(recipe.model.name):
        names = ", ".join(registry.family_of(recipe.model.name).presets)
        problem, remedy = f"it is of another family than {recipe.model.name}", f"choose one of these: {names}"
    elif samples.weights is None and (known := registry.PRESETS[name].release) is not None and known.weights is None:
        problem, remedy = f"{name} has no published weights", "set samples.weights"
    else:
        return
    raise UserError(problem, code="preview-model-invalid", field=field, value=value, remedy=remedy)
