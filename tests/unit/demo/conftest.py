from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from reelworks.core import system
from reelworks.demo import make
from reelworks.demo.make import DemoSummary


@pytest.fixture(scope="session")
def demo() -> DemoSummary:
    """The demo's footage, which takes long to make: all test processes share it, and none writes into it."""
    shared = Path(os.environ["XDG_CACHE_HOME"])
    told = shared / "demo.pickle"
    with (shared / "demo.lock").open("w", encoding="utf-8") as lock:
        system.lock(lock.fileno(), wait=True)
        if not told.exists():
            told.write_bytes(pickle.dumps(make.make(shared / "demo")))
    summary: DemoSummary = pickle.loads(told.read_bytes())
    return summary
