"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from reelworks.core import annexes, requests

if TYPE_CHECKING:
    from reelworks.training.recipe.recipe import Recipe

RecipeArgument = Annotated[Path, Argument(metavar="RECIPE", help="A recipe (a TOML file).")]
RunArgument = Annotated[Path, Argument(metavar="RUN", help="A run folder.")]
SourceArgument = Annotated[Path, Argument(metavar="RUN|CHECKPOINT", help="A run folder, or one checkpoint.")]
Html = Annotated[Path | None, Option(metavar="FILE", help=requests.HTML)]
Json = Annotated[bool, Option("--json", help="Print one JSON value instead of tables.")]
Overrides = Annotated[list[str] | None, Option("--set", metavar="A.B=V", help=requests.OVERRIDES)]
DataPath = Annotated[Path | None, Option(help=requests.DATA_PATH)]
_ENGINES = ", ".join(name for annex in annexes.of_house() for name in annex.engines)
EngineOption = Annotated[
    str,
    Option(
        "--engine",
        metavar="NAME",
        help=f"Engine that does the work: local, which is this machine, {_ENGINES}, or one of another package.",
    ),
]


def load_recipe(path: Path, overrides: list[str] | None, data_path: Path | None = None) -> Recipe:
    """Load a recipe and apply the overrides of the command line."""
    from reelworks.training.recipe import recipe_file

    return recipe_file.load(path, overrides or [], data_path)


def named_stages(recipe: Recipe, *, json: bool) -> list[tuple[Recipe, str]]:
    """Return a recipe as each of its stages has it, with their names; with `json`, one has to be chosen."""
    from reelworks.core.errors import UserError
    from reelworks.training.recipe import recipe_file

    if json and recipe.stage:
        raise UserError(
            "the recipe has stages, and the result is of one",
            code="stage-not-chosen",
            field="--json",
            remedy=f"choose it: --set stage={recipe.stage[0].name}",
        )
    return list(zip(recipe_file.each_stage(recipe), [stage.name for stage in recipe.stage] or [""], strict=True))
