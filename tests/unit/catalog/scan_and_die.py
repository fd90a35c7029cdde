"""A scan in a process of its own that notes each file that it opens: `scan_and_die.py DATA CATALOG OPENED`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan import journal, scan
from reelworks.data.media import probe

OPENED = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
REAL = probe.probe


def probed(path: Path) -> probe.Probe:
    """Note a file, and leave time to be killed."""
    os.write(OPENED, f"{path.name}\n".encode())
    time.sleep(0.003)
    return REAL(path)


probe.probe = probed  # also in processes of the scan, which import this module
if __name__ == "__main__":
    journal._SECONDS_BETWEEN_WRITES = 0.0
    scan.scan_sources([Source("d", Path(sys.argv[1]))], Path(sys.argv[2]), workers=1)
