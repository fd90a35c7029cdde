"""New recipes: footage from the browser, a LoRA's recipe for it, and any recipe as form and text."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from reelworks.catalog import formats
from reelworks.core import toml
from reelworks.core.errors import UserError
from reelworks.models import registry
from reelworks.models.family import Preset
from reelworks.recipe import toml_text
from reelworks.recipe.recipe import Recipe
from reelworks.ui import recipe_files, recipe_form, uploads
from reelworks.ui.context import Context
from reelworks.ui.jobs_api import to_json
from reelworks.ui.workspace import key_of

Json = dict[str, Any]
_MOST_COUNTED = 20_000  # files of a folder
_REPEATED = ("dataset", "bucket")


class NewLora(BaseModel):
    """Make the recipe of a LoRA for a folder of footage.

    Attributes:
        folder: Key of the folder of footage.
        companions: Keys of folders of companions, by kind.
        name: Name of the recipe.
    """

    folder: str
    model: str = Field(min_length=1, max_length=200)
    trigger: str = Field(default="", max_length=200)
    vram_gb: float | None = Field(default=None, ge=1, le=100_000)
    weights: str = Field(default="", max_length=1000)
    companions: dict[Literal["control", "source", "mask"], str] = {}
    name: str
    overwrite: bool = False


class Change(BaseModel):
    """A key to set or remove: a plain value, or one as it is written in TOML."""

    path: list[str | int] = Field(min_length=1, max_length=12)
    value: str | float | int | bool | None = None
    toml: str | None = None
    remove: bool = False


class Draft(BaseModel):
    """A text with changes to make in it."""

    text: str
    changes: list[Change] = []


class SaveText(BaseModel):
    """A recipe's text to save; under another name if one is given."""

    text: str
    digest: str
    name: str | None = None
    overwrite: bool = False


def router(context: Context) -> APIRouter:
    """Return the routes below /api/new."""
    routes = APIRouter(prefix="/new")
    workspace = context.workspace

    @routes.get("/models")
    def models() -> list[Json]:
        return [_model(name, preset) for name, preset in registry.PRESETS.items()]

    @routes.get("/folders")
    def folders() -> list[Json]:
        counted = ((key, path, _count(path)) for key, path in workspace.found(again=True).folders.items())
        return [
            {"key": key, "path": workspace.shown(path), **counts} for key, path, counts in counted if counts["media"]
        ]

    @routes.put("/footage/{name}/{file:path}")
    async def upload(name: str, file: str, request: Request) -> Json:
        path = uploads.target(workspace, name, file)
        size = await uploads.receive(request, path)
        return {"bytes": size, "folder": key_of(workspace.roots[0] / uploads.FOLDER / name)}

    @routes.post("/lora")
    def lora(wish: NewLora) -> Json:
        root = workspace.roots[0]
        path = recipe_files.new_path(workspace, root, wish.name, overwrite=wish.overwrite)
        arguments = ["new", "lora", f"--model={wish.model}", f"--data={_below(root, workspace.folder(wish.folder))}"]
        arguments += [f"--trigger={wish.trigger}"] * bool(wish.trigger)
        arguments += [f"--weights={wish.weights}"] * bool(wish.weights)
        arguments += [f"--vram={wish.vram_gb:g}"] if wish.vram_gb is not None else []
        arguments += [f"--{kind}={_below(root, workspace.folder(key))}" for kind, key in wish.companions.items()]
        arguments += ["--force"] * wish.overwrite
        arguments += [f"--output={path.relative_to(root)}", "--json"]
        return to_json(context, context.jobs.add("new", path.stem, arguments, root, subject=key_of(path)))

    @routes.get("/form")
    def form() -> list[Json]:
        return list(recipe_form.sections())

    @routes.get("/recipe/{key}")
    def recipe(key: str) -> Json:
        read = recipe_files.read(workspace, key)
        about: Json = {"key": key, "name": read.name, "path": workspace.shown(read.path), "digest": read.digest}
        about["is_of_run"] = read.is_of_run
        return about | _checked(context, read.text, read.path)

    @routes.post("/recipe/{key}/draft")
    def draft(key: str, draft: Draft) -> Json:
        path = workspace.recipe(key)
        if not draft.changes:
            return _checked(context, draft.text, path)
        values, problem = _changed(draft)
        if problem is not None:
            return _checked(context, draft.text, path) | {"problem": problem}
        return _checked(context, toml_text.rewrite(draft.text, values), path)

    @routes.post("/recipe/{key}/save")
    def save(key: str, wish: SaveText) -> Json:
        read = recipe_files.read(workspace, key)
        values, _ = recipe_files.parse_text(wish.text, read.path)
        if wish.name is None:
            recipe_files.save(read, wish.text, wish.digest)
            return {"key": key, "path": workspace.shown(read.path)}
        shown = recipe_files.RecipeText(read.path, wish.text, values)
        path = recipe_files.save_as(workspace, shown, values, wish.name, overwrite=wish.overwrite)
        return {"key": key_of(path), "path": workspace.shown(path)}

    return routes


