"""What a scan has to say of footage is told by whatever scans it, once for files that stay."""

from __future__ import annotations

import logging
from pathlib import Path

import prepare_files
import pytest

from reelworks.data.catalog.store.store import Catalog
from reelworks.training.recipe import dataset


def test_a_caption_that_cannot_be_read_is_told_once_wherever_its_recipe_is_scanned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reelworks")
    data = [{"path": str(tmp_path / "data"), "missing_caption": "a scene"}]
    for name in "ab":
        prepare_files.picture(tmp_path / "data" / f"{name}.png")
    (tmp_path / "data" / "a.txt").write_bytes(b"\0" * 9)
    for _ in range(2):
        prepare_files.opened(prepare_files.recipe(tmp_path, dataset=data))
    (told,) = (line for line in caplog.messages if "no text in UTF-8" in line)
    assert "the first is a.txt" in told
    assert told in dataset.scan_recipe(prepare_files.recipe(tmp_path, dataset=data)).notes
    prepare_files.picture(tmp_path / "data" / "c.png")
    prepare_files.opened(prepare_files.recipe(tmp_path, dataset=data))
    assert caplog.messages.count(told) == 2


def test_a_scan_by_the_library_tells_it_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "reelworks")
    prepare_files.picture(tmp_path / "data" / "a.png")
    (tmp_path / "data" / "a.txt").write_bytes(b"\0" * 9)
    Catalog.scan(tmp_path / "data", to=tmp_path / "catalog")
    assert any("no text in UTF-8" in line for line in caplog.messages)
