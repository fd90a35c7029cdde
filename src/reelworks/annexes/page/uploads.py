"""Footage that the browser sends: written to a temporary file, and renamed when it is complete."""

from __future__ import annotations

import os
import re
import shutil
import threading
import uuid
from contextlib import suppress
from pathlib import Path

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from reelworks.annexes.page.workspace import Workspace
from reelworks.core import storage, system
from reelworks.core.errors import UserError
from reelworks.data.catalog.scan import caption_names
from reelworks.data.media import formats

FOLDER = "footage"  # in the first root
_NAME = re.compile(r"[^\W_][^\x00-\x1f/\\:*?\"<>|]{0,149}")
_MOST_FOLDERS = 4  # inside of the one that is uploaded
_KEPT_FREE_BYTES = 500_000_000
_TEMPORARY = ".upload-"
_places = threading.Lock()


def target(workspace: Workspace, name: str, file: str) -> Path:
    """Return where a file of an upload belongs; raises `UserError` if it may not be written."""
    parts = file.split("/")
    if len(parts) > _MOST_FOLDERS + 1 or not all(is_name(part) for part in (name, *parts)):
        raise UserError(
            "this is no name for a file of footage",
            code="name-invalid",
            field="file",
            value=f"{name}/{file}",
            remedy="rename it: begin with a letter or digit, and leave out signs that file systems give a meaning",
        )
    if not is_taken(parts[-1]):
        raise UserError(
            "it is neither a picture, a video nor a caption",
            code="upload-not-taken",
            field="file",
            value=file,
            remedy=f"send files that scans read, and captions as {caption_names.SUFFIX}",
        )
    path = workspace.roots[0].joinpath(FOLDER, name, *parts)
    links = [p for p in (path, *path.parents) if p.is_relative_to(workspace.roots[0] / FOLDER) and p.is_symlink()]
    if links or not workspace.holds(path):
        raise UserError(
            "it leads through a link, and uploads follow none",
            code="outside-of-folders",
            field="file",
            value=f"{name}/{file}",
            remedy="choose another name for the footage",
        )
    return path


def is_taken(name: str) -> bool:
    """Return whether a file is footage or a caption, by its suffix."""
    return formats.kind_of(name) is not None or formats.extension_of(name) == caption_names.SUFFIX


def is_name(name: str) -> bool:
    """Return whether a file of the browser may have this name here."""
    return bool(_NAME.fullmatch(name)) and not name.endswith((".", " ")) and system.is_file_name(name)


async def receive(request: Request, path: Path) -> int:
    """Write the body of a request to a new file; a request that breaks off leaves nothing.

    Returns:
        Its number of bytes.

    Raises:
        UserError: The file exists, is not complete, or would not fit on the disk.
    """
    announced = _content_length(request)
    _require_new(path)
    made = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, written = path.with_name(f"{_TEMPORARY}{uuid.uuid4().hex}"), -1
    try:
        _require_space(path.parent, announced)
        with suppress(ClientDisconnect):
            written = await _write(request, temporary, announced)
        if written != announced:
            raise UserError(
                f"{max(written, 0):,} of {announced:,} bytes have arrived",
                code="upload-cut-off",
                field="file",
                value=path.name,
                remedy="send it again",
            )
        await run_in_threadpool(_place, temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
        for folder in made:  # innermost first; those that hold a file stay
            with suppress(OSError):
                folder.rmdir()
    return written


def _require_new(path: Path) -> None:
    if path.exists():
        raise UserError(
            "a file of this name exists already",
            code="file-exists",
            field="file",
            value=path.name,
            remedy="choose another name for the footage",
        )


def _place(temporary: Path, path: Path) -> None:
    with _places:  # another upload of the name may have ended meanwhile
        _require_new(path)
        storage.rename(temporary, path)


def _content_length(request: Request) -> int:
    text = request.headers.get("content-length", "")
    if not text.isdecimal():
        raise UserError(
            "the request does not say how large the file is",
            code="upload-cut-off",
            field="Content-Length",
            value=text,
            remedy="send it whole",
        )
    return int(text)


def _require_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free - _KEPT_FREE_BYTES:
        raise UserError(
            f"the file has {size:,} bytes, and of {free:,} free ones {_KEPT_FREE_BYTES:,} are kept free",
            code="upload-too-large",
            field="file",
            value=size,
            remedy="free disk space, or start the page in a folder of another disk",
        )


async def _write(request: Request, temporary: Path, announced: int) -> int:
    written = 0
    with temporary.open("xb") as file:
        async for chunk in request.stream():
            written += len(chunk)
            if written > announced:
                break
            await run_in_threadpool(file.write, chunk)
        await run_in_threadpool(file.flush)
        await run_in_threadpool(os.fsync, file.fileno())
    return written
