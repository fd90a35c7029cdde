"""Trackers of a run: TensorBoard, and by choice Weights & Biases and Trackio, which get the same curves.

Only the main rank has trackers. One that fails is told once and never ends a training: TensorBoard's files go on where they
were when the disk has room again, and the others are left out from then on.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import math
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, final

from pydantic import BaseModel
from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

from reelworks.core import storage
from reelworks.core.config import Publish
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.run.config import ADDED_TRACKERS, LoggingConfig
from reelworks.data.run.folder import RunFolder
from reelworks.training.recipe.recipe import Recipe

_RETRY_SECONDS = 10.0  # after a write that failed
_MOST_WAITING = 100_000  # records that wait for a disk, of some hundred bytes each
# wandb would add the machine's name, the command line, paths of programs, packages, and a git repository's commit and address.
_NO_FINDS = {"disable_git": True, "disable_code": True, "x_disable_meta": True, "x_save_requirements": False}
_AROUND = re.compile(r"^[\w+.-]+://[^/]*|[?#].*")  # host and signature of an address
_CLOSE_SECONDS = 60.0  # for what is not uploaded yet at the end


class Tracker(Protocol):
    """Receives what a run logs."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add the values of curves at a step, counted from 1; several calls for one step add up."""

    def show(self, step: int, files: Sequence[Path], prompts: Sequence[str]) -> None:
        """Show previews, pictures or clips, with their prompts."""

    def close(self, *, failed: bool) -> None:
        """End; `failed` tells that training ended with an error."""


@final
class TensorBoard:
    """TensorBoard's files in the run folder; they have no previews, which lie beside them as files.

    Nothing waits but for a disk that fails: whoever is killed has the curves of all steps that a resume does not repeat.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        now, host = time.time(), socket.gethostname()
        # TensorBoard reads files with "tfevents" by the order of their names; the clock of a former start may have been ahead.
        former = (int(file.name.split(".")[3]) + 1 for file in folder.glob(f"events.out.tfevents.{'[0-9]' * 10}.*"))
        number = max([int(now), *former])
        self._file = folder / f"events.out.tfevents.{number:010d}.{host}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
        # Steps that a start repeats must not be in the curves twice: the second event voids those of former files, and
        # that of a start from the beginning also step 0, which is validated again.
        purged = {"wall_time": now, "step": first_step + 1 if first_step else 0}
        self._waiting = [
            Event(file_version="brain.Event:2", **purged),
            Event(session_log=SessionLog(status=SessionLog.START), **purged),
        ]
        self._size, self._retry_at = 0, 0.0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add values to curves."""
        # One record: a scalar of its own for each value would be one each.
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._waiting.append(Event(wall_time=time.time(), step=step, summary=Summary(value=scalars)))
        if time.monotonic() >= self._retry_at:
            self._write()

    def _write(self) -> None:
        """Append what waits; while the disk fails it goes on waiting, up to some number of records."""
        records = io.BytesIO()
        for event in self._waiting:
            RecordWriter(records).write(event.SerializeToString())
        try:
            storage.mkdirs(self._file.parent)
            storage.append(self._file, records.getvalue())
        except OSError as error:
            with suppress(OSError):  # half a record would end the curves for a reader
                os.truncate(self._file, self._size)
            del self._waiting[_MOST_WAITING:]
            if not self._retry_at:
                logger.warning("TensorBoard's curves cannot be written now, and will be when they can: %s", error)
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            return
        self._size += records.tell()
        self._waiting.clear()

    def show(self, step: int, files: Sequence[Path], prompts: Sequence[str]) -> None:
        """Leave previews out."""

    def close(self, *, failed: bool) -> None:
        """Write what is left."""
        self._write()


@final
class Wandb:
    """Weights & Biases: all starts of a run folder go on in one run, whose id is the folder's.

    Values are logged beside their step and not by wandb's own count, which refuses steps that a resume repeats. A run
    that cannot log in is kept in `wandb/` of the run folder, for `wandb sync`.
    """

    def __init__(self, run: RunFolder, recipe: Recipe) -> None:
        self._wandb: Any = importlib.import_module("wandb")
        config = recipe.logging
        begin = {
            "project": config.project,
            "entity": config.entity,
            "name": config.name or run.path.name,
            "id": run.info().id,
            "dir": str(run.path),
            "tags": config.tags or None,
            "config": config_of(recipe),
            "allow_val_change": True,  # a resumed run may have another recipe
            # The progress on the terminal stays as it is.
            "settings": self._wandb.Settings(console="off", silent=True, host="", **_NO_FINDS),
        }
        try:
            self._run = self._begin(begin, offline=config.offline)
        except Exception as error:  # no key, or no network
            logger.warning(
                "wandb: %s; this run is kept in %s, and `wandb sync` uploads it", _first_line(error), run.path / "wandb"
            )
            self._run = self._begin(begin, offline=True)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        if not self._run.offline:
            logger.info("wandb: %s", self._run.url)

    def _begin(self, begin: dict[str, Any], *, offline: bool) -> Any:
        if offline:
            return self._wandb.init(**begin, mode="offline")
        if self._wandb.setup().settings.mode not in ("offline", "disabled") and not self._wandb.login(prompt=False):
            raise PermissionError("no API key is configured")  # wandb would ask for it, and wait
        return self._wandb.init(**begin, resume="allow")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add values to curves."""
        self._run.log({"step": step, **values})

    def show(self, step: int, files: Sequence[Path], prompts: Sequence[str]) -> None:
        """Upload previews."""
        shown: dict[str, Any] = {}
        for path, prompt in zip(files, prompts, strict=True):
            kind, form = (self._wandb.Image, {}) if path.suffix == ".png" else (self._wandb.Video, {"format": "mp4"})
            shown[f"samples/{path.stem}"] = kind(str(path), caption=prompt, **form)
        self._run.log({"step": step, **shown})

    def close(self, *, failed: bool) -> None:
        """Upload what is left."""
        self._run.finish(exit_code=int(failed))


@final
class Trackio:
    """Trackio, in its folder on this machine (TRACKIO_DIR), or where its environment variables say."""

    def __init__(self, run: RunFolder, recipe: Recipe) -> None:
        self._trackio: Any = importlib.import_module("trackio")
        config = recipe.logging
        # It knows a run by its name, which another run folder may have too.
        name = f"{config.name or run.path.name}-{run.info().id[:6]}"
        self._run = self._trackio.init(config.project, name=name, config=config_of(recipe), resume="allow", embed=False)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add values to curves."""
        self._run.log(dict(values), step=step)

    def show(self, step: int, files: Sequence[Path], prompts: Sequence[str]) -> None:
        """Copy previews."""
        kinds = {".png": self._trackio.Image, ".mp4": self._trackio.Video}
        parts = zip(files, prompts, strict=True)
        shown = {f"samples/{path.stem}": kinds[path.suffix](str(path), caption=text) for path, text in parts}
        self._run.log(shown, step=step)

    def close(self, *, failed: bool) -> None:
        """Write what is left."""
        self._run.finish()


