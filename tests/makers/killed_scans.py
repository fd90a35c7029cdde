"""Pictures to scan while something dies, and what there is to see of the scan."""

from __future__ import annotations

from pathlib import Path

import media_makers as media

from reelworks.data.catalog.store.store import Catalog


def write_pictures(folder: Path, count: int) -> Path:
    """Write a captioned folder of small pictures with distinct contents, of which every ninth is broken."""
    folder.mkdir()
    picture = media.write_picture(folder / "0.png").read_bytes()
    for i in range(1, count):
        (folder / f"{i}.png").write_bytes(picture + bytes([i]) if i % 9 else b"broken")
        (folder / f"{i}.txt").write_text(f"caption {i}", encoding="utf-8")
    return folder


def shown(catalog: Path) -> tuple[object, str]:
    """Return all that a catalog says."""
    opened = Catalog.open(catalog)
    return opened.live().to_table().to_pylist(), opened.digest()


def lines(file: Path) -> int:
    """Count the lines of a file that may not be there yet."""
    return file.read_bytes().count(b"\n") if file.exists() else 0
