"""Configs of other trainers from the browser, each of which becomes a recipe."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from reelworks.annexes.page import recipe_files, uploads
from reelworks.annexes.page.context import PageContext
from reelworks.annexes.page.jobs_api import add_job
from reelworks.annexes.page.workspace import key_of
from reelworks.core import files, user_files
from reelworks.core.errors import UserError
from reelworks.core.results import Json

FOLDER = "imports"  # in the first root


class ConfigText(BaseModel):
    """A file as the browser reads it."""

    name: str = Field(min_length=1, max_length=200)
    text: str = Field(max_length=user_files.SETTINGS)


class ImportForm(BaseModel):
    """Make a recipe of configs that belong together.

    Attributes:
        folder: Key of the folder of footage in place of the config's first; empty for the config's own.
        trainer: Name of the trainer; empty if the files tell it.
        name: Name of the recipe.
    """

    files: list[ConfigText] = Field(min_length=1, max_length=20)
    folder: str = ""
    trainer: str = Field(default="", max_length=40)
    name: str
    overwrite: bool = False


routes = APIRouter()


@routes.post("/import")
def import_config(context: PageContext, wish: ImportForm) -> Json:
    root = context.workspace.roots[0]
    path = recipe_files.new_path(context.workspace, root, wish.name, overwrite=wish.overwrite)
    folder = root / FOLDER / path.stem
    for config in wish.files:
        is_one = [each.name for each in wish.files].count(config.name) == 1
        if not (is_one and uploads.is_name(config.name) and context.workspace.holds(folder / config.name)):
            raise UserError(
                "this is no name for a config, or that of two",
                code="name-invalid",
                field="file",
                value=config.name,
                remedy="rename it: begin with a letter or digit, and leave out signs that file systems give a meaning",
            )
    folder.mkdir(parents=True, exist_ok=True)
    for config in wish.files:
        files.write_bytes(folder / config.name, config.text.encode())
    given = [str((folder / config.name).relative_to(root)) for config in wish.files]
    arguments = ["import", *given, f"--output={path.relative_to(root)}", "--json", *["--force"] * wish.overwrite]
    if wish.trainer:
        arguments.append(f"--from={wish.trainer}")
    if wish.folder:
        arguments.append(f"--data={context.workspace.named_in_recipes(wish.folder)}")
    return add_job(context, "import", path.stem, arguments, key_of(path))
