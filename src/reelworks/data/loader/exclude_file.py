"""Add clips to a file that lists clips not to train, which a recipe names as its `exclude_file`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reelworks.core import files
from reelworks.core.errors import UserError
from reelworks.data.loader import eligibility

_OTHER_FILES = (".toml", ".parquet")
RENAME = "rename the file without line breaks, and without spaces or # at its ends"


def is_listable(label: str) -> bool:
    """Whether a line of a text file can name a clip."""
    return label == label.strip() and not label.startswith("#") and "\n" not in label and "\r" not in label


def append(file: Path, labels: Sequence[str], *, field: str = "exclude_file") -> int:
    """Append clips to a list, which is made if it is not there, also for none; lines that it has stay as they are.

    Args:
        labels: "dataset/path" of each clip, with the frames of a range.
        field: Option or key that names the file.

    Returns:
        The number of clips that it did not list before.

    Raises:
        UserError: A line cannot name a clip, or the file is no list, or cannot be read or written.
    """
    if file.suffix.lower() in _OTHER_FILES:
        raise UserError(
            "a list of clips not to train is a text file, and no recipe or table",
            code="not-a-list",
            field=field,
            value=str(file),
            remedy=f"name {file.with_suffix('.txt').name}, which is made if it is not there",
        )
    for label in labels:
        if not is_listable(label):
            raise UserError(
                "a line of a list cannot name this clip",
                code="clip-not-listable",
                field="exclude_file",
                value=label,
                remedy=RENAME,
            )
    known = set(eligibility.read_exclude_list(str(file)).lines) if file.exists() else set()
    new = [label for label in dict.fromkeys(labels) if label not in known]
    if new or not file.exists():
        text = read(file)
        text += "\n" * bool(text and not text.endswith("\n")) + "".join(f"{label}\n" for label in new)
        files.write_for(field, file, text.encode())
    return len(new)


def read(file: Path) -> str:
    """Return the text of a list with its line ends as they are; "" if it is not there."""
    if not file.exists():
        return ""
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            return opened.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"the file cannot be read ({error})",
            code="file-unreadable",
            field="exclude_file",
            value=str(file),
            remedy="check its permissions, and that it is UTF-8",
        ) from error
