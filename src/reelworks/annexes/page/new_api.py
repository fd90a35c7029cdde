"""New recipes: footage from the browser, a LoRA's recipe for it, and any recipe as form and text."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from reelworks.annexes.page import recipe_files, recipe_form, uploads
from reelworks.annexes.page.context import Context, PageContext
from reelworks.annexes.page.jobs_api import add_job
from reelworks.annexes.page.recipe_files import SaveForm
from reelworks.annexes.page.workspace import key_of
from reelworks.core import toml, user_files
from reelworks.core.errors import UserError
from reelworks.core.results import Json
from reelworks.data.media import formats
from reelworks.models import hub, registry
from reelworks.models.family import Preset
from reelworks.quickstart import ready_recipes
from reelworks.training.recipe import toml_text, weight_sources
from reelworks.training.recipe.recipe import Recipe

_MOST_COUNTED = 20_000  # files of a folder
# Folders of pipelines with the weights of a key.
_FOLDERS = {
    "model.weights": ("transformer", "unet"),
    "autoencoder.weights": ("vae",),
    "text_encoder.weights": ("text_encoder", "text_encoder_2", "text_encoder_3"),
}


class LoraForm(BaseModel):
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


class RecipeEdit(BaseModel):
    """A key to set or remove: a plain value, or one as it is written in TOML."""

    path: list[str | int] = Field(min_length=1, max_length=12)
    value: str | float | int | bool | None = None
    toml: str | None = None
    remove: bool = False


class RecipeDraft(BaseModel):
    """A text with changes to make in it."""

    text: str
    changes: list[RecipeEdit] = []


class SaveText(SaveForm):
    """A recipe's text to save."""

    text: str


routes = APIRouter(prefix="/new")


@routes.get("/models")
def list_models() -> list[Json]:
    return [_model(name, preset) for name, preset in registry.PRESETS.items()]


@routes.get("/models/{model}/sizes")
def list_sizes(model: str) -> list[Json]:
    """Tell on what GPUs a LoRA of 20 pictures fits; nothing of a model that needs more than pictures."""
    if registry.PRESETS[registry.preset_name(model, "model")].config.conditioning.companions.needs:
        return []
    return [
        {
            "vram_gb": one.vram_gb,
            "bytes": one.result.choice.estimate.memory.total,
            "steps": one.result.steps,
            "seconds": one.result.steps * one.result.seconds_per_step,
            "gpu": one.result.gpu,
        }
        for one in ready_recipes.of_model(model)
    ]


@routes.get("/folders")
def list_folders(context: PageContext) -> list[Json]:
    counted = ((key, path, _count(path)) for key, path in context.workspace.index(again=True).folders.items())
    return [
        {"key": key, "path": context.workspace.label(path), **counts}
        for key, path, counts in counted
        if counts["media"]
    ]


@routes.put("/footage/{name}/{file:path}")
async def upload(context: PageContext, name: str, file: str, request: Request) -> Json:
    path = uploads.target(context.workspace, name, file)
    size = await uploads.receive(request, path)
    return {"bytes": size, "folder": key_of(context.workspace.roots[0] / uploads.FOLDER / name)}


@routes.post("/lora")
def make_lora(context: PageContext, wish: LoraForm) -> Json:
    root = context.workspace.roots[0]
    path = recipe_files.new_path(context.workspace, root, wish.name, overwrite=wish.overwrite)
    folders = {kind: context.workspace.named_in_recipes(key) for kind, key in wish.companions.items()}
    arguments = ["new", "lora", f"--model={wish.model}", f"--data={context.workspace.named_in_recipes(wish.folder)}"]
    arguments += [f"--trigger={wish.trigger}"] * bool(wish.trigger)
    arguments += [f"--weights={wish.weights}"] * bool(wish.weights)
    arguments += [f"--vram={wish.vram_gb:g}"] if wish.vram_gb is not None else []
    arguments += [f"--{kind}={folder}" for kind, folder in folders.items()]
    arguments += ["--force"] * wish.overwrite
    arguments += [f"--output={path.relative_to(root)}", "--json"]
    return add_job(context, "new", path.stem, arguments, key_of(path))


@routes.get("/form")
def get_form() -> list[Json]:
    return list(recipe_form.sections())


@routes.get("/recipe/{key}")
def get_recipe(context: PageContext, key: str) -> Json:
    read = recipe_files.read(context.workspace, key)
    return recipe_files.about(context.workspace, key, read) | _check(context, read.text, read.path)


