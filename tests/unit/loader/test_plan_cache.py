"""Plan files are a cache: what nobody maps any more goes, what somebody may be at stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from reelworks.data.loader import plan_cache
from reelworks.data.run.folder import RunFolder


def test_what_a_killed_process_left_half_written_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    arrays = {"uid": np.arange(3)}
    assert plan_cache.shared(run, 0, 0, 0, "a", lambda: arrays)["uid"].tolist() == [0, 1, 2]
    for name, age_seconds in (("killed", 7200.0), ("busy", 5.0)):
        (half := run.plan_folder / f".new-{name}").mkdir()
        (half / "uid.npy").write_bytes(b"half")
        os.utime(half, (time.time() - age_seconds,) * 2)
    plan_cache.drop(run, (0, 0))
    assert {path.name for path in run.plan_folder.iterdir()} == {".lock", ".new-busy", "plan-000-000000-000"}
