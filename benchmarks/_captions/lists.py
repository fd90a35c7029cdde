"""Lists of clips: delimiters, quotes, encodings, names of columns, words for nothing, paths and formats."""

from __future__ import annotations

from pathlib import Path

from benchmarks._captions import PICTURES, Cases, pictures

CASES = Cases()
FOUR: dict[str, str | None] = {name: f"caption {i}" for i, name in enumerate(PICTURES)}


@CASES.add(FOUR)
def plain(folder: Path) -> Path:
    pictures(folder)
    (folder / "meta.csv").write_text("path,text\n" + "".join(f"{name},{text}\n" for name, text in FOUR.items()))
    return folder / "meta.csv"


@CASES.add(None, says="separate columns|no column")
def unknown_columns(folder: Path) -> Path:
    pictures(folder)
    (folder / "meta.csv").write_text("a,b\n" + "".join(f"{name},{text}\n" for name, text in FOUR.items()))
    return folder / "meta.csv"
