"""Publish a checkpoint of a run: choose it, write the folder that the hub is to hold, and commit it."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reelworks.annexes.hub import card, hub_repository, neutral, trained
from reelworks.annexes.hub.card import Card, Licence, PublishedPreview
from reelworks.annexes.hub.hub_repository import Repository
from reelworks.annexes.hub.request import PublishRequest
from reelworks.annexes.hub.trained import Trained
from reelworks.core import files, requests, storage
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.inference.generate import defaults, export_run
from reelworks.models import registry
from reelworks.models.adapters.conventions import CONVENTIONS
from reelworks.models.config import require_known
from reelworks.training.recipe import chosen_checkpoint, recipe_file
from reelworks.training.recipe.recipe import Recipe

_PREVIEWS = "previews"
_CARD = "README.md"
_TEMPORARY = ".publish-"
_LEFT_BEHIND_SECONDS = 7 * 24 * 3600
# By this name diffusers finds a LoRA in a repository.
_LORA_FILE = "pytorch_lora_weights.safetensors"


@dataclass(frozen=True)
class PublishedFile:
    """A file by its path in the repository, and its size."""

    path: str
    bytes: int


@dataclass(frozen=True)
class Published:
    """A checkpoint that was published, or written to be.

    Attributes:
        step: Of the checkpoint.
        folder: Where the files were written; None if they were only uploaded.
        url: Address of the repository's page; None if nothing was uploaded.
        commit: The repository's newest one; None if nothing was uploaded.
        private: Whether only its owners see the repository, or would.
        license: As the card names it; None if it is still to be filled in.
        notes: Sentences on what the card lacks.
    """

    repository: str
    step: int
    files: list[PublishedFile]
    folder: Path | None
    url: str | None
    commit: str | None
    private: bool
    license: str | None
    notes: list[str]


@requests.telling(PublishRequest)
def publish(request: PublishRequest) -> Published:
    """Write the folder that a request asks for, and upload it as one commit.

    Raises:
        UserError: There is no such checkpoint, the hub refuses or cannot be reached, or the folder cannot be written.

    Examples:
        >>> from reelworks.annexes.hub.request import PublishRequest
        >>> PublishRequest(source="runs/mug", to="anna/mug").private is None
        True
    """
    for format in request.formats:
        require_known("--format", format, tuple(CONVENTIONS))
    hub_repository.require_name(request.to)
    run, step = chosen_checkpoint.locate(request.source, step=request.step, best=request.best)
    source = _Source.read(run, step)
    repository = Repository(request.to, request.private is not False)
    if not request.dry_run:
        repository = Repository.ask_hub(request.to, request.private)
        if not request.replace:
            repository.require_own(source.run_id, [_CARD])
    with _folder(request, source) as folder:
        notes, licence = _write(request, source, folder)
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        written = [PublishedFile(name, (folder / name).stat().st_size) for name in names]
        committed = None
        if not request.dry_run:
            if not request.replace:
                repository.require_own(source.run_id, names)
            committed = repository.upload(folder, names, f"Step {step} of {source.recipe.model.name}")
    return Published(
        request.to,
        step,
        written,
        folder if request.dry_run or request.output else None,
        committed and committed.url,
        committed and committed.commit,
        repository.private,
        None if licence is None else licence.license_name or licence.license,
        notes,
    )


@dataclass(frozen=True)
class _Source:
    """A checkpoint with its recipe, and with what was trained up to it."""

    run: RunFolder
    run_id: str
    step: int
    recipe: Recipe
    trained: Trained

    @classmethod
    def read(cls, run: RunFolder, step: int) -> _Source:
        return cls(run, run.info().id, step, recipe_file.of_run(run, step), trained.read(run, step))

    @property
    def checkpoint(self) -> Path:
        return CheckpointFolder(self.run.checkpoints_folder).path(self.step)

    @property
    def base(self) -> str | None:
        """Hub id of the weights that training began with: the downloaded ones, else those that the model was published with."""
        weights = self.recipe.model.weights
        if weights is None:
            return None
        found = neutral.hub_id("model.weights", weights, self.trained.on_hub)
        return found.partition("@")[0] if found else registry.release_of(self.recipe.model.name).weights


@contextmanager
def _folder(request: PublishRequest, source: _Source) -> Iterator[Path]:
    """Yield an empty folder: the named one, or one in the run folder, which is removed at the end of an upload.

    One that the same run has written, and nobody has changed, is written anew.
    """
    run, former = source.run, None
    target = request.output or (run.path / "publish" if request.dry_run else None)
    if target is None:
        for left in run.path.glob(f"{_TEMPORARY}*"):  # by a process that was killed
            if time.time() - left.stat().st_mtime > _LEFT_BEHIND_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
        with files.writing("RUN", run.path):
            temporary = tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=run.path)
        with temporary as name:
            yield Path(name)
        return
    with files.writing("output", target):
        if _is_own(target, source.run_id):
            former = files.temporary_name(target)
            storage.rename(target, former)
        elif target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UserError(
                "it exists already" if target.is_dir() else "this is a file",
                code="folder-not-empty",
                field="output",
                value=str(target),
                remedy="remove it, or name another folder with --output",
            )
        target.mkdir(parents=True, exist_ok=True)
    try:
        yield target
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)  # which was empty, so that the same command can be given again
        if former is not None:
            storage.rename(former, target)
        raise
    if former is not None:
        storage.rmtree_if_possible(former)


def _is_own(folder: Path, run_id: str) -> bool:
    """Return whether a folder holds what this run has published, and no file that its card does not name, or is newer."""
    file = folder / _CARD
    try:
        text = file.read_text("utf-8", "replace")
        written = file.stat().st_mtime_ns  # the last of all
        others = [path for path in folder.rglob("*") if path.is_file() and path != file]
        is_as_written = all(path.stat().st_mtime_ns <= written for path in others)
    except OSError:
        return False
    named = {*re.split(r"[\s()]", text)}  # links of tables, and addresses of previews
    return (
        is_as_written
        and card.is_own(text, run_id)
        and named.issuperset(p.relative_to(folder).as_posix() for p in others)
    )


def _write(request: PublishRequest, source: _Source, folder: Path) -> tuple[list[str], Licence | None]:
    """Write all files, and return notes on what the card lacks, and the licence that it names."""
    base, notes = request.base or source.base, list[str]()
    is_known = request.base or neutral.hub_id("model.weights", source.recipe.model.weights, source.trained.on_hub)
    weights = _write_weights(request, source, folder, base)
    previews, preview_step = _write_previews(source, folder)
    named = (request.license or "").strip() or source.recipe.model.license
    licence = Licence.named(named) if named else None
    if not named and base is not None:
        licence = hub_repository.licence_of(base)
    trigger = request.trigger or card.trigger_of(source.recipe)
    if licence is None:
        notes.append("the licence is not known: name it with --license")
    elif licence.license_name is not None and licence.license_link is None:
        notes.append(f"the hub has no licence {licence.license_name}: the card says other, with this name")
    if base is None and source.recipe.model.weights is not None:
        notes.append("no base model is named; --base names the hub id of one")
    elif base is not None and not is_known:
        notes.append(f"the base is taken to be {base}, since model.weights is no hub id; --base names another")
    if trigger is None:
        notes.append("no trigger word is named; --trigger names one")
    if not previews:
        notes.append("there are no previews: samples.prompts of a recipe makes them")
    drawn = source.recipe
    if drawn.samples.has_model:  # previews are drawn with another model, and by its settings
        drawn = drawn.model_copy(update={"samples": type(drawn.samples)(fps=drawn.samples.fps)})
    data = source.trained.parts[-1].data
    shape = defaults.shape(data, source.recipe, picture=bool(previews) and previews[0].path.endswith(".png"))
    text = Card(
        request.to,
        source.run_id,
        base,
        licence,
        trigger,
        weights,
        previews,
        preview_step,
        source.trained,
        shape,
        defaults.sampled(drawn),
        defaults.fps(data, source.recipe),
    ).to_text()
    for part in source.trained.parts:
        files.write_bytes(folder / part.file, recipe_file.dump(part.recipe).encode())
    files.write_bytes(folder / _CARD, text.encode(errors="replace"))
    return notes, licence


def _write_weights(
    request: PublishRequest, source: _Source, folder: Path, base: str | None
) -> list[tuple[str, str | None]]:
    """Export the weights, and return each file with the convention of its names, None for full weights."""
    name = request.to.partition("/")[2]
    formats: Any = request.formats or (source.recipe.exports.formats if source.recipe.lora is not None else [])
    how: dict[str, Any] = {"ema": not request.raw_weights, "dtype": request.dtype}
    written: list[tuple[str, str | None]] = []
    for format in dict.fromkeys(formats) or [None]:
        names = {None: f"{name}.safetensors", "diffusers": _LORA_FILE}
        target = folder / names.get(format, f"{name}-{format}.safetensors")
        for path in export_run.export(source.checkpoint, target, format=format, **how).files:
            if path.suffix == ".safetensors":
                neutral.rewrite_header(path, base)
            written.append((path.name, format))
    return written


def _write_previews(source: _Source, folder: Path) -> tuple[list[PublishedPreview], int | None]:
    """Copy the newest previews up to the step, and return them with their step.

    Those that cannot be read are left out with a warning.
    """
    made = [e for e in events.timeline(source.run.events_file, "samples") if e["step"] <= source.step]
    samples, written = source.run.samples_folder.resolve(), list[PublishedPreview]()
    for event in made[-1:]:
        names = event.get("files", [])
        prompts = [*event.get("prompts", []), *[""] * len(names)]
        for number, (name, prompt) in enumerate(zip(names, prompts, strict=False)):
            preview = (samples / str(name)).resolve()
            if preview.suffix not in (".png", ".mp4", ".webm") or not preview.is_relative_to(samples):
                continue
            path = f"{_PREVIEWS}/{number:02d}{preview.suffix}"
            (folder / _PREVIEWS).mkdir(exist_ok=True)
            try:
                neutral.copy_preview(preview, folder / path)
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in files.FULL:  # which is no fault of the preview
                    raise files.unwritable("output", folder, error) from error
                (folder / path).unlink(missing_ok=True)
                logger.warning("a preview is left out: %s cannot be read (%s)", preview, error)
            else:
                written.append(PublishedPreview(path, str(prompt)))
    return written, made[-1]["step"] if written else None
