"""Read recipes from TOML files, apply `--set` overrides, and check them."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from reelworks.core import system, toml, toml_none, units, user_files
from reelworks.core.errors import UserError, nearest
from reelworks.core.log import logger
from reelworks.data.buckets.config import as_table
from reelworks.data.catalog.store import measured_columns
from reelworks.data.run.folder import RunFolder
from reelworks.training.loop import config
from reelworks.training.recipe import annex_tables, stages, validation
from reelworks.training.recipe.errors import explain
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.recipe.stages import StageConfig, StageList

if TYPE_CHECKING:
    from reelworks.data.schedule.cursor import StageStart

C = TypeVar("C", bound=BaseModel)


def load(path: Path, overrides: Sequence[str] = (), data_path: Path | None = None) -> Recipe:
    """Read a recipe with overrides `a.b=value`, in which a value that is not valid TOML is used as plain text.

    `stage=NAME` among them chooses one of its stages. With `data_path`, its only dataset is that folder or list, with the
    options of the first one.
    """
    recipe, index = load_whole(path, overrides, data_path)
    return recipe if index is None else of_stage(recipe, index)


def load_whole(path: Path, overrides: Sequence[str] = (), data_path: Path | None = None) -> tuple[Recipe, int | None]:
    """Read a recipe as `load` does with all its stages, and return it with the index of the chosen one, None for none."""
    try:
        values = user_files.read_toml(path)
    except OSError as error:
        raise UserError(
            f"the recipe cannot be read ({error.strerror})",
            code="file-unreadable",
            field="RECIPE",
            value=str(path),
            remedy="check the path; complete recipes are in the project's recipes/ folder",
        ) from error
    except toml.TomlError as error:
        raise UserError(
            f"not TOML: {error}", code="not-toml", field="RECIPE", value=str(path), remedy=error.remedy
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"the recipe is not UTF-8 at byte {error.start}",
            code="not-utf-8",
            field="RECIPE",
            value=str(path),
            remedy="save it as UTF-8",
        ) from error
    values.setdefault("output", f"runs/{path.stem}")
    chosen = [text for text in overrides if text.partition("=")[0].strip() == "stage"]
    # The catalog of a run's recipe may be elsewhere by now, and packages that it was trained with too.
    of_run = any((folder / "run.json").is_file() for folder in path.parents[:2])
    with measured_columns.any_name(of_run), annex_tables.may_be_missing(of_run):
        others = [text for text in overrides if text not in chosen]
        recipe = parse(with_overrides(values, others))
    recipe = recipe if data_path is None else on_footage(recipe, data_path)
    index = _index_of(recipe, chosen[-1].partition("=")[2].strip()) if chosen else None
    is_main = os.environ.get("RANK", "0") == "0"
    for number, stage in enumerate(values.get("stage", []) if is_main else ()):
        for text in others if index in (None, number) else ():
            name, key = stage.get("name"), _path(text)
            of_stage = (["stage", name, *key], ["stage", str(number), *key])
            if stages.hides(stage, *key) and not any(_path(other) in of_stage for other in others):
                hint = f"--set stage.{name}.{text} does"
                logger.warning(f"--set {text} does not reach stage {name}, which says that itself; {hint}")
    return recipe, index


def of_run(run: RunFolder, step: int, overrides: Sequence[str] = ()) -> Recipe:
    """Read the recipe of a run's checkpoint; its output is where the run lies now, as the run may have been moved."""
    from reelworks.data.run import history  # with pyarrow, which verbs that look at checkpoints do without

    return load(history.recipe_of(run, step), overrides).model_copy(update={"output": str(run.path)})


def on_footage(recipe: Recipe, data_path: Path) -> Recipe:
    """Return a recipe on one folder or list, with the options of its first dataset."""
    dataset = recipe.dataset[0].model_copy(update={"path": str(data_path), "root": None, "prior_prediction": False})
    listed = [stage.model_copy(update={"dataset": None}) for stage in recipe.stage]
    return recipe.model_copy(update={"dataset": [dataset], "stage": listed})


