"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

if TYPE_CHECKING:
    from reelworks.recipe.recipe import Recipe

RecipeArgument = Annotated[Path, Argument(metavar="RECIPE", help="A recipe (a TOML file).")]
RunArgument = Annotated[Path, Argument(metavar="RUN", help="A run folder.")]
SourceArgument = Annotated[Path, Argument(metavar="RUN|CHECKPOINT", help="A run folder, or one checkpoint.")]
Html = Annotated[Path | None, Option(metavar="FILE", help="Also write it as one self-contained HTML file.")]
Json = Annotated[bool, Option("--json", help="Print one JSON value instead of tables.")]
Overrides = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="A.B=V",
        help="Override a recipe key; may be given several times. The value is TOML, or else plain text.",
    ),
]
DataPath = Annotated[
    Path | None,
    Option(
        help="Train on this folder or list only, with the options of the first dataset; wins over datasets of --set."
    ),
]
EngineOption = Annotated[
    Literal["local", "ray"],
    Option(
        "--engine",
        help="Use this machine, or all nodes of the Ray cluster of RAY_ADDRESS (without it, of one started here).",
    ),
]


def setting(key: str, text: str) -> str:
    """Return an override whose value is a string, whatever it looks like: `2026-11-20` may be a folder."""
    import tomli_w

    return f"{key}={tomli_w.dumps({'value': text}).removeprefix('value = ').rstrip()}"


def load_recipe(path: Path, overrides: list[str] | None, data_path: Path | None = None) -> Recipe:
    """Load a recipe and apply the overrides of the command line."""
    from reelworks.recipe import recipe_file

    recipe = recipe_file.load(path, overrides or [])
    if data_path is None:
        return recipe
    dataset = recipe.dataset[0].model_copy(update={"path": str(data_path), "root": None})
    return recipe.model_copy(update={"dataset": [dataset]})