def _below(root: Path, path: Path) -> Path:
    """Return a path as recipes in the first root name it: relative if it lies inside, so that the root can be moved."""
    return path.relative_to(root) if path.is_relative_to(root) else path


def _model(name: str, preset: Preset) -> Json:
    """Return what is known of a model without torch."""
    conditioning = preset.config.conditioning
    release = registry.release_of(name)
    return {
        "name": name,
        "family": registry.family_of(name).name,
        "also": [short for short, meant in registry.SHORT_NAMES.items() if meant == name],
        "weights": release.weights,
        "published": preset.release is not None,
        "side": release.side,
        "lines": 0 if preset.config.pictures_only else release.lines,
        "num_frames": release.num_frames,
        "fps": preset.fps,
        "distilled": release.distilled,
        "needs": list(conditioning.needs),
        "takes": list(conditioning.takes),
        "sound": preset.sound is not None,
    }


def _count(folder: Path) -> Json:
    """Count the pictures, videos and captions of a folder, those of the folders in it left out."""
    counts = {"media": 0, "pictures": 0, "videos": 0, "captions": 0}
    with suppress(OSError), os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number == _MOST_COUNTED:
                break
            kind = formats.kind_of(entry.name)
            if entry.name.startswith("."):
                continue
            if kind is not None:
                counts["media"] += 1
                counts["videos" if kind == "video" else "pictures"] += 1
            counts["captions"] += entry.name.endswith(".txt")
    return counts


def _checked(context: Context, text: str, path: Path) -> Json:
    """Return a text with its values, and what is wrong with them; with what training it needs and makes."""
    found: Json = {"text": text, "values": None, "problem": None}
    try:
        found["values"], recipe = recipe_files.parse_text(text, path)
    except UserError as error:
        with suppress(toml.Invalid):
            found["values"] = toml.parse(text)
        return found | {"problem": _told(error)}
    output = context.workspace.roots[0] / recipe.output
    return found | {"run": key_of(output), "output": recipe.output, "downloads": _downloads(recipe)}


def _told(error: UserError) -> Json:
    value = None if error.value is None else str(error.value)
    return {"problem": error.problem, "code": error.code, "field": error.field, "value": value, "remedy": error.remedy}


def _downloads(recipe: Recipe) -> list[str]:
    """Return the hub ids that training takes weights from, unless they are in the cache already."""
    parts: list[Any] = [recipe.model, recipe.autoencoder, recipe.text_encoder, recipe.sound]
    named = [getattr(part, "weights", None) for part in parts if part is not None]
    named.append(recipe.model.image_encoder)
    presets = (name if name not in registry.PRESETS else registry.release_of(name).weights for name in named if name)
    return [name for name in dict.fromkeys(presets) if name and _is_on_hub(name) and not _is_cached(name)]


def _is_on_hub(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith(("/", ".")) and not Path(name).exists()


def _is_cached(name: str) -> bool:
    from huggingface_hub import constants

    return (Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "snapshots").exists()


def _changed(draft: Draft) -> tuple[Json, Json | None]:
    """Return the values of a text after changes, or what is wrong with one of these."""
    try:
        values = toml.parse(draft.text)
    except toml.Invalid as error:
        return {}, _told(UserError(f"not TOML: {error}", code="not-toml", field="text", remedy="correct it"))
    for change in draft.changes:
        field = ".".join(map(str, change.path))
        try:
            _apply(values, change)
        except toml.Invalid:
            remedy = 'write it as in TOML: "a text", 1.5, true, or [1, 17]'
            return {}, _told(
                UserError("this is no value", code="not-toml", field=field, value=change.toml, remedy=remedy)
            )
        except (LookupError, TypeError, AttributeError):
            remedy = "load the page again"
            return {}, _told(UserError("there is no such table", code="unknown-table", field=field, remedy=remedy))
    return values, None


def _apply(values: Json, change: Change) -> None:
    node: Any = values
    *parents, last = change.path
    for part, following in zip(parents, change.path[1:], strict=True):
        if isinstance(node, dict) and not isinstance(node.get(str(part)), dict | list):
            node[str(part)] = [] if isinstance(following, int) else {}  # `buckets = "auto"` becomes a table, too
        node = node[part]
    if change.remove:
        del node[last]
        return
    value = change.value if change.toml is None else toml.parse(f"value = {change.toml}")["value"]
    if isinstance(node, list) and last == len(node):
        node.append({} if value is None else value)
    else:
        node[last] = {} if value is None else value
