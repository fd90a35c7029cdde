"""Recipes from files: TOML, `--set` overrides, and errors that say what to type instead."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from reelworks.buckets import table
from reelworks.buckets.config import as_table
from reelworks.core import toml_none
from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry, Shape
from reelworks.models import components
from reelworks.models.config import require_known, text_encoder_names
from reelworks.models.expert_pair.config import timestep_range
from reelworks.recipe import validation
from reelworks.recipe.errors import explain
from reelworks.recipe.recipe import Recipe


def load(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    Args:
        path: The TOML file.
        overrides: Texts `a.b=value`; the value is TOML, or a plain text where it is not.

    Raises:
        UserError: The file is missing or not TOML, a key is unknown, a value has the wrong type.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"the recipe cannot be read ({error.strerror})",
            code="file-unreadable",
            field="RECIPE",
            value=str(path),
            remedy="check the path; complete recipes lie in the project's recipes/ folder",
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(
            f"not TOML: {error}", code="not-toml", field="RECIPE", value=str(path), remedy="mend that line"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"not UTF-8: byte {error.start}",
            code="not-utf-8",
            field="RECIPE",
            value=str(path),
            remedy="save it as UTF-8",
        ) from error
    values.setdefault("output", f"runs/{path.stem}")
    for text in overrides:
        _override(values, text)
    return parse(values)


def parse(values: dict[str, Any]) -> Recipe:
    """Check values against the schema, and names, sizes and frame counts against the model.

    Raises:
        UserError: With every problem, the first as its field.
    """
    try:
        recipe = Recipe.model_validate(toml_none.from_toml(values, Recipe))
    except ValidationError as error:
        raise explain(error) from None
    require_known("text_encoder.name", recipe.text_encoder.name, text_encoder_names())
    geometry = components.geometry(recipe.model, recipe.autoencoder)
    validation.require_objective(recipe.model, recipe.objective.name, recipe.objective.mask_ratios)
    validation.require_text_encoder(recipe.model, recipe.text_encoder)
    validation.require_autoencoder(recipe.model, recipe.autoencoder)
    _require_base(recipe)
    _require_lora(recipe)
    validation.require_image_encoder(recipe.model)
    validation.require_companions(recipe.model, [d.companions for d in recipe.dataset], "dataset.")
    recipe = _of_experts(recipe)
    if recipe.buckets.proposes:
        _refuse_given(recipe)
    else:
        table.build(recipe.bucket, recipe.buckets, geometry)
    if recipe.samples.prompts:
        _require_samples(recipe, geometry)
    return recipe


def _require_samples(recipe: Recipe, geometry: Geometry) -> None:
    """Refuse samples that the model cannot make; sizes that are left out are those of a bucket."""
    samples, (height, width) = recipe.samples, geometry.multiple
    shape = Shape(samples.num_frames or 1, samples.height or height, samples.width or width)
    fields = ("samples.num_frames", "samples.height", "samples.width")
    geometry.require(shape, fields, whole_patches=components.whole_patches(recipe.model))
    validation.require_companions(recipe.model, [samples.companions], "samples.")
    if samples.num_frames is not None:
        validation.require_first_frame(
            recipe.model, samples.reference, "samples.reference", samples.num_frames
        )


def _require_base(recipe: Recipe) -> None:
    """Refuse a base of a LoRA that cannot be computed with, or cannot lie where it is to lie."""
    if recipe.lora is None:
        return
    base = recipe.lora.exact_base(recipe.precision.compute)
    if recipe.parallel.offload and base not in ("float32", "bfloat16"):
        raise UserError(
            f"a base of {base} stays on the GPU, since blocks are fetched from CPU memory as plain weights",
            code="offload-of-packed-base",
            field="parallel.offload",
            value=True,
            remedy='say lora.base = "bfloat16", or leave offload out',
        )


def _of_experts(recipe: Recipe) -> Recipe:
    """Say which timesteps are trained where the model's experts decide it."""
    objective, lora = recipe.objective, recipe.lora
    if recipe.model.experts == "both" and lora is not None and lora.weights is not None:
        raise UserError(
            "a file holds the LoRA of one expert",
            code="lora-of-one-expert",
            field="lora.weights",
            value=lora.weights,
            remedy='leave it out, or train one: model.experts = "high" or "low"',
        )
    trained = timestep_range(recipe.model, objective.name, objective.timestep_range)
    return recipe.model_copy(update={"objective": objective.model_copy(update={"timestep_range": trained})})


def _require_lora(recipe: Recipe) -> None:
    """Refuse clips that are to keep a base as it is where none is kept, and a run that would learn nothing."""
    preserved = [d.prior_prediction for d in recipe.dataset]
    if any(preserved) and recipe.lora is None:
        problem, remedy = "all weights are trained, so that there is no base to compare with", "add [lora]"
    elif all(preserved):
        problem, remedy = "no dataset is left to learn from", "leave it out of one dataset, or add another"
    else:
        return
    raise UserError(
        problem, code="base-target-without-lora", field="dataset.prior_prediction", value=True, remedy=remedy
    )


def _refuse_given(recipe: Recipe) -> None:
    """Refuse entries beside the wish to have them proposed."""
    for name, given in (("[[bucket]]", recipe.bucket), ("[buckets.opensora]", recipe.buckets.opensora)):
        if given:
            raise UserError(
                f"entries are to be proposed, and the recipe gives {name} too",
                code="entries-given-and-proposed",
                field="buckets.entries",
                value=recipe.buckets.entries,
                remedy=f'remove {name}, or write buckets.entries = "recipe"',
            )


def dump(recipe: Recipe) -> str:
    """Write a resolved recipe as TOML; reading it again gives an equal recipe."""
    return tomli_w.dumps(toml_none.to_toml(recipe))


def _override(values: dict[str, Any], text: str) -> None:
    key, sign, raw = text.partition("=")
    *parents, last = (part.strip() for part in key.split("."))
    if not sign or not all((*parents, last)):
        raise UserError(
            "not of the form a.b=value",
            code="override-invalid",
            field="--set",
            value=text,
            remedy="e.g. --set train.max_steps=100",
        )
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw
    values.update({"buckets": as_table(values["buckets"])} if "buckets" in values else {})
    here: Any = values
    for part in parents:
        here = _descend(here, part, text)
    if isinstance(here, list):
        here[_index(here, last, text)] = value
    elif isinstance(here, dict):
        here[last] = value
    else:
        raise _no_such_place(text)


def _descend(here: Any, part: str, text: str) -> Any:
    if isinstance(here, list):
        return here[_index(here, part, text)]
    if isinstance(here, dict):
        return here.setdefault(part, {})
    raise _no_such_place(text)


def _index(here: list[Any], part: str, text: str) -> int:
    if not part.isdecimal() or int(part) >= len(here):
        raise UserError(
            f'"{part}" is not one of the {len(here)} entries',
            code="override-index-out-of-range",
            field="--set",
            value=text,
            remedy="count from 0, as in --set bucket.0.batch_size=4",
        )
    return int(part)


def _no_such_place(text: str) -> UserError:
    return UserError(
        "there is no table of that name",
        code="unknown-table",
        field="--set",
        value=text,
        remedy="see docs/reference/recipe.md",
    )
