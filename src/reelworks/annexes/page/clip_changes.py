"""Change captions beside the media, and lists of clips that are left out; no media file is ever changed or deleted."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from reelworks.annexes.page import recipe_files
from reelworks.annexes.page.clips import ClipView
from reelworks.annexes.page.library import DataSource
from reelworks.annexes.page.workspace import Workspace
from reelworks.core import files, toml
from reelworks.core.errors import UserError
from reelworks.data.catalog.scan import caption_names, caption_texts
from reelworks.data.catalog.store.rows import without_range
from reelworks.data.loader import decode_requests, exclude_file
from reelworks.data.loader.exclude_file import ExcludeList
from reelworks.training.recipe import toml_text
from reelworks.training.recipe.dataset import RecipeData

_lists = threading.Lock()  # a list is read and written again as one


@dataclass(frozen=True)
class CaptionPlace:
    """The origin of a clip's caption.

    Attributes:
        file: The text file beside the media that is written; None if the caption cannot be changed here.
        source: Where the caption comes from, for people.
    """

    file: Path | None
    source: str


def caption_place(workspace: Workspace, clips: ClipView, row: int) -> CaptionPlace:
    """Return where a clip's caption comes from, and whether it can be written."""
    data, rows = clips.data, clips.data.rows
    if not isinstance(data, RecipeData):
        return CaptionPlace(None, "a catalog alone does not tell; open a recipe to change captions")
    dataset = decode_requests.dataset_of_row(data, row).place
    if dataset.list_file is not None:
        return CaptionPlace(None, f"the list {dataset.list_file}; change it there, and scan again")
    if dataset.url is not None:
        return CaptionPlace(None, f"a file at {dataset.url}, which this page does not write")
    if rows.start[row] >= 0:
        return CaptionPlace(None, "the tar archive that holds the clip; pack it again to change it")
    media = rows.file(row)
    assert isinstance(media, Path)
    if not workspace.holds(media.parent):
        return CaptionPlace(None, f"a file in {media.parent}, outside of the page's folders")
    files = caption_texts.files_beside(media)
    if len(files.read) > 1:
        return CaptionPlace(None, f"several files, {media.stem}.txt, {media.stem}.1.txt, …; change them there")
    file = caption_names.file(media, files)
    return CaptionPlace(file, str(file.name) if files.read else f"{file.name}, which is made when you save")


def write_caption(workspace: Workspace, clips: ClipView, row: int, text: str) -> Path:
    """Replace a clip's caption file atomically; return it.

    Raises:
        UserError: The caption does not come from a file beside the media, or the file cannot be written.
    """
    place = caption_place(workspace, clips, row)
    if place.file is None:
        raise UserError(
            "the caption cannot be changed here",
            code="caption-not-in-file",
            field="caption",
            value=clips.data.rows.label(row),
            remedy=f"it comes from {place.source}",
        )
    file = workspace.require(place.file)  # of a link, the file that it leads to
    _write(file, text.strip().encode("utf-8", errors="replace") + b"\n", "caption")
    return file


def leave_out(workspace: Workspace, source: DataSource, clips: ClipView, row: int) -> None:
    """Add a clip to its recipe's list of clips not to train, which is made and set if the recipe has none.

    Args:
        source: The recipe as its file is now, which `clips` may be older than.

    Raises:
        UserError: A line of a text file cannot name the clip, or a file cannot be written.
    """
    named = source.recipe.exclude_file if source.recipe else None
    file = workspace.require(Path(named) if named else source.file.with_name(f"{source.file.stem}.exclude.txt"))
    with _lists:
        exclude_file.append(file, [clips.data.rows.label(row)])
        if named is None:  # only now, so that no recipe names a list that is not there
            old = exclude_file.read(source.file)
            new = toml_text.rewrite(old, toml.parse(old) | {"exclude_file": _recipe_path(workspace, file)})
            _write(source.file, new.encode(), "RECIPE")


def take_back(workspace: Workspace, source: DataSource, clips: ClipView, row: int) -> None:
    """Remove all lines that name a clip, or its whole file, from its recipe's list of clips not to train."""
    named = source.recipe.exclude_file if source.recipe else None
    if named is None:
        return
    file = workspace.require(Path(named))
    with _lists:
        lines, rows = exclude_file.read(file).split("\n"), clips.data.rows
        name = without_range(rows.label(row))  # few lines have it
        kept = [line for line in lines if name not in line or not ExcludeList((line.strip(),)).rows(rows)[row]]
        _write(file, "\n".join(kept).encode(), "exclude_file")


def write_filter(source: DataSource, dataset: str, text: str | None, former: str | None) -> None:
    """Set the filter of a dataset of a recipe, or take it out if it is None.

    Args:
        source: The recipe.
        former: The filter that the page showed; another one in the file is not overwritten.

    Raises:
        UserError: The file was changed meanwhile, the filter is wrong, or the file cannot be written.
    """
    with _lists:
        old = exclude_file.read(source.file)
        values = toml.parse(old)
        names = [d.dataset_name for d in recipe_files.parse(values, source.file).dataset]
        first = (values.get("stage") or [{}])[0]  # which the page shows, and which may have datasets of its own
        own = first.get("dataset")
        entries = own if isinstance(own, list) else values["dataset"]
        entry = entries[names.index(dataset)] if dataset in names else None
        if entry is None or entry.get("filter") != former:
            raise UserError(
                "the dataset has another filter by now, which would be lost",
                code="file-changed",
                field="dataset.filter",
                value=None if entry is None else entry.get("filter"),
                remedy="load the page again",
            )
        entry.pop("filter", None)
        if text is not None:
            entry["filter"] = text
        recipe_files.parse(values, source.file)
        _write(source.file, toml_text.rewrite(old, values).encode(), "RECIPE")


def _recipe_path(workspace: Workspace, file: Path) -> str:
    """Return a path as a recipe names it: below the folder in which commands run, if it is there."""
    root = workspace.roots[0]
    return file.relative_to(root).as_posix() if file.is_relative_to(root) and Path.cwd() == root else str(file)


def _write(file: Path, data: bytes, field: str) -> None:
    with files.writing(field, file):
        files.write_bytes(file, data)
