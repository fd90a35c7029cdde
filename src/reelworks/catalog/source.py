"""Sources of a dataset's clips: a folder that is searched, or a list of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LISTS = (".csv", ".parquet", ".jsonl")


def is_list(path: str | Path) -> bool:
    """Tell a list of files from a folder, by its name alone."""
    return Path(path).suffix.lower() in LISTS


@dataclass(frozen=True)
class Source:
    """A dataset; the name is part of its clips' identity.

    Attributes:
        name: Of the dataset.
        root: Folder that its files lie below.
        list_file: The list that names them; None where the folder is searched.
    """

    name: str
    root: Path
    list_file: Path | None = None

    @classmethod
    def from_path(cls, path: str | Path, name: str | None = None, root: str | Path | None = None) -> Source:
        """Make a source of what a recipe or a command line has.

        Args:
            path: A folder, or a list named as one of `LISTS`.
            name: The folder's name, or the list's without its ending, unless given.
            root: Folder that a list's paths are relative to; the list's own unless given.
        """
        path = Path(path)
        if is_list(path):
            return cls(name or path.stem, path.parent if root is None else Path(root), path)
        return cls(name or path.resolve().name, path)
