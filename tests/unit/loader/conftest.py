"""Pictures that say which they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Picture `i` is of grey `i`."""
    folder = tmp_path_factory.mktemp("pictures")
    paths = [folder / f"{i:02}.png" for i in range(24)]
    for i, path in enumerate(paths):
        Image.new("L", (16, 16), i).save(path)
    return paths
