"""Rules of dataset settings that sd-scripts and musubi-tuner share; in targets, `*` is the number of the [[dataset]]."""

from __future__ import annotations

import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

from reelworks.annexes.imports.datasets import set_name
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome
from reelworks.annexes.imports.values import number_of

_MOST_LINES = 1_000_000


def path(value: Any, draft: ImportDraft) -> Outcome:
    """Take the path of a folder or list."""
    if not isinstance(value, str) or not value or "\0" in value:
        return Fate.TO_FILL_IN, "this is no path: set dataset.path"
    return Fate.TAKEN, draft.set("dataset.*.path", value)


def list_of_files(value: Any, draft: ImportDraft) -> Outcome:
    """Take the path of a list, and the folder to which its paths refer: the current one of relative paths."""
    found = path(value, draft)
    if found[0] is not Fate.TAKEN or draft.request.data:
        return found
    root = _root(str(value))
    if root is None:
        return Fate.TO_FILL_IN, f"{found[1]}; set dataset.root to a folder that contains all files of the list"
    return Fate.TAKEN, f"{found[1]}, {draft.set('dataset.*.root', root, 'contains the files of the list')}"


def _root(name: str) -> str | None:
    """Return the folder that contains all files of a list of JSON lines; None if it cannot be read, or has none."""
    folders = set[str]()
    try:
        with Path(name).open(encoding="utf-8-sig") as lines:
            for line in itertools.islice(lines, _MOST_LINES):
                entry = json.loads(line) if line.strip() else {}
                file = entry.get("image_path") or entry.get("video_path") or entry.get("image_path_0")
                folders |= {str(Path(str(file)).parent)} if file else set()
        root = os.path.commonpath(folders) if any(map(os.path.isabs, folders)) else "."
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return None if root == "/" or not folders or any(".." in folder.split("/") for folder in folders) else root


def finish(draft: ImportDraft, count: int) -> None:
    """Give each dataset a path, and several names of their own, by the folders' names."""
    for number in range(count):
        if draft.get(f"dataset.{number}.path") is None:
            draft.set(f"dataset.{number}.path", "pictures", "to fill in")
    for number in range(count if count > 1 else 0):
        folder = re.split(r"[/\\]", str(draft.get(f"dataset.{number}.path")).rstrip("/\\"))[-1]
        set_name(draft, number, re.sub(r"\.(jsonl|csv|parquet)$", "", folder) or f"dataset{number}")


def caption_dropout(value: Any, draft: ImportDraft) -> Outcome:
    """Take the share of empty captions, of which a recipe has one for all datasets: the largest."""
    share = number_of(value)
    if not 0 <= share <= 1:
        return Fate.NOT_POSSIBLE, "a share is from 0 to 1"
    key = "objective.caption_dropout"
    before = draft.get(key) if draft.numbers != (0,) else None  # what the model's defaults have is replaced
    if before is not None and before >= share:
        return Fate.TAKEN, f"{key} = {before}, the largest of all datasets"
    return Fate.TAKEN, draft.set(key, share)
