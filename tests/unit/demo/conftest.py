from __future__ import annotations

from pathlib import Path

import pytest

from reelworks.demo import make
from reelworks.demo.make import DemoSummary


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoSummary:
    folder: Path = tmp_path_factory.mktemp("demo") / "data"
    return make.make(folder)
