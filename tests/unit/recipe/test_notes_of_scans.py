"""What a scan has to say of footage is told by whatever scans it, once."""

from __future__ import annotations

import logging
from pathlib import Path

import prepare_files
import pytest

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
