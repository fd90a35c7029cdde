"""A run with checkpoints, a mirror whose storage can fail, and someone who listens."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkpoint_helpers import write_plain
from fsspec.implementations.local import LocalFileSystem

from reelworks.data.checkpoint.config import MirrorConfig
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.mirror.mirror import Mirror
from reelworks.data.checkpoint.mirror.remote import RemoteFilesystem
from reelworks.data.run.folder import RunFolder

_CALLS = ("put_file", "pipe_file", "rm_file", "rmdir", "cat_file", "get_file", "info", "find", "ls")


class Storage:
    """A local file system that asks before each call; what is asked may raise, wait, or do the work by halves."""

    def __init__(self, before: Callable[[int, str], None]) -> None:
        self._real, self._before, self.calls = (LocalFileSystem(auto_mkdir=True, skip_instance_cache=True), before, 0)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name not in _CALLS:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            self._before(self.calls, name)
            return real(*args, **kwargs)

        return call


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect the lines that people are told, warnings marked as such."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(  # type: ignore[method-assign]
        ("warning: " if record.levelno == logging.WARNING else "") + record.getMessage()
    )
    logger = logging.getLogger("reelworks")
    former = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(former)


@dataclass
class Told:
    """Keeps the events that a run is told."""

    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def event(self, kind: str, **fields: Any) -> None:
        self.events.append((kind, fields))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


def new_run(path: Path, *steps: int) -> RunFolder:
    """A run folder with small files of all kinds and checkpoints."""
    run = RunFolder(path)
    run.create()
    run.keep_recipe("version = 1\n")
    run.events_file.write_text('{"kind": "start"}\n', encoding="utf-8")
    for name, text in {
        "coverage/segment-000-000000-000/places.parquet": "places",
        "coverage/segment-000-000000-000/about.json": "{}",
        "coverage/catalog-000/part-000000.parquet": "rows",
        "coverage/catalog-000/catalog.json": "[1]",
        "coverage/.segment-000-000001-000.tmp/places.parquet": "half",
        "plan/plan-000-000000-000/about.json": "{}",
        "plan/summary.json": "{}",
        "catalog/part-000000.parquet": "rows",
        "catalog/catalog.json": "[1]",
        "catalog/.lock": "",
        "samples/step-000000100/00.png": "large",
        "checkpoints/pins/step-000000100": "",
        "tensorboard/events": "large",
    }.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text, encoding="utf-8")
    for step in steps:
        write_plain(CheckpointFolder(run.checkpoints_folder), step, save_id=f"save-{step}")
    return run


def place_at(path: Path, before: Callable[[int, str], None] = lambda call, name: None) -> RemoteFilesystem:
    return RemoteFilesystem(Storage(before), str(path), str(path))


def dying_from(at: int) -> Callable[[int, str], None]:
    """Return what ends each call to a storage from that number on, as when the process or the network died there."""

    def die(call: int, name: str) -> None:
        if call >= at:
            raise OSError("dead")

    return die


def mirror_of(run: RunFolder, place: RemoteFilesystem, told: Told | None = None, **keys: Any) -> Mirror:
    config = MirrorConfig(url=place.url, **keys)
    return Mirror(place, run, config, (told or Told()).event)


def copy(run: RunFolder, place: RemoteFilesystem, *steps: int, **keys: Any) -> Told:
    """Mirror checkpoints one after the other, to the end."""
    told = Told()
    mirror = mirror_of(run, place, told, **keys)
    for step in steps:
        mirror.offer(step)
        until = time.monotonic() + 120
        while mirror.in_use() and time.monotonic() < until:
            time.sleep(0.001)
    mirror.close()
    return told


def shown(place: RemoteFilesystem) -> list[int]:
    """Steps with a manifest; raises if one of them is not whole."""
    steps = [step for step in place.steps() if place.manifest_data(step) is not None]
    return [place.complete(step).step for step in steps]


def content(folder: Path) -> dict[str, bytes]:
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
