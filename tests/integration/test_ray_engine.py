"""A real Ray cluster on this machine scans and encodes what this process does by itself, whatever dies on the way."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import media_makers as media
import psutil
import pytest
import ray_child
from test_stored_latents import CAPTIONS, CLIPS, checksums

from reelworks.catalog import journal
from reelworks.catalog.config import Source
from reelworks.catalog.scan import scan_sources
from reelworks.catalog.store import Catalog
from reelworks.core.errors import UserError
from reelworks.encoders.store import EncodedStore

FILES = 240
Recipe = dict[str, Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster of two CPUs, to which this process is connected; its address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]))
        ray = pytest.importorskip("ray")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        patch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
        yield os.environ["RAY_ADDRESS"]
        ray.shutdown()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    media.write_picture(folder / "0.png")
    for i in range(1, FILES):
        (folder / f"{i}.png").write_bytes((folder / "0.png").read_bytes() + bytes([i]) if i % 9 else b"broken")
        (folder / f"{i}.txt").write_text(f"caption {i}")
    return folder


def shown(catalog: Path) -> tuple[object, str]:
    opened = Catalog.open(catalog)
    return opened.live().to_table().to_pylist(), opened.digest()


def test_scans_are_equal(cluster: str, data: Path, tmp_path: Path) -> None:
    here = scan_sources([Source("d", data)], tmp_path / "here", workers=2)
    there = scan_sources([Source("d", data)], tmp_path / "there", workers=2, engine="ray")
    assert there == here
    assert shown(tmp_path / "there") == shown(tmp_path / "here")
    (data / "1.png").write_bytes(b"broken too")
    assert scan_sources([Source("d", data)], tmp_path / "there", workers=2, engine="ray").changed == 1