def with_overrides(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Set `a.b=value` in the plain values of a recipe, and return them."""
    for text in overrides:
        _override(values, text)
    return values


def parse(values: dict[str, Any]) -> Recipe:
    """Make a recipe of plain values, and check it against the schema and the model, as each of its stages has it.

    The error for invalid values has the field of the first problem and lists the others.
    """
    _require_plain(values, "")
    if not values.get("stage"):
        recipe = _parse_one(values)
        if recipe.train.lacks_end:
            raise config.no_end(recipe.train)
        return recipe
    listed, train = _checked(StageList, {"stage": values["stage"]}).stage, values.get("train")
    train = train if isinstance(train, dict) else {}
    stages.require(listed, train)
    recipes = [_parse_stage(values, stage) for stage in listed]
    for before, after, stage in zip(recipes, recipes[1:], listed[1:], strict=False):
        _require_successor(before, after, stage)
    stages.require_names(listed, [recipe.dataset for recipe in recipes])
    first, *others = (toml_none.to_toml(recipe) for recipe in recipes)
    kept = [stages.difference(first, other, stage) for other, stage in zip([first, *others], listed, strict=True)]
    ends = {"max_steps": train.get("max_steps"), "max_epochs": None, "max_clips": None}
    return recipes[0].model_copy(update={"stage": kept, "train": recipes[0].train.model_copy(update=ends)})


def _require_plain(value: Any, field: str) -> None:
    """Refuse integers of more than 64 bits, which can be too long to print, and texts that no file name can hold."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            _require_plain(inner, f"{field}.{key}" if field else str(key))
    elif isinstance(value, str) and "\0" in value:
        raise UserError("it has a null byte", code="value-not-allowed", field=field, value=value, remedy="remove it")
    elif isinstance(value, int) and value.bit_length() > 64:
        raise UserError(
            "the number is too large for a recipe, whose integers have 64 bits",
            code="number-too-large",
            field=field,
            value=f"an integer of {value.bit_length()} bits",
            remedy="give a smaller number",
        )


def of_stage(recipe: Recipe, index: int, start: StageStart | None = None) -> Recipe:
    """Return the recipe of one stage; with its start, its ends count from the start of the run, as positions do."""
    stage, total = recipe.stage[index], recipe.train.max_steps
    with measured_columns.any_name(), annex_tables.may_be_missing():  # all was checked when the recipe was read
        one = _parse_one(stages.merged(toml_none.to_toml(recipe), stage))
    if start is None:
        # A rate falls until the run's end.
        if one.train.learning_rate_schedule != "constant" and one.train.max_steps is None:
            return one.model_copy(update={"train": one.train.model_copy(update={"max_steps": total})})
        return one
    before = {"max_steps": start.step, "max_epochs": start.epoch, "max_clips": start.clips}
    ends = {key: before[key] + end for key, end in stage.ends.items()}
    if total is not None:
        ends["max_steps"] = min(total, ends.get("max_steps", total))
    return one.model_copy(update={"train": one.train.model_copy(update=ends)})


def each_stage(recipe: Recipe) -> list[Recipe]:
    """Return the recipe of each stage; the recipe itself if it has none."""
    return [of_stage(recipe, index) for index in range(len(recipe.stage))] or [recipe]


def named_code(recipe: Recipe) -> list[tuple[str, list[str]]]:
    """Return the entries that may name code of one's own, with their keys, of all stages: training asks about each."""
    return [
        pair
        for one in each_stage(recipe)
        for pair in (("samples.metrics", one.samples.metrics), ("data.measures", one.data.measures))
    ]


def _index_of(recipe: Recipe, name: str) -> int:
    """Return the index of a stage by its name, which may be in quotes."""
    names = [stage.name for stage in recipe.stage]
    if (bare := name.strip("\"'")) not in names:
        raise UserError(
            "the recipe has no stage of that name" if names else "the recipe has no stages",
            code="stage-unknown",
            field="stage",
            value=bare,
            remedy=nearest(bare, names) if names else "leave it out",
        )
    return names.index(bare)


def _checked(kind: type[C], values: dict[str, Any]) -> C:
    try:
        return kind.model_validate(toml_none.from_toml(values, kind))
    except ValidationError as error:
        raise explain(error) from None


def _parse_stage(values: dict[str, Any], stage: StageConfig) -> Recipe:
    with stages.naming(stage):
        recipe = _parse_one(stages.merged(values, stage))
        if recipe.train.lacks_end and values.get("train", {}).get("max_steps") is None:  # where the rate ends otherwise
            raise config.no_end(recipe.train, stage.name)
    if recipe.buckets.proposes:
        raise UserError(
            "with stages each has entries of its own",
            code="stages-with-proposed-entries",
            field="buckets.entries",
            value=recipe.buckets.entries,
            remedy="write [[stage.bucket]]; `reelworks plan` proposes entries for a recipe without stages",
        )
    return recipe


def _require_successor(before: Recipe, after: Recipe, stage: StageConfig) -> None:
    """Refuse a stage that cannot go on with the optimizer's state, or with the weights, of the one before."""
    if after.train.optimizer != before.train.optimizer and stage.optimizer == "keep":
        raise UserError(
            f"in stage {stage.name}: the state of {before.train.optimizer} is not one of {after.train.optimizer}",
            code="optimizer-state-differs",
            field="stage.train.optimizer",
            value=after.train.optimizer,
            remedy='leave it out, or write optimizer = "reset" in the stage',
        )
    if after.train.ema_decay is None and (stage.optimizer, stage.ema) == ("keep", "reset"):
        raise UserError(
            f"in stage {stage.name}: the average is part of the state of {after.train.optimizer}, which goes on",
            code="stage-reset-invalid",
            field="stage.ema",
            value="reset",
            remedy='leave it out, or write optimizer = "reset" in the stage',
        )
    if (key := before.objective.other_output(after.objective)) is not None:
        had, new = getattr(before.objective, key), getattr(after.objective, key)
        raise UserError(
            f"in stage {stage.name}: the network learns to predict something else than with {had}, of the stage before",
            code="other-objective",
            field=f"stage.objective.{key}",
            value=new,
            remedy="write it in [objective], for all stages, or train this stage in a run of its own",
        )


def _parse_one(values: dict[str, Any]) -> Recipe:
    recipe = _checked(Recipe, values)
    for rule in validation.RULES:
        recipe = rule(recipe) or recipe
    return recipe


def dump(recipe: Recipe) -> str:
    """Return a resolved recipe as TOML; reading it again gives an equal recipe."""
    return tomli_w.dumps(toml_none.to_toml(recipe))


def _override(values: dict[str, Any], text: str) -> None:
    _, sign, raw = text.partition("=")
    *parents, last = _path(text)
    if not sign or not all((*parents, last)):
        problem, remedy = "the override is not of the form a.b=value", "write, for example, --set train.max_steps=100"
        raise UserError(problem, code="override-invalid", field="--set", value=text, remedy=remedy)
    try:
        read = toml.parse(f"value = {raw}")
        value = read["value"] if len(read) == 1 else raw
    except toml.TomlError:
        value = raw
    if "buckets" in values:
        values["buckets"] = as_table(values["buckets"])
    node: Any = values
    for part in parents:
        # A stage without datasets or entries has those of the recipe.
        start = copy.deepcopy(values.get(part, {})) if part in stages.LISTS else {}
        node = node.setdefault(part, start) if isinstance(node, dict) else node[_index(node, part, text)]
    node[last if isinstance(node, dict) else _index(node, last, text)] = value


def _path(text: str) -> list[str]:
    """Return the parts of the key of an override."""
    return [part.strip() for part in re.sub(r"\[(\d+)\]", r".\1", text.partition("=")[0]).split(".")]


def _index(node: Any, part: str, text: str) -> int:
    if not isinstance(node, list):
        raise UserError(
            "there is no table of that name",
            code="unknown-table",
            field="--set",
            value=text,
            remedy="see docs/reference/recipe.md",
        )
    if part in (names := [each.get("name") if isinstance(each, dict) else None for each in node]):
        return names.index(part)
    if not part.isdecimal() or int(part) >= len(node):
        path, known = _path(text), [str(name) for name in names if name is not None]
        at = path.index(part)
        path[at : at + (at < len(path) - 1)] = ["0"]  # before a key, or in place of what is none
        shown = system.quoted("=".join([".".join(path), text.partition("=")[2]]))
        raise UserError(
            f'"{part}" is not the index or the name of one of the {units.plural(len(node), "entry")}',
            code="override-index-out-of-range",
            field="--set",
            value=text,
            remedy=f"count from 0, as in --set {shown}" + f", or name one: {nearest(part, known)}" * bool(known),
        )
    return int(part)
