"""The manifest: what a checkpoint consists of. Written last, so its presence says that all was written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from reelworks.checkpoint import names
from reelworks.core import digests, files, retry
from reelworks.core.config import Config

FORMAT_VERSION = 1
FILE_NAME = "manifest.json"
Metrics = dict[str, float | None]


class BadCheckpoint(Exception):  # noqa: N818
    """A checkpoint that must not be loaded; says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class NewerFormat(BadCheckpoint):
    """Written by a newer Reelworks: nothing is wrong with it, it must neither be loaded nor set aside."""


class FileEntry(Config):
    """One file: its path below the checkpoint, its size in bytes, its digest."""

    path: str
    size: int = Field(ge=0)
    digest: str = Field(pattern=r"^[0-9a-f]{32}$")


class Manifest(Config):
    """Contents of a checkpoint: the run that saved it, and every file.

    Attributes:
        format: Version of this schema; a newer one than we know is refused.
        step: Optimizer steps done.
        save_id: Tells two saves of one step apart.
        created: Seconds since 1970.
        world_size: Ranks that wrote it; any number may load it.
        run_id: The run's id in `run.json`; empty outside runs.
        cursor_digest: Digest of `cursor.json`, if there is one.
        files: All files but the manifest itself.
        total_bytes: Sum of their sizes.
        metrics: Metrics known when it was saved; None stands for a value that was not finite.
        versions: Library versions by name.
    """

    format: int
    step: int = Field(ge=0)
    save_id: str = Field(min_length=1)
    created: float
    world_size: int = Field(ge=1)
    run_id: str
    cursor_digest: str | None
    files: tuple[FileEntry, ...]
    total_bytes: int = Field(ge=0)
    metrics: Metrics
    versions: dict[str, str]

    @model_validator(mode="after")
    def _files_add_up(self) -> Self:
        paths = [entry.path for entry in self.files]
        if len(set(paths)) != len(paths):
            raise ValueError("a file is listed twice")
        if strange := [path for path in paths if not is_inside(path)]:
            raise ValueError(f"{strange[0]!r} does not lie inside the checkpoint")
        if self.total_bytes != sum(entry.size for entry in self.files):
            raise ValueError("total_bytes is not the sum of the files")
        return self


def is_inside(path: str) -> bool:
    """Say whether a relative path in plain form stays below the folder it starts in."""
    pure = PurePosixPath(path)
    return path == str(pure) and path != "." and not pure.is_absolute() and ".." not in pure.parts


def plain_metrics(metrics: Mapping[str, float]) -> Metrics:
    """Replace what JSON cannot hold: NaN and infinities become None."""
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest durably, with a digest over its own content."""
    content = manifest.model_dump(mode="json")
    files.write_json(folder / FILE_NAME, {**content, "digest": digests.digest_json(content)})


def read(folder: Path) -> Manifest:
    """Read a checkpoint's manifest strictly.

    Raises:
        BadCheckpoint: It is missing, damaged, or of another step than the folder's.
        NewerFormat: This version cannot read it.
        OSError: The file cannot be read now, which says nothing about the checkpoint.
    """
    try:
        data = retry.with_retries((folder / FILE_NAME).read_bytes)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise missing() from error
    return parse(data, names.parse_step(folder.name))


def missing() -> BadCheckpoint:
    """Make the error for a folder without a manifest."""
    return BadCheckpoint(f"{FILE_NAME} is missing")


def parse(data: bytes, step: int | None) -> Manifest:
    """Read a manifest's content as strictly as `read` does.

    Args:
        data: The content.
        step: The step that it must be of; None for any.
    """
    try:
        content = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{FILE_NAME} is not JSON ({error})") from error
    manifest = _parse(content)
    if step is not None and step != manifest.step:
        raise BadCheckpoint(f"{FILE_NAME} is of step {manifest.step}")
    return manifest


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _parse(content: Any) -> Manifest:
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise BadCheckpoint(f"{FILE_NAME} names no format version")
    if content["format"] > FORMAT_VERSION:
        raise NewerFormat(
            f"{FILE_NAME} has format {content['format']}, this version reads up to {FORMAT_VERSION}"
        )
    if content.pop("digest", None) != digests.digest_json(content):
        raise BadCheckpoint(f"{FILE_NAME} was changed after it was written")
    try:
        # By way of JSON: strict mode takes a list for a tuple only there.
        return Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "files"
        raise BadCheckpoint(f"{FILE_NAME}: {where}: {first['msg']}") from error
