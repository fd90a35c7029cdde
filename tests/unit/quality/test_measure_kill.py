"""A measuring that is killed at any moment goes on where it was, and the catalog is that of one which was not."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import drawn_scenes as drawn
import killing
import numpy as np
import pytest
from killed_scans import lines, shown

from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan.scan import scan_sources

CLIPS, IN_FLIGHT = 160, 4 * 4 + 1


def begin(catalog: Path, noted: Path) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("measure_and_die.py")
    return subprocess.Popen([sys.executable, str(script), str(catalog), str(noted)])


@pytest.mark.slow
def test_a_killed_measuring_goes_on(tmp_path: Path) -> None:
    data, noted, draw = tmp_path / "data", tmp_path / "noted", random.Random(3)
    data.mkdir()
    for i in range(CLIPS):
        drawn.write_picture(data / f"{i}.png", np.full((8, 8, 3), i, dtype=np.uint8))
    for name in ("killed", "whole"):
        scan_sources([Source("d", data)], tmp_path / name, workers=1)
    for until in sorted(draw.sample(range(20, CLIPS - 20), 3)):
        process = begin(tmp_path / "killed", noted)
        while lines(noted) < until and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        assert process.wait() == killing.KILLED
        time.sleep(1.5)  # its decoders end when they see that it is gone
    assert begin(tmp_path / "killed", noted).wait() == 0
    assert CLIPS <= lines(noted) <= CLIPS + 3 * IN_FLIGHT
    assert begin(tmp_path / "whole", tmp_path / "other").wait() == 0
    assert shown(tmp_path / "killed") == shown(tmp_path / "whole")
    before = lines(noted)
    assert begin(tmp_path / "killed", noted).wait() == 0
    assert lines(noted) == before
