"""Recipes as files that the page reads, changes and saves: each as its text, in which comments stay."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePath

from pydantic import BaseModel

from reelworks.annexes.page.workspace import Workspace, key_of, text_of
from reelworks.core import digests, files, system, toml, user_files
from reelworks.core.errors import UserError
from reelworks.core.results import Json
from reelworks.training.recipe import recipe_file, toml_text
from reelworks.training.recipe.recipe import Recipe

_NAME = re.compile(r"[^\W_][\w .+-]{0,99}")
_MOST_CHARACTERS = 1_000_000


@dataclass(frozen=True)
class RecipeText:
    """A recipe's file as it was read; `digest` tells whether it was changed since."""

    path: Path
    text: str
    values: Json

    @property
    def digest(self) -> str:
        """Digest of the text."""
        return digests.digest_bytes(self.text.encode())[:16]

    @property
    def is_of_run(self) -> bool:
        """Whether it is what a run was trained with, which stays as it is."""
        return (self.path.parent / "run.json").exists()

    @property
    def name(self) -> str:
        """Name of the recipe, or of its run."""
        return text_of(self.path.parent.name if self.is_of_run else self.path.stem)

    @property
    def recipe(self) -> Recipe:
        """The recipe that the text describes."""
        return parse(self.values, self.path)


def read(workspace: Workspace, key: str) -> RecipeText:
    """Read a recipe by its key."""
    path = workspace.require(workspace.recipe(key))
    try:
        text = user_files.read_text(path, user_files.SETTINGS)
        return RecipeText(path, text, toml.parse(text))
    except (OSError, ValueError):
        recipe_file.load(path)  # which tells what is wrong
        raise


def parse(values: Json, path: Path) -> Recipe:
    """Make a recipe of a file's values, as `recipe_file.load` does."""
    return recipe_file.parse({"output": f"runs/{path.stem}"} | values)


def parse_text(text: str, path: Path) -> tuple[Json, Recipe]:
    """Return values and recipe of a text."""
    if len(text) > _MOST_CHARACTERS:
        raise UserError("the text is too long for a recipe", code="not-toml", field="text", remedy="shorten it")
    try:
        values = toml.parse(text)
    except toml.TomlError as error:
        raise UserError(f"not TOML: {error}", code="not-toml", field="text", remedy=error.remedy) from error
    return values, parse(values, path)


class SaveForm(BaseModel):
    """A request to save a recipe that was shown with a digest; under another name if one is given."""

    digest: str
    name: str | None = None
    overwrite: bool = False


def about(workspace: Workspace, key: str, read: RecipeText) -> Json:
    """Return what the page shows of a recipe's file."""
    named = {"key": key, "name": read.name, "path": workspace.label(read.path)}
    return named | {"is_of_run": read.is_of_run, "digest": read.digest}


def save(workspace: Workspace, read: RecipeText, text: str, values: Json, form: SaveForm) -> Json:
    """Save a text and its values in place of a recipe's, or as a new one; return its key and place."""
    if form.name is None:
        path = read.path
        _replace(read, text, form.digest)
    else:
        path = _save_as(workspace, RecipeText(read.path, text, values), form.name, overwrite=form.overwrite)
    return {"key": key_of(path), "path": workspace.label(path)}


def _replace(read: RecipeText, text: str, digest: str) -> None:
    """Replace a recipe's text, unless its file has another digest than the one that was shown."""
    if read.is_of_run:
        raise UserError(
            "it is what the run was trained with, and stays as it is",
            code="recipe-of-run",
            field="RECIPE",
            value=read.name,
            remedy="save it as a new recipe",
        )
    if digest != read.digest:
        raise UserError(
            "the file was changed meanwhile, and saving would undo that",
            code="file-changed",
            field="RECIPE",
            value=read.path.name,
            remedy="save under another name, or discard the changes",
        )
    files.write_for("RECIPE", read.path, text.encode())


def _save_as(workspace: Workspace, shown: RecipeText, name: str, *, overwrite: bool) -> Path:
    """Write a recipe as a new one beside its file, with its comments, a run folder of its own, and its catalog.

    One of a run is written into the first root.
    """
    folder = workspace.roots[0] if shown.is_of_run else shown.path.parent
    path = new_path(workspace, folder, name, overwrite=overwrite)
    former = shown.recipe
    output = str(PurePath(former.output).with_name(path.stem))
    changed = shown.values | {"output": output, "catalog": former.catalog_folder}
    parse(changed, path)
    files.write_for("name", path, toml_text.rewrite(shown.text, changed).encode())
    workspace.index(again=True)
    return path


def new_path(workspace: Workspace, folder: Path, name: str, *, overwrite: bool) -> Path:
    """Return where a recipe of a name is written; raises `UserError` if it cannot be."""
    stem = name.strip().removesuffix(".toml")
    if not _NAME.fullmatch(stem) or stem.endswith((".", " ")) or not system.is_file_name(f"{stem}.toml"):
        raise UserError(
            "this is no name for a recipe",
            code="name-invalid",
            field="name",
            value=name,
            remedy="begin with a letter or digit; letters, digits, spaces and . _ + - may follow",
        )
    path = workspace.require(folder / f"{stem}.toml")
    if path.exists() and not overwrite:
        raise UserError(
            "a file of this name exists already",
            code="file-exists",
            field="name",
            value=path.name,
            remedy="choose another name, or overwrite it",
        )
    return path
