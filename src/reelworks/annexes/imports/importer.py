"""Find out whose config a file is, convert it to a recipe, and tell what becomes of its keys and clips."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from reelworks.annexes.imports import former, optimizers, stages
from reelworks.annexes.imports.ai_toolkit.ai_toolkit import AI_TOOLKIT
from reelworks.annexes.imports.diffusion_pipe.diffusion_pipe import DIFFUSION_PIPE
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.files import ConfigFile
from reelworks.annexes.imports.former import ClipAccount, Scan
from reelworks.annexes.imports.musubi.musubi import MUSUBI
from reelworks.annexes.imports.onetrainer.onetrainer import ONETRAINER
from reelworks.annexes.imports.opensora.open_sora import OPEN_SORA
from reelworks.annexes.imports.request import ImportRequest
from reelworks.annexes.imports.rules import Fate, ImportedKey
from reelworks.annexes.imports.sd_scripts.sd_scripts import SD_SCRIPTS
from reelworks.annexes.imports.simpletuner.simpletuner import SIMPLETUNER
from reelworks.annexes.imports.trainer import FormerTrainer
from reelworks.core import files, requests, system
from reelworks.core.errors import UserError, nearest
from reelworks.data.catalog.scan.scan import ScanProgress
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

TRAINERS: dict[str, FormerTrainer] = {
    trainer.name: trainer
    for trainer in (AI_TOOLKIT, DIFFUSION_PIPE, MUSUBI, ONETRAINER, OPEN_SORA, SD_SCRIPTS, SIMPLETUNER)
}
_SILENT = "the source of {} does not tell what becomes of a clip"


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
        given.append(ConfigFile(Path("command"), request.command))
    trainer = _trainer_of(given, request.trainer)
    is_staged = len(given) > 1 and trainer.each_file_trains and all(map(trainer.recognises, given))
    parts = [[file] for file in given] if is_staged else [given]
    settings = [trainer.read(part) for part in parts]
    made = [_Converted.from_draft(trainer, ImportDraft(each, request)) for each in settings]
    title = f"Imported from {', '.join(file.path.name for file in given)} of {trainer.name}."
    if is_staged:
        names = stages.names_of([file.path.stem for file in given])
        text = stages.text(title, names, [each.draft for each in made], [each.recipe for each in made])
        keys = tuple(
            replace(key, key=f"{name}: {key.key}") for name, own in zip(names, made, strict=True) for key in own.keys
        )
    else:
        text, keys = made[0].draft.text(title), made[0].keys
    files.write_for("--output", request.path, text.encode())
    clips, why = None, _SILENT.format(trainer.name) if request.clips else "not asked for"
    if request.clips and not is_staged:
        found, clips, why = _account(trainer, made[0], on_scan)
        text, keys = found.draft.text(title), found.keys
        files.write_for("--output", request.path, text.encode())
    return Imported(trainer.name, str(request.path), text, keys, clips, why)


class _Converted(NamedTuple):
    """A draft that is filled, with what became of each setting, and the recipe that it is."""

    draft: ImportDraft
    keys: tuple[ImportedKey, ...]
    recipe: Recipe

    @classmethod
    def from_draft(cls, trainer: FormerTrainer, draft: ImportDraft) -> _Converted:
        """Convert a draft's settings, and check the recipe, whose error names the setting that a value comes from."""
        keys = _placed(draft, optimizers.finish_warmup(draft, tuple(trainer.convert(draft))))
        draft.begin("")
        for number, path in enumerate(() if draft.took_data else draft.request.data[: draft.count("dataset")]):
            draft.set(f"dataset.{number}.path", str(path), "as given with --data")
        try:
            return cls(draft, keys, recipe_file.parse(draft.values()))
        except UserError as error:
            if error.field is not None and (source := draft.source_of(error.field)):
                error.reword(field=error.field, problem=f"{error.problem} (from {source})")
            raise


def _placed(draft: ImportDraft, keys: tuple[ImportedKey, ...]) -> tuple[ImportedKey, ...]:
    """Give the run a folder where the config's is one of Windows, and this is another system, which would make one of that name."""
    folder = str(draft.get("output", ""))
    if system.WINDOWS or re.match(r"[A-Za-z]:|.*\\", folder) is None:
        return keys
    said = draft.assignment("output")
    draft.begin(draft.origin_of("output"))
    now = f"{draft.set('output', f'runs/{draft.request.path.stem}')}, in place of a path of Windows"
    told = (replace(key, fate=Fate.TO_FILL_IN, remark=key.remark.replace(said, now)) for key in keys)
    return tuple(new if said in key.remark else key for key, new in zip(keys, told, strict=True))


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


def _account(
    trainer: FormerTrainer, made: _Converted, on_scan: Callable[[ScanProgress], None] | None
) -> tuple[_Converted, ClipAccount | None, str]:
    """Return what a config becomes with its clips at hand, and the account of them; or why there is none."""
    with tempfile.TemporaryDirectory(prefix="reelworks-import-") as folder:
        scan = Scan(made.recipe, folder, on_scan)
        if not scan.clips:
            remedy = "give --data DIR to see what becomes of each clip"
            return made, None, f"{'; '.join(scan.missing.values()) or 'no clip can be read'}: {remedy}"
        settings, request = made.draft.settings, made.draft.request
        made = _Converted.from_draft(trainer, ImportDraft(settings, request, scan.clips))
        try:
            data = scan.open(made.recipe)
            planned = former.plan(data, made.draft.processes)
            if optimizers.lacks_warmup_steps(made.draft) and not scan.missing:
                made = _Converted.from_draft(trainer, ImportDraft(settings, request, scan.clips, planned.steps))
            account = former.account(trainer, settings, scan, data, planned)
            return made, account, "" if account is not None else _SILENT.format(trainer.name)
        except UserError as error:
            return made, None, f"{error.problem}: {error.remedy}"
