"""The manifest, which lists a checkpoint's files. It is written last: its presence proves a complete checkpoint."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Self

from pydantic import Field, ValidationError, model_validator

from reelworks.core import digests, files, retry, system
from reelworks.core.config import Config
from reelworks.core.errors import CommonError
from reelworks.data.checkpoint import names

FORMAT_VERSION = 2
FILE_NAME = "manifest.json"
Metrics = dict[str, float | None]


class BadCheckpoint(CommonError):  # noqa: N818
    """A checkpoint must not be loaded; `reason` says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class NewerFormat(BadCheckpoint):
    """A newer Reelworks wrote the checkpoint: it may be good, so it is neither loaded nor set aside."""


class FileEntry(Config):
    """A file of a checkpoint: its path below the checkpoint's folder, its size in bytes and its digest."""

    path: str
    size: int = Field(ge=0)
    digest: str = Field(pattern=r"^[0-9a-f]{32}$")


class Manifest(Config):
    """Contents of a checkpoint: the run that saved it, and every file."""

    format: int  # version of this schema; newer ones are refused
    step: int = Field(ge=0)
    save_id: str = Field(min_length=1)  # id that differs between two saves of one step
    created: float  # seconds since 1970
    world_size: int = Field(ge=1)  # number of ranks that wrote it; any number may load it
    run_id: str  # the run's id in `run.json`; empty outside runs
    stage: str = ""  # name of the recipe's stage that it is of; empty without stages
    cursor_digest: str | None  # digest of `cursor.json`, if there is one
    files: tuple[FileEntry, ...]  # all files except the manifest itself
    total_bytes: int = Field(ge=0)
    metrics: Metrics  # those known when it was saved; None stands for a value that was not finite
    measured_on: dict[str, str] = Field(default={})  # of metrics, digests of what they were measured on
    versions: dict[str, str]

    @model_validator(mode="after")
    def _files_add_up(self) -> Self:
        paths = [entry.path for entry in self.files]
        if len(set(paths)) != len(paths):
            raise ValueError("a file is listed twice")
        if outside := [path for path in paths if not is_inside(path)]:
            raise ValueError(f"{outside[0]!r} does not lie inside the checkpoint")
        if self.total_bytes != sum(entry.size for entry in self.files):
            raise ValueError("total_bytes is not the sum of the files")
        return self


def is_inside(path: str) -> bool:
    """Whether a path is relative, normalized and stays below the folder that it starts in."""
    pure = PurePosixPath(path)
    leaves = ".." in pure.parts or bool(system.ELSEWHERE and re.search(system.ELSEWHERE, path))
    return path == str(pure) and path != "." and not pure.is_absolute() and not leaves


def plain_metrics(metrics: Mapping[str, float]) -> Metrics:
    """Replace NaN and infinities, which JSON cannot hold, by None."""
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest durably, with a digest of its own content."""
    content = manifest.model_dump(mode="json")
    files.write_json(folder / FILE_NAME, {**content, "digest": digests.digest_json(content)})


def read(folder: Path) -> Manifest:
    """Read and validate a checkpoint's manifest.

    Raises:
        BadCheckpoint: It is missing, damaged, or of another step than the folder's name.
        NewerFormat: A newer version of Reelworks wrote it.
        OSError: The file cannot be read now; the checkpoint itself may be good.
    """
    try:
        data = retry.with_retries((folder / FILE_NAME).read_bytes)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise BadCheckpoint(f"{FILE_NAME} is missing") from error
    return parse(data, names.parse_step(folder.name))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def parse(data: bytes, step: int | None) -> Manifest:
    """Validate the content of a manifest file, of any step if `step` is None; raises as `read` does."""
    try:
        content = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{FILE_NAME} is not JSON ({error})") from error
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise BadCheckpoint(f"{FILE_NAME} has no format version")
    if content["format"] > FORMAT_VERSION:
        raise NewerFormat(
            f"{FILE_NAME} has format {content['format']}, this version of Reelworks reads up to {FORMAT_VERSION}"
        )
    if content.pop("digest", None) != digests.digest_json(content):
        raise BadCheckpoint(f"{FILE_NAME} was changed after it was written")
    try:
        # Through JSON, since strict mode accepts a list as a tuple only there.
        manifest = Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "files"
        raise BadCheckpoint(f"{FILE_NAME}: {where}: {first['msg']}") from error
    if step is not None and step != manifest.step:
        raise BadCheckpoint(f"{FILE_NAME} is of step {manifest.step}")
    return manifest