@final
class Guarded:
    """A tracker whose failures are told once; after the first one it is left out."""

    def __init__(self, name: str, start: Callable[[], Tracker]) -> None:
        self._name = name
        self._tracker: Tracker | None = None
        self._tracker = self._try(start)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add the finite values to curves."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        if (tracker := self._tracker) is not None and finite:
            self._try(lambda: tracker.log(step, finite))

    def show(self, step: int, files: Sequence[Path], prompts: Sequence[str]) -> None:
        """Show previews."""
        if (tracker := self._tracker) is not None and files:
            self._try(lambda: tracker.show(step, files, prompts[: len(files)]))

    def close(self, *, failed: bool) -> None:
        """End, and wait a minute at most, as without a network an upload may never end."""
        if (tracker := self._tracker) is None:
            return
        closing = threading.Thread(target=lambda: self._try(lambda: tracker.close(failed=failed)), daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
        if closing.is_alive():
            logger.warning("%s has not finished after %.0f seconds, and is left behind", self._name, _CLOSE_SECONDS)
        self._tracker = None

    def _try(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call; None if it fails."""
        try:
            return call()
        except Exception as error:  # a tracker may raise anything
            self._tracker = None
            logger.warning("%s failed, and logs nothing more: %s", self._name, _first_line(error))
            return None


def config_of(recipe: Recipe) -> dict[str, Any]:
    """Return what trackers get of a recipe: of places the last names; what is about the machine or its user is left out.

    Which keys are such, each says beside its type (`core.config.Publish`), for recipes that are published too.
    """
    return _told(recipe, recipe.model_dump(mode="json"))


def _told(config: BaseModel, values: dict[str, Any]) -> dict[str, Any]:
    told = {}
    for name, field in type(config).model_fields.items():
        own, value, publish = getattr(config, name), values[name], Publish.decision_on(field)
        if publish in (Publish.WORD, Publish.WEIGHTS):
            told[name] = [_last_name(place) for place in own] if isinstance(own, list) else own and _last_name(own)
        elif publish is None and isinstance(own, BaseModel):
            told[name] = _told(own, value)
        elif publish is None and isinstance(own, list) and own and isinstance(own[0], BaseModel):
            told[name] = [_told(*each) for each in zip(own, value, strict=True)]
        elif publish is not Publish.DEFAULT:
            told[name] = value
    return told


def _last_name(place: str) -> str:
    """Return the last name of a path or address, without the host, the signature and the parts of a chain."""
    return re.split(r"[/\\]", _AROUND.sub("", place.rpartition("::")[2]).rstrip("/\\"))[-1]


_TRACKERS: dict[str, Callable[[RunFolder, Recipe], Tracker]] = {"wandb": Wandb, "trackio": Trackio}


def register(name: str, tracker: Callable[[RunFolder, Recipe], Tracker]) -> None:
    """Let recipes of this process name a tracker in `logging.trackers`, which is made with the run and its recipe."""
    if name in _TRACKERS or name in ADDED_TRACKERS:
        raise UserError(
            f"two trackers have the name {name!r}",
            code="duplicate-tracker-name",
            field="tracker",
            value=name,
            remedy="choose another name",
        )
    ADDED_TRACKERS[name] = tracker


def start(run: RunFolder, recipe: Recipe, first_step: int) -> list[Tracker]:
    """Start TensorBoard and a recipe's trackers."""
    makers = _TRACKERS | ADDED_TRACKERS
    added = [Guarded(name, partial(makers[name], run, recipe)) for name in dict.fromkeys(recipe.logging.trackers)]
    return [Guarded("TensorBoard", lambda: TensorBoard(run.tensorboard_folder, first_step)), *added]


def require_installed(config: LoggingConfig) -> None:
    """Check that the packages of a recipe's trackers are installed."""
    for name in config.trackers:
        if name not in ADDED_TRACKERS and importlib.util.find_spec(name) is None:
            raise UserError(
                f"the package {name} is not installed",
                code="tracker-package-missing",
                field="logging.trackers",
                value=name,
                remedy=f"pip install {name}, or leave it out",
            )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
