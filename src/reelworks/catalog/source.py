"""Sources of a dataset's clips: a folder that is searched, or a list of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LISTS = (".csv", ".parquet", ".jsonl")


def is_list(path: str | Path) -> bool:
    """Return whether a path is a list of files rather than a folder, by its suffix alone."""
    return Path(path).suffix.lower() in LISTS


@dataclass(frozen=True)
class Source:
    """A folder or list of clips under a name, which is part of the clips' identity.

    Attributes:
        name: Name of the dataset.
        root: Folder that contains its files.
        list_file: List of the files; None if the folder is searched.
    """

    name: str
    root: Path
    list_file: Path | None = None

    @classmethod
    def from_path(cls, path: str | Path, name: str | None = None, root: str | Path | None = None) -> Source:
        """Make a source from the values of a recipe or command line.

        Args:
            path: A folder, or a list with a suffix of `LISTS`.
            name: Name of the dataset; default: that of the folder, or of the list without its suffix.
            root: Folder that a list's paths are relative to; default: the folder of the list.
        """
        path = Path(path)
        if is_list(path):
            return cls(name or path.stem, path.parent if root is None else Path(root), path)
        return cls(name or path.resolve().name, path)
