"""Find out whose config a file is, convert it to a recipe, and tell what becomes of its keys and clips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from reelworks.catalog.scan import ScanProgress
from reelworks.compat import former, stages
from reelworks.compat.ai_toolkit.ai_toolkit import AI_TOOLKIT
from reelworks.compat.diffusion_pipe.diffusion_pipe import DIFFUSION_PIPE
from reelworks.compat.draft import ImportDraft
from reelworks.compat.files import ConfigFile
from reelworks.compat.former import ClipAccount
from reelworks.compat.musubi.musubi import MUSUBI
from reelworks.compat.onetrainer.onetrainer import ONETRAINER
from reelworks.compat.opensora.open_sora import OPEN_SORA
from reelworks.compat.request import ImportRequest
from reelworks.compat.rules import ImportedKey
from reelworks.compat.sd_scripts.sd_scripts import SD_SCRIPTS
from reelworks.compat.simpletuner.simpletuner import SIMPLETUNER
from reelworks.compat.trainer import FormerTrainer
from reelworks.core import files, requests, toml
from reelworks.core.errors import UserError, nearest
from reelworks.recipe import recipe_file
from reelworks.recipe.recipe import Recipe

WHOLE_FILES = {OPEN_SORA.name}  # trainers each of whose files is a training, so that several are its stages
TRAINERS: dict[str, FormerTrainer] = {}


def register(trainer: FormerTrainer) -> None:
    """Let files of a trainer be recognised, and `--from` take its name."""
    assert trainer.name not in TRAINERS, trainer.name
    TRAINERS[trainer.name] = trainer


for _trainer in (AI_TOOLKIT, DIFFUSION_PIPE, MUSUBI, ONETRAINER, OPEN_SORA, SD_SCRIPTS, SIMPLETUNER):
    register(_trainer)


@dataclass(frozen=True)
class Imported:
    """A recipe that was made of another trainer's config.

    Attributes:
        trainer: Name of the trainer.
        recipe: Path of the recipe.
        text: Its contents.
        keys: What became of each setting, and of defaults that differ here.
        clips: What the trainer does with each clip, beside what happens here; None if it was not asked for.
        without_clips: Why there is no such account, for people; empty if there is one.
    """

    trainer: str
    recipe: str
    text: str
    keys: tuple[ImportedKey, ...]
    clips: ClipAccount | None
    without_clips: str


@requests.telling(ImportRequest)
def convert(request: ImportRequest, on_scan: Callable[[ScanProgress], None] | None = None) -> Imported:
    """Convert a config, write the recipe, and account for the clips if their folders are there.

    Raises:
        UserError: The files are no config of a known trainer, the model is none of ours, or the recipe cannot be written.
    """
    given = [ConfigFile(path) for path in request.files]
    if request.command is not None:
        given.append(ConfigFile(Path("command.sh"), request.command))
    trainer = _trainer_of(given, request.trainer)
    is_staged = len(given) > 1 and trainer.name in WHOLE_FILES and all(map(trainer.recognises, given))
    parts = [[file] for file in given] if is_staged else [given]
    drafts = [ImportDraft(trainer.read(part), request) for part in parts]
    keys_of = [_fill(trainer, draft) for draft in drafts]
    recipes = [_parse(draft) for draft in drafts]
    title, keys = f"Imported from {', '.join(file.path.name for file in given)} of {trainer.name}.", keys_of[0]
    if is_staged:
        names = stages.names_of([file.path.stem for file in given])
        text = stages.text(title, names, drafts, recipes)
        recipe_file.parse({"output": f"runs/{request.path.stem}", **toml.parse(text)})
        for name, more in zip(names[1:], keys_of[1:], strict=True):
            keys += tuple(replace(key, key=f"{name}: {key.key}") for key in more if key not in keys_of[0])
    else:
        text = drafts[0].text(title)
    files.write_for("--output", request.path, text.encode())
    clips, why = _account(trainer, drafts[0], recipes[0], on_scan) if request.clips else (None, "not asked for")
    return Imported(trainer.name, str(request.path), text, keys, clips, why)


def _fill(trainer: FormerTrainer, draft: ImportDraft) -> tuple[ImportedKey, ...]:
    """Fill the draft of a recipe; returns what became of each setting."""
    keys = tuple(trainer.convert(draft))
    draft.begin("")
    for number, path in enumerate(() if draft.took_data else draft.request.data[: draft.count("dataset")]):
        draft.set(f"dataset.{number}.path", str(path), "as given with --data")
    return keys


def _trainer_of(given: list[ConfigFile], name: str | None) -> FormerTrainer:
    """Return the trainer of this name, or else the one that recognises a file."""
    if name is not None:
        if name not in TRAINERS:
            raise UserError(
                "no trainer of this name is known",
                code="unknown-trainer",
                field="--from",
                value=name,
                remedy=nearest(name, TRAINERS),
            )
        return TRAINERS[name]
    found = [trainer for file in given for trainer in TRAINERS.values() if trainer.recognises(file)]
    if not found:
        known = "".join(f"\n    {trainer.name}: {trainer.gives}" for trainer in TRAINERS.values())
        raise UserError(
            "no trainer's config is recognised",
            code="unknown-trainer",
            field="FILE",
            value=", ".join(str(file.path) for file in given),
            remedy=f"give one of these, and --from NAME if its keys do not tell:{known}",
        )
    return found[0]


def _parse(draft: ImportDraft) -> Recipe:
    """Check the recipe; an error in a value that was imported names the setting that it comes from."""
    try:
        return recipe_file.parse(draft.values())
    except UserError as error:
        if error.field is not None and (source := draft.source_of(error.field)):
            error.reword(field=error.field, problem=f"{error.problem} (from {source})", remedy=error.remedy)
        raise


def _account(
    trainer: FormerTrainer, draft: ImportDraft, recipe: Recipe, on_scan: Callable[[ScanProgress], None] | None
) -> tuple[ClipAccount | None, str]:
    if missing := former.missing_folders(recipe):
        return None, f"there is no {missing[0]}: give --data DIR to see what becomes of each clip"
    found = former.account(trainer.name, recipe, lambda clips: trainer.former_epoch(draft.settings, clips), on_scan)
    return found, "" if found is not None else f"the source of {trainer.name} does not tell what becomes of a clip"
