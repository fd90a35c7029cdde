"""Make one recipe of the configs of several trainings that follow each other, each as a stage."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from reelworks.annexes.imports.draft import ImportDraft
from reelworks.core import toml_none
from reelworks.core.errors import UserError
from reelworks.data.catalog.config import Source
from reelworks.training.recipe import diff, stages, toml_writer
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.recipe.stages import StageConfig
from reelworks.training.recipe.toml_writer import Line

_OWN = ("output", "seed", "stage", *stages.KEYS)  # that trainings which follow each other may have of their own


def text(title: str, names: Sequence[str], drafts: Sequence[ImportDraft], recipes: Sequence[Recipe]) -> str:
    """Return the recipe of several configs: that of the first one, and the keys in which the others differ from it.

    Raises:
        UserError: They differ in a key that is the same in all stages of a run.
    """
    recipes = _with_own_names(names, recipes)
    plain = [toml_none.to_toml(recipe) for recipe in recipes]
    for name, values in zip(names[1:], plain[1:], strict=True):
        _require_same(names[0], plain[0], name, values)
    for key in stages.ENDS.values():
        drafts[0].remove(f"train.{key}")
    parts = [drafts[0].text(title).rstrip()]
    for name, draft, recipe, values in zip(names, drafts, recipes, plain, strict=True):
        ends = {key: getattr(recipe.train, of_train) for key, of_train in stages.ENDS.items()}
        stage = StageConfig.model_validate({"name": name, **ends})
        parts.append(toml_writer.tables(_lines(stages.difference(plain[0], values, stage), draft)))
    return "\n\n".join(parts) + "\n"


def _with_own_names(names: Sequence[str], recipes: Sequence[Recipe]) -> list[Recipe]:
    """Return the recipes of stages, with another name for each dataset whose name a stage before gives to other clips."""
    found, known = [], dict[Source, str]()
    for stage, recipe in zip(names, recipes, strict=True):
        listed = []
        for dataset in recipe.dataset:
            had = dataset.dataset_name
            name = known.setdefault(dataset.place, f"{had}-{stage}" if had in known.values() else had)
            listed.append(dataset if name == had else dataset.model_copy(update={"name": name}))
        found.append(recipe.model_copy(update={"dataset": listed}))
    return found


def names_of(stems: Sequence[str]) -> list[str]:
    """Return names for stages, made of those of their files; equal ones get a number."""
    names = [re.sub(r"[^A-Za-z0-9_]+", "-", stem).strip("-_") or "stage" for stem in stems]
    return [f"{name}-{number}" if names.count(name) > 1 else name for number, name in enumerate(names, 1)]


def _lines(stage: StageConfig, draft: ImportDraft) -> Iterator[Line]:
    for key in ("name", *stages.ENDS):
        if (value := getattr(stage, key)) is not None:
            yield Line("[[stage]]", key, value)
    for key in stages.KEYS:
        value = getattr(stage, key)
        if isinstance(value, list):
            for number, table in enumerate(value):
                yield from (Line(f"[[stage.{key}]]", name, one, "", number) for name, one in table.items())
        elif value is not None:
            table = dict(value)
            opensora: dict[str, Any] = table.pop("opensora", {})
            yield from (
                Line(f"[stage.{key}]", name, one, draft.source_of(f"{key}.{name}")) for name, one in table.items()
            )
            yield from (Line(f"[stage.{key}.opensora]", name, one) for name, one in opensora.items())


def _require_same(first: str, before: dict[str, Any], name: str, after: dict[str, Any]) -> None:
    fixed = ({key: value for key, value in values.items() if key not in _OWN} for values in (before, after))
    if changes := diff.changes(*fixed):
        raise UserError(
            f"it is {changes[0].before} in {first} and {changes[0].after} in {name}, and the same in all stages of a run",
            code="stages-differ",
            field=changes[0].key,
            remedy="import the configs one by one, and train the second recipe with --load RUN of the first",
        )