@routes.post("/recipe/{key}/draft")
def check_draft(context: PageContext, key: str, draft: RecipeDraft) -> Json:
    path = context.workspace.recipe(key)
    if not draft.changes:
        return _check(context, draft.text, path)
    try:
        values, problem = _edit_values(draft)
    except UserError as error:
        return _check(context, draft.text, path) | {"problem": error.to_json()}
    found = _check(context, toml_text.rewrite(draft.text, values), path)
    return found if problem is None else found | {"problem": problem.to_json()}


@routes.post("/recipe/{key}/save")
def save(context: PageContext, key: str, wish: SaveText) -> Json:
    read = recipe_files.read(context.workspace, key)
    values, _ = recipe_files.parse_text(wish.text, read.path)
    return recipe_files.save(context.workspace, read, wish.text, values, wish)


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
        "needs": list(conditioning.companions.needs),
        "takes": list(conditioning.companions.takes),
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


def _check(context: Context, text: str, path: Path) -> Json:
    """Return a text with its values, and what is wrong with them; with what training it needs and makes."""
    found: Json = {"text": text, "values": None, "problem": None}
    try:
        found["values"], recipe = recipe_files.parse_text(text, path)
    except UserError as error:
        with suppress(toml.TomlError):
            found["values"] = toml.parse(text)
        return found | {"problem": error.to_json()}
    output = context.workspace.roots[0] / recipe.output
    return found | {"run": key_of(output), "output": recipe.output, "downloads": _downloads(recipe)}


def _downloads(recipe: Recipe) -> list[str]:
    """Return the hub ids that training takes weights from, unless they are in the cache already."""
    sources = weight_sources.by_key(recipe).items()
    return [*dict.fromkeys(name for key, name in sources if _must_be_downloaded(name, _FOLDERS.get(key, ())))]


def _must_be_downloaded(name: str, folders: Sequence[str]) -> bool:
    """Return whether a place of weights is a hub id, of which the cache lacks files in one of these folders that is there.

    A check alone fetches configs, and a download may have been interrupted.
    """
    from huggingface_hub import snapshot_download

    repository, *one = hub.file_in(name) or (name,)
    asked = hub.parse(repository)
    if asked is None or name.startswith(".") or Path(name).expanduser().exists():
        return False
    try:
        place = Path(snapshot_download(asked.repository, revision=asked.revision, local_files_only=True))
        if one:
            return not Path(place, *one).is_file()
        parts = [part for part in map(place.joinpath, folders) if part.is_dir()] or [place]
        return not all(map(_has_weights, parts))
    except (OSError, ValueError, KeyError, AttributeError):  # not in the cache, or an index that cannot be read
        return True


def _has_weights(folder: Path) -> bool:
    indexes = [user_files.read_json(file) for file in folder.glob("*.index.json")]
    shards = {Path(name).name for index in indexes for name in index["weight_map"].values()}
    return any(map(hub.is_file_of, folder.rglob("*"))) and all((folder / name).is_file() for name in shards)


def _edit_values(draft: RecipeDraft) -> tuple[Json, UserError | None]:
    """Return the values of a text after its edits, and what is wrong with one of these, which is left out.

    All paths are those of the text, in which lists have no gaps yet.

    Raises:
        UserError: The text is not TOML.
    """
    try:
        values = toml.parse(draft.text)
    except toml.TomlError as error:
        raise UserError(f"not TOML: {error}", code="not-toml", field="text", remedy=error.remedy) from error
    problem = None
    removed = sorted((c for c in draft.changes if c.remove), key=lambda c: [str(p).zfill(9) for p in c.path])
    for change in [*(c for c in draft.changes if not c.remove), *reversed(removed)]:
        field = ".".join(map(str, change.path))
        try:
            values = _apply(copy.deepcopy(values), change)
        except toml.TomlError:
            remedy = 'write it as in TOML: "a text", 1.5, true, or [1, 17]'
            problem = UserError("this is no value", code="not-toml", field=field, value=change.toml, remedy=remedy)
        except (LookupError, TypeError, AttributeError):
            remedy = "load the page again"
            problem = UserError("there is no such table", code="unknown-table", field=field, remedy=remedy)
    return values, problem


def _apply(values: Json, change: RecipeEdit) -> Json:
    node: Any = values
    *parents, last = change.path
    for part, following in zip(parents, change.path[1:], strict=True):
        if isinstance(node, dict) and not isinstance(node.get(str(part)), dict | list):
            node[str(part)] = [] if isinstance(following, int) else {}  # `buckets = "auto"` becomes a table, too
        node = node[part]
    if change.remove:
        del node[last]
        return values
    value = change.value if change.toml is None else toml.parse(f"value = {change.toml}")["value"]
    if isinstance(node, list) and last == len(node):
        node.append({} if value is None else value)
    else:
        node[last] = {} if value is None else value
    return values
